"""The neural-tangents library on current JAX.

`neural_tangents` 0.6.5 was written for an older JAX, and imports TensorFlow for one experiment. Here it runs on the JAX
that is installed: names that JAX has since moved are put back where neural-tangents looks for them, and the experiment
is replaced by an empty module. Names are only *added*, and only where they are missing. Nothing that JAX has today is
changed.

Every function of this library that takes a `kernel_fn` takes one of neural-tangents too.
"""

import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterable
from types import ModuleType

_MOVED_TO_EXTEND = ("ClosedJaxpr", "Jaxpr", "JaxprEqn", "Literal", "Primitive", "Var")


def neural_tangents() -> ModuleType:
    """The `neural_tangents` module, working on the JAX that is installed and without TensorFlow.

    Its analytic kernels, `predict`, `batch` and the empirical kernels run. Its `experimental` subpackage, which
    converts TensorFlow models, is an empty placeholder. Note that neural-tangents returns kernels of a network with
    spatial output and an odd number of convolutions with the spatial axes in reverse order, `[n1, n2, w, w', h, h']`.

    Returns:
        The imported module; later calls return the same one.

    Raises:
        ModuleNotFoundError: neural-tangents is not installed; the message has the command that installs it.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import interop
        >>> nt = interop.neural_tangents()
        >>> init_fn, apply_fn, kernel_fn = nt.stax.Dense(8)
        >>> print(kernel_fn(jnp.array([[1.0, 3.0]]), None, "nngp"))
        [[5.]]
    """
    if importlib.util.find_spec("neural_tangents") is None:
        raise ModuleNotFoundError(
            "neural-tangents is not installed. Run `pip install --no-deps neural-tangents==0.6.5 frozendict`; "
            "`--no-deps` keeps TensorFlow out, and everything else it needs comes with this library."
        )
    if "neural_tangents" not in sys.modules:
        _restore_moved_names()
        sys.modules.setdefault("neural_tangents.experimental", ModuleType("neural_tangents.experimental"))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            return importlib.import_module("neural_tangents")
    return sys.modules["neural_tangents"]


def _restore_moved_names() -> None:
    import jax.core
    import jax.extend.core
    from jax.interpreters import ad

    for name in _MOVED_TO_EXTEND:
        _add(jax.core, name, getattr(jax.extend.core, name))
    _add(jax.random, "KeyArray", jax.Array)
    # neural-tangents uses these two only as keys of a table of rules; the primitives themselves no longer exist.
    for name in ("zeros_like_p", "add_any_p"):
        _add(ad, name, jax.extend.core.Primitive(f"neural_tangents_{name}"))
    if importlib.util.find_spec("jax.util") is None:
        sys.modules["jax.util"] = ModuleType("jax.util")
    moved = importlib.import_module("jax.util")
    _add(moved, "safe_map", _safe_map)
    _add(moved, "safe_zip", _safe_zip)


def _add(module: ModuleType, name: str, value: object) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # JAX warns when a name that is about to move is looked up.
        present = hasattr(module, name)
    if not present:
        setattr(module, name, value)


def _safe_zip(*sequences: Iterable) -> list[tuple]:
    return list(zip(*sequences, strict=True))


def _safe_map(function: Callable, *sequences: Iterable) -> list:
    return [function(*items) for items in zip(*sequences, strict=True)]
