"""Ensembles that are really trained, with Flax: from a few convolutional networks to thousands of perceptrons.

`train` trains members that differ in their random keys alone, on all devices there are, and returns a `Run`, which
predicts. What it trains is any Linen module, an NNX factory `rngs -> module`, a pair `(init, apply)` or a stax triple
(also as a Linen module, `to_flax`, or as a pair, `as_pair`); `mlp`, `fashion_cnn` and `histology_cnn` are ready.

- on CPUs, call `use_cores` at the top of a script: members are then trained side by side, one on each core;
- `untrained` is the ensemble with which `train` begins, `expected_layout` how its members would lie on devices;
- `log_steps` are times at which to record, evenly spaced in the logarithm;
- `compare_with_theory` holds mean and variance of a run against those of the infinite ensemble;
- `bootstrapped` means are those of smaller ensembles drawn from a large one.

This is the only part of the library that imports flax, optax and orbax.
"""

from ntk_equiv.ensembles._compare import Comparison, Deviation, Trend, compare_with_theory
from ntk_equiv.ensembles._history import History, log_steps
from ntk_equiv.ensembles._layout import Layout, use_cores

# For the command line.
from ntk_equiv.ensembles._layout import available_cores as available_cores
from ntk_equiv.ensembles._model import as_pair, to_flax
from ntk_equiv.ensembles._networks import fashion_cnn, histology_cnn, mlp
from ntk_equiv.ensembles._run import Run, bootstrapped
from ntk_equiv.ensembles._train import train
from ntk_equiv.ensembles._untrained import expected_layout, untrained

__all__ = [
    "Comparison",
    "Deviation",
    "History",
    "Layout",
    "Run",
    "Trend",
    "as_pair",
    "bootstrapped",
    "compare_with_theory",
    "expected_layout",
    "fashion_cnn",
    "histology_cnn",
    "log_steps",
    "mlp",
    "to_flax",
    "train",
    "untrained",
    "use_cores",
]
