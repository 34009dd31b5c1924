"""Names of version 0.1 that had to move: they work until 0.3, with a warning."""

import warnings
from typing import Any


def _under_old_name(old: str, new: str) -> property:
    """Return a method under its old name, which warns whoever asks for it."""

    def method(self: Any) -> Any:
        message = f"`{type(self).__name__}.{old}` is now `{new}`; the old name goes in version 0.3."
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return getattr(self, new)

    return property(method)


class OldKernelNames:
    """The two halves of a kernel function by the names that they had.

    >>> from ntk_equiv import stax
    >>> kernel_fn = stax.Dense(1)[2]
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     method = kernel_fn.pairs
    >>> method == kernel_fn.per_pair
    True
    >>> print(caught[0].message)
    `KernelFn.pairs` is now `per_pair`; the old name goes in version 0.3.
    """

    points = _under_old_name("points", "per_sample")
    pairs = _under_old_name("pairs", "per_pair")
    checked = _under_old_name("checked", "check_samples")
    asked = _under_old_name("asked", "restrict")
