"""Validation: how good members and their ensemble are on other data while they are trained, and when to stop them.

    of a member         L(f_m), and metrics of f_m
    of the ensemble     L(f̂), and metrics of f̂, where f̂ = log (1/M) Σ_m softmax(f_m) for cross-entropy,
                        which averages probabilities, and f̂ = (1/M) Σ_m f_m for every other loss

L is the loss of training, with its reduction, weights of classes and smoothing. Members that are not finite are left
out of the ensemble. Networks are in evaluation mode.

**Early stopping.** The best validation of a member is the last one whose loss was below that of the best before by more
than `min_delta`. After `patience` validations without a better one the member is not trained any more.
"""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

from ntk_equiv._check import boolean, describe, function, instance, positive_integer, refusal, scalar
from ntk_equiv._losses import LossFn, check_labels, is_cross_entropy, loss_of_batch
from ntk_equiv._typing import Inputs
from ntk_equiv.ensembles._batches import Data
from ntk_equiv.ensembles._fingerprints import hash_data
from ntk_equiv.ensembles._inputs import check_inputs, input_specs
from ntk_equiv.ensembles._members import NEVER, Task, check_finite
from ntk_equiv.ensembles._models import Params, State
from ntk_equiv.ensembles._sources import as_stored, shapes_of, with_shape
from ntk_equiv.orbits import AugmentedSet, samples_and_labels

ValidationSet = AugmentedSet | tuple | list
"""An augmented set, a labelled set, or a pair `(x, y)`."""

MetricFn = Callable[[Any, Any], Any]
"""A function of predictions [members, n, out] and labels that returns a value for each member, or one for all."""


@dataclasses.dataclass(frozen=True)
class EarlyStopping:
    """When to stop a member: by its own loss on the validation set, whatever the others do.

    Attributes:
        patience: how many validations in a row may be no better than the best one; then the member stops.
        min_delta: by how much a loss must be below the best one to be better.
        restore_best: whether members end with the parameters of their best validation, rather than the last ones.

    Example:
        >>> from ntk_equiv import ensembles
        >>> ensembles.EarlyStopping(patience=3)
        EarlyStopping(patience=3, min_delta=0.0, restore_best=True)
    """

    patience: int
    min_delta: float = 0.0
    restore_best: bool = True

    def __post_init__(self) -> None:
        fix = "0 accepts every improvement."
        object.__setattr__(self, "patience", positive_integer(self.patience, "patience"))
        object.__setattr__(self, "min_delta", float(scalar(self.min_delta, "min_delta", at_least=0, fix=fix)))
        object.__setattr__(self, "restore_best", boolean(self.restore_best, "restore_best"))

    def entry(self) -> dict[str, Any]:
        """Return the settings as they are stored with a run."""
        return dataclasses.asdict(self)


class Measurement(NamedTuple):
    """The results of a validation, by their names: of members, [members], and of their ensemble."""

    members: dict[str, np.ndarray]
    ensemble: dict[str, float]


@dataclasses.dataclass(frozen=True, eq=False)
class Validation:
    """A validation set, and what is measured on it.

    Attributes:
        x: samples.
        y: labels.
        loss: the loss of training.
        reduction: how it combines losses.
        metrics: functions of predictions and labels by their names.
    """

    x: Inputs
    y: np.ndarray
    loss: LossFn
    reduction: str
    metrics: Mapping[str, MetricFn]

    @property
    def names(self) -> list[str]:
        """The names of all that is measured."""
        return ["loss", *self.metrics]

    def entry(self, every: int | None) -> list[Any]:
        """Return the settings as they are stored with a run."""
        return [hash_data((self.x, self.y)), every, [*self.metrics]]

    def measure(self, outputs: np.ndarray) -> Measurement:
        """Return all losses and metrics for the outputs of all members, [members, n, ...]."""
        together = average_outputs(outputs, probabilities=is_cross_entropy(self.loss))[None]
        # The ensemble is one more member here, so that one program serves both.
        losses = _losses_of_each(self.loss, self.reduction, np.concatenate([outputs, together]), self.y)
        *of_members, of_ensemble = np.asarray(losses)
        found = Measurement({"loss": np.array(of_members)}, {"loss": float(of_ensemble)})
        for name, metric in self.metrics.items():
            found.members[name], found.ensemble[name] = self._apply(name, metric, outputs, together)
        return found

    def _apply(self, name: str, metric: MetricFn, outputs: np.ndarray, together: np.ndarray) -> tuple:
        """Return a metric of every member and of the ensemble; the first are NaN if it measures the ensemble alone."""
        count = len(outputs)
        values = np.asarray(metric(jnp.asarray(outputs), jnp.asarray(self.y)))
        if values.dtype.kind not in "biuf" or values.shape not in ((), (count,)):
            expected = f"functions that return {count} numbers, one for each member, or one number for all of them"
            fix = "Average over samples and outputs: the function gets predictions [members, n, out] and y."
            raise refusal("metrics", expected=expected, got=f"{name!r}, which returns {describe(values)}", fix=fix)
        if values.shape == ():
            return np.full(count, np.nan), float(values)
        one = np.asarray(metric(jnp.asarray(together), jnp.asarray(self.y)))
        return values.astype(float), float(one.reshape(-1)[0])


