"""JAX at its strictest for everything pytest collects here: tests, docstrings and documents alike."""

import ctypes
import gc
import importlib.util
import mmap
import os
from collections.abc import Iterable
from pathlib import Path

# Compiling is most of the work. What one process has compiled, the others take over: the other half of the tests, the
# examples and other scripts that tests start, and the next run. Set before JAX is imported, and for all of these.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).with_name(".jax_cache")))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
# Most programs run once, and take longer to compile than to run: without optimization, by the emitters that have the
# least to do, and in one piece, compiling takes half the time. As users compile:
# `XLA_FLAGS=--xla_backend_optimization_level=3 make test`.
QUICK_TO_COMPILE = (
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
)


def known_to_xla(flags: Iterable[str]) -> list[str]:
    """Return those flags that the installed XLA has. It ends a process that sets any other.

    A flag that exists stands in the library as a string of its own. Names of flags that are gone stay reserved in its
    messages, without the zero bytes around them.
    """
    folder = Path(importlib.util.find_spec("jaxlib").origin).parent
    known = []
    for library in folder.glob("libjax_common.*"):
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as code:
            known += [flag for flag in flags if code.find(f"\0{flag.strip('-').split('=')[0]}\0".encode()) >= 0]
    return known


if "xla_backend_optimization_level" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *known_to_xla(QUICK_TO_COMPILE)]).strip()

# Tracing makes many objects and few cycles. To look for those as often as usual would take a sixth of the time.
gc.set_threshold(100_000, 20, 100)

# Two processes with two threads of BLAS each would be in each other's way on two cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax  # noqa: E402 - reads the settings above when it is imported

collect_ignore = ["docs/tools"]  # scripts that build the documentation, with what only that needs

jax.config.update("jax_enable_x64", True)
# Shapes that meet by accident are a common source of silently wrong kernels.
jax.config.update("jax_numpy_rank_promotion", "raise")

# Compiled programs stay in memory, and two processes should get along with 5 GB. Linux also lets a process map its
# memory into so many pieces, of which each program takes a few; where there are none left, the compiler crashes. So
# programs are forgotten in time, and read from the cache when they are wanted again.
_MOST_BYTES, _BYTES_BETWEEN = 1_300_000_000, 400_000_000
_TESTS_BETWEEN_LOOKS_AT_MAPS = 20
_STATM, _MAPS, _LIMIT = Path("/proc/self/statm"), Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")
_finished, _allowed = 0, _MOST_BYTES


def pytest_collection_finish() -> None:
    """Leave modules and tests out of all further searches for garbage."""
    gc.collect()
    gc.freeze()


def pytest_runtest_teardown() -> None:
    """Forget compiled programs when they take too much memory, or half of what a process may map."""
    global _finished, _allowed
    _finished += 1
    if not all(os.access(path, os.R_OK) for path in (_STATM, _MAPS, _LIMIT)):
        return
    if _resident() > _allowed or (_finished % _TESTS_BETWEEN_LOOKS_AT_MAPS == 0 and _mapped() > _most_maps() / 2):
        jax.clear_caches()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        _allowed = max(_MOST_BYTES, _resident() + _BYTES_BETWEEN)  # what is not given back must not be asked for again


def _resident() -> int:
    return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _mapped() -> int:
    with _MAPS.open() as maps:
        return sum(1 for _ in maps)


def _most_maps() -> int:
    return int(_LIMIT.read_text())
