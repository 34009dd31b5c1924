"""Which symmetries of positions attention and normalisation respect, and which they do not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntk_equiv import groups, reps, stax, theorems
from tests.tolerances import ORACLE

IMAGES = jnp.asarray(np.random.default_rng(0).normal(size=(2, 4, 4, 2)))
TURNS = reps.rot90(groups.dihedral(4))
SHIFTS = reps.translations(2, 4)
# Exchanges two pixels, and leaves all others.
EXCHANGE = reps.relabel(groups.cyclic(2), [list(range(16)), [1, 0, *range(2, 16)]])


def attention(**settings):
    return stax.serial(
        stax.Dense(8, 1.3, 0.2), stax.GlobalSelfAttention(4, 4, 4, 2, True, 1.2, **settings), stax.Relu()
    )


def normalized(axis):
    return stax.serial(stax.Dense(8, 1.3, 0.2), stax.LayerNorm(axis, 0.1), stax.Relu())


def close(distance):
    return jnp.exp(-distance / 4)


# Turns and flips of the square, shifts on a torus, exchange of two pixels.
NETWORKS = {
    "attention": (attention(), (True, True, True)),
    "independent embeddings": (attention(pos_emb_type="SUM", val_pos_emb=True), (True, True, True)),
    "decaying embeddings": (
        attention(pos_emb_type="SUM", pos_emb_decay_fn=close, val_pos_emb=True),
        (True, False, False),
    ),
    "decaying embeddings of queries and keys": (
        attention(pos_emb_type="CONCAT", pos_emb_decay_fn=close, pos_emb_p_norm=1),
        (True, False, False),
    ),
    "normalised channels": (normalized(-1), (True, True, True)),
    "normalised images": (normalized((1, 2, 3)), (True, True, True)),
    "normalised columns": (normalized((1, 3)), (False, True, False)),
}


def on_pixels(kernel_fn):
    """The same kernel on graphs whose nodes are the pixels in a row, so that any two of them can be exchanged."""

    def evaluate(x1, x2=None, get=None):
        images = [None if x is None else x.nodes.reshape(-1, 4, 4, 2) for x in (x1, x2)]
        in_a_row = lambda k: k.transpose(0, 1, 2, 4, 3, 5).reshape(*k.shape[:2], 16, 16)  # noqa: E731
        return jax.tree.map(in_a_row, kernel_fn(*images, get))

    return evaluate


@pytest.mark.parametrize("name", NETWORKS)
def test_symmetries_are_kept_or_broken_as_documented(name):
    (_, _, kernel_fn), kept = NETWORKS[name]
    pixels = stax.Graph.of(IMAGES.reshape(2, 16, 2), jnp.eye(16))
    actions = (kernel_fn, TURNS, IMAGES), (kernel_fn, SHIFTS, IMAGES), (on_pixels(kernel_fn), EXCHANGE, pixels)
    for (kernel, rep, x), expected in zip(actions, kept, strict=True):
        found = theorems.kernel_transformation(kernel, rep, x)
        assert all(part.scale > 0.1 for part in found.parts)
        assert found.holds(ORACLE["float64"]) == expected, found
        assert expected or not found.holds(1e-4), found
