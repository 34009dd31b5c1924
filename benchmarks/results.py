"""The results of the benchmarks, as `results.json` stores them and as rows of one table.

    {"scripts": {"bench_kernels": {"machine": {...}, "versions": {...}, "busy_elsewhere": 0.01, "results": [...]}}}

A script that runs again replaces its own results and keeps those of the others. Each ratio compares two ways in one run
of one script, so scripts may have run on different machines; each says on which.
"""

import json
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("results.json")
PACKAGES = ("jax", "jaxlib", "numpy", "scipy", "flax", "optax", "neural-tangents", "torch")
# This environment variable names the file to which scripts append their reports, one line of JSON per question.
RECORDS = "NTK_EQUIV_BENCHMARK_RECORDS"
HEADINGS = ("question", "peer", "ratio", "target", "", "others")


def load(path: Path = FILE) -> dict[str, Any]:
    """Load the stored results, or none if there is no file."""
    return json.loads(path.read_text()) if path.exists() else {"scripts": {}}


def merge(kept: dict[str, Any], script: str, results: list[dict], busy_elsewhere: float | None) -> dict[str, Any]:
    """Return the stored results with the new results of one script."""
    where = {"machine": machine(), "versions": versions(), "busy_elsewhere": busy_elsewhere}
    found = _round_numbers({**where, "results": results})
    return {"scripts": dict(sorted({**kept["scripts"], script: found}.items()))}


def save(results: dict[str, Any], path: Path = FILE) -> None:
    """Write the file in one step, so readers see either the old one or the new one."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    new.replace(path)


def rows(results: dict[str, Any], scripts: list[str] | None = None) -> list[tuple[str, ...]]:
    """Return a row for every question: the question, the peer, the ratio, the target, whether it is met, the others."""
    chosen = results["scripts"] if scripts is None else scripts
    return [_row(record) for script in chosen for record in results["scripts"][script]["results"]]


def table(rows: list[tuple[str, ...]]) -> str:
    """Format rows as text in columns."""
    widths = [max(map(len, column)) for column in zip(HEADINGS, *rows, strict=True)]
    lines = [HEADINGS, tuple("-" * width for width in widths), *rows]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def versions() -> dict[str, str]:
    """Return the versions of Python and of the measured packages that are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """Return the processor, its number of cores and the memory."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cpu": (models or [platform.machine()])[0], "cores": os.cpu_count(), "memory_gib": round(memory / 2**30)}


def _row(record: dict[str, Any]) -> tuple[str, ...]:
    target, ratio = record["target"], record["ratio"]
    verdict = "" if target is None else "met" if ratio >= target else "missed"
    others = ", ".join(f"{times(other)} {name}" for name, other in record["others"].items())
    return record["question"], record["peer"], times(ratio), "" if target is None else times(target), verdict, others


def times(ratio: float) -> str:
    """Format a ratio with two digits."""
    rounded = float(f"{ratio:.2g}")
    return f"{rounded:.0f}×" if rounded >= 10 else f"{rounded:#.2g}×"


def _round_numbers(value: Any) -> Any:
    """Round numbers to four digits. More are noise and make diffs of the file hard to read."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {name: _round_numbers(part) for name, part in value.items()}
    return [_round_numbers(part) for part in value] if isinstance(value, list) else value
