"""A tour of wrong calls over the whole library: each gets an error of our own, which says what to do.

The tables `*_calls.py` hold expressions and the argument that the error must name; `commands.py` does the same for the
command line. One process evaluates them all, as users would: without the checks of annotations.
"""

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import pytest

import ntk_equiv
from tests.error_tour import walk

ROOT = Path(__file__).parents[2]
# Records, which the library makes and nobody else, and what takes no arguments are not called wrongly.
NOT_CALLED = {"Certificate", "KernelFn", "Network", "IrrepType", "Subgroup", "ContinuousGroup", "GridAction"}


@pytest.fixture(scope="module")
def tour():
    command = [sys.executable, "-m", "tests.error_tour.walk"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("table", [*walk.TABLES, "commands"])
def test_every_wrong_call_gets_an_error_of_our_own(tour, table):
    wrong = [f"{call} {fault}" for call, fault in tour[table].items() if fault]
    assert not wrong, "\n".join(wrong)


def test_the_tour_visits_every_public_function(tour):
    calls = " ".join(call for table in walk.TABLES for call in tour[table])
    for part in (name for name in ntk_equiv.__all__ if inspect.ismodule(getattr(ntk_equiv, name))):
        module = getattr(ntk_equiv, part)
        public = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
        functions = [name for name in public if _takes_arguments(getattr(module, name), module)]
        missing = [name for name in functions if not re.search(rf"\b{name}\(", calls)]
        assert not missing, f"{part}: add a wrong call of {missing} to a table of tests/error_tour"


def _takes_arguments(value, module):
    ours = inspect.isfunction(value) and value.__module__.startswith(module.__name__)
    return ours and any(p.default is p.empty for p in inspect.signature(value).parameters.values())


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        ("stax.Dense(3)", "is accepted"),
        ("jnp.ones(2) + jnp.ones(3)", "gets an error from"),
        ("stax.Dense()", "gets an error from"),
        ("stax.Dense(0) or 1", "gets a refusal of `out_dim`"),
    ],
)
def test_the_tour_notices_errors_that_are_not_ours(call, complaint):
    assert walk.fault(call, "x", {"jnp": jnp}).startswith(complaint)
