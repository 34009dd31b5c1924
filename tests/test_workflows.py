"""The workflow, the pre-commit hooks and `.ci/run` call make targets that exist, and they agree with one another."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WORKFLOW, HOOKS, CI = ".github/workflows/ci.yml", ".pre-commit-config.yaml", ".ci/run"

if not (ROOT / ".git").exists():
    pytest.skip("these files are not part of the sdist", allow_module_level=True)


def read(name: str) -> str:
    return (ROOT / name).read_text()


def targets(makefile: str) -> set[str]:
    """The targets that the help of the Makefile lists."""
    return set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))


def calls(text: str) -> set[str]:
    """Every target that a file makes: after `make`, or one by one in a shell loop whose body calls `make`."""
    code = re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE)
    direct = re.findall(r"\bmake ([a-z-]+)", code)
    loops = re.findall(r"^for (\w+) in (.*); do$(.*?)^done$", code, re.MULTILINE | re.DOTALL)
    looped = [name for variable, names, body in loops if f'make "${variable}"' in body for name in names.split()]
    return {*direct, *looped}


@pytest.mark.parametrize("name", [WORKFLOW, HOOKS, CI])
def test_targets_exist(name):
    assert calls(read(name))
    assert calls(read(name)) <= targets(read("Makefile"))


def test_a_target_that_is_missing_is_found():
    makefile = "lint: .venv  ## check the style\n\truff check\n"
    assert calls("- run: make lint") <= targets(makefile)
    assert calls("- run: make lnt") - targets(makefile) == {"lnt"}
    assert calls("    entry: make types") - targets(makefile) == {"types"}
    loop = 'for check in lint tests; do\n  make "$check"\ndone\n'
    assert calls(loop) - targets(makefile) == {"tests"}
    assert calls("# make nothing of a comment") == set()


def test_workflow_runs_all_that_ci_runs():
    assert calls(read(WORKFLOW)) == calls(read(CI)) | {"docs", "test-lowest"}


def test_workflow_tests_every_version_that_is_declared():
    declared = tomllib.loads(read("pyproject.toml"))["project"]["classifiers"]
    versions = re.findall(r"Python :: (3\.\d+)$", "\n".join(declared), re.MULTILINE)
    (matrix,) = re.findall(r"^ +python: \[(.*)\]$", read(WORKFLOW), re.MULTILINE)
    assert re.findall(r'"(.*?)"', matrix) == versions
