"""Real ensembles obey the theory: wide ones that of infinite width, narrow ones the law that holds at any width."""

import dataclasses
import types

import jax
import numpy as np
import optax
import pytest

from ntk_equiv import InfiniteEnsemble, augment, ensembles, filters, groups, metrics, reps, stax

C4 = reps.matrix(groups.SO2.finite(4))
RNG = np.random.default_rng(1)
X, Y = RNG.normal(size=(4, 2)), RNG.normal(size=(4, 1))
X_TEST = RNG.normal(size=(3, 2))
ORBITS = np.asarray(C4.orbit(X_TEST)).reshape(12, 2)
RATE, STEPS, MEMBERS, WIDTH = 1.0, 8, 256, 1024
# What finite width may add, as a fraction of the largest mean and variance: measured below is 1.1 and 1.8 over width.
ALLOWANCE = 2 / WIDTH


def network(width):
    return stax.serial(stax.Dense(width, 1.4, 0.3), stax.Relu(), stax.Dense(1, 1.0, 0.2))


def trained(width, members=MEMBERS):
    data, optimizer, key = augment(X, Y, C4), optax.sgd(RATE), jax.random.key(2)
    return ensembles.train(network(width), data, members=members, steps=STEPS, optimizer=optimizer, key=key)


@pytest.fixture(scope="module")
def wide():
    return trained(WIDTH)


@pytest.fixture(scope="module")
def ens():
    descent = filters.gradient_descent(RATE)
    return InfiniteEnsemble(network(1).kernel_fn, augment(X, Y, C4), descent, reduction="mean")


def test_mean_and_variance_of_wide_networks_are_those_of_theory(wide, ens):
    found = ensembles.compare_with_theory(wide, ens, ORBITS, STEPS)
    assert found.members == MEMBERS
    assert found.holds(5, allowance=ALLOWANCE), (found.mean, found.var)
    assert found.mean.overall < 2
    assert found.var.overall < 2


