"""Turn scripts with cells into pages of the documentation, with text, code, printed output and figures.

A script in the percent format of jupytext, like the tutorials, has two kinds of cells:

    # %% [markdown]        text, in comments
    # %%                   code

`page` runs the cells of a script one after the other, in an empty folder. Below the code of each cell the page shows
what it printed and the figures it saved, that is, all PNG files that are new in the folder. So a page shows exactly
what a reader gets by running the script.

    python docs/tools/tutorials.py

writes the pages of all tutorials into `docs/tutorials/`, where the site is built from; `make docs` does that first.
Running the tutorials takes longer than the rest, so their pages are cached in `.cache/` until the script, the library,
this file or JAX changes.
"""

import contextlib
import dataclasses
import hashlib
import io
import re
import shutil
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "examples" / "tutorials"
PAGES = ROOT / "docs" / "tutorials"
CACHE = ROOT / ".cache" / "tutorials"
FENCE = "````"  # longer than the fences that the text of a tutorial may use


@dataclasses.dataclass(frozen=True)
class Cell:
    """A piece of a script.

    Attributes:
        text: Markdown or Python.
        is_code: whether it is Python.
        line: the number of the first line in the script.
    """

    text: str
    is_code: bool
    line: int


@dataclasses.dataclass(frozen=True)
class Page:
    """A page and the figures on it.

    Attributes:
        markdown: the text, which refers to figures as `<name of the script>/<name of the figure>.png`.
        figures: the bytes of the PNG file for each such reference.
    """

    markdown: str
    figures: dict[str, bytes]


def cells(source: str) -> list[Cell]:
    """Return the cells of a script, without empty ones and without comments before the first (a jupytext header)."""
    found, kind, start = [], "", 1
    lines = [*source.splitlines(), "# %%"]
    for number, line in enumerate(lines, 1):
        if line.startswith("# %%"):
            found.append(_cell(lines[start - 1 : number - 1], "[markdown]" not in kind, start))
            kind, start = line, number + 1
    return [cell for cell in found if cell is not None]


def _cell(lines: list[str], is_code: bool, line: int) -> Cell | None:
    if not is_code:
        lines = [re.sub("^# ?", "", text) for text in lines]
    elif all(text.startswith("#") or not text.strip() for text in lines):
        return None
    filled = [number for number, text in enumerate(lines) if text.strip()]
    if not filled:
        return None
    return Cell("\n".join(lines[filled[0] : filled[-1] + 1]), is_code, line + filled[0])


def page(script: Path) -> Page:
    """Run a script in an empty folder, and return the page with the output of each cell below it."""
    parts, figures = [], {}
    for cell, printed, drawn in _run(script):
        if not cell.is_code:
            parts.append(cell.text if parts else _with_directions(cell.text, script))
            continue
        parts.append(f"{FENCE}python\n{cell.text}\n{FENCE}")
        if printed.strip():
            parts.append(f'{FENCE} {{ .text .no-copy title="prints" }}\n{printed.rstrip()}\n{FENCE}')
        for name, image in drawn.items():
            figures[f"{script.stem}/{name}.png"] = image
            parts.append(f"![{name.replace('-', ' ').capitalize()}]({script.stem}/{name}.png)")
    return Page("\n\n".join(parts) + "\n", figures)


def _with_directions(first: str, script: Path) -> str:
    """Return the first cell, with a note after its title that says where the script is and how to run it."""
    title, _, rest = first.partition("\n")
    where = f"examples/tutorials/{script.name}"
    directions = f"""
!!! tip "Run it yourself"

    This page was made by running the script `{where}`. In a checkout with the extra `plots` installed, the
    script prints the same and saves its figures in `results/`:

        python {where}
"""
    return f"{title}\n{directions}\n{rest.strip()}"


def _run(script: Path) -> Iterator[tuple[Cell, str, dict[str, bytes]]]:
    """Yield each cell with its printed output and the figures it saved."""
    namespace: dict[str, Any] = {"__name__": "__main__", "__file__": str(script)}
    seen: set[Path] = set()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for number, cell in enumerate(cells(script.read_text(encoding="utf-8")), 1):
            printed = io.StringIO()
            if cell.is_code:
                try:
                    # Empty lines before the code make errors name the right lines of the script.
                    code = compile("\n" * (cell.line - 1) + cell.text, str(script), "exec")
                    with contextlib.redirect_stdout(printed):
                        exec(code, namespace)
                except Exception as error:
                    where = f"cell {number} of {script.name}, which begins in line {cell.line}"
                    raise RuntimeError(f"{where}, failed: {type(error).__name__}: {error}") from error
            new = sorted(set(Path(folder).rglob("*.png")) - seen)
            seen |= set(new)
            yield cell, printed.getvalue(), {path.stem: path.read_bytes() for path in new}


def cached_page(script: Path, /, *, cache: Path = CACHE) -> Page:
    """Return the page of a script, from the cache if nothing that it depends on has changed."""
    folder = cache / f"{script.stem}-{_fingerprint(script)}"
    if not (folder / "page.md").exists():  # this file is written last
        new = page(script)
        for old in cache.glob(f"{script.stem}-*"):
            shutil.rmtree(old)
        for name, image in new.figures.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(image)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "page.md").write_text(new.markdown, encoding="utf-8")
    figures = {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*.png"))}
    return Page((folder / "page.md").read_text(encoding="utf-8"), figures)


def _fingerprint(script: Path) -> str:
    digest = hashlib.sha256(version("jax").encode())
    for path in (script, Path(__file__), *sorted((ROOT / "ntk_equiv").rglob("*.py"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def write_pages(folder: Path = PAGES) -> None:
    """Write a page for each tutorial, and its figures."""
    for script in sorted(TUTORIALS.glob("[!_]*.py")):
        made = cached_page(script)
        (folder / f"{script.stem}.md").write_text(made.markdown, encoding="utf-8")
        for name, image in made.figures.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(image)


if __name__ == "__main__":
    write_pages()
