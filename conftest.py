"""JAX at its strictest for everything pytest collects here: tests, docstrings and documents alike."""

import os
from pathlib import Path

# Compiling is most of the work. What one process has compiled, the others take over: the other half of the tests, the
# examples and other scripts that tests start, and the next run. Set before JAX is imported, and for all of these.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).with_name(".jax_cache")))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
# Most programs run once, and take longer to compile than to run: without optimization all tests take a fifth less time.
# With it, as users run them: `XLA_FLAGS=--xla_backend_optimization_level=3 make test`.
if "xla_backend_optimization_level" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0".strip()

# Two processes with two threads of BLAS each would be in each other's way on two cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax

collect_ignore = ["docs/tools"]  # scripts that build the documentation, with what only that needs

jax.config.update("jax_enable_x64", True)
# Shapes that meet by accident are a common source of silently wrong kernels.
jax.config.update("jax_numpy_rank_promotion", "raise")

# Linux lets a process map its memory into so many pieces, of which each compiled program takes a few; where there are
# none left, the compiler crashes. So programs are forgotten in time.
_MAPS, _LIMIT = Path("/proc/self/maps"), Path("/proc/sys/vm/max_map_count")
_TESTS_BETWEEN_LOOKS = 20
_finished = 0


def pytest_runtest_teardown() -> None:
    """Forget compiled programs when they take up half of what a process may map."""
    global _finished
    _finished += 1
    if _finished % _TESTS_BETWEEN_LOOKS == 0 and os.access(_MAPS, os.R_OK) and os.access(_LIMIT, os.R_OK):
        with _MAPS.open() as maps:
            mapped = sum(1 for _ in maps)
        if mapped > int(_LIMIT.read_text()) / 2:
            jax.clear_caches()