def test_the_comparison_notices_other_training(wide, ens):
    """It has teeth: theory at half the time is refused by the numbers."""
    half = types.SimpleNamespace(
        reduction="mean",
        filter=ens.filter,
        train=ens.train,
        mean=lambda x, t: ens.mean(x, t // 2),
        var=lambda x, t: ens.var(x, t // 2),
    )
    assert not ensembles.compare_with_theory(wide, half, ORBITS).holds(5, allowance=ALLOWANCE)


@pytest.fixture(scope="module")
def trend(ens):
    return ensembles.compare_with_theory({width: trained(width, 4096) for width in (16, 32, 64)}, ens, ORBITS)


def test_the_deviation_from_theory_falls_as_one_over_width(ens, trend):
    assert trend.widths == (16, 32, 64)
    assert trend.comparisons[0].mean.overall > 4
    assert trend.comparisons[0].var.overall > 4
    scales = np.abs(ens.mean(ORBITS, STEPS)).max(), ens.var(ORBITS, STEPS).max()
    for (a, error, chi2), scale in zip((trend.mean, trend.var), scales, strict=True):
        assert a.shape == error.shape == (12, 1)
        assert chi2 < 2
        assert np.abs(a).max() < ALLOWANCE * WIDTH * scale + 5 * error.max()


def test_a_member_is_compared_with_the_trajectory_of_its_own_initial_function(wide, ens):
    """What pairing reports, from one member after the other, and with far smaller errors."""
    found = ensembles.compare_with_theory(wide, ens, ORBITS)
    before = ensembles.untrained(network(WIDTH), X, members=MEMBERS, key=jax.random.key(2))
    some = [0, 3, 100]
    exact = [ens.mean(ORBITS, STEPS, f0=lambda x, m=m: before.predict(x)[m]) for m in some]
    part = ensembles.compare_with_theory(wide.subset(some), ens, ORBITS)
    np.testing.assert_allclose(part.paired_mean.predicted, np.mean(exact, 0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(part.paired_var.predicted, np.var(exact, 0, ddof=1), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(found.paired_mean.observed, found.mean.observed)
    assert found.paired_mean.error.max() < found.mean.error.min() / 5
    assert found.paired_var.error.max() < found.var.error.min() / 3
    assert np.isclose(found.shift, found.paired_mean.size / np.sqrt(np.mean(found.mean.error**2)))
    assert found.shift < 1
    without = ensembles.compare_with_theory(wide, ens, ORBITS, paired=False)
    assert without.paired_mean is without.paired_var is None


def test_paired_differences_fall_as_one_over_width_and_vanish_in_the_limit(trend):
    assert trend.exponent.agrees_with(1)
    assert trend.exponent.error < 0.2
    assert trend.paired_mean.chi_squared < 3
    # Narrow members leave their own trajectories by more, so pairing gains less than at the width above.
    assert (trend.paired_mean.error < 0.7 * trend.mean.error).all()
    assert np.abs((trend.paired_mean.coefficient - trend.mean.coefficient) / trend.mean.error).max() < 5
    assert trend.limit.trustworthy, trend.limit.doubts
    assert np.abs(trend.limit.limit / trend.limit.error).max() < 4.5
    assert "exponent" in repr(trend)


def test_curves_over_time_are_those_of_runs_that_end_there(ens):
    settings = {"optimizer": optax.sgd(RATE), "key": jax.random.key(2), "members": 32}
    data, recorded = augment(X, Y, C4), {"orbits": ORBITS, "squares": (ORBITS, np.square)}
    runs = {
        width: ensembles.train(network(width), data, steps=STEPS, record=recorded, record_at=[0, 4], **settings)
        for width in (16, 64)
    }
    curve = ensembles.compare_with_theory(runs, ens, ORBITS, [0, 4, STEPS])
    assert curve.times == (0, 4, STEPS)
    assert curve.comparisons[0].paired_mean is curve.comparisons[0].exponent is None
    ended = ensembles.train(network(16), data, steps=4, **settings)
    for one, run in ((curve.of(16).comparisons[1], ended), (curve.of(16).comparisons[2], runs[16])):
        expected = ensembles.compare_with_theory(run, ens, ORBITS)
        for name in ("mean", "var", "paired_mean", "paired_var"):
            np.testing.assert_allclose(getattr(one, name).difference, getattr(expected, name).difference, atol=1e-9)
    narrow = curve.of(16)
    assert narrow.comparisons[1].shift < narrow.comparisons[2].shift
    between = (narrow.comparisons[1].shift + narrow.comparisons[2].shift) / 2
    assert narrow.holds_until(between) == 4
    with pytest.raises(ValueError, match=r"recorded for `x`, \[0, 4, 8\], got \[5\]"):
        ensembles.compare_with_theory(runs[16], ens, ORBITS, [4, 5])
    with pytest.raises(ValueError, match=r"recorded for `x`, \[8\], got \[4\]"):
        ensembles.compare_with_theory(runs[16], ens, ORBITS[:3], [4])
    with pytest.raises(ValueError, match=r"that of one width"):
        curve.holds_until()


def test_pairing_needs_a_theory_of_members_and_members_that_are_known(wide, ens, tmp_path):
    fields = {"reduction": "mean", "filter": ens.filter, "train": ens.train, "var": ens.var}
    without = types.SimpleNamespace(mean=lambda x, t: ens.mean(x, t), **fields)
    assert ensembles.compare_with_theory(wide, without, ORBITS).paired_mean is None
    with pytest.raises(ValueError, match="`ens` must be a theory of single members"):
        ensembles.compare_with_theory(wide, without, ORBITS, paired=True)
    part = wide.subset([5, 2])
    part.save(tmp_path)
    loaded = ensembles.Run.load(tmp_path, network(WIDTH))
    np.testing.assert_array_equal(loaded.initial().predict(X), wide.initial().predict(X)[np.array([5, 2])])
    unknown = dataclasses.replace(part, _numbers=None)
    assert ensembles.compare_with_theory(unknown, ens, ORBITS).paired_mean is None
    with pytest.raises(ValueError, match="2 of 256 members, and it is not known which"):
        ensembles.compare_with_theory(unknown, ens, ORBITS, paired=True)


def test_the_invariance_error_of_the_mean_falls_with_the_root_of_the_members(wide, ens):
    predictions = np.asarray(wide.predict(ORBITS)).reshape(MEMBERS, 4, 3)
    cov = np.asarray(ens.cov(ORBITS, STEPS)).reshape(4, 3, 4, 3)
    single = np.mean([cov[1, i, 1, i] + cov[0, i, 0, i] - 2 * cov[1, i, 0, i] for i in range(3)])
    for size in (1, 4, 16, 64):
        means = predictions.reshape(MEMBERS // size, size, 4, 3).mean(1)
        squares = np.mean((means[:, 1] - means[:, 0]) ** 2, axis=1)
        error = squares.std(ddof=1) / np.sqrt(len(squares))
        assert abs(squares.mean() - single / size) < 5 * error + ALLOWANCE * single / size
    found = metrics.orbit_std(predictions)
    assert found.ensemble < 3 * found.quantiles[1] / np.sqrt(MEMBERS)


def test_metrics_see_the_ensemble_as_more_invariant_than_its_members(wide):
    found = metrics.orbit_std(np.asarray(wide.predict(ORBITS)).reshape(MEMBERS, 4, 3))
    assert found.ensemble < found.members.min()


@pytest.mark.parametrize(
    ("changes", "filter", "message"),
    [
        ({"reduction": "sum"}, None, "reduction 'sum', the infinite ensemble 'mean'"),
        ({"rate and momentum": [0.5, 0.0]}, None, r"rate and momentum \(0.5, 0.0\)"),
        ({"rate and momentum": [1e-6, 0.0]}, filters.gradient_descent(9e-6), r"infinite ensemble \(9e-06, 0.0\)"),
        ({"rate and momentum": None}, None, "not gradient descent, at one rate for all parameters and steps"),
        ({"batch_size": 4}, None, "saw batches"),
        ({"augmentation": "random"}, None, "saw batches"),
        ({"loss": "cross_entropy"}, None, "the run has loss 'cross_entropy'"),
        ({"loss": {"name": "mse", "values": [1.0]}}, None, "the run has loss 'the function mse'"),
        ({"data": "0123"}, None, "different data"),
        ({}, filters.ridge(1.0), "the infinite ensemble by Ridge"),
        ({}, filters.momentum(RATE, 0.5), r"infinite ensemble \(1.0, 0.5\)"),
    ],
)
def test_a_run_of_other_training_is_not_compared(wide, ens, changes, filter, message):
    run = dataclasses.replace(wide, configuration={**wide.configuration, **changes})
    theory = types.SimpleNamespace(
        mean=ens.mean, var=ens.var, reduction="mean", filter=filter or ens.filter, train=ens.train
    )
    with pytest.raises(ValueError, match=message):
        ensembles.compare_with_theory(run, theory, ORBITS)


def _only_first(params):
    """A mask of the first layer alone."""
    return [jax.tree.map(lambda _, number=number: number == 0, layer) for number, layer in enumerate(params)]


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.sgd(optax.piecewise_constant_schedule(RATE, {STEPS - 1: 0.1})),
        optax.chain(optax.sgd(RATE), optax.masked(optax.set_to_zero(), _only_first)),
    ],
    ids=["a rate that falls at the last step", "a layer that stands still"],
)
def test_what_is_almost_gradient_descent_is_not_compared(ens, optimizer):
    settings = {"members": 2, "steps": STEPS, "key": jax.random.key(0)}
    run = ensembles.train(network(8), augment(X, Y, C4), optimizer=optimizer, **settings)
    with pytest.raises(ValueError, match="not gradient descent, at one rate for all parameters and steps"):
        ensembles.compare_with_theory(run, ens, ORBITS)


@pytest.mark.parametrize("scale", [1e-30, 1e-15, 1e15, 1e30])
def test_the_comparison_is_linear_in_the_scale_of_outputs(scale):
    """With labels and initial outputs c times as large everything is, in single precision, and nothing overflows."""
    x, y = X.astype(np.float32), Y.astype(np.float32)

    def compared(c):
        c = np.float32(c)
        line = (lambda key, x: c * jax.random.normal(key, (2, 1), np.float32), lambda w, x: x @ w)
        run = ensembles.untrained(line, x, members=16, key=jax.random.key(0))
        theory = types.SimpleNamespace(
            reduction="mean",
            filter=None,
            train=None,
            mean=lambda x, t: c * y,
            var=lambda x, t: np.float64(c) ** 2 * (x**2).sum(1),
        )
        return ensembles.compare_with_theory(run, theory, x)

    found, one = compared(scale), compared(1.0)
    for a, b, power in ((found.mean, one.mean, 1), (found.var, one.var, 2)):
        for name in ("observed", "predicted", "error"):
            np.testing.assert_allclose(getattr(a, name) / scale**power, getattr(b, name), rtol=1e-4)
        np.testing.assert_allclose(a.standardized, b.standardized, rtol=1e-4)
        assert abs(a.overall / b.overall - 1) < 1e-4
    assert found.holds(5) == one.holds(5)


@pytest.mark.parametrize("scale", [1e-30, 1e-10, 1e15])
def test_training_is_linear_in_the_scale_of_labels(scale):
    """Networks that begin with 0 and are linear in their parameters predict c times as much for c times the labels."""
    x, y = X.astype(np.float32), Y.astype(np.float32)
    line = (lambda key, x: np.zeros((2, 1), np.float32), lambda w, x: x @ w)
    settings = {"members": 1, "steps": 20, "optimizer": optax.sgd(0.5), "key": jax.random.key(0)}
    found, one = (ensembles.train(line, (x, np.float32(c) * y), **settings).predict(x) for c in (scale, 1.0))
    np.testing.assert_allclose(found / np.float32(scale), one, rtol=1e-5)


def test_other_times_and_single_members_are_not_compared(wide, ens):
    with pytest.raises(ValueError, match="the run has 8 steps, t is 9"):
        ensembles.compare_with_theory(wide, ens, ORBITS, 9)
    with pytest.raises(ValueError, match="at least 2 members"):
        ensembles.compare_with_theory(wide.subset([0]), ens, ORBITS)


# Width 4, where theory at infinite width says nothing.
VECTORS = RNG.normal(size=(4, 2))
NARROW = stax.serial(stax.Dense(4, 1.4, 0.3), stax.Relu(), stax.Dense(2, 1.0, 0.2))
SGD = optax.sgd(0.8)


def signed_errors(elements=None, **changes):
    """f̂(gx) − ρ_Y(g) f̂(x) for quarter turns g, in standard errors over 2000 members of width 4 with vector outputs."""
    data = augment(X, VECTORS, C4, C4, elements=elements)
    settings = {"members": 2000, "steps": 10, "optimizer": SGD, "key": jax.random.key(3)} | changes
    run = ensembles.train(NARROW, data, **settings)
    predictions = run.predict(np.concatenate([X_TEST, C4(1, X_TEST)]))
    errors = np.asarray(predictions[:, 3:] - C4(1, predictions[:, :3]))
    return errors.mean(0) / (errors.std(0, ddof=1) / np.sqrt(len(errors)))


def test_narrow_ensembles_are_equivariant_in_the_mean():
    assert np.abs(signed_errors()).max() < 4.5


def test_they_are_not_if_the_augmentation_is_incomplete():
    # Each element twice, so that there are as many samples as before.
    assert np.abs(signed_errors(elements=[0, 1, 0, 1])).max() > 10


def test_they_are_if_every_member_draws_its_own_augmentation():
    assert np.abs(signed_errors(augmentation="random", batch_size=2, steps=20)).max() < 4.5
