"""What the library computes lowers for the devices that are not here; training in tests/ensembles/test_devices.py."""

import jax
import jax.numpy as jnp
import pytest
from jax import export

from ntk_equiv import InfiniteEnsemble, augment, bounds, filters, groups, reps, stax

IMAGES = jnp.ones((2, 5, 5, 2), jnp.float32)
VECTORS = jnp.ones((2, 3), jnp.float32)
TURNS = reps.rot90(groups.dihedral(4))
LABELS = jnp.ones((2, 1), jnp.float32)
EMBEDDED = stax.GlobalSelfAttention(1, 1, 1, 1, pos_emb_type="SUM")
ATTENTION = stax.serial(stax.Dense(1), EMBEDDED, stax.LayerNorm(), stax.Relu())
DEEP = stax.serial(stax.Flatten(), stax.repeat(stax.serial(stax.Dense(1, 1.4, 0.1), stax.Relu()), 9))
NETWORK = stax.serial(stax.Conv(1, (3, 3), b_std=0.1), stax.Relu(), stax.Flatten(), stax.Dense(1))


def ensemble(method):
    """Mean and variance of an infinite ensemble, from data to results."""

    def statistics(x, y):
        train = augment(x, y, TURNS)
        ens = InfiniteEnsemble(NETWORK.kernel_fn, train, filters.gradient_descent(0.1), method=method)
        return ens.mean(x, 3), ens.var(x, 3)

    return statistics


COMPUTATIONS = {
    "quarter turns": (TURNS, (1, IMAGES)),
    "rotations": (reps.rotate(groups.cyclic(8)).orbit, (IMAGES,)),
    "matrices": (reps.matrix(groups.polyhedral("I")).orbit, (VECTORS,)),
    "kernels of a network": (NETWORK.kernel_fn, (IMAGES,)),
    "kernels of a deep network": (DEEP.kernel_fn, (IMAGES,)),
    "kernels of attention": (ATTENTION.kernel_fn, (IMAGES,)),
    "infinite ensemble, dense": (ensemble("dense"), (IMAGES, LABELS)),
    "infinite ensemble, reduced": (ensemble("reduced"), (IMAGES, LABELS)),
    "kernels": (TURNS.spatial((3, 3)).both, (1, jnp.ones((2, 2, 3, 3, 3, 3)))),
    "Haar samples": (lambda key: groups.SO3.sample(key, 4), (jax.random.key(0),)),
    "distances": (groups.SO3.distance, (jnp.eye(3), jnp.eye(3))),
    "ensemble sizes": (lambda v: bounds.min_ensemble_size(v, 0.1, 0.05, channels=3), (jnp.ones(2),)),
    "modulus of a kernel": (
        bounds.kernel_modulus,
        (stax.serial(stax.Dense(1), stax.Relu(), stax.Dense(1))[2], *[jnp.ones(2)] * 3),
    ),
    "augmented data": (lambda x, y: augment(x, y, TURNS).x, (IMAGES, jnp.zeros(2))),
    "permutation matrices": (lambda g: augment(IMAGES, jnp.zeros(2), TURNS).permutation_matrix(g), (1,)),
}


@pytest.mark.parametrize("name", COMPUTATIONS)
@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_lowers(name, platform) -> None:
    function, arguments = COMPUTATIONS[name]
    assert export.export(jax.jit(function), platforms=[platform])(*arguments).platforms == (platform,)
