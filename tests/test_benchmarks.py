"""The runner of the benchmarks, the stored results and the page that shows them. No benchmark is run here."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import measuring  # noqa: E402
import performance_page  # noqa: E402
import results  # noqa: E402
import run  # noqa: E402

REPORTS = """
import json, os
record = {{"question": "{question}", "peer": "they", "ratio": {ratio}, "target": 2.0, "others": {{"vmap": 4.0}}}}
with open(os.environ["NTK_EQUIV_BENCHMARK_RECORDS"], "a") as file:
    file.write(json.dumps(record) + "\\n")
"""


@pytest.fixture
def folder(tmp_path):
    """Two scripts that report, one that fails after it has reported, and a file that is no benchmark."""
    good = REPORTS.format(question="one", ratio=2.5)
    for name, text in {
        "bench_first.py": good,
        "bench_second.py": REPORTS.format(question="two", ratio=1.5) + "raise AssertionError('answers differ')",
        "bench_third.py": REPORTS.format(question="three", ratio=0.25),
        "trainers.py": "raise SystemExit(3)",
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def start(folder, *arguments):
    kept = folder / "kept.json"
    return run.main(["--folder", str(folder), "--results", str(kept), *arguments]), results.load(kept)


def test_words_name_one_script_or_all_that_contain_them(folder):
    for name in ("bench_a.py", "bench_a_b.py"):
        (folder / name).write_text("")
    chosen = lambda *words: [script.stem for script in run.scripts_in(folder, [*words])]  # noqa: E731
    assert chosen("a") == ["bench_a"]
    assert chosen("a_", "third") == ["bench_a_b", "bench_third"]
    assert chosen() == ["bench_a", "bench_a_b", "bench_first", "bench_second", "bench_third"]


def test_page_shows_what_is_kept():
    text = performance_page.PAGE.read_text()
    assert performance_page.page(text, results.load()) == text
    changed = results.load()
    changed["scripts"]["bench_kernels"]["results"][0]["ratio"] *= 1.1
    assert performance_page.page(text, changed) != text


def test_page_of_large_problems_shows_what_is_kept():
    kept, text = results.load(performance_page.SCALE / "results.json"), performance_page.SCALE_PAGE.read_text()
    assert performance_page.page(text, kept, performance_page.SCALE) == text
    assert set(kept["scripts"]) <= {script.stem for script in run.scripts_in(performance_page.SCALE, [])}


def test_results_of_every_benchmark_are_kept():
    kept = results.load()
    assert list(kept["scripts"]) == [script.stem for script in run.scripts_in(BENCHMARKS, [])]
    assert all(found["results"] for found in kept["scripts"].values())
    for found in kept["scripts"].values():
        assert {"python", "jax", "jaxlib", "numpy", "scipy", "flax", "neural-tangents"} <= set(found["versions"])
    questions = [row[0] for row in results.rows(kept)]
    assert len(questions) == len(set(questions))


def test_page_explains_every_target_that_is_missed():
    text = performance_page.PAGE.read_text().split(performance_page.END)[1]
    missed = [row[0] for row in results.rows(results.load()) if row[4] == "missed"]
    assert [question for question in missed if f"*{question}*" not in text] == []


def test_runner_goes_on_after_a_script_that_fails_and_says_so(folder, capfd):
    code, kept = start(folder)
    shown = capfd.readouterr()
    assert code == 1
    assert list(kept["scripts"]) == ["bench_first", "bench_third"]
    assert "bench_second.py" in shown.err.splitlines()[-1]
    assert "answers differ" in shown.err
    lines = [line.split() for line in shown.out.splitlines()[-2:]]
    assert lines == [
        ["one", "they", "2.5×", "2.0×", "met", "4.0×", "vmap"],
        ["three", "they", "0.25×", "2.0×", "missed", "4.0×", "vmap"],
    ]


def test_one_script_is_run_again_and_the_others_are_kept(folder, capfd):
    assert start(folder)[0] == 1
    (folder / "bench_third.py").write_text(REPORTS.format(question="four", ratio=3.0))
    code, kept = start(folder, "--only", "third")
    assert code == 0
    assert [row[0] for row in results.rows(kept)] == ["one", "four"]
    assert "one" not in capfd.readouterr().out.split("bench_third.py")[-1].split()
    assert start(folder, "--only", "fifth")[0] == 2
    # Results of other versions are kept, and say so.
    kept["scripts"]["bench_first"]["versions"]["jax"] = "0.4.1"
    results.save(kept, folder / "kept.json")
    scripts = start(folder, "--only", "third")[1]["scripts"]
    assert [scripts[name]["versions"]["jax"] == "0.4.1" for name in ("bench_first", "bench_third")] == [True, False]


def test_ways_are_measured_in_turn_after_their_answers_agree():
    log = []
    ours, theirs = (lambda name=name: log.append(name) or np.ones(2) for name in ("ours", "theirs"))
    found = measuring.compare_ways(ours, {"they": theirs}, tolerance=1e-9, rounds=2, enough=0)
    assert log == ["ours", "theirs"] * 3
    assert found.difference == 0
    assert found.theirs.keys() == {"they"}
    with pytest.raises(AssertionError, match=r"they answers differently, by 0\.5"):
        measuring.compare_ways(ours, {"they": lambda: 2 * np.ones(2)}, tolerance=1e-9)
    with pytest.raises(AssertionError, match="nan"):
        measuring.compare_ways(ours, {"they": lambda: np.array([1, np.nan])}, tolerance=1e-9)


def test_short_runs_are_repeated_for_longer_than_long_ones(monkeypatch):
    seconds, log = {"short": 0.25, "long": 2.0, "endless": 50.0}, []
    monkeypatch.setattr(measuring, "time_run", lambda way: (seconds[way()], None))
    ways = {name: lambda name=name: log.append(name) or name for name in seconds}
    assert measuring.time_in_turn(ways, rounds=3, patience=20.0, enough=2.0) == seconds
    assert {name: log.count(name) for name in seconds} == {"short": 8, "long": 3, "endless": 1}
    assert log[:4] == ["short", "long", "endless", "short"]


def test_report_is_handed_on(tmp_path, monkeypatch, capsys):
    file = tmp_path / "records"
    monkeypatch.setenv(results.RECORDS, str(file))
    found = measuring.Found(0.5, {"they": 1.0, "vmap": 2.0}, 1e-9)
    measuring.report("who", peer="they", target=3, found=found, curve={"n": [1, 2]})
    record = json.loads(file.read_text())
    assert (record["ratio"], record["others"], record["curve"]) == (2.0, {"vmap": 4.0}, {"n": [1, 2]})
    assert "2x they, 4x vmap   (aim: 3x)" in capsys.readouterr().out


def test_ratios_have_two_digits():
    shown = [results.times(ratio) for ratio in (0.7692, 0.0123, 5.44, 9.97, 16.8, 583.2)]
    assert shown == ["0.77×", "0.012×", "5.4×", "10×", "17×", "580×"]
