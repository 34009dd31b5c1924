"""Whether a result will fit into memory, asked before it is computed."""

from pathlib import Path

import jax

from ntk_equiv._check import refusal

GIBIBYTE = 2**30


def check_fits(size: int, argument: str, *, what: str, fix: str) -> None:
    """Refuse a result of `size` bytes that is larger than the memory that is left, where that is known.

    >>> check_fits(2**60, "x1", what="a matrix", fix="Take fewer samples.")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: `x1` must be such that the result fits into memory, got a matrix of 1073741824 GiB where ... GiB are ...
    """
    left = _left_on_host() if jax.default_backend() == "cpu" else _left_on_device()
    if left is not None and size > left:
        got = f"{what} of {size / GIBIBYTE:.0f} GiB where {left / GIBIBYTE:.1f} GiB are left"
        raise refusal(argument, expected="such that the result fits into memory", got=got, fix=fix)


def _left_on_host() -> int | None:
    """What Linux could still give to this process; unknown elsewhere."""
    found = []
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            found.append(1024 * int(line.split()[1]))
    # A container may be allowed less than the machine has.
    found += [int(line) for line in _lines("/sys/fs/cgroup/memory.max") if line.strip().isdigit()]
    return min(found, default=None)


def _left_on_device() -> int | None:
    usage = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" not in usage:
        return None
    return usage["bytes_limit"] - usage.get("bytes_in_use", 0)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="ascii").splitlines()
    except OSError:
        return []
