"""Groups that callers pass in, checked before anything is made of them."""

from typing import Any

from ntk_equiv._check import instance
from ntk_equiv.groups._continuous import ContinuousGroup
from ntk_equiv.groups._finite import FiniteGroup


def check_finite_group(value: Any, argument: str = "group") -> FiniteGroup:
    """`value`, if it is a finite group."""
    fix = "Make one with `groups.cyclic(4)` and the like; a finite subgroup of a continuous one with its `finite`."
    return instance(value, FiniteGroup, argument, expected="a finite group", fix=fix)


def check_group(value: Any, argument: str = "group") -> FiniteGroup | ContinuousGroup:
    """`value`, if it is a group, finite or continuous."""
    fix = "Pass `groups.cyclic(4)`, `groups.SO3` and the like; the group comes first."
    return instance(value, (FiniteGroup, ContinuousGroup), argument, expected="a group", fix=fix)
