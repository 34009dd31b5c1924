"""Where theory holds for what a user chose, and where it does not: measured, and said in plain words."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from ntk_equiv._typing import KernelFunction
from ntk_equiv.reps import Representation
from ntk_equiv.theorems import Violation, kernel_transformation

ALWAYS = (
    "This is the theory of infinitely wide networks with Gaussian weights in the NTK parameterization, trained on the "
    "squared error by gradient flow on all data at once. Adam, cross-entropy, max-pooling, dropout, small batches at "
    "high rates and narrow networks are outside of it: for them the numbers are a guide, and no prediction."
)
CHECKED = 4


def measured(kernel_fn: KernelFunction, rep_x: Representation, x: Any, /) -> Violation:
    """How far the kernels are from respecting the symmetry, on a few samples and for generators of the group.

    The theorem is about all inputs, so that noise as large as the data is added: samples that the group leaves as they
    are, such as blank images, would say nothing.
    """
    group: Any = rep_x.group
    few = np.asarray(x[:CHECKED])
    size = float(np.sqrt(np.mean(np.square(x)))) or 1.0
    noise = np.random.default_rng(0).normal(scale=size, size=few.shape).astype(few.dtype)
    return kernel_transformation(
        kernel_fn, rep_x, jnp.asarray(few + noise), elements=group.generators or (group.identity,)
    )


def holds(found: Violation, dtype: Any, /) -> bool:
    """Whether this is no more than rounding, so that the symmetry can be used."""
    return bool(found.holds(float(jnp.finfo(dtype).eps) ** 0.6))


def symmetry_notes(found: Violation, rep_x: Representation, x: Any, /) -> list[str]:
    """What these measurements mean."""
    notes = []
    count = f"{min(CHECKED, len(x))} sample{'s' * (len(x) > 1)} with noise added"
    if not rep_x.exact:
        grid = x.shape[1:3]
        error = (
            f", off by up to {rep_x.homomorphism_error(grid=grid):.2g} for pixels between −1 and 1"
            if max(grid) <= 32
            else ""
        )
        notes.append(
            f"WARNING: {rep_x} interpolates. Turning twice is not the same as turning once by the sum{error}, so that "
            "the augmented data are no orbit and even the infinite ensemble is equivariant only approximately."
        )
    if holds(found, x.dtype):
        notes.append(
            f"The network respects the symmetry: on {count} its kernels transform as they should "
            f"{f'up to {found.relative:.1g} of their size' if found.relative else 'exactly'}."
        )
    else:
        notes.append(
            f"WARNING: the network with this action does not respect the symmetry, the kernels are off by "
            f"{found.relative:.2g} of their size on {count}. The theorem does not apply: even "
            "infinitely many members need not be equivariant. What is said here is computed without it and remains "
            "right."
        )
    return notes


def ensemble_notes(ens: Any, bias: float, delta: float, /) -> list[str]:
    """What the trained ensemble says about itself."""
    notes = []
    if ens.method == "dense":
        notes.append(f"The Gram matrix of all {len(ens.y)} augmented samples was decomposed as a whole.")
    if jnp.asarray(ens.y).dtype != jnp.float64:
        notes.append(
            "WARNING: computed in single precision, which resolves late training times badly; leave out --float32, or "
            'in Python say `jax.config.update("jax_enable_x64", True)` first.'
        )
    if bias >= 1e-3 * delta:
        notes.append(
            f"WARNING: the infinite ensemble itself deviates from equivariance by up to {bias:.3g} on the test "
            "samples. No number of members removes that."
        )
    return notes


def fixed_points_note(fixed: int, order: int, /) -> list[str]:
    """What samples mean that the group leaves where they are."""
    if not fixed or order == 1:
        return []
    return [
        f"{fixed} training sample{'s are' if fixed > 1 else ' is'} left fixed by some element of the group, and "
        "repeated in the augmented data. That is no harm."
    ]
