"""The library is layered: a part imports only from the parts below it, and heavy libraries have one home each.

The imports are read from the source with `ast`, so those inside functions and under `TYPE_CHECKING` count as well.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "ntk_equiv"

BASE = {"_typing", "_check", "_pytrees", "_machine", "_renamed"}
SYMMETRY = BASE | {"groups", "reps", "orbits"}
THEORY = SYMMETRY | {
    "_tile_folder", "_convolution", "_positions", "_losses",
    "stax", "filters", "solvers", "metrics", "_gram", "theorems",
}  # fmt: skip
EVERYTHING = THEORY | {
    "empirical", "infinite", "predict", "bounds", "ensembles", "plotting", "datasets", "planning", "planned_runs",
    "interop", "nt", "cli",
}  # fmt: skip

# What each part may import, itself aside, from the lowest part up.
MAY_IMPORT = {
    "_typing": set(),
    "_check": {"_typing"},
    "_pytrees": set(),
    "_renamed": set(),
    "_machine": {"_check"},
    "_tile_folder": {"_check", "_machine"},
    "groups": BASE,
    "reps": BASE | {"groups"},
    "orbits": BASE | {"groups", "reps"},
    "_convolution": BASE,
    "_positions": set(),
    "_losses": {"_check"},
    "stax": BASE | {"_convolution", "_positions", "groups"},
    "filters": BASE,
    "solvers": BASE | {"_tile_folder", "filters"},
    "metrics": BASE,
    "_gram": BASE | {"_positions"},
    "theorems": SYMMETRY | {"_gram", "_positions"},
    "empirical": BASE | {"_positions", "stax", "_gram", "filters"},
    "infinite": THEORY,
    "predict": THEORY | {"infinite"},
    "bounds": THEORY | {"empirical", "infinite"},
    "ensembles": THEORY | {"empirical"},
    "plotting": BASE | {"metrics"},
    "datasets": SYMMETRY,
    "planning": THEORY | {"empirical", "infinite", "bounds", "plotting"},
    "planned_runs": THEORY | {"ensembles", "plotting", "planning"},
    "interop": BASE,
    # The facade stands above all that it calls, and nothing below knows of it.
    "nt": THEORY | {"empirical", "predict"},
    "cli": EVERYTHING,
    "__main__": {"cli"},
    "__init__": EVERYTHING,
}

# The only part that may import each of these; no part may import one whose home is None.
HOME = {
    "flax": "ensembles",
    "optax": "ensembles",
    "orbax": "ensembles",
    "matplotlib": "plotting",
    "mpl_toolkits": "plotting",
    "gzip": "datasets",
    "tarfile": "datasets",
    "urllib": "datasets",
    "zipfile": "datasets",
    "neural_tangents": "interop",
    "tensorflow": None,
}


def imported(source: str, package: str) -> Iterator[str]:
    """The full dotted name of all that `source` imports, wherever in it, if it is a module directly in `package`."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                parents = package.split(".")
                start = parents[: len(parents) - level + 1] if level else []
                yield from (".".join([*start, *([module] if module else []), alias.name]) for alias in names)
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name


def objection(part: str, name: str) -> str | None:
    """What is wrong with `part` importing `name`, if anything."""
    top, *rest = name.split(".")
    if top != "ntk_equiv":
        if HOME.get(top, part) != part:
            return f"only {HOME[top] or 'nobody'} may"
        if any(step.startswith("_") and not step.startswith("__") for step in [top, *rest]):
            return "it is private to another library"
        return None
    if not rest or rest[0] not in MAY_IMPORT:
        return None if part in {"cli", "__init__"} else "import from the part that defines it"
    if rest[0] not in MAY_IMPORT[part] | {part}:
        return f"{part} is not above {rest[0]}"
    if rest[0] != part and any(step.startswith("_") for step in rest[1:]):
        return f"it is private to {rest[0]}: import what its `__init__` offers"
    return None


def violations(root: Path) -> list[str]:
    """What the modules of the package at `root` import against the rules, one line for each."""
    found = []
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root).with_suffix("")
        part = place.parts[0]
        if part not in MAY_IMPORT:
            found.append(f"{place}: {part} is in no layer; give it one in the table")
            continue
        package = ".".join(["ntk_equiv", *place.parts[:-1]])
        for name in imported(path.read_text(), package):
            if reason := objection(part, name):
                found.append(f"{place}: imports {name}, but {reason}")
    return found


