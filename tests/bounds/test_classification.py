"""Predicted class probabilities, against independent draws, integrals, and trained ensembles."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.integrate
import scipy.special
import scipy.stats

from ntk_equiv import InfiniteEnsemble, augment, bounds, ensembles, filters, groups, metrics, reps, stax
from ntk_equiv.infinite import SampledEnsemble
from tests.tolerances import assert_close

LABELLED = ("accuracy", "negative_log_likelihood", "brier_score", "calibration_error", "adaptive_calibration_error")
NETWORK = stax.serial(stax.Dense(512, 1.5, 0.1), stax.Relu(), stax.Dense(3))
TIME, SCALE, SIZE = 2.0, 4.0, 5
KEY, OTHER = jax.random.key(0), jax.random.key(1)
_RNG = np.random.default_rng(0)


def _samples(count):
    """Three classes of samples in the plane, which overlap."""
    labels = _RNG.integers(0, 3, count)
    angles = 2 * np.pi * labels / 3
    return 1.5 * np.stack([np.cos(angles), np.sin(angles)], axis=1) + _RNG.normal(size=(count, 2)), labels


X, Y = _samples(12)
TEST, LABELS = _samples(40)
UNKNOWN = 0.2 * TEST[:20]


@functools.cache
def ensemble(dtype="float64"):
    train = jnp.asarray(X, dtype), jax.nn.one_hot(Y, 3, dtype=dtype) - 1 / 3
    return InfiniteEnsemble(NETWORK, train, filters.gradient_flow(1.0))


class OnlyDraws:
    """Members about which nothing is known but their draws."""

    def __init__(self, sample):
        self.sample = sample


@functools.cache
def expected():
    settings = {"members": [SIZE, 1], "scale": SCALE, "unknown": jnp.asarray(UNKNOWN)}
    return bounds.expected_metrics(ensemble(), jnp.asarray(TEST), LABELS, TIME, key=KEY, **settings)


def measured(logits):
    """All metrics of one ensemble, by name."""
    known, unknown = logits[:, : len(TEST)], logits[:, len(TEST) :]
    found = {name: getattr(metrics, name)(known, LABELS) for name in LABELLED[:-1]}
    found["adaptive_calibration_error"] = metrics.calibration_error(known, LABELS, adaptive=True)
    found["confidence_auroc"] = metrics.confidence_auroc(known, unknown)
    return found, metrics.disagreement_auroc(known, unknown)


@functools.cache
def brute_force():
    """Real ensembles of five, from draws that the library makes elsewhere: every metric of each of them."""
    both = jnp.asarray(np.concatenate([TEST, UNKNOWN]))
    members = SCALE * np.asarray(ensemble().sample(OTHER, both, TIME, 250 * SIZE))
    return [measured(group) for group in members.reshape(250, SIZE, *members.shape[1:])]


def assert_expected(found, values):
    """The mean of independent values and their scatter are what was expected, within errors."""
    values = np.asarray(values)
    error = np.hypot(found.sampling_error, values.std(ddof=1) / len(values) ** 0.5)
    assert abs(values.mean() - found.value) < 4.5 * error, (values.mean(), found)
    assert values.std(ddof=1) == pytest.approx(found.scatter, rel=0.2)


@pytest.mark.parametrize("name", [*LABELLED, "confidence_auroc"])
def test_expectations_are_those_of_independent_ensembles(name):
    found, drawn = getattr(expected(), name), [one[name] for one, _ in brute_force()]
    for average in ("probabilities", "logits"):
        assert_expected(found.at(SIZE, average=average), [getattr(one, average).value for one in drawn])
    single = np.concatenate([one.members for one in drawn])
    assert_expected(found.at(1), single[:: SIZE + 1])
    assert found.at(1).value == pytest.approx(found.at(1, average="logits").value, abs=1e-12)


def test_disagreement_belongs_to_several_members():
    found = expected().disagreement_auroc
    assert_expected(found.at(SIZE), [one.value for _, one in brute_force()])
    assert np.isnan(found.at(1)).all()
    assert found.logits is None


def test_infinitely_many_members():
    """Their logits are known exactly; their probabilities are those of a great many draws."""
    mean = SCALE * np.asarray(ensemble().mean(jnp.asarray(TEST), TIME))[None]
    members = SCALE * np.asarray(ensemble().sample(OTHER, jnp.asarray(TEST), TIME, 20_000))
    p = np.log(scipy.special.softmax(members, axis=-1).mean(axis=0))[None]
    for name in LABELLED[:3]:
        found, exact = getattr(expected(), name), getattr(metrics, name)(mean, LABELS).logits
        limit = found.at(np.inf, average="logits")
        assert_close(np.array([limit.value, limit.test_error]), np.array(exact))
        assert limit.sampling_error == limit.scatter == 0
        many = found.at(np.inf)
        # A sample whose two best classes are nearly as likely may be right or wrong in either.
        slack = 0.5 / len(TEST) if name == "accuracy" else 0.0
        assert abs(many.value - getattr(metrics, name)(p, LABELS).logits.value) < 5 * many.sampling_error + slack
        assert 0 <= many.sampling_error < 0.01


def test_reliability_diagrams_add_up():
    found = expected()
    assert found.reliability(np.inf, average="logits").samples.sum() == len(TEST)
    for average in ("probabilities", "logits"):
        diagram = found.reliability(SIZE, average=average)
        assert diagram.samples.sum() == pytest.approx(len(TEST))
        right = np.sum(diagram.accuracy * diagram.samples) / len(TEST)
        assert right == pytest.approx(found.accuracy.at(SIZE, average=average).value)
        assert ((diagram.confidence >= 1 / 3) & (diagram.confidence <= 1)).all()


def test_what_is_known_by_draws_alone_has_the_same_expectations():
    drawn = OnlyDraws(ensemble().sample)
    names = ("negative_log_likelihood", "brier_score")
    settings = {"members": SIZE, "scale": SCALE, "metrics": names, "draws": 3000}
    found = bounds.expected_metrics(drawn, jnp.asarray(TEST), LABELS, TIME, key=OTHER, **settings)
    assert found.accuracy is None
    for name in names:
        for average in ("probabilities", "logits"):
            for size in (SIZE, np.inf):
                one, other = (getattr(each, name).at(size, average=average) for each in (found, expected()))
                error = np.hypot(one.sampling_error, other.sampling_error)
                assert error > 0
                assert abs(one.value - other.value) < 4.5 * error
                assert one.test_error == pytest.approx(other.test_error, rel=0.05)


class Linear:
    """Members that are random linear functions, far from Gaussian: cheap on any test set."""

    def sample(self, key, x, t, members):
        rng = np.random.default_rng(jax.random.key_data(key).tolist())
        noise = rng.normal(size=(members, 2, 3)) * np.exp(0.7 * rng.normal(size=(members, 1, 1)))
        return np.asarray(x) @ (np.array([[2.0, -1, -1], [0, 1.7, -1.7]]) + noise)


def test_members_trained_with_the_cross_entropy_are_predicted_too():
    """Images under quarter turns, by a convolution: against other members, put together and scored by hand."""
    rng, turns = np.random.default_rng(3), reps.rot90(groups.cyclic(4))
    kernel_fn = stax.serial(stax.Conv(1, (3, 3)), stax.Relu(), stax.GlobalAvgPool(), stax.Dense(1, 2.0, 0.1)).kernel_fn
    labels = rng.integers(0, 3, 24)
    images = jnp.asarray(rng.normal(size=(24, 4, 4, 1)) * (1 + labels)[:, None, None, None])
    train = augment(images[:8], jnp.asarray(labels[:8]), turns)
    ens = SampledEnsemble(kernel_fn, train, key=KEY, members=2, label_smoothing=0.1, rtol=1e-2)
    found = bounds.expected_metrics(ens, images[8:], labels[8:], 5.0, members=[1, 4], key=KEY, draws=400)
    other = np.asarray(ens.sample(OTHER, images[8:], 5.0, 400))
    for size in (1, 4):
        groups_of = other.reshape(-1, size, *other.shape[1:])
        p = np.exp(groups_of) / np.exp(groups_of).sum(axis=-1, keepdims=True)
        of_ensembles = {
            "probabilities": p.mean(axis=1),
            "logits": np.exp(groups_of.mean(axis=1)) / np.exp(groups_of.mean(axis=1)).sum(axis=-1, keepdims=True),
        }
        for average, each in of_ensembles.items():
            right = each[:, np.arange(16), labels[8:]]
            for name, scores in (
                ("accuracy", (each.argmax(axis=-1) == labels[8:]).mean(axis=1)),
                ("negative_log_likelihood", -np.log(right).mean(axis=1)),
                ("brier_score", (np.sum(each**2, axis=-1) - 2 * right + 1).mean(axis=1)),
            ):
                value, error, _, _ = getattr(found, name).at(size, average=average)
                assert abs(scores.mean() - value) < 5 * np.hypot(error, scores.std(ddof=1) / len(scores) ** 0.5), name
    averaged = found.negative_log_likelihood.probabilities.value
    assert averaged[0] > averaged[1] > averaged[2]
    needed = bounds.members_for_likelihood(ens, images[8:], labels[8:], 5.0, 0.05, key=KEY, draws=400)
    assert 1 <= needed.lower <= needed.value <= needed.upper


def test_errors_are_those_of_repeated_draws_and_test_sets():
    """Over many keys values scatter as `sampling_error` says, over many test sets as `test_error` says."""
    settings = {"members": [1, 4], "metrics": LABELLED[:4], "draws": 300}

    def repeat(vary):
        found = []
        for number in range(50):
            x, y = (TEST, LABELS) if vary == "key" else _samples(40)
            key = jax.random.key(number if vary == "key" else 0)
            found.append(bounds.expected_metrics(Linear(), x, y, key=key, **settings))
        return found

    for vary, error in (("key", "sampling_error"), ("test set", "test_error")):
        runs = repeat(vary)
        for name in LABELLED[:4]:
            for average in ("probabilities", "logits"):
                values, errors = (
                    np.array([getattr(getattr(getattr(run, name), average), field) for run in runs])
                    for field in ("value", error)
                )
                ratio = np.sqrt(np.mean(errors**2, axis=0)) / values.std(axis=0)
                if name in ("negative_log_likelihood", "brier_score"):
                    assert ((ratio > 0.75) & (ratio < 1.35)).all(), (vary, name, average, ratio)
                else:  # accuracies and bins jump, and absolute values fold the noise; errors must not be too small
                    assert ((ratio[:2] > 0.7) & (ratio[:2] < 1.7)).all(), (vary, name, average, ratio)


def sigmoid_moment(function, mean, variance):
    """The expectation of a function of d ~ N(mean, variance), by quadrature."""
    law = scipy.stats.norm(mean, variance**0.5)
    inside = (mean - 12 * variance**0.5, mean + 12 * variance**0.5)
    return scipy.integrate.quad(lambda d: function(d) * law.pdf(d), *inside, epsabs=1e-13, limit=200)[0]


def softplus(d):
    return np.logaddexp(0, -d)


@pytest.fixture(scope="module")
def two_classes():
    """An ensemble on two classes, one test sample, and the law of its difference of logits."""
    y = jnp.eye(2)[(Y > 0).astype(int)] - 0.5
    ens = InfiniteEnsemble(NETWORK, (jnp.asarray(X), y), filters.gradient_flow(1.0))
    x = jnp.asarray(TEST[:1])
    mean, variance = ens.mean(x, TIME)[0], ens.var(x, TIME)[0]
    return ens, x, float(SCALE * (mean[1] - mean[0])), float(2 * SCALE**2 * variance)


@pytest.mark.parametrize("label", [0, 1])
def test_members_for_a_likelihood_by_quadrature(two_classes, label):
    """Two classes and one sample: −log p(y) = log(1 + e^{−d}) with a Gaussian d, so excess and c are integrals."""
    ens, x, mean, variance = two_classes
    mean = mean if label else -mean
    excess = {size: sigmoid_moment(softplus, mean, variance / size) - softplus(mean) for size in (1, 30, 31)}
    p = scipy.special.expit
    average = sigmoid_moment(p, mean, variance)
    c = (sigmoid_moment(lambda d: p(d) ** 2, mean, variance) / average**2 - 1) / 2
    of_one = sigmoid_moment(softplus, mean, variance) + np.log(average)

    def found(way, delta, **settings):
        settings = {"key": KEY, "average": way, "scale": SCALE, **settings}
        return bounds.members_for_likelihood(ens, x, np.array([label]), TIME, delta, **settings)

    # Between the excess of 30 and of 31 members the answer is 31.
    between = (excess[30] + excess[31]) / 2
    enough = found("logits", between)
    assert enough.lower <= 31 <= enough.upper <= 1.05 * 31
    assert enough.coefficient.value == pytest.approx(variance * p(mean) * p(-mean) / 2, rel=1e-9)
    assert abs(enough.excess.value - between) < 0.02 * between + 5 * enough.excess.sampling_error
    near = found("logits", 1.01 * excess[1])  # one member is just enough, which sampling cannot tell
    assert (near.lower, near.upper) == (1, 2)
    assert found("logits", 1.3 * excess[1]).upper == 1
    assert found("logits", 0.7 * excess[1]).lower == 2
    by_probabilities = found("probabilities", 2 * of_one, draws=4000)
    assert by_probabilities.value == 1
    assert abs(by_probabilities.excess.value - of_one) < 4.5 * by_probabilities.excess.sampling_error
    assert abs(by_probabilities.coefficient.value - c) < 4.5 * by_probabilities.coefficient.sampling_error
    assert np.isnan(by_probabilities.excess.test_error)


@pytest.mark.parametrize("average", ["probabilities", "logits"])
@pytest.mark.parametrize("known", ["Gaussian", "draws"])
def test_members_for_a_likelihood_suffice_and_half_of_them_do_not(average, known):
    ens = ensemble() if known == "Gaussian" else OnlyDraws(ensemble().sample)
    delta = 0.003
    settings = {"average": average, "scale": SCALE, "draws": 2000}
    found = bounds.members_for_likelihood(ens, jnp.asarray(TEST), LABELS, TIME, delta, key=KEY, **settings)
    assert found.lower <= found.value <= found.upper
    assert found.value > 4
    # From draws of our own: the excess falls as 1/M, and crosses δ in the interval.
    z = SCALE * np.asarray(ensemble().sample(OTHER, jnp.asarray(TEST), TIME, 6000))

    def likelihood(z):
        if average == "logits":
            log_p = scipy.special.log_softmax(z.mean(axis=-3), axis=-1)
        else:
            log_p = scipy.special.logsumexp(scipy.special.log_softmax(z, axis=-1), axis=-3) - np.log(z.shape[-3])
        return -log_p[..., np.arange(len(LABELS)), LABELS].mean(axis=-1)

    def excess(size):
        """Groups of all draws, so that what is of first order in the noise cancels."""
        groups = z[: 6000 // size * size].reshape(-1, size, *z.shape[1:])
        each = likelihood(groups) - likelihood(groups.reshape(-1, *z.shape[1:]))
        return each.mean() * (1 + size / 6000)  # what 6000 members are above infinitely many

    assert excess(found.upper) < 1.1 * delta
    assert excess(max(1, found.lower // 2)) > 1.3 * delta
    assert excess(2) / excess(8) == pytest.approx(4, rel=0.25)
    assert 10 * excess(10) == pytest.approx(found.coefficient.value, rel=0.25)
    assert abs(found.excess.value - delta) < 0.25 * delta


def test_sizes_beyond_the_draws_are_extrapolated_and_verified_where_that_is_possible():
    settings = {"key": KEY, "scale": SCALE, "draws": 200}
    point = jnp.asarray(TEST[:1]), LABELS[:1], TIME
    found = bounds.members_for_likelihood(ensemble(), *point, 1e-5, **settings)
    assert found.value > 200 / 20
    assert abs(found.excess.value - 1e-5) < 5 * found.excess.sampling_error
    beyond = bounds.members_for_likelihood(ensemble(), *point, 1e-12, **settings)
    assert beyond.excess is None
    assert "an estimate by c/M, not verified" in repr(beyond)
    assert beyond.value == pytest.approx(beyond.coefficient.value / 1e-12, abs=1)
    with pytest.raises(ValueError, match="`delta` must be large enough to be met"):
        bounds.members_for_likelihood(ensemble(), *point, 1e-30, **settings)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_members_that_agree_are_one_member(dtype):
    """At the end of training all members fit the training samples, up to rounding."""
    ens, x = ensemble(dtype), jnp.asarray(X, dtype)
    rounding = {"float64": 1e-6, "float32": 1e-2}[dtype]
    found = bounds.expected_metrics(ens, x, Y, jnp.inf, members=[1, 3], key=KEY, scale=SCALE)
    right = np.log(scipy.special.softmax(SCALE * (np.eye(3) - 1 / 3), axis=-1))[0, 0]
    for average in ("probabilities", "logits"):
        loss = getattr(found.negative_log_likelihood, average)
        np.testing.assert_allclose(loss.value, -right, rtol=rounding)
        assert (loss.scatter < rounding).all()
        assert getattr(found.accuracy, average).value.tolist() == [1, 1, 1]
        needed = bounds.members_for_likelihood(
            ens, x, Y, jnp.inf, 0.001, key=KEY, average=average, scale=SCALE, draws=100
        )
        assert (needed.value, needed.lower, needed.upper) == (1, 1, 1)


def test_one_sample_and_a_class_that_is_never_predicted():
    class Blind:
        """Never the third class."""

        def sample(self, key, x, t, members):
            logits = jax.random.normal(key, (members, len(x), 3))
            return logits.at[:, :, 2].set(-1e3)

    found = bounds.expected_metrics(Blind(), TEST[:1], [0], members=2, key=KEY, draws=40)
    assert 0 < found.accuracy.at(2).value < 1
    assert np.isnan(found.accuracy.at(2).test_error)
    assert np.isnan(found.calibration_error.at(np.inf).test_error)
    lost = bounds.expected_metrics(Blind(), TEST[:2], [2, 2], members=2, key=KEY, draws=40)
    assert lost.accuracy.at(2).value == 0
    assert lost.negative_log_likelihood.at(2).value == pytest.approx(1000, rel=0.01)


STEPS, RATE = 20, 0.5


@functools.cache
def trained():
    """Outputs of wide networks, trained early: 96 members, by the squared error."""
    y = np.eye(3)[Y] - 1 / 3
    run = ensembles.train(NETWORK, (X, y), members=96, steps=STEPS, optimizer=optax.sgd(RATE), key=OTHER)
    return np.asarray(run.predict(TEST), float)


def test_trained_ensembles_are_as_good_as_predicted():
    y = jax.nn.one_hot(Y, 3) - 1 / 3
    ens = InfiniteEnsemble(NETWORK, (jnp.asarray(X), y), filters.gradient_descent(RATE), reduction="mean")
    found = bounds.expected_metrics(ens, jnp.asarray(TEST), LABELS, STEPS, members=[1, 8], key=KEY, scale=SCALE)
    groups = SCALE * trained().reshape(12, 8, *trained().shape[1:])
    for name in LABELLED[:4]:
        metric = getattr(found, name)
        drawn = [getattr(metrics, name)(group, LABELS) for group in groups]
        for values, predicted in (
            (np.concatenate([each.members for each in drawn]), metric.at(1)),
            ([each.probabilities.value for each in drawn], metric.at(8)),
            ([each.logits.value for each in drawn], metric.at(8, average="logits")),
        ):
            # The predicted scatter tells how far a mean of so few may be off.
            error = np.hypot(predicted.sampling_error, predicted.scatter / len(values) ** 0.5)
            assert abs(np.mean(values) - predicted.value) < 4 * error, name
    # The error is small enough to tell one member from eight.
    loss = found.negative_log_likelihood
    assert loss.at(1).value - loss.at(8).value > 5 * loss.at(1).scatter / 96**0.5


BAD = {
    "ens": [
        lambda: bounds.expected_metrics(OnlyDraws(lambda *_: np.zeros((3, 40))), TEST, LABELS, members=1, key=KEY),
        lambda: bounds.expected_metrics(
            OnlyDraws(lambda key, x, t, m: np.full((m, 40, 3), np.nan)), TEST, LABELS, members=1, key=KEY
        ),
    ],
    "labels": [lambda: bounds.expected_metrics(Linear(), TEST, LABELS[:3], members=1, key=KEY)],
    "draws": [lambda: bounds.expected_metrics(Linear(), TEST, LABELS, members=10, key=KEY, draws=19)],
    "members": [lambda: expected().accuracy.at(2), lambda: expected().reliability(7)],
    "average": [lambda: expected().disagreement_auroc.at(SIZE, average="logits")],
    "unknown": [
        lambda: bounds.expected_metrics(Linear(), TEST, LABELS, members=1, key=KEY, metrics="confidence_auroc"),
        lambda: bounds.expected_metrics(Linear(), TEST, LABELS, members=1, key=KEY, unknown=UNKNOWN[:, :1]),
    ],
}


@pytest.mark.parametrize("argument", BAD)
def test_bad_input_is_refused_by_name(argument):
    for call in BAD[argument]:
        with pytest.raises((ValueError, TypeError), match=f"`{argument}` must be"):
            call()
