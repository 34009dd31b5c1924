"""Representations that callers pass in, checked before anything is made of them."""

from typing import Any

from ntk_equiv._check import instance, refusal
from ntk_equiv.reps._representation import Representation
from ntk_equiv.reps._vectors import trivial


def check_representation(value: Any, argument: str) -> Representation:
    """`value`, if it is a representation."""
    fix = "Make one of a group, as in `reps.rot90(groups.cyclic(4))`."
    return instance(value, Representation, argument, expected="a representation", fix=fix)


def check_actions(rep_x: Any, rep_y: Any) -> tuple[Representation, Representation]:
    """The actions on inputs and outputs, if they are of the same group; outputs are invariant where none is given."""
    rep_x = check_representation(rep_x, "rep_x")
    rep_y = trivial(rep_x.group) if rep_y is None else check_representation(rep_y, "rep_y")
    if rep_x.group != rep_y.group:
        fix = "Points and labels transform under the same group."
        raise refusal("rep_y", expected=f"of {rep_x.group.label}", got=f"of {rep_y.group.label}", fix=fix)
    return rep_x, rep_y
