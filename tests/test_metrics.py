"""Metrics over orbits against naive loops and against cases worked out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from ntk_equiv import groups, metrics, reps
from tests.tolerances import assert_close

MEMBERS, ORDER, N, CLASSES = 3, 4, 5, 3
RNG = np.random.default_rng(0)
SCORES = RNG.normal(size=(MEMBERS, ORDER, N, CLASSES))
STILL = RNG.normal(size=(MEMBERS, N, CLASSES))


def std_loop(p, i):
    return np.mean([np.sqrt(np.mean([(p[g, i, c] - p[:, i, c].mean()) ** 2 for g in range(ORDER)])) for c in range(3)])


def osp_loop(p, i):
    return sum(np.argmax(p[g, i]) == np.argmax(p[0, i]) for g in range(ORDER))


def kl_loop(p, i):
    softmax = lambda z: np.exp(z) / np.exp(z).sum()  # noqa: E731
    total = 0.0
    for g in range(1, ORDER):
        a, b = softmax(p[g, i]), softmax(p[0, i])
        total += (stats.entropy(a, b) + stats.entropy(b, a)) / 2
    return total / (ORDER - 1)


METRICS = {
    "std": (metrics.orbit_std, std_loop),
    "relative": (lambda p: metrics.relative_orbit_std(p, normalizer=0.5), lambda p, i: 2 * std_loop(p, i)),
    "same prediction": (metrics.orbit_same_prediction, osp_loop),
    "symmetric KL": (metrics.symmetric_kl, kl_loop),
}


def mean_prediction(name):
    """What the ensemble predicts: the mean, and for distributions the logarithm of the mean distribution."""
    if name != "symmetric KL":
        return SCORES.mean(0)
    p = np.exp(SCORES) / np.exp(SCORES).sum(-1, keepdims=True)
    return np.log(p.mean(0))


@pytest.mark.parametrize("name", METRICS)
def test_metrics_are_what_the_loops_say(name):
    metric, loop = METRICS[name]
    found = metric(jnp.asarray(SCORES))
    points = np.array([loop(mean_prediction(name), i) for i in range(N)])
    members = np.array([[loop(SCORES[m], i) for i in range(N)] for m in range(MEMBERS)])
    assert_close(found.points, points)
    assert_close(found.ensemble, points.mean())
    assert_close(found.ensemble_error, points.std(ddof=1) / np.sqrt(N))
    assert_close(found.members, members.mean(1))
    assert_close(found.member_errors, members.std(1, ddof=1) / np.sqrt(N))
    assert_close(found.quantiles, np.percentile(members.mean(1), [25, 50, 75]))


def test_same_prediction_lies_between_one_and_the_order():
    found = metrics.orbit_same_prediction(jnp.asarray(SCORES))
    assert (found.points >= 1).all()
    assert (found.points <= ORDER).all()
    constant = jnp.broadcast_to(jnp.asarray(SCORES)[:, :1], SCORES.shape)
    assert (metrics.orbit_same_prediction(constant).points == ORDER).all()
    assert metrics.symmetric_kl(constant).ensemble == 0
    apart = jnp.eye(ORDER)[None, :, None, :]  # every image of its own class
    assert metrics.orbit_same_prediction(apart).ensemble == 1
    assert metrics.orbit_same_prediction(apart, identity=2).ensemble == 1


def test_scores_that_are_no_numbers_agree_with_nothing():
    broken = jnp.asarray(SCORES).at[1].set(jnp.nan)
    found = metrics.orbit_same_prediction(broken)
    assert np.isnan(found.members).tolist() == [False, True, False]
    assert np.isnan(found.ensemble)


def test_continuous_orbits_and_their_monte_carlo_error():
    found = metrics.continuous_orbit_same_prediction(jnp.asarray(SCORES), jnp.asarray(STILL))
    same = np.array(
        [[np.argmax(SCORES.mean(0)[g, i]) == np.argmax(STILL.mean(0)[i]) for i in range(N)] for g in range(ORDER)]
    )
    assert_close(found.ensemble, same.mean())
    assert_close(found.points, same.mean(0))
    assert_close(found.monte_carlo_error, same.mean(1).std(ddof=1) / np.sqrt(ORDER))


def test_the_monte_carlo_error_is_the_spread_over_draws(key):
    # Right half of the plane is class 0: a sample on the axis keeps its class under half of all rotations.
    x = jnp.array([[1.0, 0.0], [2.0, 0.0]])
    classify = lambda x: jnp.stack([x[..., 0], -x[..., 0]], -1)[None]  # noqa: E731

    def draw(key):
        moved = reps.matrix(groups.SO2).orbit(x, groups.SO2.sample(key, 50))
        found = metrics.continuous_orbit_same_prediction(classify(moved), classify(x))
        return found.ensemble, found.monte_carlo_error

    values, errors = jax.jit(jax.vmap(draw))(jax.random.split(key, 400))
    assert abs(values.mean() - 0.5) < 5 * values.std() / 20
    assert abs(errors.mean() / values.std() - 1) < 5 / np.sqrt(2 * 400)


def test_predictions_are_turned_back_before_they_are_compared():
    rep = reps.matrix(groups.polyhedral("T"))
    back = np.array([rep.group.matrices[g].T for g in range(12)])
    p = RNG.normal(size=(2, 12, N, 3))
    still = RNG.normal(size=(2, N, 3))
    found = metrics.orbit_mse(jnp.asarray(p), jnp.asarray(still), rep)
    loop = lambda p, s: np.mean([[(back[g] @ p[g, i] - s[i]) ** 2 for g in range(12)] for i in range(N)])  # noqa: E731
    assert_close(found.members, [loop(p[m], still[m]) for m in range(2)])
    assert_close(found.ensemble, loop(p.mean(0), still.mean(0)))
    R = groups.SO3.sample(jax.random.key(1), 6)
    equivariant = jnp.einsum("gij,mnj->mgni", R, jnp.asarray(still))
    assert metrics.orbit_mse(equivariant, jnp.asarray(still), reps.matrix(groups.SO3), R).ensemble < 1e-28
    assert metrics.orbit_mse(equivariant, jnp.asarray(still)).ensemble > 0.1


def test_one_sample_has_no_standard_error():
    assert np.isnan(metrics.orbit_std(jnp.asarray(SCORES[:, :, :1])).ensemble_error)


def test_metrics_compile():
    compiled = jax.jit(metrics.symmetric_kl)(jnp.asarray(SCORES, jnp.float32))
    assert compiled.ensemble.dtype == jnp.float32
    assert_close(compiled.ensemble, metrics.symmetric_kl(SCORES).ensemble)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.orbit_std(np.ones((2, 3))), r"`predictions` must be \[members, order, n"),
        (lambda: metrics.orbit_std(np.ones((0, 2, 3))), "none empty"),
        (lambda: metrics.orbit_same_prediction(np.ones((1, 2, 3))), "classes"),
        (lambda: metrics.orbit_same_prediction(SCORES, identity=4), "between 0 and 3"),
        (lambda: metrics.relative_orbit_std(SCORES, normalizer=0.0), "`normalizer` must be one positive number"),
        (lambda: metrics.relative_orbit_std(SCORES, normalizer=np.inf), "`normalizer` must be one positive number"),
        (lambda: metrics.continuous_orbit_same_prediction(SCORES, SCORES), "`reference` must be of shape"),
        (lambda: metrics.orbit_mse(SCORES, STILL, reps.trivial(groups.cyclic(3))), "`elements` must be 4"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_integers_are_refused():
    with pytest.raises(TypeError, match="floating-point"):
        metrics.orbit_std(np.ones((1, 2, 3), int))


def test_metrics_print_one_readable_line():
    found = metrics.orbit_std(jnp.asarray(SCORES))
    error = f"{float(found.ensemble_error):.2g}"
    assert repr(found) == (
        f"<orbit metric: {float(found.ensemble):.3g} ± {error} for the mean of 3 members, "
        f"{float(found.members.mean()):.3g} for one of them, at 5 samples>"
    )
    lines = []
    jax.jit(lambda scores: lines.append(repr(metrics.orbit_std(scores))) or scores)(jnp.asarray(SCORES))
    assert lines == ["<orbit metric of shape ()>"]
    assert repr(jax.tree.map(lambda leaf: None, found)) == "<orbit metric of shape ()>"
    assert repr(jax.vmap(metrics.orbit_std)(jnp.asarray(SCORES[None]))) == "<orbit metric of shape (1,)>"
