"""Finite networks keep the precision of their inputs and parameters, whatever that of their settings is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntk_equiv import stax

LAYERS = {
    "dense": lambda s: stax.Dense(3, s, s),
    "dense, standard": lambda s: stax.Dense(3, s, s, parameterization="standard"),
    "convolution": lambda s: stax.Conv(3, (2, 2), W_std=s, b_std=s),
    "lifting": lambda s: stax.LiftingConv(3, (3, 3), W_std=s, b_std=s, group="C4"),
    "attention": lambda s: stax.GlobalSelfAttention(
        3, 3, 3, 2, True, s, s, s, s, s, pos_emb_type="SUM", W_pos_emb_std=s
    ),
    "layer norm": lambda s: stax.LayerNorm(eps=s),
    "relu": lambda s: stax.ABRelu(s, s),
    "erf": lambda s: stax.Erf(s, s, s),
    "sine": lambda s: stax.Sin(s, s, s),
    "radial": lambda s: stax.Rbf(s),
    "bell": lambda s: stax.Gaussian(s, s),
    "exponential": lambda s: stax.Exp(s, s),
}


def single(spec):
    return jax.ShapeDtypeStruct(spec.shape, jnp.float32)


@pytest.mark.parametrize("setting", [np.float64(0.5), jnp.asarray(0.5)], ids=["numpy", "jax"])
@pytest.mark.parametrize("layer", LAYERS)
def test_settings_in_double_precision_promote_nothing(layer, setting):
    init_fn, apply_fn, _ = LAYERS[layer](setting)
    x = jax.ShapeDtypeStruct((2, 5, 5, 4), jnp.float32)
    params = jax.eval_shape(lambda key: init_fn(key, x.shape)[1], jax.random.key(0))
    assert jax.eval_shape(apply_fn, jax.tree.map(single, params), x).dtype == jnp.float32
