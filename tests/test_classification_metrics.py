"""Class probabilities are scored as scikit-learn and naive loops score them; errors and temperatures are right."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import sklearn.metrics

from ntk_equiv import metrics

MEMBERS, SAMPLES, CLASSES = 3, 400, 4
RNG = np.random.default_rng(0)
LOGITS = 2 * RNG.normal(size=(MEMBERS, SAMPLES, CLASSES))
# Labels that the mean of all members predicts better than chance.
LABELS = (LOGITS.mean(axis=0) + RNG.normal(size=(SAMPLES, CLASSES))).argmax(axis=-1)
UNKNOWN = RNG.normal(size=(MEMBERS, 150, CLASSES))
P = scipy.special.softmax(LOGITS, axis=-1)
BY_PROBABILITIES = P.mean(axis=0)
BY_LOGITS = scipy.special.softmax(LOGITS.mean(axis=0), axis=-1)


def naive_calibration_error(p, y, bins):
    confidence, right = p.max(axis=1), p.argmax(axis=1) == y
    total = 0.0
    for number in range(bins):
        inside = (confidence > number / bins) & (confidence <= (number + 1) / bins)
        if inside.any():
            total += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    return total


def naive_adaptive_error(p, y, bins):
    confidence, right = p.max(axis=1), p.argmax(axis=1) == y
    parts = np.array_split(np.argsort(confidence), bins)
    return sum(len(part) / len(y) * abs(right[part].mean() - confidence[part].mean()) for part in parts)


ORACLES = {
    "accuracy": (metrics.accuracy, lambda p, y: sklearn.metrics.accuracy_score(y, p.argmax(axis=1))),
    "likelihood": (metrics.negative_log_likelihood, lambda p, y: sklearn.metrics.log_loss(y, p, labels=range(CLASSES))),
    "Brier": (metrics.brier_score, lambda p, y: np.mean(((p - np.eye(CLASSES)[y]) ** 2).sum(axis=1))),
    "calibration": (metrics.calibration_error, lambda p, y: naive_calibration_error(p, y, 15)),
    # 400 samples in 15 bins: the first ten hold one sample more, as in torch-uncertainty.
    "adaptive bins": (
        lambda z, y: metrics.calibration_error(z, y, adaptive=True),
        lambda p, y: naive_adaptive_error(p, y, 15),
    ),
}


@pytest.mark.parametrize("name", ORACLES)
def test_metrics_of_labels(name):
    ours, theirs = ORACLES[name]
    found = ours(LOGITS, LABELS)
    assert found.probabilities.value == pytest.approx(theirs(BY_PROBABILITIES, LABELS), rel=1e-10)
    assert found.logits.value == pytest.approx(theirs(BY_LOGITS, LABELS), rel=1e-10)
    np.testing.assert_allclose(found.members, [theirs(p, LABELS) for p in P], rtol=1e-10)


@pytest.mark.parametrize("name", ORACLES)
def test_standard_errors_are_those_of_repeated_draws(name):
    """Over many data sets of one kind, a metric scatters as its standard error says, within a fifth.

    Calibration errors scatter less, by up to a third: absolute values fold the noise.
    """
    rng = np.random.default_rng(1)
    values, errors = [], []
    for _ in range(300):
        logits = 2 * rng.normal(size=(1, 200, CLASSES))
        labels = [rng.choice(CLASSES, p=p) for p in scipy.special.softmax(1.5 * logits[0], axis=-1)]
        found = ORACLES[name][0](logits, labels)
        values.append(found.logits.value)
        errors.append(found.logits.error)
    ratio = np.sqrt(np.mean(np.square(errors))) / np.std(values)
    assert 0.8 < ratio < (1.5 if name in ("calibration", "adaptive bins") else 1.2)


def test_known_against_unknown():
    truth = [0] * SAMPLES + [1] * len(UNKNOWN[0])
    found = metrics.confidence_auroc(LOGITS, UNKNOWN)
    for ours, known, unknown in (
        (found.logits, BY_LOGITS, scipy.special.softmax(UNKNOWN.mean(axis=0), axis=-1)),
        (found.probabilities, BY_PROBABILITIES, scipy.special.softmax(UNKNOWN, axis=-1).mean(axis=0)),
    ):
        doubt = -np.concatenate([known.max(axis=1), unknown.max(axis=1)])
        assert ours.value == pytest.approx(sklearn.metrics.roc_auc_score(truth, doubt), rel=1e-12)

    def disagreement(logits):
        p = scipy.special.softmax(logits, axis=-1)
        return scipy.special.entr(p.mean(axis=0)).sum(axis=-1) - scipy.special.entr(p).sum(axis=-1).mean(axis=0)

    doubt = np.concatenate([disagreement(LOGITS), disagreement(UNKNOWN)])
    ours = metrics.disagreement_auroc(LOGITS, UNKNOWN)
    assert ours.value == pytest.approx(sklearn.metrics.roc_auc_score(truth, doubt), rel=1e-12)


def test_the_error_of_an_auroc_is_that_of_repeated_draws():
    rng = np.random.default_rng(2)
    draws = [
        metrics.confidence_auroc(2 * rng.normal(size=(1, 80, 3)), rng.normal(size=(1, 60, 3))).logits
        for _ in range(300)
    ]
    values, errors = np.array(draws).T
    assert np.sqrt(np.mean(errors**2)) == pytest.approx(np.std(values), rel=0.2)


def test_ties_count_half():
    same = np.zeros((1, 3, 2))
    assert metrics.confidence_auroc(same, same).logits.value == 0.5


def test_temperature_is_fitted_after_averaging():
    for average, p in (("probabilities", BY_PROBABILITIES), ("logits", BY_LOGITS)):
        temperature = metrics.fit_temperature(LOGITS, LABELS, average=average)

        def loss(t, p=p):
            return sklearn.metrics.log_loss(
                LABELS, scipy.special.softmax(np.log(p) / t, axis=-1), labels=range(CLASSES)
            )

        assert loss(temperature) <= min(loss(temperature * 1.01), loss(temperature / 1.01))
        scaled = metrics.ensemble_probabilities(LOGITS, average=average, temperature=temperature)
        np.testing.assert_allclose(scaled, scipy.special.softmax(np.log(p) / temperature, axis=-1), rtol=1e-10)


def test_reliability_adds_up_to_the_calibration_error():
    found = metrics.reliability(LOGITS, LABELS, bins=15)
    total = np.sum(found.samples * np.abs(found.accuracy - found.confidence)) / SAMPLES
    assert total == pytest.approx(metrics.calibration_error(LOGITS, LABELS).probabilities.value, rel=1e-12)
    assert found.samples.sum() == SAMPLES


@pytest.mark.parametrize("adaptive", [False, True])
def test_the_noise_of_calibration_is_that_of_all_labels_that_could_be_drawn(adaptive):
    """Six samples of two classes: right or wrong, 2⁶ cases with their probabilities."""
    logits = RNG.normal(size=(1, 6, 2))
    p = scipy.special.softmax(logits[0], axis=-1)
    best = p.argmax(axis=1)
    cases, weights = [], []
    for wrong in itertools.product((0, 1), repeat=6):
        labels = best ^ np.array(wrong)
        cases.append(metrics.calibration_error(logits, labels, bins=3, adaptive=adaptive).logits.value)
        weights.append(np.prod(p[np.arange(6), labels]))
    mean = np.average(cases, weights=weights)
    noise = metrics.calibration_noise(logits, bins=3, adaptive=adaptive)
    assert noise.logits.value == pytest.approx(mean, rel=1e-12)
    assert noise.members.tolist() == [noise.probabilities.value]
    assert noise.logits.error == pytest.approx(np.average((np.array(cases) - mean) ** 2, weights=weights) ** 0.5)


def test_smoothed_labels_have_a_best_temperature_when_all_are_right():
    sure, labels = 3 * np.eye(3)[None], [0, 1, 2]
    temperature = metrics.fit_temperature(sure, labels, smoothing=0.25)
    target = 0.75 * np.eye(3) + 0.25 / 3
    p = scipy.special.softmax(sure[0] / temperature, axis=-1)
    np.testing.assert_allclose(p, target, rtol=1e-9)  # so many logits can fit the smoothed labels exactly


def test_extreme_logits():
    sure = jnp.array([[[1e4, -1e4], [-jnp.inf, 0.0]]], "float32")
    assert metrics.accuracy(sure, [0, 1]).logits.value == 1
    assert metrics.negative_log_likelihood(sure, [0, 1]).logits.value == 0
    assert metrics.calibration_error(sure, [0, 1]).logits.value == 0
    one = metrics.brier_score(sure[:, :1], [0])
    assert one.logits.value == 0
    assert np.isnan(one.logits.error)


BAD = {
    "logits": [
        lambda: metrics.accuracy(LOGITS[0], LABELS),
        lambda: metrics.accuracy(np.full_like(LOGITS, np.nan), LABELS),
        lambda: metrics.disagreement_auroc(LOGITS[:1], UNKNOWN[:1]),
        lambda: metrics.fit_temperature(10 * np.eye(3)[None], [0, 1, 2]),
        lambda: metrics.fit_temperature(10 * np.eye(3)[None], [1, 2, 0]),
    ],
    "labels": [
        lambda: metrics.accuracy(LOGITS, LABELS + 1),
        lambda: metrics.accuracy(LOGITS, LABELS - 1),
        lambda: metrics.accuracy(LOGITS, LABELS[:-1]),
        lambda: metrics.accuracy(LOGITS, np.eye(CLASSES)[LABELS]),
    ],
    "unknown": [lambda: metrics.confidence_auroc(LOGITS, UNKNOWN[:2])],
    "bins": [lambda: metrics.calibration_error(LOGITS, LABELS, bins=0)],
    "average": [lambda: metrics.ensemble_probabilities(LOGITS, average="votes")],
    "smoothing": [lambda: metrics.fit_temperature(LOGITS, LABELS, smoothing=1.0)],
    "temperature": [lambda: metrics.ensemble_probabilities(LOGITS, temperature=0.0)],
}


@pytest.mark.parametrize("argument", BAD)
def test_bad_input_is_refused_by_name(argument):
    for call in BAD[argument]:
        with pytest.raises((ValueError, TypeError), match=f"`{argument}` must be"):
            call()
