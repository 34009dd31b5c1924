"""Walks the tour as users would, without the checks of annotations that the tests otherwise run under.

    python -m tests.error_tour.walk

prints for every wrong call what is wrong with the answer to it, as JSON: nothing, where the error is one of our own.
"""

import json
import re
import sys
import traceback
from pathlib import Path
from types import ModuleType

import jax.numpy as jnp
import numpy as np

import ntk_equiv
from ntk_equiv import orbits

TABLES = ("stax_calls", "symmetry_calls", "ensemble_calls", "bounds_calls", "training_calls", "data_calls")
NAMES = {name: getattr(ntk_equiv, name) for name in ntk_equiv.__all__} | {"orbits": orbits, "jnp": jnp, "np": np}
HOME = Path(ntk_equiv.__file__).parent
FORM = re.compile(r"`(?P<argument>[^`]+)` must be .+, got .+\. .+[.!?)`\"]", re.DOTALL)


def fault(call: str, argument: str, names: dict) -> str | None:
    """What is wrong with the answer to a wrong call, if something is."""
    try:
        value = eval(call, NAMES | names)
    except Exception as error:
        return _fault_of(error, argument)
    return f"is accepted, with a {type(value).__name__}"


def _fault_of(error: Exception, argument: str) -> str | None:
    where = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    said = f"{type(error).__name__}: {str(error)[:300]}"
    if HOME not in where.parents:
        return f"gets an error from {where}: {said}"
    if not isinstance(error, ValueError | TypeError | FileNotFoundError) or not hasattr(error, "argument"):
        return f"gets an error that is no refusal: {said}"
    if not hasattr(error.__cause__, "argument") and error.__cause__ is not None:
        return f"gets an error that drags another along: {said}"
    if error.argument != argument:
        return f"gets a refusal of `{error.argument}`: {said}"
    return None if FORM.fullmatch(str(error)) else f"gets a refusal of another form: {said}"


def walked(table: ModuleType) -> dict[str, str | None]:
    """All calls of a table, with what is wrong with the answers."""
    return {call: fault(call, argument, vars(table)) for call, argument in table.CALLS.items()}


if __name__ == "__main__":
    from importlib import import_module

    from tests.error_tour import commands

    found = {name: walked(import_module(f"tests.error_tour.{name}")) for name in TABLES}
    found["commands"] = {line: commands.fault(line, word) for line, word in commands.COMMANDS.items()}
    sys.stdout.write(json.dumps(found))
