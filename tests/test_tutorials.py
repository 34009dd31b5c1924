"""Every tutorial runs, has its usual sections and working links, and its page shows the output of each cell."""

import importlib.util
import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SCRIPTS = sorted((ROOT / "examples" / "tutorials").glob("[!_]*.py"))
each_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)

SMALL = """\
# ---
# jupytext: a header
# ---

# %% [markdown]
# # Two
#
# Words with `code`.

# %%
value = 2
print("before")

# %% [markdown]
# More words.

# %%
from pathlib import Path

Path("results").mkdir()
Path("results/a-dot.png").write_bytes(b"dot")
value + 1

# %%
print(value + 1)
"""


@pytest.fixture(scope="module")
def renderer():
    """Load the module `docs/tools/tutorials.py` by its path, because it is no part of a package."""
    spec = importlib.util.spec_from_file_location("_tutorials", ROOT / "docs" / "tools" / "tutorials.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "two.py"
    path.write_text(SMALL)
    return path


def test_there_are_tutorials():
    assert len(SCRIPTS) == 5


@each_script
def test_tutorial_runs(script, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)  # figures must not be saved in the checkout
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out.strip()
    assert list(tmp_path.glob("results/*.png"))


@each_script
def test_tutorial_asks_answers_and_leads_on(script, renderer):
    cells = renderer.cells(script.read_text())
    text = "\n".join(cell.text for cell in cells if not cell.is_code)
    assert re.match(r"# \d · ", text)
    for part in ("**The question.**", "**What surprised us.**", "**Where to go on.**"):
        assert text.count(part) == 1, part
    assert 20 <= sum(cell.text.count("\n") + 1 for cell in cells if cell.is_code) <= 100


@each_script
def test_tutorial_is_found_and_its_links_lead_somewhere(script):
    page = f"{script.stem}.md"
    assert f"tutorials/{page}" in (ROOT / "mkdocs.yml").read_text()
    assert f"({page})" in (DOCS / "tutorials" / "index.md").read_text()
    source = re.sub(r"\n# ", " ", script.read_text())  # a link may continue on the next line
    for target in re.findall(r"\]\(([^)#]+\.md)", source):
        there = (DOCS / "tutorials" / target).resolve()
        assert there.exists() or there.stem in {other.stem for other in SCRIPTS}, target


def test_cells_keep_their_kind_text_and_line(renderer):
    found = renderer.cells(SMALL)
    assert [cell.is_code for cell in found] == [False, True, False, True, True]
    assert found[0].text == "# Two\n\nWords with `code`."
    for cell in found[1], found[3], found[4]:
        assert SMALL.splitlines()[cell.line - 1] == cell.text.splitlines()[0]


def test_page_has_code_output_and_figures_in_order(renderer, small, tmp_path):
    page = renderer.page(small)
    assert page.figures == {"two/a-dot.png": b"dot"}
    order = [
        "# Two\n", "python examples/tutorials/two.py", "Words with `code`.", 'print("before")\n````', "\nbefore\n````",
        "More words.", "value + 1\n````", "![A dot](two/a-dot.png)", "print(value + 1)\n````", "\n3\n````",
    ]  # fmt: skip
    places = [page.markdown.index(part) for part in order]
    assert places == sorted(places)
    assert page.markdown.count('title="prints"') == 2  # values alone are not shown
    assert page.markdown.count("![A dot]") == 1
    assert not (tmp_path / "results").exists()


def test_a_failure_names_cell_and_line(renderer, small):
    source = SMALL + "\n# %%\nfine = True\nprint(unknown)\n"
    small.write_text(source)
    line = source.splitlines().index("fine = True") + 1
    with pytest.raises(
        RuntimeError, match=f"cell 6 of two.py, which begins in line {line}, failed: NameError"
    ) as caught:
        renderer.page(small)
    assert caught.value.__cause__.__traceback__.tb_next.tb_lineno == line + 1  # the traceback points into the script


def test_pages_are_kept_until_the_script_changes(renderer, small, tmp_path):
    cache = tmp_path / "cache"
    log = tmp_path / "log"
    log.touch()
    small.write_text(SMALL + f"\n# %%\nlog = Path({str(log)!r})\nlog.write_text(log.read_text() + 'x')\n")
    first, again = (renderer.cached_page(small, cache=cache) for _ in range(2))
    assert first == again == renderer.page(small)
    assert log.read_text() == "xx"  # run by the first call, and by `page`
    small.write_text(SMALL)
    assert renderer.cached_page(small, cache=cache) != first
    assert len(list(cache.iterdir())) == 1