def average_outputs(outputs: np.ndarray, *, probabilities: bool) -> np.ndarray:
    """Return the outputs of the ensemble: mean outputs, or logarithms of mean probabilities, of the finite members.

    Example:
        >>> both = np.log(np.array([[[0.5, 0.5]], [[0.9, 0.1]], [[np.nan, 1.0]]]))
        >>> np.exp(average_outputs(both, probabilities=True)).round(6).tolist()
        [[0.7, 0.3]]
    """
    finite = outputs[np.isfinite(outputs).all(axis=tuple(range(1, outputs.ndim)))]
    if not len(finite):
        return np.full(outputs.shape[1:], np.nan, outputs.dtype)
    if not probabilities:
        return finite.mean(axis=0)
    log_p = scipy.special.log_softmax(finite, axis=-1)
    return (scipy.special.logsumexp(log_p, axis=0) - np.log(len(finite))).astype(outputs.dtype)


@partial(jax.jit, static_argnames=("loss", "reduction"))
def _losses_of_each(loss: LossFn, reduction: str, outputs: jax.Array, y: jax.Array) -> jax.Array:
    return jax.lax.map(lambda one: loss_of_batch(loss, one, y, None, reduction), outputs)


def accuracy(predictions: Any, y: Any) -> np.ndarray:
    """Return the fraction of samples whose largest output is that of their class, [members]."""
    y = np.asarray(y)
    classes = y if np.issubdtype(y.dtype, np.integer) else y.argmax(-1)
    right = np.asarray(predictions).argmax(-1) == classes
    return right.mean(axis=tuple(range(1, right.ndim)))


def mean_square_error(predictions: Any, y: Any) -> np.ndarray:
    """Return the mean of (f − y)² over samples and outputs, [members]; the loss "mse" has a factor ½."""
    predictions, y = np.asarray(predictions), np.asarray(y)
    squares = (predictions.reshape(len(predictions), *y.shape) - y) ** 2
    return squares.mean(axis=tuple(range(1, squares.ndim)))


def check_validation(validation: Any, metrics: Any, task: Task, data: Data, params: Params, state: State) -> Validation:
    """Return a validation set and its metrics, if they fit the network and the training set.

    Args:
        validation: as for `train`.
        metrics: as for `train`.
        task: how members are trained.
        data: the training data.
        params: shapes of the parameters of a member.
        state: shapes of its state.

    Raises:
        TypeError: the samples hold another kind of numbers than those of training.
        ValueError: shapes, dtypes or labels are not those of training.
    """
    x, y = _samples_and_labels(validation)
    x_train, y_train, _ = data
    x = check_inputs(x, "validation", input_specs(x_train), task.model, params, state)
    for leaf, like in zip([*jax.tree.leaves(x), y], [*jax.tree.leaves(x_train), y_train], strict=True):
        here, there = (jax.dtypes.canonicalize_dtype(one.dtype) for one in (leaf, like))
        if here != there:
            what = "labels" if leaf is y else "samples"
            fix = f"Convert them as those of training were: `.astype({str(there)!r})`."
            raise refusal("validation", expected=f"{what} of {there}, as in training", got=str(here), fix=fix)
    if y.shape[1:] != y_train.shape[1:]:
        shape = ", ".join(["n", *map(str, y_train.shape[1:])])
        fix = "Prepare them as those of training were."
        raise refusal("validation", expected=f"labels [{shape}], as in training", got=f"shape {y.shape}", fix=fix)
    outputs = jax.eval_shape(task.model.apply, params, shapes_of(x), state)
    check_labels(task.loss, outputs, y, "validation")
    check_finite(x, "validation")
    checked = default_metrics(task.loss, outputs, y) | _check_metrics(metrics)
    return Validation(x, y, task.loss, task.reduction, checked)


