"""The four questions of a practitioner, answered in a sentence or two each."""

import math
from typing import Any

import numpy as np

from ntk_equiv.planning._shown import number, of_members, whole


def answers(plan: Any, /) -> tuple[str, ...]:
    """How many members, how long to train, how large an error, on which inputs."""
    worst = ", ".join(str(plan.points.index[row]) for row in plan.points.worst(5))
    inputs = f"predictions of members vary most over the orbits of these test points, counted from 0: {worst}."
    return (
        f"How many members: {_members(plan)}",
        f"How long to train: {_time(plan)}",
        f"How large is the error: {_error(plan)}",
        f"On which inputs: {inputs}",
    )


def place_of_time(plan: Any, /) -> int:
    """The place of the time of the plan among all times."""
    return int(np.flatnonzero(plan.times == plan.t)[0])


def _members(plan: Any) -> str:
    delta, sure = number(plan.settings["delta"]), f"{100 * (1 - plan.settings['epsilon']):.4g} %"
    needed, count = plan.needed, plan.problem["test_points"]
    half = f"half of the points need at most {whole(needed.orbit_median)}"
    if needed.unreachable:
        return (
            f"no number is enough for {needed.unreachable} of {count} test points, over whose orbits the infinite "
            f"ensemble itself deviates by {delta} or more; {half}."
        )
    return (
        f"{whole(needed.orbit_worst[0])} (with the error of sampling, at most {whole(needed.orbit_worst[2])}) make the "
        f"predictions over the orbit of any test point agree up to {delta} with a probability of {sure}; {half}. To be "
        f"within {delta} of the infinite ensemble takes {whole(needed.mean_worst)} for any point by itself, and "
        f"{whole(needed.mean_all[0])} for all of them ({count}) at once."
    )


def _time(plan: Any) -> str:
    stable = f"the largest that is stable is {number(plan.stable_rate)}"
    if not math.isfinite(plan.t):
        return f"to the end, t = ∞, {_reason(plan)}. For the rate of full-batch gradient descent, {stable}."
    rate = plan.stable_rate / 2
    steps = math.ceil(plan.t * plan.settings["learning_rate"] / rate)
    descent = f"{whole(steps)} step{'s' * (steps != 1)} of full-batch gradient descent at a rate of {number(rate)}"
    return f"to t = {number(plan.t)}, {_reason(plan)}. That is about {descent}; {stable}."


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
        return "unknown, because the test points have no labels."
    at, members, test = place_of_time(plan), plan.settings["members"], plan.test
    text = (
        f"a mean squared test error of {number(test.infinite[at])} for the infinite ensemble, expected "
        f"{number(test.of(members)[at])} of {of_members(members)} and {number(test.of(1)[at])} of one network; always "
        f"predicting the mean label has {number(plan.baseline)}."
    )
    if plan.accuracy is not None:
        text += f" The infinite ensemble classifies {100 * plan.accuracy.infinite:.4g} % of the test points rightly."
    return text
