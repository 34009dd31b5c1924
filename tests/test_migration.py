"""The page for users of neural-tangents also holds in single precision, which most of them use."""

import doctest
from pathlib import Path

import jax

PAGE = Path(__file__).parents[1] / "docs" / "migration.md"


def test_examples_hold_in_single_precision():
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", False)
    try:
        flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
        found = doctest.testfile(str(PAGE), module_relative=False, optionflags=flags)
    finally:
        jax.config.update("jax_enable_x64", before)
    assert found.attempted > 30
    assert found.failed == 0
