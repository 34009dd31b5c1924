"""What happens while an ensemble is trained: losses, validations and records, kept and shown, and told to callbacks."""

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from ntk_equiv._check import positive_integer

ROWS_OF_A_TABLE = 20


class History:
    """Losses, validations and records of a run, in lists that grow while it is trained.

    Attributes:
        steps: after how many steps each loss was noted.
        losses: the losses of all members on their last batch, one array [members] for each of these steps.
        rates: the learning rate of the last step at each of these steps. It is NaN unless the state of the optimizer
            has it, as that of `optax.inject_hyperparams(optax.adam)(learning_rate=schedule)` does.
        validation_steps: after how many steps each validation was made; the first is made before training.
        validation: for each metric, and for "loss", one array [members] for each of these steps.
        ensemble: the same for the ensemble, one number for each of these steps.
        record_steps: after how many steps each record was made.
        records: for each name one array for each of these steps.
        steps_per_epoch: how many steps an epoch has; None if that is not known.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv.ensembles import History
        >>> history = History(["test"])
        >>> history.steps.append(10)
        >>> history.losses.append(np.array([0.5, 0.25]))                # of two members
        >>> history.of_members(np.array([1])).losses
        [array([0.25])]
        >>> history
        <losses at 1 step, records at 0 steps of test>
        >>> print(history.table())
        | step | loss |
        |---:|---:|
        | 10 | 0.375 |
    """

    def __init__(
        self, names: Sequence[str] = (), *, metrics: Sequence[str] = (), steps_per_epoch: int | None = None
    ) -> None:
        self.steps: list[int] = []
        self.losses: list[np.ndarray] = []
        self.rates: list[float] = []
        self.validation_steps: list[int] = []
        self.validation: dict[str, list[np.ndarray]] = {name: [] for name in metrics}
        self.ensemble: dict[str, list[float]] = {name: [] for name in metrics}
        self.record_steps: list[int] = []
        self.records: dict[str, list[np.ndarray]] = {name: [] for name in names}
        self.steps_per_epoch = steps_per_epoch

    def __repr__(self) -> str:
        counts = [f"{len(at)} step{'s' * (len(at) != 1)}" for at in (self.steps, self.record_steps)]
        validations = len(self.validation_steps)
        validated = f"{validations} validation{'s' * (validations != 1)}, " if self.validation else ""
        return f"<losses at {counts[0]}, {validated}records at {counts[1]} of {', '.join(self.records) or 'nothing'}>"

    def stored(self) -> dict[str, Any]:
        """Return the history as arrays, for a checkpoint; empty lists are left out."""
        lists = {"steps": self.steps, "losses": self.losses, "rates": self.rates, "record_steps": self.record_steps}
        arrays: dict[str, Any] = {name: np.array(values) for name, values in lists.items() if values}
        if self.record_steps:
            arrays["records"] = _numbered(self.records)
        if self.validation_steps:
            arrays["validation_steps"] = np.array(self.validation_steps)
            arrays["validation"], arrays["ensemble"] = _numbered(self.validation), _numbered(self.ensemble)
        if self.steps_per_epoch is not None:
            arrays["steps_per_epoch"] = np.array(self.steps_per_epoch)
        return arrays

    def restore(self, stored: Mapping[str, Any] | None) -> None:
        """Replace the lists by those of a checkpoint, as `stored` returned them."""
        stored = stored or {}
        for name in ("steps", "record_steps", "validation_steps"):
            setattr(self, name, [int(step) for step in stored.get(name, ())])
        self.losses = list(stored.get("losses", ()))
        # Checkpoints of earlier versions have no rates.
        self.rates = [float(rate) for rate in stored.get("rates", [np.nan] * len(self.steps))]
        lists: dict[str, dict[str, Any]]
        lists = {"records": self.records, "validation": self.validation, "ensemble": self.ensemble}
        for kind, by_name in lists.items():
            for i, name in enumerate(by_name):
                by_name[name] = list(stored.get(kind, {}).get(f"{i:04d}", ()))
        if "steps_per_epoch" in stored:
            self.steps_per_epoch = int(stored["steps_per_epoch"])

    def of_members(self, members: np.ndarray) -> "History":
        """Return losses and validations of some members, without those of the ensemble and the records of all."""
        history = History(steps_per_epoch=self.steps_per_epoch)
        history.steps, history.losses, history.rates = (
            self.steps,
            [losses[members] for losses in self.losses],
            self.rates,
        )
        history.validation_steps = self.validation_steps
        history.validation = {name: [one[members] for one in values] for name, values in self.validation.items()}
        return history

    def table(self, *, rows: int = ROWS_OF_A_TABLE) -> str:
        """Return the history as a table in Markdown, one row for each validation, or else for each loss.

        Losses and metrics of members are means over those that are finite. What is not known is shown as –.

        Args:
            rows: at most so many rows, evenly spaced; the last one is always there.

        Example:
            >>> import jax, jax.numpy as jnp, optax
            >>> from ntk_equiv import ensembles
            >>> x = jnp.array([[-1.0], [1.0]])
            >>> line = lambda key, x: jnp.zeros((1, 1)), lambda w, x: x @ w
            >>> run = ensembles.train(
            ...     line, (x, 2 * x), validation=(x, 4 * x), validate_every=1, members=2, steps=2,
            ...     optimizer=optax.sgd(0.5), key=jax.random.key(0))
            >>> print(run.history.table())
            | step | epoch | loss | validation loss | validation mse | ensemble loss | ensemble mse |
            |---:|---:|---:|---:|---:|---:|---:|
            | 0 | 0 | – | 8 | 16 | 8 | 16 |
            | 1 | 1 | 2 | 4.5 | 9 | 4.5 | 9 |
            | 2 | 2 | 0.5 | 3.125 | 6.25 | 3.125 | 6.25 |
        """
        rows, at = positive_integer(rows, "rows"), self.validation_steps or self.steps
        head = ["step", "epoch", "loss", *(f"validation {name}" for name in self.validation)]
        lines = [[*head, *(f"ensemble {name}" for name in self.ensemble), "rate"]]
        chosen: Any = np.linspace(len(at) - 1, 0, min(rows, len(at))).round().astype(int)
        lines += [self._row(place, at[place]) for place in sorted(chosen.tolist())]
        known = [c for c in range(len(lines[0])) if c == 0 or any(line[c] != UNKNOWN for line in lines[1:])]
        written = [f"| {' | '.join(line[c] for c in known)} |" for line in lines]
        return "\n".join([written[0], f"|{'---:|' * len(known)}", *written[1:]])

    def _row(self, place: int, step: int) -> list[str]:
        """Return one row of the table: all that is known after a step, which is that of the validation at a place."""
        loss = rate = np.nan
        if step in self.steps:
            noted = self.steps.index(step)
            loss, rate = _finite_mean(self.losses[noted]), self.rates[noted] if self.rates else np.nan
        epoch = np.nan if self.steps_per_epoch is None else step / self.steps_per_epoch
        members = [_finite_mean(values[place]) for values in self.validation.values()]
        ensemble = [float(values[place]) for values in self.ensemble.values()]
        return [str(step), *map(_as_text, [epoch, loss, *members, *ensemble, rate])]


