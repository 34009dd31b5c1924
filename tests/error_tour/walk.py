"""Walks the tour without the checks of annotations, as users call the library; run by `test_error_tour.py`.

    python -m tests.error_tour.walk

prints what is wrong with the answer to each wrong call, as JSON: nothing where the error is one of our own.
"""

import re
import traceback
from pathlib import Path
from types import ModuleType

import jax.numpy as jnp
import numpy as np

import ntk_equiv
from ntk_equiv import orbits

NAMES = {name: getattr(ntk_equiv, name) for name in ntk_equiv.__all__} | {"orbits": orbits, "jnp": jnp, "np": np}
HOME = Path(ntk_equiv.__file__).parent
FORM = re.compile(r"`(?P<argument>[^`]+)` must be .+, got .+\. .+[.!?)`]", re.DOTALL)


def fault(call: str, argument: str, names: dict) -> str | None:
    """What is wrong with the answer to a wrong call, if something is."""
    try:
        value = eval(call, NAMES | names)
    except Exception as error:
        return _fault_of(error, argument)
    return f"accepted, with a {type(value).__name__}"


def _fault_of(error: Exception, argument: str) -> str | None:
    where = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    said = f"{type(error).__name__}: {str(error)[:300]}"
    if HOME not in where.parents:
        return f"came up from {where}: {said}"
    if not isinstance(error, ValueError | TypeError | FileNotFoundError) or not hasattr(error, "argument"):
        return f"is no refusal: {said}"
    if not hasattr(error.__cause__, "argument") and error.__cause__ is not None:
        return f"drags another error along: {said}"
    if error.argument != argument:
        return f"speaks of `{error.argument}`: {said}"
    return None if FORM.fullmatch(str(error)) else f"has another form: {said}"


def walk(table: ModuleType) -> dict[str, str | None]:
    """All calls of a table, with what is wrong with their answers."""
    return {call: fault(call, argument, vars(table)) for call, argument in table.CALLS.items()}