def test_the_library_keeps_its_layers():
    assert violations(PACKAGE) == []


def test_the_table_has_no_cycles():
    """A part may import only what is listed before it, so the table can be read from top to bottom."""
    parts = list(MAY_IMPORT)
    for part, below in MAY_IMPORT.items():
        if part not in {"cli", "__init__"}:
            assert {name for name in below if parts.index(name) >= parts.index(part)} == set(), part


@pytest.mark.parametrize(
    ("file", "source", "complaint"),
    [
        ("filters/_flow.py", "from ntk_equiv.groups import cyclic", "filters is not above groups"),
        ("stax/_dense.py", "import ntk_equiv.reps as reps", "stax is not above reps"),
        ("stax/_dense.py", "from ntk_equiv import orbits", "stax is not above orbits"),
        ("stax/_dense.py", "from ..reps import matrix", "stax is not above reps"),
        ("stax/_dense.py", "from .. import reps", "stax is not above reps"),
        ("stax/__init__.py", "from ..reps import matrix", "stax is not above reps"),
        ("groups/finite/_cyclic.py", "from ...reps import matrix", "groups is not above reps"),
        ("_gram.py", "from .stax import Dense", "_gram is not above stax"),
        ("_gram.py", "def gram():\n    from ntk_equiv.stax import Dense", "_gram is not above stax"),
        ("_gram.py", "if TYPE_CHECKING:\n    from ntk_equiv.infinite import Blocks", "_gram is not above infinite"),
        ("infinite/_dense.py", "from ntk_equiv.bounds import deviation_probability", "infinite is not above bounds"),
        ("bounds/_size.py", "from ntk_equiv import gram", "import from the part that defines it"),
        ("metrics.py", "import ntk_equiv", "import from the part that defines it"),
        ("infinite/_dense.py", "import flax.linen", "only ensembles may"),
        ("bounds/_size.py", "def plot():\n    import matplotlib.pyplot", "only plotting may"),
        ("stax/_dense.py", "import importlib\nimportlib.import_module('neural_tangents.stax')", "only interop may"),
        ("interop.py", "import tensorflow", "only nobody may"),
        ("interop.py", "from jax._src.core import Var", "private to another library"),
        ("bounds/_size.py", "from ntk_equiv.infinite._ensemble import InfiniteEnsemble", "it is private to infinite"),
        ("bounds/_size.py", "from ntk_equiv.infinite import _ensemble", "it is private to infinite"),
        ("utils.py", "import jax", "utils is in no layer"),
    ],
)
def test_a_planted_violation_is_found(tmp_path, file, source, complaint):
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    (found,) = violations(tmp_path)
    assert complaint in found


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("stax/_dense.py", "from ntk_equiv._check import floating\nfrom .. import _typing\nfrom . import _conv"),
        ("stax/__init__.py", "from ._dense import Dense\nfrom ntk_equiv.stax import _conv"),
        ("orbits.py", "import jax\nfrom ntk_equiv.groups import cyclic\nfrom .reps import matrix"),
        ("theorems.py", "from ntk_equiv._gram import gram\nfrom ntk_equiv.orbits import augment"),
        ("bounds/_size.py", "from ntk_equiv.infinite import InfiniteEnsemble"),
        ("ensembles/_train.py", "import flax\nimport optax\nimport orbax.checkpoint"),
        ("interop.py", "def neural_tangents():\n    import neural_tangents"),
        ("cli.py", "import ntk_equiv\nfrom ntk_equiv import gram, plotting"),
        ("__init__.py", "from __future__ import annotations\nfrom ntk_equiv._gram import gram"),
    ],
)
def test_what_the_layers_allow_passes(tmp_path, file, source):
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    assert violations(tmp_path) == []


def test_importing_the_library_is_light():
    heavy = {"flax", "optax", "orbax", "matplotlib", "neural_tangents", "tensorflow"}
    code = f"import sys, ntk_equiv; print({heavy} & sys.modules.keys())"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
