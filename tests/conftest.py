"""What the tests share: a random key, reproducible properties, and room for a less strict oracle.

Nothing here may import `ntk_equiv`: jaxtyping has to hook into its import first.
"""

from collections.abc import Iterator

import hypothesis
import jax
import pytest

# A failure must be the code's doing, not the draw's. Look further with `pytest --hypothesis-profile=explore`.
hypothesis.settings.register_profile("reproducible", derandomize=True, deadline=None)
hypothesis.settings.register_profile("explore", max_examples=1000, deadline=None)
hypothesis.settings.load_profile("reproducible")


# Both fixtures outlive a single test, because hypothesis runs one test many times and refuses fixtures that do not.
@pytest.fixture(scope="session")
def key() -> jax.Array:
    """A random key, the same in every test."""
    return jax.random.key(0)


@pytest.fixture(scope="module")
def rank_promotion_allowed() -> Iterator[None]:
    """Lets arrays of different rank meet in a test module whose oracle relies on it, as neural-tangents does.

    Around a single call use `with jax.numpy_rank_promotion("allow")`, so that our own code stays under the strict flag.
    """
    with jax.numpy_rank_promotion("allow"):
        yield
