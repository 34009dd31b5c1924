"""How the benchmarks measure: first whether answers agree, then the shortest of several runs, in turn with the peer.

    found = compared(ours, {"dense": dense}, tolerance=1e-9)        check, then measure
    report("mean, C4 x 100 points", peer="dense", target=10, found=found)

What is reported is printed. `run.py`, which collects it, names a file for it in the environment.
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
# Seconds from which on a run is not repeated.
TOO_LONG = 60.0
# Seconds for which short runs go on: the shortest of a few is still much a matter of luck.
ENOUGH, MOST_ROUNDS = 3.0, 100


@dataclass(frozen=True)
class Found:
    """What was measured: ours, that of each peer, and by how much their answers differ at most."""

    ours: float
    theirs: Mapping[str, float]
    difference: float | None = None


def compared(
    ours: Callable[[], Any],
    theirs: Mapping[str, Callable[[], Any]],
    *,
    tolerance: float,
    rounds: int = 5,
    patience: float = 20.0,
    enough: float = ENOUGH,
) -> Found:
    """Seconds of the shortest run of each way, after checking that they give the same answer.

    The runs that are checked compile, and do not count, unless they took so long that they are not repeated.

    Args:
        ours: our way.
        theirs: the ways of others.
        tolerance: the largest difference of answers, relative to their largest entry.
        rounds: how often each way has its turn, if that does not take too long.
        patience: seconds after which a way has no further turn.
        enough: seconds up to which it has further ones.
    """
    first, answer = timed(ours)
    spent, differences = {"ours": first}, []
    for name, way in theirs.items():
        spent[name], other = timed(way)
        differences.append(relative_difference(answer, other))
        if not differences[-1] <= tolerance:
            raise AssertionError(f"{name} answers differently, by {differences[-1]:.2g}")
        del other
    ready = {name: way for name, way in theirs.items() if spent[name] <= TOO_LONG}
    best = in_turn({"ours": ours, **ready}, rounds=rounds, patience=patience, enough=enough)
    return Found(best["ours"], {name: best.get(name, spent[name]) for name in theirs}, max(differences))


def in_turn(
    ways: Mapping[str, Callable[[], Any]], *, rounds: int = 5, patience: float = 20.0, enough: float = ENOUGH
) -> dict[str, float]:
    """Seconds of the shortest run of each way, as `compared` takes them, for ways that have been run before."""
    times: dict[str, list[float]] = {name: [] for name in ways}

    def has_a_turn(found: list[float]) -> bool:
        return sum(found) <= patience if len(found) < rounds else sum(found) < enough and len(found) < MOST_ROUNDS

    while ready := [name for name in ways if has_a_turn(times[name])]:
        for name in ready:
            times[name].append(timed(ways[name])[0])
    return {name: min(found) for name, found in times.items()}


def grown(axis: str, values: list[int], measure: Callable[[int], Found]) -> tuple[Found, dict[str, list]]:
    """What is found at the last of several sizes, and a curve over all of them."""
    found = []
    for value in values:
        found.append(measure(value))
        shown = ", ".join(f"{name} {seconds:.4g} s" for name, seconds in found[-1].theirs.items())
        print(f"    {axis} {value}: {found[-1].ours:.4g} s, {shown}", flush=True)
    curve = {axis: values, "ours": [one.ours for one in found]}
    return found[-1], curve | {name: [one.theirs[name] for one in found] for name in found[-1].theirs}


def timed(run: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of one run, and its answer."""
    start = time.perf_counter()
    answer = jax.block_until_ready(run())
    return time.perf_counter() - start, answer


def relative_difference(a: Any, b: Any) -> float:
    """Largest difference of two pytrees, relative to the largest entry."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return max(float(np.abs(np.asarray(x) - np.asarray(y)).max() / np.abs(np.asarray(y)).max()) for x, y in pairs)


def peak_beyond(run: Callable[[], Any]) -> tuple[int, Any]:
    """How many bytes the process takes at its peak, less what it had before; and the answer."""
    gc.collect()  # What an earlier computation left behind in cycles would else be given back meanwhile.
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
    """What a script prints as JSON in its last line: for what has to be arranged before JAX starts, and for memory."""
    command = [sys.executable, script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{Path(script).name} {' '.join(map(str, arguments))} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def is_installed(package: str) -> bool:
    """Whether a peer can be measured."""
    return importlib.util.find_spec(package) is not None


def report(
    question: str, *, peer: str, found: Found, target: float | None = None, unit: str = "s", **more: Any
) -> None:
    """Print one line of ratios, theirs over ours, and hand it to whoever collects them.

    Args:
        question: what was measured.
        peer: which of the others is the peer that the target is about.
        found: what came out.
        target: the ratio we aim at.
        unit: of what was measured.
        more: whatever else is worth keeping.
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
