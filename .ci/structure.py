"""How many rooms the library has, and how far a call has to walk through them.

    python .ci/structure.py            prints a table for the package that `import ntk_equiv` finds

Counted are the modules, imports of another part's private modules, parameters typed `Any`, and for a few calls, each
made for the first time and once more: files and functions entered, changes of file from one call of a function to the
next, and checks of arguments. Functions that JAX calls while it traces count as well; those of other libraries do not,
nor do comprehensions and lambdas.
"""

import ast
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax

import ntk_equiv
from ntk_equiv import augment, ensemble_mean, ensembles, groups, reps, stax

PACKAGE = Path(ntk_equiv.__file__).parent
CHECKS = PACKAGE / "_check.py"
# The parts of `_check` that look at values without checking an argument.
LOOKS = {"is_concrete", "evaluating_what_is_known", "is_number", "is_listed", "shown", "_is_numeric"}
FINITE = {"_check_finite", "check_labels"}


def walk(call: Callable[[], Any]) -> dict[str, int]:
    """Count the steps of one call."""
    files: set[str] = set()
    functions: set[tuple[str, str, int]] = set()
    counts = {"changes of file": 0, "checks of arguments": 0, "of finiteness": 0}
    last = ""

    def note(frame: Any, event: str, _: Any) -> None:
        nonlocal last
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(str(PACKAGE)) or code.co_name.startswith("<"):
            return
        files.add(code.co_filename)
        functions.add((code.co_filename, code.co_name, code.co_firstlineno))
        if code.co_filename == str(CHECKS) and code.co_name not in LOOKS:
            counts["checks of arguments"] += 1
        counts["of finiteness"] += code.co_name in FINITE
        counts["changes of file"] += code.co_filename != last
        last = code.co_filename

    sys.setprofile(note)
    try:
        jax.block_until_ready(call())
    finally:
        sys.setprofile(None)
    return {"files": len(files), "functions": len(functions), **counts}


def private_imports() -> int:
    """Count imports of another part's private modules."""
    found = 0
    for path in PACKAGE.rglob("*.py"):
        part = path.relative_to(PACKAGE).with_suffix("").parts[0]
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("ntk_equiv."):
                home, *rest = node.module.split(".")[1:]  # type: ignore[union-attr]
                names = rest or [alias.name for alias in node.names]
                found += home != part and not home.startswith("_") and names[0].startswith("_")
    return found


def parameters() -> tuple[int, int]:
    """Count the parameters of all functions, and those that are annotated `Any`."""
    every = [
        argument
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        if argument.annotation is not None
    ]
    return len(every), sum(isinstance(a.annotation, ast.Name) and a.annotation.id == "Any" for a in every)


def main() -> None:
    """Print the table."""
    jax.config.update("jax_enable_x64", True)
    net = stax.serial(stax.Dense(16, 1.5, 0.1), stax.Relu(), stax.Dense(1))
    x, y = jnp.asarray([[1.0, 2.0, 4.0], [0.0, 1.0, 5.0]]), jnp.asarray([1.0, -1.0])
    data = augment(x, y, reps.regular(groups.cyclic(3)))
    settings = {"members": 2, "steps": 3, "optimizer": optax.sgd(0.1), "key": jax.random.key(0)}
    calls = {
        "ensemble_mean": lambda: ensemble_mean(net, data, x, 1.0),
        "kernel_fn": lambda: net[2](x, None, "ntk"),
        "ensembles.train": lambda: ensembles.train(net, data, **settings).predict(x),
    }
    total, anything = parameters()
    print(f"modules {len(list(PACKAGE.rglob('*.py')))}, private imports {private_imports()}, ", end="")
    print(f"parameters {total}, typed Any {anything}")
    for name, call in calls.items():
        for when in ("cold", "warm"):
            print(f"{name:16} {when}  " + ", ".join(f"{what} {count}" for what, count in walk(call).items()))


if __name__ == "__main__":
    main()
