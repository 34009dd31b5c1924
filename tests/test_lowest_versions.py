"""The lower bounds that are declared are the versions that are tested."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def declared(*extras: str) -> dict[str, tuple[int, ...]]:
    """The lowest version of each dependency in pyproject.toml, of the library and of the given extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [project["dependencies"], *(project["optional-dependencies"][extra] for extra in extras)]
    return bounds(">=", [line for lines in lists for line in lines])


def constrained() -> dict[str, tuple[int, ...]]:
    """The versions that constraints-lowest.txt installs."""
    lines = (ROOT / "constraints-lowest.txt").read_text().splitlines()
    return bounds("==", [line for line in lines if not line.startswith("#")])


def bounds(operator: str, lines: list[str]) -> dict[str, tuple[int, ...]]:
    versions = {}
    for line in lines:
        match = re.fullmatch(rf"([a-z0-9-]+){operator}([0-9.]+)", line)
        assert match, f"{line!r} does not read like `name{operator}version`"
        major, minor, *patch = map(int, match[2].split("."))
        versions[match[1]] = (major, minor, *(patch or [0]))
    return versions


def test_the_lowest_versions_are_those_declared():
    # jaxlib comes with jax, and pip would otherwise take its newest.
    assert constrained() == {**declared("plots", "test"), "jaxlib": declared()["jax"]}
