"""Losses, for networks that are trained and for the theory of their training.

    mse             ½ (f − y)²                          per entry of y
    cross_entropy   −log softmax(f)_y, or −y·log softmax(f) for labels that are distributions        per sample

`reduction="sum"` adds these up, `"mean"` divides by their number: for `mse` by the size of y, as neural-tangents and
the theory here do. (The mean square error of PyTorch and Keras has no ½.) In minibatches both run over the batch.

**Smoothed labels and weights of classes.** With K classes, smoothing ε and weights w, a label y, which may be one-hot,
becomes y' = (1 − ε) y + ε/K, and the loss of a sample is −Σ_c w_c y'_c log softmax(f)_c. The mean divides the sum of
these losses by Σ w·y, the sum of the weights of the samples. For whole numbers as labels this is PyTorch's definition.
For distributions PyTorch divides by the number of samples; here one-hot labels and whole numbers mean the same.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ntk_equiv._check import describe, is_concrete, is_number, real_array, refusal

LossFn = Callable[[Any, Any], Any]
"""A function of outputs and labels that returns one loss per sample, or per entry of the labels."""

# How far the sum of the probabilities of a label may be from 1: in half precision it is 1 only roughly.
SUM_TOLERANCE = 1e-2


def mse(outputs: jax.Array, y: jax.Array) -> jax.Array:
    """Return half the square of every difference."""
    return jnp.square(outputs.reshape(y.shape) - y) / 2


def cross_entropy(outputs: jax.Array, y: jax.Array) -> jax.Array:
    """Return minus the logarithm of the probability of each label."""
    log_p = jax.nn.log_softmax(outputs, -1)
    if jnp.issubdtype(y.dtype, jnp.integer):
        return -jnp.take_along_axis(log_p, y[..., None], -1)[..., 0]
    return -jnp.sum(y * log_p, -1)


@dataclasses.dataclass(frozen=True)
class CrossEntropy:
    """The cross-entropy with weights of classes and smoothed labels.

    It is a value: equal settings are one loss, so that compiled programs are found again.

    Attributes:
        class_weights: a weight for each class; None if all of them are 1.
        label_smoothing: ε, the part of a label that is spread evenly over all classes.
    """

    class_weights: tuple[float, ...] | None
    label_smoothing: float

    def __call__(self, outputs: jax.Array, y: jax.Array) -> jax.Array:
        """Return the loss of every sample."""
        log_p, classes, smoothing = jax.nn.log_softmax(outputs, -1), outputs.shape[-1], self.label_smoothing
        labels = (1 - smoothing) * self._distributions(y, classes, log_p.dtype) + smoothing / classes
        return -jnp.sum(labels * self._weights(log_p) * log_p, -1)

    def weights_of_samples(self, y: jax.Array, outputs: jax.Array) -> jax.Array | None:
        """Return the weight of every sample, by which a mean is divided; None if all of them are 1."""
        if self.class_weights is None:
            return None
        labels = self._distributions(y, outputs.shape[-1], outputs.dtype)
        return jnp.sum(labels * self._weights(outputs), -1)

    def _weights(self, like: jax.Array) -> jax.Array:
        weights = jnp.ones(like.shape[-1]) if self.class_weights is None else jnp.array(self.class_weights)
        return weights.astype(like.dtype).reshape((1,) * (like.ndim - 1) + (-1,))

    def _distributions(self, y: jax.Array, classes: int, dtype: Any) -> jax.Array:
        return jax.nn.one_hot(y, classes, dtype=dtype) if jnp.issubdtype(y.dtype, jnp.integer) else y.astype(dtype)


LOSSES: dict[str, LossFn] = {"mse": mse, "cross_entropy": cross_entropy}
ClassWeights = str | ArrayLike | Sequence
"""Weights of classes as users pass them: one for each class, or "balanced"."""


def loss_function(
    loss: str | LossFn,
    outputs: jax.ShapeDtypeStruct,
    y: np.ndarray,
    *,
    class_weights: ClassWeights | None = None,
    label_smoothing: Any = 0.0,
) -> LossFn:
    """Return the function of a loss, given as such or by name, if it fits outputs of this shape and these labels."""
    if not callable(loss) and (not isinstance(loss, str) or loss not in LOSSES):
        fix = "A function of (outputs, y) that returns one loss per sample is welcome too."
        raise refusal("loss", expected=f"one of {', '.join(LOSSES)}", got=repr(loss), fix=fix)
    function = loss if callable(loss) else LOSSES[loss]
    check_labels(function, outputs, y)
    smoothing = _check_smoothing(label_smoothing)
    if class_weights is None and smoothing == 0:
        return function
    if loss != "cross_entropy":
        given = "label_smoothing" if class_weights is None else "class_weights"
        fix = 'They are for loss="cross_entropy"; a loss of your own may have its own.'
        raise refusal(given, expected='left out unless loss="cross_entropy"', got=f"loss={loss!r}", fix=fix)
    weights = None if class_weights is None else _check_class_weights(class_weights, outputs.shape[-1], y)
    return CrossEntropy(weights, smoothing)


def is_cross_entropy(loss: LossFn) -> bool:
    """Return whether a loss is a cross-entropy of this module, whose outputs are logits."""
    return loss is cross_entropy or isinstance(loss, CrossEntropy)


def largest_curvature(loss: LossFn) -> float | None:
    """Return a bound on the second derivatives of the loss of a sample in its outputs; None if none is known.

    Those of the cross-entropy are diag(p) − ppᵀ, whose largest row sum is 2p(1 − p).
    """
    if loss is mse:
        return 1.0
    if not is_cross_entropy(loss):
        return None
    weights = loss.class_weights if isinstance(loss, CrossEntropy) else None
    return 0.5 * max(weights or (1.0,))


def check_labels(loss: LossFn, outputs: jax.ShapeDtypeStruct, y: np.ndarray, argument: str = "y") -> None:
    """Refuse labels that a loss cannot compare with outputs of this shape.

    Args:
        loss: the function of the loss.
        outputs: shape and dtype of the outputs.
        y: the labels.
        argument: the name of the labels in messages.
    """
    if loss is mse:
        _check_mse(outputs, y, argument)
    elif is_cross_entropy(loss):
        _check_cross_entropy(outputs, y, argument)
    else:
        _check_custom(loss, outputs, y)


def loss_of_batch(loss: LossFn, outputs: jax.Array, y: jax.Array, mask: jax.Array | None, reduction: str) -> jax.Array:
    """Return the sum or mean of a loss over a batch.

    Args:
        loss: returns the loss of every sample.
        outputs: the outputs of a network, [samples, ...].
        y: the labels.
        mask: 0 for samples that only fill up the batch, 1 for the others; None if there are none to fill it up.
        reduction: "sum" or "mean".
    """
    weights = loss.weights_of_samples(y, outputs) if isinstance(loss, CrossEntropy) else None
    return reduce_losses(loss(outputs, y), mask, reduction, weights)


def reduce_losses(
    values: jax.Array, mask: jax.Array | None, reduction: str, weights: jax.Array | None = None
) -> jax.Array:
    """Return the sum or mean of losses, [samples, ...].

    Args:
        values: the losses, multiplied by weights if there are some.
        mask: 0 or 1 for each sample; samples with 0 are left out.
        reduction: "sum" or "mean".
        weights: weights of the losses, by whose sum a mean is divided; by default all are 1.
    """
    if mask is not None:
        mask = mask.astype(values.dtype).reshape(mask.shape + (1,) * (values.ndim - 1))
        values = values * mask
    if reduction == "sum":
        return jnp.sum(values)
    if weights is None:
        return jnp.mean(values) if mask is None else jnp.sum(values) / (jnp.sum(mask) * (values.size // len(values)))
    total = jnp.sum(weights if mask is None else weights * mask)
    # All samples of a batch may belong to classes of weight 0, which then has loss 0.
    return jnp.sum(values) / jnp.where(total > 0, total, 1)


def _check_mse(outputs: jax.ShapeDtypeStruct, y: np.ndarray, argument: str) -> None:
    if not jnp.issubdtype(y.dtype, jnp.floating):
        fix = 'Convert labels to floats, or classify with loss="cross_entropy".'
        raise refusal(argument, expected='floating-point labels for loss="mse"', got=f"dtype {y.dtype}", fix=fix)
    largest = float(jnp.finfo(y.dtype).max) ** 0.5
    if np.abs(y).max(initial=0) > largest:
        fix = "Divide them by a constant, and multiply predictions by it; or train in float64."
        got = f"labels up to {np.abs(y).max():.3g}"
        raise refusal(argument, expected=f"below {largest:.1e}, whose square {y.dtype} can hold", got=got, fix=fix)
    if outputs.shape not in (y.shape, (*y.shape, 1) if y.ndim == 1 else y.shape):
        fix = "Give the last layer as many outputs as the labels have channels."
        raise refusal("module", expected=f"one with outputs of the shape of y, {y.shape}", got=outputs.shape, fix=fix)


def _check_cross_entropy(outputs: jax.ShapeDtypeStruct, y: np.ndarray, argument: str) -> None:
    integers = jnp.issubdtype(y.dtype, jnp.integer)
    expected = outputs.shape[:-1] if integers else outputs.shape
    if y.shape != expected or outputs.shape[-1] < 2 or not (integers or jnp.issubdtype(y.dtype, jnp.floating)):
        fix = 'Labels are integers [n], or distributions [n, classes]; numbers are fitted with loss="mse".'
        got = f"{y.dtype} of shape {y.shape}"
        wanted = f'labels for loss="cross_entropy" of {outputs.shape} outputs'
        raise refusal(argument, expected=wanted, got=got, fix=fix)
    # JAX would not complain: it counts −1 from the end, and returns NaN beyond the end.
    if integers and not (y.min() >= 0 and y.max() < outputs.shape[-1]):
        fix = "Number the classes from 0, or give the last layer one output for each of them."
        got = f"labels from {y.min()} to {y.max()}"
        raise refusal(argument, expected=f"whole numbers from 0 to {outputs.shape[-1] - 1}", got=got, fix=fix)
    if not integers and not (y.min() >= 0 and np.abs(y.sum(-1) - 1).max() <= SUM_TOLERANCE):
        fix = "Pass the numbers of the classes, or probabilities of each."
        got = f"entries down to {y.min():.3g} and sums from {y.sum(-1).min():.3g} to {y.sum(-1).max():.3g}"
        raise refusal(argument, expected="distributions, which are positive and add up to 1", got=got, fix=fix)


def _check_custom(loss: LossFn, outputs: jax.ShapeDtypeStruct, y: np.ndarray) -> None:
    try:
        values = jax.eval_shape(loss, outputs, y)
    except Exception as error:  # whatever the user's function raises
        got = f"one that raises {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        fix = f"It is called with outputs {outputs.shape} and labels {y.shape}."
        raise refusal("loss", expected="a function of outputs and labels", got=got, fix=fix) from None
    if values.shape[:1] != y.shape[:1]:
        fix = "Return one loss per sample; they are summed or averaged as `reduction` says."
        raise refusal("loss", expected=f"losses of {y.shape[0]} samples", got=f"shape {values.shape}", fix=fix)


def _check_smoothing(label_smoothing: Any) -> float:
    """Return the smoothing of labels if it is a number from 0 up to 1, without 1."""
    if not is_number(label_smoothing) or not is_concrete(label_smoothing) or not 0 <= float(label_smoothing) < 1:
        fix = "0 leaves labels as they are; 0.1 is common."
        raise refusal("label_smoothing", expected="a number in [0, 1)", got=describe(label_smoothing), fix=fix)
    return float(label_smoothing)


def _check_class_weights(class_weights: Any, classes: int, y: np.ndarray) -> tuple[float, ...]:
    """Return the weight of every class; "balanced" makes all classes count alike in the training set."""
    fix = f'Pass one number for each of the {classes} classes, 0 or more and not all 0, or "balanced".'
    if isinstance(class_weights, str):
        if class_weights != "balanced":
            raise refusal("class_weights", expected='numbers or "balanced"', got=repr(class_weights), fix=fix)
        return _balanced_weights(classes, y)
    weights = np.asarray(real_array(class_weights, "class_weights", fix=fix), float)
    if weights.shape != (classes,):
        expected = f"{classes} numbers, one for each class"
        raise refusal("class_weights", expected=expected, got=f"shape {weights.shape}", fix=fix)
    if not np.isfinite(weights).all() or weights.min() < 0 or not weights.any():
        raise refusal("class_weights", expected="finite, 0 or more, and not all 0", got=weights.tolist(), fix=fix)
    return tuple(weights.tolist())


def _balanced_weights(classes: int, y: np.ndarray) -> tuple[float, ...]:
    """Return n / (K n_c) for each of K classes, which has n_c of n labels."""
    counts = np.bincount(y.ravel(), minlength=classes) if y.dtype.kind in "iu" else y.reshape(-1, classes).sum(0)
    if not counts.all():
        missing = np.flatnonzero(counts == 0).tolist()
        fix = "Give the weights as numbers, or the last layer fewer outputs."
        expected = 'numbers if some classes have no sample, or labels of every class for "balanced"'
        raise refusal("class_weights", expected=expected, got=f"no sample of {missing}", fix=fix)
    return tuple((counts.sum() / (classes * counts)).tolist())
