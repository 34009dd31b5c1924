"""Losses that members are trained on, and their gradients.

    mse             ½ (f − y)²                          per entry of y
    cross_entropy   −log softmax(f)_y, or −y·log softmax(f) for labels that are distributions        per sample

`reduction="sum"` adds these up, `"mean"` divides by their number: for `mse` by the size of y, as neural-tangents and
the theory here do. (The mean square error of PyTorch and Keras has no ½.) In minibatches both run over the batch.

**Gradients on CPUs**, where they take most of a step. A layer h W with few outputs has the gradient ∂L/∂W = hᵀ g, a
tall matrix whose transpose is gᵀ h: the same numbers, but XLA on CPUs is up to five times slower at products with few
columns than at those with few rows. So tall matrices are transposed while the loss is differentiated. XLA would merge a
transposition alone with the product again. A selection between the two prevents that, and it is one that we want: where
the loss is not a finite number, the gradient is NaN.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv._check import refusal

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


LOSSES: dict[str, LossFn] = {"mse": mse, "cross_entropy": cross_entropy}


def loss_function(loss: str | LossFn, outputs: jax.ShapeDtypeStruct, y: np.ndarray) -> LossFn:
    """Return the function of a loss, given as such or by name, if it fits outputs of this shape and these labels."""
    if callable(loss):
        _check_custom(loss, outputs, y)
        return loss
    if not isinstance(loss, str) or loss not in LOSSES:
        fix = "A function of (outputs, y) that returns one loss per sample is welcome too."
        raise refusal("loss", expected=f"one of {', '.join(LOSSES)}", got=repr(loss), fix=fix)
    if loss == "mse":
        _check_mse(outputs, y)
    else:
        _check_cross_entropy(outputs, y)
    return LOSSES[loss]


def reduce_losses(values: jax.Array, mask: jax.Array | None, reduction: str) -> jax.Array:
    """Return the sum or mean of losses, [samples, ...]; a mask of 0 and 1 leaves out the samples with 0."""
    if mask is None:
        return jnp.sum(values) if reduction == "sum" else jnp.mean(values)
    mask = mask.astype(values.dtype)
    total = jnp.sum(values * mask.reshape(mask.shape + (1,) * (values.ndim - 1)))
    return total if reduction == "sum" else total / (jnp.sum(mask) * (values.size // len(values)))


def value_and_gradient(loss: Callable[[Any], Any], params: Any, *, has_aux: bool = False) -> tuple[Any, Any]:
    """Return a loss and its gradient, which is NaN throughout if the loss is not finite.

    With `has_aux` the function returns a pair of the loss and something else, and so does this one in place of the
    loss, as `jax.value_and_grad` does.

    >>> loss, gradient = value_and_gradient(lambda w: jnp.sum(w**3) / 3, jnp.array([[1.0], [2.0]]))
    >>> print(loss, gradient.ravel())
    3.0 [1. 4.]
    >>> print(value_and_gradient(lambda w: jnp.sum(w) / 0.0, jnp.ones(2))[1])
    [nan nan]
    """
    tall = jax.tree.map(_is_tall, params)

    def transpose_tall(tree: Any) -> Any:
        return jax.tree.map(lambda leaf, is_tall: leaf.T if is_tall else leaf, tree, tall)

    differentiate = jax.value_and_grad(lambda transposed: loss(transpose_tall(transposed)), has_aux=has_aux)
    value, gradient = differentiate(transpose_tall(params))
    fine = jnp.isfinite(value[0] if has_aux else value)
    return value, transpose_tall(jax.tree.map(lambda leaf: jnp.where(fine, leaf, jnp.nan), gradient))


def _is_tall(leaf: jax.Array) -> bool:
    return jnp.ndim(leaf) == 2 and leaf.shape[0] > leaf.shape[1]


def _check_mse(outputs: jax.ShapeDtypeStruct, y: np.ndarray) -> None:
    if not jnp.issubdtype(y.dtype, jnp.floating):
        fix = 'Convert labels to floats, or classify with loss="cross_entropy".'
        raise refusal("y", expected='floating-point labels for loss="mse"', got=f"dtype {y.dtype}", fix=fix)
    largest = float(jnp.finfo(y.dtype).max) ** 0.5
    if np.abs(y).max(initial=0) > largest:
        fix = "Divide them by a constant, and multiply predictions by it; or train in float64."
        got = f"labels up to {np.abs(y).max():.3g}"
        raise refusal("y", expected=f"below {largest:.1e}, whose square {y.dtype} can hold", got=got, fix=fix)
    if outputs.shape not in (y.shape, (*y.shape, 1) if y.ndim == 1 else y.shape):
        fix = "Give the last layer as many outputs as the labels have channels."
        raise refusal("module", expected=f"one with outputs of the shape of y, {y.shape}", got=outputs.shape, fix=fix)


def _check_cross_entropy(outputs: jax.ShapeDtypeStruct, y: np.ndarray) -> None:
    integers = jnp.issubdtype(y.dtype, jnp.integer)
    expected = outputs.shape[:-1] if integers else outputs.shape
    if y.shape != expected or outputs.shape[-1] < 2 or not (integers or jnp.issubdtype(y.dtype, jnp.floating)):
        fix = 'Labels are integers [n], or distributions [n, classes]; numbers are fitted with loss="mse".'
        got = f"{y.dtype} of shape {y.shape}"
        raise refusal("y", expected=f'labels for loss="cross_entropy" of {outputs.shape} outputs', got=got, fix=fix)
    # JAX would not complain: it counts −1 from the end, and returns NaN beyond the end.
    if integers and not (y.min() >= 0 and y.max() < outputs.shape[-1]):
        fix = "Number the classes from 0, or give the last layer one output for each of them."
        got = f"labels from {y.min()} to {y.max()}"
        raise refusal("y", expected=f"whole numbers from 0 to {outputs.shape[-1] - 1}", got=got, fix=fix)
    if not integers and not (y.min() >= 0 and np.abs(y.sum(-1) - 1).max() <= SUM_TOLERANCE):
        fix = "Pass the numbers of the classes, or probabilities of each."
        got = f"entries down to {y.min():.3g} and sums from {y.sum(-1).min():.3g} to {y.sum(-1).max():.3g}"
        raise refusal("y", expected="distributions, which are positive and add up to 1", got=got, fix=fix)


def _check_custom(loss: LossFn, outputs: jax.ShapeDtypeStruct, y: np.ndarray) -> None:
    values = jax.eval_shape(loss, outputs, y)
    if values.shape[:1] != y.shape[:1]:
        fix = "Return one loss per sample; they are summed or averaged as `reduction` says."
        raise refusal("loss", expected=f"losses of {y.shape[0]} samples", got=f"shape {values.shape}", fix=fix)
