"""Augmentation against group convolution: kernels, means at all times, covariances; and where they part."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntk_equiv import InfiniteEnsemble, augment, filters, groups, reps, stax, theorems
from tests.tolerances import ORACLE, REDUCTION

INF = float("inf")
C4, D4 = reps.rot90(groups.cyclic(4)), reps.rot90(groups.dihedral(4))
READOUT = stax.Dense(1, 1.1, 0.2)


def images(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape))


def layers(name):
    return partial(stax.LiftingConv, group=name), partial(stax.GroupConv, group=name)


def mlp(name, size=3):
    """A filter as large as the image, and then 1×1 filters or dense layers, which do as well."""
    lift, conv = layers(name)
    plain = stax.serial(
        stax.Flatten(), stax.Dense(8, 1.3, 0.2), stax.Relu(), stax.Dense(8, 1.2, 0.1), stax.Erf(), READOUT
    )
    first, second = lift(8, (size, size), W_std=1.3, b_std=0.2), conv(8, (1, 1), W_std=1.2, b_std=0.1)
    return plain[2], stax.serial(first, stax.Relu(), second, stax.Erf(), READOUT, stax.GlobalAvgPool())[2]


def flattened(name):
    """Flattening and a dense layer, against a filter on the group as large as the grid; a hidden layer comes after."""
    lift, conv = layers(name)
    plain = stax.serial(stax.Conv(8, (2, 2), b_std=0.1), stax.Relu(), stax.Flatten(), READOUT, stax.Relu(), READOUT)
    full = conv(1, (2, 2), W_std=1.1, b_std=0.2)
    ours = stax.serial(lift(8, (2, 2), b_std=0.1), stax.Relu(), full, stax.Relu(), READOUT, stax.GlobalAvgPool())
    return plain[2], ours[2]


def spatial(name):
    """Outputs with positions."""
    lift, _ = layers(name)
    plain = stax.serial(stax.Conv(8, (2, 2), W_std=1.4, b_std=0.1), stax.Relu(), READOUT)
    return plain[2], stax.serial(lift(8, (2, 2), W_std=1.4, b_std=0.1), stax.Relu(), READOUT, stax.GroupPool())[2]


def pooled(*end):
    """The average over positions, and on the group over both; then the given layers."""
    lift, _ = layers("C4")
    body = lambda first: stax.serial(first(8, (2, 2), b_std=0.1), stax.Relu(), stax.GlobalAvgPool(), *end)[2]  # noqa: E731
    return body(stax.Conv), body(lift)


MATCHING = {
    "MLP, D4": (*mlp("D4"), D4),
    "CNN, flattened, C4": (*flattened("C4"), C4),
    "CNN, spatial, C4": (*spatial("C4"), C4),
}


@pytest.mark.parametrize("name", MATCHING)
def test_kernels_are_averages_over_the_group(name):
    """On images that are copies of each other too, where activations are least smooth."""
    x = images(2, 3, 3, 2)
    found = theorems.averaged_kernel(*MATCHING[name], x, jnp.concatenate([x[:1], jnp.rot90(x, 1, (1, 2))]))
    assert [part.part for part in found.parts] == ["nngp", "ntk"]
    assert all(part.scale > 0.1 for part in found.parts)
    assert found.holds(ORACLE["float64"]), found


def test_a_nonlinearity_after_the_average_is_not_matched():
    """Both networks respect the symmetry; a hidden layer after the average over positions is not one after both."""
    plain, on_group = pooled(READOUT, stax.Relu(), READOUT)
    found = theorems.averaged_kernel(plain, on_group, C4, images(2, 3, 3, 1))
    assert not any(part.holds(1e-3) for part in found.parts)
    # Both average over the group, so what differs is no lack of invariance.
    assert all(np.ptp(part.by_element) <= ORACLE["float64"] * part.scale for part in found.parts)


FLOW, TIMES = filters.gradient_flow(0.7), (0.0, 0.3, 50.0, INF)
TRAINING = {
    # The filter of the augmented ensemble, that of the convolutional one, times, reduction.
    "flow, mean": (FLOW, FLOW, TIMES, "mean"),
    "flow, sum": (FLOW, filters.gradient_flow(4 * 0.7), TIMES, "sum"),
    "descent, sum": (filters.gradient_descent(0.01), filters.gradient_descent(0.04), (0, 1, 40, 300), "sum"),
    "momentum, mean": (*[filters.momentum(0.1, 0.9)] * 2, (0, 2, 30, 500), "mean"),
    "ridge, sum": (filters.ridge(0.8, 0.5), filters.ridge(0.2, 2.0), (0, 0.1, 1, INF), "sum"),
}
# Of one size, so that all of them share their programs.
SMALL = mlp("C4", size=2)
X, Y = images(2, 2, 2, 2), images(2, 1, seed=1)
ORBITS = augment(X, Y, C4)
FAR = 10 * images(2, 2, 2, 2, seed=5)


def trained(first, second, reduction):
    """The plain network on augmented data, and that of group convolutions on the base samples."""
    augmented = InfiniteEnsemble(SMALL[0], ORBITS, first, reduction=reduction, method="dense")
    return augmented, InfiniteEnsemble(SMALL[1], (X, Y), second, reduction=reduction, method="dense")


@pytest.mark.parametrize("row", TRAINING)
def test_means_are_equal_at_all_times_and_covariances_are_averages(row):
    first, second, times, reduction = TRAINING[row]
    augmented, convolutional = trained(first, second, reduction)
    t = jnp.asarray(times, float)
    found = theorems.augmentation_equivalence(augmented, convolutional, FAR, t)
    assert [part.part for part in found.parts] == ["mean", "cov"]
    assert all(part.scale > 0.1 for part in found.parts)
    assert found.holds(REDUCTION["float64"]), str(found)


def test_members_of_the_augmented_ensemble_spread_more():
    """By a positive semidefinite matrix that is not small, at all times."""
    augmented, convolutional = trained(FLOW, FLOW, "mean")
    t = jnp.asarray(TIMES)
    wide, narrow = np.asarray(augmented.cov(FAR, t)), np.asarray(convolutional.cov(FAR, t))
    eigenvalues = np.linalg.eigvalsh(wide - narrow)
    assert (eigenvalues[:, 0] > -1e-9 * wide.max((1, 2))).all()
    assert (eigenvalues[:, -1] > 0.1 * wide.max((1, 2))).all()


def test_labels_with_positions():
    """Scalar fields, which move along with the outputs."""
    plain, on_group, rep = MATCHING["CNN, spatial, C4"]
    x, y = images(1, 3, 3, 2), images(1, 2, 2, 1, seed=1)
    augmented = InfiniteEnsemble(plain, augment(x, y, rep, rep), FLOW, method="dense")
    convolutional = InfiniteEnsemble(on_group, (x, y), filters.gradient_flow(4 * 0.7), method="dense")
    found = theorems.augmentation_equivalence(augmented, convolutional, images(1, 3, 3, 2, seed=5), 0.3)
    assert all(part.scale > 0.1 for part in found.parts)
    assert found.holds(REDUCTION["float64"]), str(found)


def test_the_sum_of_losses_needs_the_larger_rate():
    augmented, convolutional = trained(FLOW, FLOW, "sum")
    found = theorems.augmentation_equivalence(augmented, convolutional, FAR, jnp.asarray((0.0, 0.01, 0.1, 0.3)))
    assert not found.parts[0].holds(1e-2)
    # Where training has ended, the rate does not matter.
    assert theorems.augmentation_equivalence(augmented, convolutional, FAR, jnp.full(4, INF)).holds(
        REDUCTION["float64"]
    )


def test_without_group_convolutions_means_differ():
    augmented, _ = trained(FLOW, FLOW, "mean")
    plain = InfiniteEnsemble(SMALL[0], (X, Y), FLOW, reduction="mean", method="dense")
    found = theorems.augmentation_equivalence(augmented, plain, FAR, jnp.asarray(TIMES))
    assert not any(part.holds(1e-2) for part in found.parts)


def test_what_is_refused():
    ens = InfiniteEnsemble(SMALL[0], (X, Y), FLOW, method="dense")
    with pytest.raises(ValueError, match="`ens` must be an ensemble on augmented data"):
        theorems.augmentation_equivalence(ens, ens, X, 1.0)
    features = stax.LiftingConv(1, (2, 2), group="C4")[2]
    with pytest.raises(ValueError, match=r"`group_kernel_fn` must be .* Average over the group"):
        theorems.averaged_kernel(SMALL[0], features, C4, X)
    with pytest.raises(ValueError, match="`rep_x` must be of a finite group"):
        theorems.averaged_kernel(*SMALL, reps.matrix(groups.SO2), X)
