"""The documentation: the reference has every public name, paths that pages name exist, and broken links are found."""

import re
import runpy
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import ntk_equiv

ROOT = Path(__file__).parents[1]
REFERENCE = "\n".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
SHOWN = set(re.findall(r"^::: (\S+)$", REFERENCE, re.MULTILINE))


@pytest.mark.parametrize(("name", "home"), ntk_equiv._HOME.items())
def test_every_public_name_is_in_the_reference(name, home):
    assert {home, f"{home}.{name}"} & SHOWN


@pytest.mark.parametrize("name", sorted(SHOWN))
def test_what_the_reference_shows_is_there_and_described(name):
    """The reference would leave out a name without a docstring."""
    home, _, last = name.rpartition(".")
    found = getattr(import_module(home), last)
    members = [getattr(found, public) for public in getattr(found, "__all__", [])]
    for thing in [found, *members]:
        assert isinstance(thing, ModuleType) or not callable(thing) or thing.__doc__, thing


def test_the_reference_leaves_nothing_out():
    assert "members:" not in REFERENCE


PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
MADE = ROOT / "docs" / "tutorials"  # pages that are written when the site is built


def missing_paths(text: str, folder: Path) -> list[str]:
    """Files and folders that a page names in backticks, or links to or shows from its folder, and that do not exist."""
    named = re.findall(r"`((?:tests|ntk_equiv|examples|benchmarks|docs)/[\w./-]*)`", text)
    linked = re.findall(r"\]\(([\w./-]*[\w-]\.\w+)(?:#[^)]*)?\)", text)
    paths = [(name, ROOT / name) for name in named] + [(name, (folder / name).resolve()) for name in linked]
    return [name for name, path in paths if not path.exists() and path.parent != MADE]


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: page.stem)
def test_files_that_a_page_names_exist(page):
    assert missing_paths(page.read_text(), page.parent) == []


def test_a_file_that_does_not_exist_is_found():
    text = (
        "In `tests/test_docs.py`, `docs/tools/` and `tests/test_nothing.py`; not in `from examples import x`. "
        "![Seen](docs/figures/graphs.png) ![unseen](docs/figures/nothing.png) "
        "[here](README.md#try-it) [no](NO.md#try-it)"
    )
    assert missing_paths(text, ROOT) == ["tests/test_nothing.py", "docs/figures/nothing.png", "NO.md"]


def test_the_page_on_your_own_images_quotes_its_script():
    _, _, section = (ROOT / "docs" / "how_to" / "own_images.md").read_text().partition("## Every step by hand")
    blocks = re.findall(r"```(?:python|text)\n(.*?)```", section, re.DOTALL)
    script = (ROOT / "examples" / "own_images.py").read_text()
    assert len(blocks) == 4
    assert [block for block in blocks if block not in script] == []


@pytest.fixture
def site(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "index.html").write_text('<h1 id="top">Other</h1> <a href="../#here">back</a>')
    return tmp_path


@pytest.mark.parametrize(
    ("html", "complaint"),
    [
        ('<p id="here"><a href="other/#top">fine</a> <a href="https://example.org/">elsewhere</a>', None),
        ('<p id="here"><a href="nowhere/">', "there is no nowhere/"),
        ('<p id="here"><img src="missing.png">', "there is no missing.png"),
        ('<p id="here"><a href="other/#bottom">', "there is no anchor other/#bottom"),
        ("<p>", "there is no anchor ../#here"),
        ('<p id="here"><script src="https://example.org/math.js">', "loads https://example.org/math.js"),
        ('<p id="here"><link rel="stylesheet" href="https://example.org/a.css">', "loads https://example.org/a.css"),
    ],
)
def test_links_that_lead_nowhere_are_found(site, html, complaint):
    (site / "index.html").write_text(html)
    found = runpy.run_path(str(ROOT / "docs" / "tools" / "links.py"))["broken"](site)
    assert found == [] if complaint is None else complaint in found[0]
