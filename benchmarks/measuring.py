"""How the benchmarks measure: the shortest of several runs, in turn with a peer, after checking that both agree."""

import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

RESULTS = Path(__file__).parent / "results.jsonl"


def shortest(run: Callable[[], Any], repeats: int) -> float:
    """Seconds of the shortest of several runs, the first of which (compilation) does not count."""
    jax.block_until_ready(run())
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - start)
    return min(times)


def relative_difference(a: Any, b: Any) -> float:
    """Largest difference of two pytrees, relative to the largest entry."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(float(np.abs(np.asarray(x) - np.asarray(y)).max() / np.abs(np.asarray(y)).max()) for x, y in pairs)


def report(
    question: str, *, target: float | None, peer: str, ours: float, theirs: dict[str, float], **more: Any
) -> None:
    """Print one line of ratios, and append it with versions and machine to `results.jsonl`."""
    ratios = {name: seconds / ours for name, seconds in theirs.items()}
    shown = ", ".join(f"{ratio:.1f}x {name}" for name, ratio in ratios.items())
    wanted = "" if target is None else f"   (aim: {target:g}x)"
    print(f"{question:52s} {ours * 1e3:9.1f} ms   {shown}{wanted}", flush=True)
    line = {"question": question, "peer": peer, "target": target, "seconds": ours, "ratios": ratios, **more}
    line["versions"] = {"jax": jax.__version__, "numpy": np.__version__, "python": platform.python_version()}
    line["machine"] = {"cpu": platform.machine(), "cores": os.cpu_count()}
    with RESULTS.open("a") as file:
        file.write(json.dumps(line) + "\n")
