"""Run the benchmarks, one process for each script, and store what they report.

    python benchmarks/run.py                              all of benchmarks/bench_*.py
    python benchmarks/run.py --only kernels memory        bench_kernels.py, and those whose names contain "memory"

Each script asks one question, perhaps for several cases; its docstring says which. A script that fails, because answers
differ or for any other reason, does not stop the others. It is named at the end, its old results are kept, and the exit
code is 1. Ratios are only worth keeping if nothing else runs at the same time, so the output says how busy the machine
was with other work.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import results

HERE = Path(__file__).parent


def scripts_in(folder: Path, words: list[str]) -> list[Path]:
    """Return all scripts of a folder, or those that match words: by name if one has it, else by part of it."""
    found = sorted(folder.glob("bench_*.py"))
    if not words:
        return found
    whole = {script for script in found if script.stem.removeprefix("bench_") in words}
    others = [word for word in words if word not in {script.stem.removeprefix("bench_") for script in whole}]
    return [script for script in found if script in whole or any(word in script.stem for word in others)]


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen scripts. Return 1 if a script failed, 2 if there is none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="name of a script, or a part of it")
    parser.add_argument("--folder", type=Path, default=HERE, help="where the scripts are")
    parser.add_argument("--results", type=Path, default=results.FILE, help="where results are kept")
    chosen = parser.parse_args(arguments)
    scripts = scripts_in(chosen.folder, chosen.only)
    if not scripts:
        print(f"No script in {chosen.folder} is named bench_*{'|'.join(chosen.only)}*.py.", file=sys.stderr)
        return 2
    failed = []
    for script in scripts:
        print(f"== {script.name}", flush=True)
        reported, busy = run(script)
        if reported is None:
            failed.append(script.name)
            continue
        print(f"   the machine was {busy:.0%} busy with other work" if busy is not None else "", flush=True)
        results.save(results.merge(results.load(chosen.results), script.stem, reported, busy), chosen.results)
    done = [script.stem for script in scripts if script.name not in failed]
    print("\n" + results.table(results.rows(results.load(chosen.results), done)))
    if failed:
        print(f"\nFailed, with nothing new kept: {', '.join(failed)}.", file=sys.stderr)
    return 1 if failed else 0


def run(script: Path) -> tuple[list[dict] | None, float | None]:
    """Run a script. Return its reports, or None if it fails, and the fraction of all cores that other work used."""
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder) / "records"
        records.touch()
        start, before = time.perf_counter(), _busy_elsewhere()
        done = subprocess.run([sys.executable, str(script)], env={**os.environ, results.RECORDS: str(records)})
        elapsed, after = time.perf_counter() - start, _busy_elsewhere()
        busy = None if before is None else max(0.0, (after - before) / elapsed / (os.cpu_count() or 1))
        if done.returncode:
            return None, busy
        return [json.loads(line) for line in records.read_text().splitlines()], busy


def _busy_elsewhere() -> float | None:
    """Return the seconds that all cores spent on other processes since the machine started; Linux only."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return None
    user, nice, system, _idle, _wait, *interrupts = map(int, stat.read_text().splitlines()[0].split()[1:9])
    own = sum(part.ru_utime + part.ru_stime for part in map(resource.getrusage, (0, resource.RUSAGE_CHILDREN)))
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK") - own


if __name__ == "__main__":
    sys.exit(main())