UNKNOWN = "–"


def _as_text(value: float) -> str:
    return f"{value:.4g}" if np.isfinite(value) else UNKNOWN


def _finite_mean(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else float("nan")


def _numbered(lists: Mapping[str, list]) -> dict[str, np.ndarray]:
    """Return lists as arrays by their number, because a name may hold signs that no path may have."""
    return {f"{i:04d}": np.array(values) for i, values in enumerate(lists.values())}


@dataclasses.dataclass(frozen=True)
class Event:
    """What a callback is told after a validation, a record or a checkpoint. It cannot be changed.

    Attributes:
        step: how many steps the members have been trained.
        epoch: how often they went through the data.
        happened: which of "validation", "record" and "checkpoint" happened at this step.
        losses: the loss of every member on its last batch, [members]; NaN before the first step.
        validation: for each metric, and for "loss", its values [members]; empty if there was no validation.
        ensemble: the same for the ensemble, one number each.
        stopped: members that were stopped early, with the step at which they were.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> from ntk_equiv import ensembles
        >>> x = jnp.array([[-1.0], [1.0]])
        >>> line = lambda key, x: jax.random.uniform(key, (1, 1)), lambda w, x: x @ w
        >>> def good_enough(event):
        ...     return event.ensemble["loss"] < 1e-3
        >>> ensembles.train(
        ...     line, (x, x), validation=(x, x), validate_every=5, callbacks=good_enough,
        ...     members=2, steps=1000, optimizer=optax.sgd(0.5), key=jax.random.key(0))
        <ensemble of 2 members after 5 steps>
    """

    step: int
    epoch: float
    happened: tuple[str, ...]
    losses: np.ndarray
    validation: Mapping[str, np.ndarray]
    ensemble: Mapping[str, float]
    stopped: Mapping[int, int]

    def __post_init__(self) -> None:
        values = {name: _read_only(value) for name, value in self.validation.items()}
        object.__setattr__(self, "losses", _read_only(self.losses))
        object.__setattr__(self, "validation", MappingProxyType(values))
        for name in ("ensemble", "stopped"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))


def _read_only(values: np.ndarray) -> np.ndarray:
    copy = np.array(values)
    copy.flags.writeable = False
    return copy
