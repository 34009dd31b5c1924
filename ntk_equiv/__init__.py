"""Neural-tangent-kernel theory of deep ensembles, exact and with symmetry as a first-class citizen.

The library follows one line of thought, and this is where its parts lie on it:

- `stax` builds a network as a triple `(init_fn, apply_fn, kernel_fn)`; `kernel_fn` evaluates the NNGP kernel and the
  neural tangent kernel of the infinitely wide network;
- `gram` evaluates any such `kernel_fn` on many samples, in tiles of bounded memory;
- `empirical` has the kernels of networks of finite width: `empirical_kernel_fn` those of one network,
  `monte_carlo_kernel_fn` their mean over random networks;
- `groups` are finite groups with their irreps, and the rotation groups; `reps` are the ways in which they act on
  vectors, images and graphs;
- `augment` makes the augmented set: all images of given samples under a group;
- `InfiniteEnsemble`, `ensemble_mean` and `ensemble_cov`, from `infinite`, are the infinitely wide ensemble trained on
  such a set, exactly and at any time;
- `filters` say how it is trained, and `solvers` how training is computed;
- `bounds` tell how many members or how fine an augmentation you need, and how large an error remains;
- `theorems` measure how well kernels, their Gram matrices and any function respect the symmetry;
- `ensembles` trains real ensembles, with Flax, and compares them with the theory;
- `metrics` measure how invariant their predictions are, and how good their class probabilities;
- `datasets` are the problems and image sets of the paper, each with its symmetry;
- `plotting` draws figures, in one style;
- `planning` puts all this together for your own data: how many members, how long to train, how large an error, on
  which samples; also from the command line, as `ntk-equiv plan`;
- `planned_runs` trains the ensemble of a plan on your data, and reports it beside the plan: `ntk-equiv train` and
  `ntk-equiv report`;
- `nt` has the names, arguments and results of neural-tangents: `import ntk_equiv.nt as nt` in place of
  `import neural_tangents as nt`;
- `interop` makes the old library itself work on current JAX.

Importing `ntk_equiv` is cheap: each part is loaded when it is first used.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers and editors, which cannot follow the table below
    from ntk_equiv import (
        bounds,
        datasets,
        empirical,
        ensembles,
        filters,
        groups,
        infinite,
        interop,
        metrics,
        nt,
        planned_runs,
        planning,
        plotting,
        reps,
        solvers,
        stax,
        theorems,
    )
    from ntk_equiv._gram import gram
    from ntk_equiv.empirical import empirical_kernel_fn, monte_carlo_kernel_fn
    from ntk_equiv.infinite import InfiniteEnsemble, ensemble_cov, ensemble_mean
    from ntk_equiv.orbits import augment

__all__ = [
    "InfiniteEnsemble",
    "augment",
    "bounds",
    "datasets",
    "empirical",
    "empirical_kernel_fn",
    "ensemble_cov",
    "ensemble_mean",
    "ensembles",
    "filters",
    "gram",
    "groups",
    "infinite",
    "interop",
    "metrics",
    "monte_carlo_kernel_fn",
    "nt",
    "planned_runs",
    "planning",
    "plotting",
    "reps",
    "solvers",
    "stax",
    "theorems",
]

# Where each public name lives: the module itself, or the module that defines it.
_HOME = {
    "InfiniteEnsemble": "ntk_equiv.infinite",
    "augment": "ntk_equiv.orbits",
    "bounds": "ntk_equiv.bounds",
    "datasets": "ntk_equiv.datasets",
    "empirical": "ntk_equiv.empirical",
    "empirical_kernel_fn": "ntk_equiv.empirical",
    "ensemble_cov": "ntk_equiv.infinite",
    "ensemble_mean": "ntk_equiv.infinite",
    "ensembles": "ntk_equiv.ensembles",
    "filters": "ntk_equiv.filters",
    "gram": "ntk_equiv._gram",
    "groups": "ntk_equiv.groups",
    "infinite": "ntk_equiv.infinite",
    "interop": "ntk_equiv.interop",
    "metrics": "ntk_equiv.metrics",
    "monte_carlo_kernel_fn": "ntk_equiv.empirical",
    "nt": "ntk_equiv.nt",
    "planned_runs": "ntk_equiv.planned_runs",
    "planning": "ntk_equiv.planning",
    "plotting": "ntk_equiv.plotting",
    "reps": "ntk_equiv.reps",
    "solvers": "ntk_equiv.solvers",
    "stax": "ntk_equiv.stax",
    "theorems": "ntk_equiv.theorems",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version("ntk-equiv")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(_HOME[name])
    # Kept in the namespace, so that the next access does not come here.
    globals()[name] = value = module if module.__name__ == f"{__name__}.{name}" else getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
