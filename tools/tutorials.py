"""Scripts of cells as pages of the documentation: their text, code, printed output and figures.

A script in the percent format of jupytext, as the tutorials are, has two kinds of cells:

    # %% [markdown]        text, in comments
    # %%                   code

`page` runs the cells of a script one after the other, in an empty folder. Under the code of a cell stand what it
printed and the figures it saved, that is the PNG files that are new in the folder. So a page shows what a reader gets
who runs the script, and nothing that was ever kept by hand.

mkdocs calls `on_files` (see `hooks` in `mkdocs.yml`) whenever the site is built. Running the tutorials takes longer
than all the rest of that, so their pages are kept in `.cache/` until the script, the library, this file or JAX changes.
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

ROOT = Path(__file__).parents[1]
TUTORIALS = ROOT / "examples" / "tutorials"
CACHE = ROOT / ".cache" / "tutorials"
FENCE = "````"  # longer than what the text of a tutorial may use itself


@dataclasses.dataclass(frozen=True)
class Cell:
    """A piece of a script.

    Attributes:
        text: Markdown or Python.
        is_code: which of the two.
        line: the number of its first line in the script.
    """

    text: str
    is_code: bool
    line: int


@dataclasses.dataclass(frozen=True)
class Page:
    """A page and the figures on it.

    Attributes:
        markdown: its text, which refers to figures as `<name of the script>/<name of the figure>.png`.
        figures: for each such reference the bytes of a PNG file.
    """

    markdown: str
    figures: dict[str, bytes]


def cells(source: str) -> list[Cell]:
    """The cells of a script, without empty ones and without comments in front of the first (a jupytext header)."""
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
    """Run a script in an empty folder, and put what came of each cell below it."""
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
    """The first cell, with a word after its title on where the script is and how to run it."""
    title, _, rest = first.partition("\n")
    where = f"examples/tutorials/{script.name}"
    directions = f"""
!!! tip "Run it yourself"

    This page is the script `{where}`, run when the page was built. In a checkout with the extra `plots` installed,
    it prints the same and saves its figures in `results/`:

        python {where}
"""
    return f"{title}\n{directions}\n{rest.strip()}"


def _run(script: Path) -> Iterator[tuple[Cell, str, dict[str, bytes]]]:
    """Each cell with what it printed and the figures it saved."""
    namespace: dict[str, Any] = {"__name__": "__main__", "__file__": str(script)}
    seen: set[Path] = set()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for number, cell in enumerate(cells(script.read_text(encoding="utf-8")), 1):
            printed = io.StringIO()
            if cell.is_code:
                try:
                    # Empty lines in front, so that errors name lines of the script.
                    code = compile("\n" * (cell.line - 1) + cell.text, str(script), "exec")
                    with contextlib.redirect_stdout(printed):
                        exec(code, namespace)
                except Exception as error:
                    where = f"cell {number} of {script.name}, which begins in line {cell.line}"
                    raise RuntimeError(f"{where}, failed: {type(error).__name__}: {error}") from error
            new = sorted(set(Path(folder).rglob("*.png")) - seen)
            seen |= set(new)
            yield cell, printed.getvalue(), {path.stem: path.read_bytes() for path in new}


def kept_page(script: Path, /, *, cache: Path = CACHE) -> Page:
    """The page of a script: the kept one if nothing has changed that it depends on, else a new one, which is kept."""
    folder = cache / f"{script.stem}-{_fingerprint(script)}"
    if not (folder / "page.md").exists():  # which is written last
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


def on_files(files: Any, *, config: Any) -> Any:
    """Called by mkdocs: adds a page for each tutorial, and its figures."""
    from mkdocs.structure.files import File

    for script in sorted(TUTORIALS.glob("[!_]*.py")):
        made = kept_page(script)
        files.append(File.generated(config, f"tutorials/{script.stem}.md", content=made.markdown))
        for name, image in made.figures.items():
            files.append(File.generated(config, f"tutorials/{name}", content=image))
    return files
