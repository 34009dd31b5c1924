"""Real ensembles, trained with Flax: from a few convolutional networks to thousands of perceptrons.

`train` trains members that differ only in their random keys, on all available devices, and returns a `Run`, which
predicts. It trains any Linen module, NNX factory `rngs -> module`, pair `(init, apply)` or stax triple (`to_flax` and
`as_pair` turn a triple into the others); `mlp`, `fashion_cnn`, `histology_cnn` and `image_cnn` are ready to use.
Networks may have batch statistics and dropout; `with_modes` is for those that are switched between training and
evaluation in a way of their own.

While it trains, it measures members and ensemble on a validation set, stops members that no longer get better
(`EarlyStopping`), tells callbacks what happened (`Event`), and keeps all of it in a `History`. `by_epoch` makes a
schedule of steps from one of epochs, and `adam_by_epoch` an optimizer whose rate falls.

- On CPUs, call `use_cores` at the top of a script: it trains members side by side, one on each core.
- `untrained` is the ensemble with which `train` begins. `expected_layout` says how members would be laid out over
  devices.
- `log_steps` returns steps at which to record, evenly spaced on a logarithmic scale.
- `compare_with_theory` compares mean and variance of a run with those of the infinite ensemble, and each member with
  the trajectory of its own initial function: at one time a `Comparison`, over several a `Curve`, over widths a `Trend`.
- `bootstrapped` returns means of smaller ensembles drawn from a large one.

This is the only part of the library that imports flax, optax and orbax.
"""

# For programs that write results beside checkpoints.
from ntk_equiv.ensembles._checkpoint import LOCK_FILE as LOCK_FILE
from ntk_equiv.ensembles._checkpoint import FolderLock as FolderLock
from ntk_equiv.ensembles._compare import Comparison, Curve, Deviation, Trend, compare_with_theory
from ntk_equiv.ensembles._history import Event, History
from ntk_equiv.ensembles._layout import Layout, use_cores

# For those who want to look at what is compiled, or to lower it for another device.
from ntk_equiv.ensembles._members import prepare_task as prepare_task

# For `planned_runs`, which tries a network before it trains it.
from ntk_equiv.ensembles._models import as_model as as_model
from ntk_equiv.ensembles._models import as_pair, to_flax, with_modes
from ntk_equiv.ensembles._networks import fashion_cnn, histology_cnn, image_cnn, mlp
from ntk_equiv.ensembles._run import Run, bootstrapped, log_steps
from ntk_equiv.ensembles._sources import BatchStream
from ntk_equiv.ensembles._train import adam_by_epoch, by_epoch, expected_layout, train, untrained
from ntk_equiv.ensembles._validation import EarlyStopping

__all__ = [
    "BatchStream",
    "Comparison",
    "Curve",
    "Deviation",
    "EarlyStopping",
    "Event",
    "History",
    "Layout",
    "Run",
    "Trend",
    "adam_by_epoch",
    "as_pair",
    "bootstrapped",
    "by_epoch",
    "compare_with_theory",
    "expected_layout",
    "fashion_cnn",
    "histology_cnn",
    "image_cnn",
    "log_steps",
    "mlp",
    "to_flax",
    "train",
    "untrained",
    "use_cores",
    "with_modes",
]