def default_metrics(loss: LossFn, outputs: jax.ShapeDtypeStruct, y: np.ndarray) -> dict[str, MetricFn]:
    """Return the accuracy for classes, and the mean square error for numbers."""
    if is_cross_entropy(loss) or (np.issubdtype(y.dtype, np.integer) and outputs.shape[:-1] == y.shape):
        return {"accuracy": accuracy}
    numbers = jnp.issubdtype(y.dtype, jnp.floating) and outputs.shape in (y.shape, (*y.shape, 1))
    return {"mse": mean_square_error} if numbers else {}


def _samples_and_labels(validation: Any) -> tuple[Inputs, np.ndarray]:
    if isinstance(validation, AugmentedSet):
        x, y = validation.x, validation.y
    else:
        # A labelled set is a tuple too, of samples, labels and two actions.
        labelled = isinstance(validation, tuple) and getattr(validation, "_fields", ())[:2] == ("x", "y")
        pair = validation[:2] if labelled else validation
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            expected = "a pair (x, y), a labelled set or an augmented set"
            fix = "Pass the samples and labels that were held back."
            raise refusal("validation", expected=expected, got=type(validation).__name__, fix=fix)
        try:
            x, y = samples_and_labels(jax.tree.map(with_shape, tuple(pair)), as_stored)
        except (ValueError, TypeError) as error:
            fix = f"In detail: {error}"
            raise refusal("validation", expected="samples with their labels", got="others", fix=fix) from None
    return jax.tree.map(as_stored, x), np.asarray(y)


def _check_metrics(metrics: Any) -> dict[str, MetricFn]:
    fix = 'Pass a dictionary of functions, such as {"error": lambda predictions, y: ...}.'
    if metrics is None:
        return {}
    instance(metrics, Mapping, "metrics", expected="a mapping from names to functions", fix=fix)
    for name, metric in metrics.items():
        function(metric, "metrics", fix=fix)
        if not isinstance(name, str) or name == "loss":
            raise refusal("metrics", expected='names other than "loss"', got=repr(name), fix="Choose another name.")
    return dict(sorted(metrics.items()))


class Patience:
    """How early stopping is getting on: the best validation of every member, and which members have stopped.

    Attributes:
        settings: when members stop.
        best_losses: the loss of the best validation, [members].
        best_steps: after how many steps it was made; −1 before the first.
        waits: how many validations ago it was.
        stopped: the step at which a member was stopped; −1 while it is trained.
    """

    def __init__(self, settings: EarlyStopping, members: int) -> None:
        self.settings = settings
        self.best_losses = np.full(members, np.inf)
        self.best_steps, self.stopped = np.full(members, NEVER, np.int32), np.full(members, NEVER, np.int32)
        self.waits = np.zeros(members, np.int32)

    def look(self, step: int, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Take a validation into account; return which members are better than ever, and which ones stop now.

        Example:
            >>> patience = Patience(EarlyStopping(patience=1), 2)
            >>> for step, losses in enumerate([[0.9, 0.9], [0.8, 0.9]]):
            ...     better, stop = patience.look(step, np.array(losses))
            >>> better.tolist(), stop.tolist(), patience.best_steps.tolist()
            ([True, False], [False, True], [1, 0])
        """
        trained = self.stopped == NEVER
        # A loss that is not a number is never better.
        better = trained & (losses < self.best_losses - self.settings.min_delta)
        self.best_losses, self.best_steps = (
            np.where(better, losses, self.best_losses),
            np.where(better, step, self.best_steps),
        )
        self.waits = np.where(better, 0, self.waits + trained)
        stop = trained & (self.waits >= self.settings.patience)
        self.stopped = np.where(stop, step, self.stopped)
        return better, stop

    def kept_steps(self, steps: int) -> tuple[np.ndarray, np.ndarray]:
        """Return how many steps led to the parameters that members keep, and for which these are the best ones.

        Args:
            steps: how many steps the run has taken.
        """
        restored = (self.best_steps != NEVER) & self.settings.restore_best
        last = np.where(self.stopped == NEVER, steps, self.stopped)
        return np.where(restored, self.best_steps, last), restored

    def stored(self) -> dict[str, np.ndarray]:
        """Return the state as arrays, for a checkpoint."""
        return {name: getattr(self, name) for name in ("best_losses", "best_steps", "waits", "stopped")}

    def restore(self, stored: Mapping[str, np.ndarray]) -> None:
        """Replace the state by that of a checkpoint."""
        for name in self.stored():
            setattr(self, name, np.asarray(stored[name]))
