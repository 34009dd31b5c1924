"""Weights of classes and smoothed labels against optax, scikit-learn and NumPy; clipped gradients and schedules."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import sklearn.metrics

from ntk_equiv import ensembles
from tests.tolerances import assert_close

RNG = np.random.default_rng(0)
OUTPUTS, Y = RNG.normal(size=(7, 3)), np.array([0, 2, 1, 1, 1, 2, 1])
WEIGHTS = [0.5, 2.0, 0.0]
KEY = jax.random.key(0)
# Networks that return their inputs plus parameters.
SHIFT = (lambda key, x: jnp.zeros((1, 3)), lambda w, x: x + w)


def trained(y=Y, outputs=OUTPUTS, steps=1, **changes):
    settings = {"members": 1, "steps": steps, "optimizer": optax.sgd(0.0), "key": KEY, "loss": "cross_entropy"}
    return ensembles.train(SHIFT, (outputs, y), **settings | changes)


def last_loss(*data, **changes):
    return float(trained(*data, **changes).curve[1][-1, 0])


def log_p(outputs=OUTPUTS):
    return outputs - np.log(np.exp(outputs).sum(1, keepdims=True))


def losses_by_hand(y, weights, smoothing):
    """The loss and the weight of every sample, entry by entry as PyTorch documents them for labels that are numbers."""
    losses, own = np.zeros(len(y)), np.zeros(len(y))
    for i, label in enumerate(y):
        losses[i] = -(1 - smoothing) * weights[label] * log_p()[i, label]
        losses[i] -= sum(smoothing / 3 * weights[c] * log_p()[i, c] for c in range(3))
        own[i] = weights[label]
    return losses, own


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_weighted_and_smoothed_losses_are_those_of_pytorch(smoothing):
    losses, own = losses_by_hand(Y, WEIGHTS, smoothing)
    weighted = {"class_weights": WEIGHTS, "label_smoothing": smoothing}
    assert_close(last_loss(**weighted), losses.sum() / own.sum())
    assert_close(last_loss(**weighted, reduction="sum"), losses.sum())
    assert_close(last_loss(np.eye(3)[Y], **weighted), losses.sum() / own.sum())


def test_weights_are_those_of_scikit_learn_and_smoothing_that_of_optax():
    expected = sklearn.metrics.log_loss(Y, np.exp(log_p()), sample_weight=np.array(WEIGHTS)[Y], labels=[0, 1, 2])
    assert_close(last_loss(class_weights=WEIGHTS), expected)
    smoothed = optax.losses.smooth_labels(jnp.eye(3)[Y], 0.2)
    expected = optax.losses.softmax_cross_entropy(jnp.asarray(OUTPUTS), smoothed).mean()
    assert_close(last_loss(label_smoothing=0.2), expected)
    balanced = sklearn.utils.class_weight.compute_class_weight("balanced", classes=np.arange(3), y=Y)
    assert_close(last_loss(class_weights="balanced"), last_loss(class_weights=balanced))
    assert_close(last_loss(class_weights=[1, 1, 1]), last_loss())


def test_samples_that_fill_up_a_batch_have_no_weight():
    """The last of three batches has one sample, and is filled up with two others."""
    found = last_loss(class_weights=[0.5, 2.0, 3.0], label_smoothing=0.1, batch_size=3, steps=3)
    losses, own = losses_by_hand(Y, [0.5, 2.0, 3.0], 0.1)
    assert np.abs(losses / own / found - 1).min() < 1e-12


def test_a_batch_of_classes_without_weight_teaches_nothing():
    run = trained(np.array([2, 2]), OUTPUTS[:2], class_weights=WEIGHTS, optimizer=optax.sgd(1.0))
    assert run.curve[1][-1, 0] == 0
    assert not run.failed
    np.testing.assert_array_equal(run.params, np.zeros((1, 1, 3)))


def test_other_weights_are_another_run(tmp_path):
    trained(checkpoint=tmp_path, class_weights=WEIGHTS)
    assert trained(checkpoint=tmp_path, resume=True, class_weights=WEIGHTS).steps == 1
    for changes in ({"class_weights": [0.5, 2.0, 1.0]}, {"class_weights": WEIGHTS, "label_smoothing": 0.1}, {}):
        with pytest.raises(ValueError, match=r"loss: .* instead of .*class_weights"):
            trained(checkpoint=tmp_path, resume=True, **changes)


def gradient(w, y=Y):
    """The gradient of the mean cross-entropy with respect to the shift of all outputs."""
    p = np.exp(log_p(OUTPUTS + w))
    return (p - np.eye(3)[y]).mean(0)


def test_gradients_are_clipped_and_rates_follow_the_epochs_as_by_hand():
    halved = ensembles.by_epoch(lambda epoch: 8.0 * 0.5**epoch, SHIFT, (OUTPUTS, Y))
    optimizer = optax.chain(optax.clip_by_global_norm(0.05), optax.sgd(halved))
    run = trained(optimizer=optimizer, steps=6)
    w, clipped = np.zeros(3), 0
    for step in range(6):
        g = gradient(w)
        clipped += np.linalg.norm(g) > 0.05
        w = w - 8.0 * 0.5**step * g * min(1.0, 0.05 / np.linalg.norm(g))
    assert 0 < clipped < 6
    assert_close(run.params[0, 0], w)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"class_weights": [1.0, 2.0]}, r"`class_weights` must be 3 numbers, one for each class, got shape \(2,\)"),
        ({"class_weights": [1.0, -2.0, 1.0]}, "`class_weights` must be finite, 0 or more"),
        ({"class_weights": [0.0, 0.0, 0.0]}, "not all 0"),
        ({"class_weights": "equal"}, '`class_weights` must be numbers or "balanced"'),
        ({"class_weights": "balanced", "y": np.array([0, 1, 1, 0, 0, 1, 1])}, r"got no sample of \[2\]"),
        ({"label_smoothing": 1.0}, r"`label_smoothing` must be a number in \[0, 1\), got 1.0"),
        ({"label_smoothing": -0.1}, r"`label_smoothing` must be a number in \[0, 1\)"),
        (
            {"label_smoothing": 0.1, "loss": "mse", "y": OUTPUTS},
            '`label_smoothing` must be left out unless loss="cross',
        ),
        ({"class_weights": [1, 1, 1], "loss": lambda f, y: f[:, 0]}, "`class_weights` must be left out unless"),
        ({"y": np.full((7, 3), 0.5)}, "positive and add up to 1"),
    ],
)
def test_wrong_weights_and_smoothing_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        trained(**changes)
