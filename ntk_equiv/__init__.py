"""Neural-tangent-kernel theory of deep ensembles, exact and with symmetry as a first-class citizen.

The library follows one line of thought, and this is where its parts lie on it:

- `stax` builds an architecture as a triple `(init_fn, apply_fn, kernel_fn)`, the last of which knows the NNGP and the
  neural tangent kernel of the infinitely wide network;
- `gram` evaluates any such `kernel_fn` on many points, in tiles of bounded memory;
- `interop` lets networks written for neural-tangents take part.

Importing `ntk_equiv` is cheap: each part is loaded when it is first used.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers and editors, which cannot follow the table below
    from ntk_equiv import interop, stax
    from ntk_equiv._gram import gram

__all__ = ["gram", "interop", "stax"]

# Where each public name lives: the module itself, or the module that defines it.
_HOME = {
    "gram": "ntk_equiv._gram",
    "interop": "ntk_equiv.interop",
    "stax": "ntk_equiv.stax",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("ntk-equiv")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(_HOME[name])
    # Kept in the namespace, so that the next access does not come here.
    globals()[name] = value = module if module.__name__ == f"{__name__}.{name}" else getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
