"""Write results into the pages of the documentation, between their two marks, and draw the figures.

python benchmarks/performance_page.py           results.json into docs/performance.md
python benchmarks/performance_page.py scale     scale/results.json into docs/scaling.md
"""

import ast
import sys
from pathlib import Path
from typing import Any

import results

from ntk_equiv import plotting

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "performance.md"
SCALE, SCALE_PAGE = HERE / "scale", HERE.parent / "docs" / "scaling.md"
FIGURES = PAGE.parent / "figures"
BEGIN, END = "<!-- begin of results -->", "<!-- end of results -->"
# Script, name of the size that grows, label of the axis.
GROWTHS = [
    ("bench_ensemble_samples", "samples", "base samples under C8"),
    ("bench_ensemble_order", "order", "order of the group, 64 samples"),
    ("bench_kernels_depth", "depth", "hidden layers, 1000 samples"),
    ("bench_training_members", "members", "members of width 128"),
]
NAMES = {"bench_ensemble_samples": "reduced", "bench_ensemble_order": "reduced"}


def tables(kept: dict[str, Any], folder: Path = HERE) -> str:
    """Return the text between the marks: machines and versions, then the question and results of each script."""
    setups: list[str] = []
    parts = []
    for script, found in kept["scripts"].items():
        setup = _setup(found)
        setups += [] if setup in setups else [setup]
        where = f"`{script}.py`, machine {setups.index(setup) + 1}{_disturbance(found['busy_elsewhere'])}"
        parts.append(f"**{question(script, folder)}** ({where})")
        parts.append(_markdown([results.HEADINGS, *results.rows(kept, [script])]))
    numbered = [f"{number}. {setup}" for number, setup in enumerate(setups, start=1)]
    return "\n\n".join(["Machines:", "\n".join(numbered), *parts])


def _setup(found: dict[str, Any]) -> str:
    """Return on what a script ran, as a sentence."""
    machine, packages = found["machine"], ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    return f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB; {packages}."


def question(script: str, folder: Path) -> str:
    """Return the first line of a script's docstring."""
    text = ast.get_docstring(ast.parse((folder / f"{script}.py").read_text()))
    assert text is not None
    return text.splitlines()[0]


def page(text: str, kept: dict[str, Any], folder: Path = HERE) -> str:
    """Return the page with these results between its marks."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{tables(kept, folder)}\n\n{END}{after}"


def growth(kept: dict[str, Any]):
    """Draw seconds against size, one panel for each script."""
    with plotting.style():
        fig, axes = plotting.panels(2, 2)
        for ax, (script, axis, label) in zip(axes, GROWTHS, strict=True):
            (record,) = kept["scripts"][script]["results"]
            curve = dict(record["curve"])
            sizes = curve.pop(axis)
            for number, (name, seconds) in enumerate(curve.items()):
                shown = NAMES.get(script, name) if name == "ours" else name
                plotting.measured(ax, sizes, seconds, label=shown, number=number, joined=True)
            ax.set(xscale="log", yscale="log", xlabel=label, ylabel="seconds")
            ax.set_xticks(sizes, [str(size) for size in sizes])
            ax.minorticks_off()
            ax.legend()
    return fig


def kernels(kept: dict[str, Any]):
    """Draw how many times as fast the Gram matrices are as those of neural-tangents, for both precisions."""
    found = kept["scripts"]["bench_kernels"]["results"]
    with plotting.style():
        fig, axes = plotting.panels(2, sharey=True, width=4.6, height=3.8)
        for ax, dtype in zip(axes, ("float32", "float64"), strict=True):
            chosen = [record for record in found if record["question"].endswith(dtype)][::-1]
            places = range(len(chosen))
            ratios = [{record["peer"]: record["ratio"], **record["others"]} for record in chosen]
            for number, peer in enumerate(sorted(ratios[0])):
                plotting.measured(ax, [ratio[peer] for ratio in ratios], places, label=peer, number=number)
            ax.plot([r["target"] for r in chosen], places, "|", color="#222222", markersize=10, label="target")
            ax.axvline(1, color="#222222", linewidth=0.8)
            ax.set(xscale="log", xlabel="times as fast", title=dtype)
            ax.set_xticks([1, 2, 5, 10, 20, 50, 100], ["1", "2", "5", "10", "20", "50", "100"])
            ax.minorticks_off()
            ax.set_yticks(places, [record["question"].removesuffix(f", {dtype}") for record in chosen])
        fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower right", ncols=3)
    return fig


def _disturbance(busy: float | None) -> str:
    return "" if busy is None else f"; other work took {busy:.0%} of the machine"


def _markdown(rows: list[tuple[str, ...]]) -> str:
    # A bar separates cells, so a bar inside a cell must be escaped.
    lines = [" | ".join(cell.replace("|", "&#124;") for cell in row) for row in rows]
    return "\n".join(f"| {line} |" for line in (lines[0], " | ".join(["---"] * len(rows[0])), *lines[1:]))


if __name__ == "__main__":
    if sys.argv[1:] == ["scale"]:
        SCALE_PAGE.write_text(page(SCALE_PAGE.read_text(), results.load(SCALE / "results.json"), SCALE))
        raise SystemExit
    kept = results.load()
    PAGE.write_text(page(PAGE.read_text(), kept))
    for name, draw in (("growth", growth), ("kernels", kernels)):
        draw(kept).savefig(FIGURES / f"performance_{name}.png", metadata={"Software": None})
