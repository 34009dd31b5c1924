"""What a plan costs: counted pairs are those evaluated, sizes fit the time, and how much is left is told."""

import math
import time

import jax
import numpy as np
import pytest

from ntk_equiv import groups, planning, stax
from ntk_equiv.planning import Budget, Clock, Cost
from tests.planning.problems import settings

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(60, 2)), RNG.normal(size=60)
SETTINGS = {"group": "C4", "action": "matrix", "times": [1, 100], "samples": 300, "delta": 0.1}
COST = Cost(pair=1e-3, product=1e-10, group=groups.dihedral(4), reduced=True, times=26, draws=10_000)


class Counted:
    """Kernels that count the pairs of samples they are asked about, and take their time over them."""

    def __init__(self, kernel_fn, seconds=0.0):
        self.kernel_fn, self.seconds, self.evaluated = kernel_fn, seconds, 0

    def __call__(self, x1, x2=None, get=None):
        jax.debug.callback(self.count, x1.shape[0] * (x1 if x2 is None else x2).shape[0])
        return self.kernel_fn(x1, x2, get)

    def count(self, pairs):
        self.evaluated += int(pairs)
        time.sleep(self.seconds * int(pairs))

    def total(self):
        jax.effects_barrier()
        return self.evaluated


PLAIN = stax.serial(stax.Dense(1, 1.5, 0.1), stax.Relu(), stax.Dense(1)).kernel_fn


def without_symmetry(x1, x2=None, get=None):
    """The kernels of inputs of which one is stretched."""
    scale = np.array([[1.0, 2.0]])
    return PLAIN(x1 * scale, None if x2 is None else x2 * scale, get)


@pytest.mark.parametrize(("kernel_fn", "reduced"), [(PLAIN, True), (without_symmetry, False)])
def test_as_many_pairs_are_evaluated_as_were_counted_beforehand(kernel_fn, reduced):
    counted, seen = Counted(kernel_fn), {}
    n, m = 24, 10
    data = {"x_test": X[40 : 40 + m], "y_test": Y[40 : 40 + m]}
    found = planning.plan(
        X[:n], Y[:n], **data, **SETTINGS, arch=counted, progress=lambda text: seen.setdefault(text[:7], counted.total())
    )
    assert (found.problem["method"] == "reduced") is reduced
    expected = sum(Cost(0.0, 0.0, groups.cyclic(4), reduced, 2, 0).pairs(n, m).values())
    evaluated = counted.total() - seen["fitting"]
    # Few samples fit into one tile, in which both triangles of a Gram matrix are evaluated.
    assert 0.7 * expected < evaluated < (1.3 if reduced else 1.6) * expected


def problem(n=40, m=20):
    """So many training and test samples."""
    data = (X[:n], Y[:n], X[40 : 40 + m], Y[40 : 40 + m])
    return planning.prepare_problem(*data, settings(), images=False, class_names=None)


def test_the_time_of_a_pair_is_measured():
    cost = planning.measure_cost(
        Counted(PLAIN, seconds=5e-4), problem(n=20), groups.cyclic(4), reduced=True, times=2, draws=300
    )
    assert 5e-4 <= cost.pair < 0.1
    assert 0 < cost.product < 1e-6


def test_slow_kernels_get_fewer_samples_and_it_is_said_before_it_starts():
    said, cost = [], Cost(pair=1.0, product=1e-12, group=groups.cyclic(4), reduced=True, times=2, draws=1500)
    few, expected = Budget(150.0, 0, said.append, time.monotonic()).choose_samples(cost, problem())
    n, m = few.sizes
    assert 8 <= n < 40
    assert 4 <= m < 20
    (note,) = [note for note in few.notes if note.startswith("Only ")]
    assert f"Only {n} of 40 training and {m} of 20 test samples" in note
    assert "150 minutes are allowed (--minutes)" in note
    assert said[0] == "a pair of samples takes 1 s"
    assert f"only {n} training and {m} test samples are used" in said[1]
    assert said[2].startswith(f"{n} training and {m} test samples under 4 elements will take about ")
    assert expected < 0.81 * 150 * 60
    with pytest.raises(ValueError, match=r"`minutes` must be at least \d\d for 4 training and 2 test samples, got 5,"):
        Budget(5.0, 0, said.append, time.monotonic()).choose_samples(cost, problem())


@pytest.mark.parametrize("seconds", [60.0, 300.0, 3000.0, 1e5])
def test_sizes_fill_the_time_and_do_not_exceed_it(seconds):
    n, m = COST.sizes(1000, 100, seconds)
    assert COST.seconds(n, m) <= seconds
    assert (n, m) == (1000, 100) or COST.seconds(math.ceil(1.15 * n) + 1, math.ceil(1.15 * m) + 1) > seconds
    assert COST.sizes(1000, 100, math.inf) == (1000, 100)


def test_there_are_always_a_few_samples():
    slow = Cost(10.0, 1e-10, groups.dihedral(4), True, 26, 10_000)
    assert slow.sizes(1000, 100, 300.0) == (4, 2)
    assert slow.sizes(3, 2, 1e5) == slow.sizes(3, 2, 1.0) == (3, 2)


def test_kernels_that_do_not_fit_into_memory_are_refused_before_they_are_evaluated():
    """An average over all positions of 400 × 400 pixels needs 2.6e10 numbers for each pair of samples."""
    settings = {**SETTINGS, "action": "rot90", "arch": "cnn:relu:1:gap"}
    with pytest.raises(ValueError, match=r"`arch` must be a network whose kernels fit into .* of free memory"):
        planning.plan(np.zeros((4, 400, 400, 1)), Y[:4], **settings)


def test_test_samples_are_left_out_where_the_computer_became_slower():
    """A step that took 30 times as long leaves time for fewer of them; one that took as long as expected does not."""
    whole, said = problem(), []
    cost = Cost(1e-3, 1e-12, groups.cyclic(4), True, 2, 1500)
    budget = Budget(20.0, 0, said.append, time.monotonic())
    assert budget.drop_test_samples(cost, whole, 1.0) is whole
    few = budget.drop_test_samples(cost, whole, 30.0)
    assert 2 <= few.sizes[1] < 20
    assert few.x.tolist() == whole.x.tolist()  # those that it was fitted to
    assert "the computer became slower" in few.notes[-1]
    assert f"only {few.sizes[1]} test samples are used" in said[-1]
    steps = cost.steps(*few.sizes)
    assert 30 * (steps["errors"] + steps["orbits"]) <= 20 * 60


def test_the_clock_tells_how_much_is_left():
    said = []
    with Clock(said.append, {"fit": 100.0, "errors": 50.0}, every=0.02) as clock:
        clock.begin("fit", "fitting")
        assert 149 < clock.seconds_left() <= 150
        time.sleep(0.1)
        clock.begin("errors", "errors")
        assert 49 < clock.seconds_left() <= 50
        clock.expect({"fit": 100.0, "errors": 20.0})
        assert 19 < clock.seconds_left() <= 20
    assert said[0] == "fitting; about 2.5 min left"
    assert said[1].startswith("still fitting; about ")
    with Clock(said.append, {"fit": 0.01, "errors": 0.02}) as clock:
        clock.begin("fit", "fitting")
        time.sleep(0.05)
        assert clock.pace() >= 5
        clock.begin("errors", "errors")
        assert clock.seconds_left() > 0.05  # as slow as what has been
        time.sleep(0.3)
        assert clock.seconds_left() == 0
    assert said[-1] == "errors; longer than expected"
