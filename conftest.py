"""JAX at its strictest for everything pytest collects here: tests, docstrings and documents alike."""

import jax

jax.config.update("jax_enable_x64", True)
# Shapes that meet by accident are a common source of silently wrong kernels.
jax.config.update("jax_numpy_rank_promotion", "raise")
