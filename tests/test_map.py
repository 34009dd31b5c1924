"""The top of the package: a map whose names are loaded when they are used."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import ntk_equiv


def test_the_map_lists_what_it_can_load():
    assert sorted(ntk_equiv._HOME) == ntk_equiv.__all__


@pytest.mark.parametrize("name", ntk_equiv.__all__)
def test_every_public_name_resolves(name):
    value = getattr(ntk_equiv, name)
    assert value.__name__.split(".")[-1] == name
    assert getattr(ntk_equiv, name) is value


@pytest.mark.parametrize("name", ntk_equiv.__all__)
def test_every_public_name_is_in_the_prose(name):
    assert f"`{name}`" in ntk_equiv.__doc__


def test_names_load_when_first_used(tmp_path, monkeypatch):
    (tmp_path / "_planted.py").write_text("def flower(): pass")
    (tmp_path / "garden.py").write_text("")
    monkeypatch.setattr(ntk_equiv, "__path__", [*ntk_equiv.__path__, str(tmp_path)])
    monkeypatch.setitem(ntk_equiv._HOME, "flower", "ntk_equiv._planted")
    monkeypatch.setitem(ntk_equiv._HOME, "garden", "ntk_equiv.garden")
    try:
        assert "ntk_equiv._planted" not in sys.modules
        assert ntk_equiv.flower is sys.modules["ntk_equiv._planted"].flower
        assert ntk_equiv.garden is sys.modules["ntk_equiv.garden"]
    finally:
        for name in ("_planted", "garden"):
            sys.modules.pop(f"ntk_equiv.{name}", None)
        for name in ("_planted", "garden", "flower"):
            vars(ntk_equiv).pop(name, None)


def test_an_unknown_name_is_an_ordinary_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'gramm'"):
        ntk_equiv.gramm  # noqa: B018


def test_unloaded_names_are_offered_for_completion():
    code = "import ntk_equiv; print(set(ntk_equiv.__all__) <= set(dir(ntk_equiv)), 'gram' in vars(ntk_equiv))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["True", "False"]


def test_the_version_is_that_of_the_project():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert ntk_equiv.__version__ == project["version"]


def test_changelog_and_citation_are_of_this_version():
    root = Path(__file__).parents[1]
    version = ntk_equiv.__version__
    assert f"\nversion: {version}\n" in (root / "CITATION.cff").read_text()
    latest = re.search(r"^## \[(.*?)\]", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert latest is not None
    assert latest[1] in (version, "Unreleased")
