"""Images of low frequencies of which an ensemble is sure."""

import _fourier_images
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntk_equiv import ensembles, groups, reps
from tests.tolerances import ORACLE, assert_close

SIDE, CHANNELS, MEMBERS = 9, 2, 3
KEY = jax.random.key(0)
CLASSES = np.tile(np.arange(3), 3)


def init(key, x):
    return jax.random.uniform(key, (x[0].size, 3), minval=-0.05, maxval=0.05)


def apply(W, x):
    return jnp.maximum(x.reshape(len(x), -1) @ W, 0)


RUN = ensembles.untrained((init, apply), np.zeros((1, SIDE, SIDE, CHANNELS)), members=MEMBERS, key=KEY)


def confident(**changes):
    settings = {"confidence": 0.99, "rate": 0.3, "steps": 300, "batch": 4}
    return _fourier_images.confident_images(RUN, CLASSES, KEY, side=SIDE, channels=CHANNELS, **settings | changes)


@pytest.fixture(scope="module")
def found():
    return confident()


def spectrum(images):
    """The size of each Fourier coefficient, and which of them are among the 5 × 5 lowest."""
    low = np.abs(np.fft.fftfreq(images.shape[1], 1 / images.shape[1])) <= 2
    return np.abs(np.fft.fft2(images, axes=(1, 2))), np.multiply.outer(low, low)


def test_images_have_no_other_frequencies(found):
    sizes, low = spectrum(np.asarray(_fourier_images.images_of(found["coefficients"], SIDE)))
    assert low.sum() == 25
    assert np.max(sizes[:, ~low]) < ORACLE["float64"] * np.max(sizes)
    assert np.all(np.max(sizes[:, low], axis=(0, 2)) > 0.01 * np.max(sizes))  # and they have all of these


def test_the_waves_are_orthonormal_and_odd_in_number():
    beta = _fourier_images.waves(SIDE)
    assert_close(beta.T @ beta / SIDE, np.eye(5))
    for frequencies in (4, 11):
        with pytest.raises(ValueError, match="odd and at most the 9 pixels"):
            _fourier_images.waves(SIDE, frequencies)


def test_images_to_begin_with_are_normalized():
    x = _fourier_images.images_of(_fourier_images.normalized_coefficients(KEY, 4, CHANNELS), SIDE)
    assert_close(jnp.mean(x, (1, 2, 3)) + 1, np.ones(4))
    assert_close(jnp.mean(x**2, (1, 2, 3)), np.ones(4))


def test_the_ensemble_is_as_sure_as_it_says(found):
    logits = np.asarray(RUN.predict(_fourier_images.images_of(found["coefficients"], SIDE))).mean(0)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert_close(found["confidence"], p[np.arange(len(p)), CLASSES])
    assert found["reached"].all()
    # Images stop when they have got there, and not all at once.
    assert found["confidence"].min() >= 0.99
    assert found["confidence"].max() < 0.999
    assert len(set(found["steps"])) > 1


def test_images_do_not_know_of_each_other(found):
    alone = confident(batch=9)
    assert_close(alone["coefficients"], found["coefficients"], {"float64": 1e-8})
    np.testing.assert_array_equal(alone["steps"], found["steps"])


def test_images_that_do_not_get_there_are_kept_and_named(found):
    steps = int(np.median(found["steps"]))
    cut = confident(steps=steps)
    np.testing.assert_array_equal(cut["reached"], found["steps"] <= steps)
    assert 0 < cut["reached"].sum() < len(CLASSES)
    assert cut["coefficients"].shape == found["coefficients"].shape
    assert set(cut["steps"][~cut["reached"]]) == {steps}
    assert cut["confidence"][~cut["reached"]].max() < 0.99


def test_turning_loses_little_of_smooth_images():
    z = _fourier_images.normalized_coefficients(KEY, 5, CHANNELS)
    eighths = reps.rotate(groups.cyclic(8))
    losses = {
        side: np.asarray(_fourier_images.turning_loss(_fourier_images.images_of(z, side), eighths, 1))
        for side in (28, 112)
    }
    noise = jax.random.normal(KEY, (5, 28, 28, CHANNELS))
    assert losses[28].max() < 0.1 < 0.5 < np.min(_fourier_images.turning_loss(noise, eighths, 1))
    # The error of linear interpolation falls with the square of the distance of pixels.
    np.testing.assert_allclose(losses[28] / losses[112], 16, rtol=0.15)
    assert not np.any(_fourier_images.turning_loss(noise, reps.rot90(groups.cyclic(4)), 1))
