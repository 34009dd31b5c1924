"""The four questions of a practitioner, answered in a sentence or two each."""

import math
from typing import Any

import numpy as np

from ntk_equiv.planning._shown import number, of_members, percent, whole, with_error

STEPS = 10


def answers(plan: Any, /) -> tuple[str, ...]:
    """How many members, how long to train, how large an error, on which inputs."""
    worst = ", ".join(f"{plan.points.index[row]}{_of_class(plan, row)}" for row in plan.points.worst(5))
    inputs = f"predictions of members vary most over the orbits of these test samples, counted from 0: {worst}."
    return (
        f"How many members: {_members(plan)}",
        f"How long to train: {_time(plan)}",
        f"How long with Adam: {_adam(plan)}",
        f"How large is the error: {_error(plan)}",
        f"On which inputs: {inputs}",
    )


def place_of_time(plan: Any, /) -> int:
    """The place of the time of the plan among all times."""
    return int(np.flatnonzero(plan.times == plan.t)[0])


def class_name(plan: Any, classes: Any, row: Any, /) -> str:
    """The name of the class of a test sample, from the numbers of the classes of all; a dash if it is not known."""
    return "–" if classes is None else plan.problem["classes"][int(classes[row])]


def _of_class(plan: Any, row: Any) -> str:
    return "" if plan.points.label is None else f" ({class_name(plan, plan.points.label, row)})"


def _members(plan: Any) -> str:
    delta, sure = number(plan.settings["delta"]), f"{100 * (1 - plan.settings['epsilon']):.4g} %"
    needed, count = plan.needed, plan.problem["test_points"]
    half = f"half of the samples need at most {whole(needed.orbit_median)}"
    if needed.unreachable:
        return (
            f"no number is enough for {needed.unreachable} of {count} test samples, over whose orbits the infinite "
            f"ensemble itself deviates by {delta} or more; {half}."
        )
    return (
        f"{whole(needed.orbit_worst[0])} (with the error of sampling, at most {whole(needed.orbit_worst[2])}) make the "
        f"predictions over the orbit of any test sample agree up to {delta} with a probability of {sure}; {half}. To "
        f"be within {delta} of the infinite ensemble takes {whole(needed.mean_worst)} for any sample by itself, and "
        f"{whole(needed.mean_all[0])} for all of them ({count}) at once."
    )


def _time(plan: Any) -> str:
    stable = f"the largest that is stable is {number(plan.stable_rate)}"
    if not math.isfinite(plan.t):
        return f"to the end, t = ∞, {_reason(plan)}. For the rate of full-batch gradient descent, {stable}."
    if not plan.t:
        return f"not at all, t = 0, {_reason(plan)}."
    # The first steps of a high rate are far from gradient flow: with ten or more, they agree within a few percent.
    time = plan.t * plan.settings["learning_rate"]
    steps = max(STEPS, math.ceil(time / (plan.stable_rate / 2)))
    descent = f"{whole(steps)} steps of full-batch gradient descent at a rate of {number(time / steps)}"
    return f"to t = {number(plan.t)}, {_reason(plan)}. That is {descent}; {stable}."


def _adam(plan: Any) -> str:
    """What carries over to an optimizer that has no such time: the training error to stop at."""
    at = place_of_time(plan)
    one, infinite = plan.train.of(1)[at], plan.train.infinite[at]
    goal = (
        f"has fallen to about {number(one)}, what is expected here of one network ({number(infinite)} of the infinite "
        "ensemble)"
        if math.isfinite(plan.t)
        else "no longer falls"
    )
    return (
        "the time t is that of gradient descent, and no number of steps or epochs of Adam corresponds to it. What "
        "carries over is where to stop: train each member until its mean squared error on the training samples "
        f"{goal}, and let a validation set have the last word. Errors and numbers of members are then a guide."
    )


def _reason(plan: Any) -> str:
    if plan.settings["at"] is not None:
        return "as was asked"
    if plan.test is None:
        return "the last time, for lack of test labels to choose it by"
    edge = {0: " (no earlier one was looked at)", len(plan.times) - 1: " (no later one was looked at)"}
    error = f"the expected test error of {of_members(plan.settings['members'])}"
    return f"the first time at which {error} is within 1 % of its least{edge.get(place_of_time(plan), '')}"


def _error(plan: Any) -> str:
    if plan.test is None:
        return "unknown, because the test samples have no labels."
    at, members, test = place_of_time(plan), plan.settings["members"], plan.test
    infinite, many, one = (
        with_error(test.of(size)[at], test.standard_error(size)[at]) for size in (math.inf, members, 1)
    )
    text = (
        f"a mean squared test error of {infinite} for the infinite ensemble, expected {many} of {of_members(members)} "
        f"and {one} of one network; always predicting the mean label has {number(plan.baseline)}."
    )
    if plan.accuracy is not None:
        right, _, error = plan.accuracy.infinite
        text += f" The infinite ensemble classifies {percent(right, error)} of the test samples rightly."
    return f"{text} Behind ± is the standard error of a test set of {plan.problem['test_points']} samples."
