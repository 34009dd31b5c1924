"""What this machine has: cores, and memory in which a result will fit or not, asked before it is computed."""

import itertools
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import jax

from ntk_equiv._check import refusal

T = TypeVar("T")


def available_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_in_threads(programs: Iterable[Callable[[], T]]) -> Iterator[T]:
    """Yield what programs return, in order. Each core of a CPU runs one of them, and one more waits.

    For compiled programs with loops: XLA runs each on one core, and one after the other even if several were
    dispatched. They must be compiled before, because settings of JAX belong to a thread.

    >>> list(run_in_threads([lambda: 1, lambda: 2]))
    [1, 2]
    """
    programs = iter(programs)
    first = list(itertools.islice(programs, 2))
    if len(first) < 2:  # not worth a thread
        yield from (program() for program in first)
        return
    programs = itertools.chain(first, programs)
    workers = max(available_cores(), len(jax.local_devices()))
    waiting: deque[Future[T]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for program in programs:
            waiting.append(pool.submit(program))
            if len(waiting) > workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def free_memory() -> float:
    """Return how many bytes of memory are free now; infinity if the system does not say.

    In a container the limit of the container counts too, which `MemAvailable` does not know.
    """
    limits = []
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            limits.append(1024.0 * int(line.split()[1]))
    limit, used = (_lines(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current"))
    if limit and used and limit[0].isdecimal():
        limits.append(float(limit[0]) - float(used[0]))
    return max(0.0, min(limits, default=math.inf))


def in_bytes(count: float | int) -> str:
    """Return a number of bytes in the usual units.

    >>> in_bytes(999), in_bytes(4.2e9)
    ('999 bytes', '4.2 GB')
    """
    units = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")
    power = min(len(units) - 1, max(0, int(math.log10(max(count, 1.0)) // 3)))
    return f"{count / 1000**power:.3g} {units[power]}"


def free_for_results() -> float:
    """Return how many bytes are free where results are kept; infinity if that is not known."""
    return free_memory() if jax.default_backend() == "cpu" else _free_on_device()


def check_fits(size: int, argument: str, *, what: str, fix: str) -> None:
    """Refuse a result of more bytes than are free where results are kept: in main memory, or on the accelerator.

    >>> check_fits(2**62, "x1", what="a matrix", fix="Take fewer samples.")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: `x1` must be such that the result fits into memory, got a matrix of 4.61 EB where ... are free...
    """
    free = free_for_results()
    if size > free:
        got = f"{what} of {in_bytes(size)} where {in_bytes(free)} are free"
        raise refusal(argument, expected="such that the result fits into memory", got=got, fix=fix)


def _free_on_device() -> float:
    usage = jax.local_devices()[0].memory_stats() or {}
    return usage["bytes_limit"] - usage.get("bytes_in_use", 0) if "bytes_limit" in usage else math.inf


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="ascii").splitlines()
    except OSError:
        return []
