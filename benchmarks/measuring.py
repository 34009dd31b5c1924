"""How the benchmarks measure: answers must agree, ours and the peer take turns, and the shortest run counts.

    found = compare_ways(ours, {"dense": dense}, tolerance=1e-9)        check, then measure
    report("mean, C4 x 100 samples", peer="dense", target=10, found=found)

Reports are printed. `run.py` collects them through a file that it names in the environment.
"""

import gc
import importlib.util
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from results import RECORDS

NEURAL_TANGENTS = "neural-tangents"
# A run that takes longer than this, in seconds, is not repeated.
TOO_LONG = 60.0
# Short runs are repeated for this many seconds, because the shortest of a few depends too much on luck.
ENOUGH, MOST_ROUNDS = 3.0, 100


@dataclass(frozen=True)
class Found:
    """The measurement of ours and of each peer, and the largest difference of their answers."""

    ours: float
    theirs: Mapping[str, float]
    difference: float | None = None


def compare_ways(
    ours: Callable[[], Any],
    theirs: Mapping[str, Callable[[], Any]],
    *,
    tolerance: float,
    rounds: int = 5,
    patience: float = 20.0,
    enough: float = ENOUGH,
) -> Found:
    """Return the seconds of the shortest run of each way, after checking that all ways give the same answer.

    The first, checked run of each way compiles. It counts only if it took so long that it is not repeated.

    Args:
        ours: our way.
        theirs: the ways of others.
        tolerance: the largest difference of answers, relative to their largest entry.
        rounds: how many turns each way has, within `patience`.
        patience: seconds after which a way gets no further turn.
        enough: seconds up to which a way gets turns beyond `rounds`.
    """
    first, answer = time_run(ours)
    spent, differences = {"ours": first}, []
    for name, way in theirs.items():
        spent[name], other = time_run(way)
        differences.append(relative_difference(answer, other))
        if not differences[-1] <= tolerance:
            raise AssertionError(f"{name} answers differently, by {differences[-1]:.2g}")
        del other
    ready = {name: way for name, way in theirs.items() if spent[name] <= TOO_LONG}
    best = time_in_turn({"ours": ours, **ready}, rounds=rounds, patience=patience, enough=enough)
    return Found(best["ours"], {name: best.get(name, spent[name]) for name in theirs}, max(differences))


def time_in_turn(
    ways: Mapping[str, Callable[[], Any]], *, rounds: int = 5, patience: float = 20.0, enough: float = ENOUGH
) -> dict[str, float]:
    """Return the seconds of the shortest run of each way, as `compare_ways` does. All ways must have run before."""
    times: dict[str, list[float]] = {name: [] for name in ways}

    def has_a_turn(found: list[float]) -> bool:
        return sum(found) <= patience if len(found) < rounds else sum(found) < enough and len(found) < MOST_ROUNDS

    while ready := [name for name in ways if has_a_turn(times[name])]:
        for name in ready:
            times[name].append(time_run(ways[name])[0])
    return {name: min(found) for name, found in times.items()}


def measure_growth(axis: str, values: list[int], measure: Callable[[int], Found]) -> tuple[Found, dict[str, list]]:
    """Measure at several sizes. Return the result at the last size, and a curve over all sizes."""
    found = []
    for value in values:
        found.append(measure(value))
        shown = ", ".join(f"{name} {seconds:.4g} s" for name, seconds in found[-1].theirs.items())
        print(f"    {axis} {value}: {found[-1].ours:.4g} s, {shown}", flush=True)
    curve = {axis: values, "ours": [one.ours for one in found]}
    return found[-1], curve | {name: [one.theirs[name] for one in found] for name in found[-1].theirs}


def time_run(run: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds of one run, and its answer."""
    start = time.perf_counter()
    answer = jax.block_until_ready(run())
    return time.perf_counter() - start, answer


def relative_difference(a: Any, b: Any) -> float:
    """Return the largest difference of two pytrees, relative to the largest entry."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(float(np.abs(np.asarray(x) - np.asarray(y)).max() / np.abs(np.asarray(y)).max()) for x, y in pairs)


def peak_beyond(run: Callable[[], Any]) -> tuple[int, Any]:
    """Return the bytes that the process holds at its peak, minus what it held before, and the answer."""
    gc.collect()  # Otherwise the leftovers of earlier computations could be freed during the measurement.
    before, peak, done = _resident(), [0], threading.Event()

    def watch() -> None:
        while not done.is_set():
            peak[0] = max(peak[0], _resident())
            time.sleep(0.002)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        answer = jax.block_until_ready(run())
    finally:
        done.set()
        watcher.join()
    return max(peak[0], _resident()) - before, answer


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def in_own_process(script: str, *arguments: Any) -> Any:
    """Run a script in its own process, for memory or for settings of JAX, and return the JSON of its last line."""
    command = [sys.executable, script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{Path(script).name} {' '.join(map(str, arguments))} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def is_installed(package: str) -> bool:
    """Return whether a package is installed, so that it can be a peer."""
    return importlib.util.find_spec(package) is not None


def report(
    question: str, *, peer: str, found: Found, target: float | None = None, unit: str = "s", **more: Any
) -> None:
    """Print one line of ratios, theirs over ours, and pass it to `run.py` if that is collecting.

    Args:
        question: what was measured.
        peer: the name of the way that the target refers to.
        found: the measurement.
        target: the ratio to reach.
        unit: the unit of the measurement.
        more: further values to keep.
    """
    ratios = {name: value / found.ours for name, value in found.theirs.items()}
    shown = ", ".join(f"{ratio:.3g}x {name}" for name, ratio in ratios.items())
    wanted = "" if target is None else f"   (aim: {target:.3g}x)"
    print(f"{question:56s} {found.ours:9.4g} {unit}   {shown}{wanted}", flush=True)
    if RECORDS in os.environ:
        record = {"question": question, "peer": peer, "ratio": ratios.pop(peer), "target": target, "others": ratios}
        record |= {"ours": found.ours, "unit": unit, "difference": found.difference, **more}
        with open(os.environ[RECORDS], "a") as file:
            file.write(json.dumps(record) + "\n")
