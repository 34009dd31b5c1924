"""What is written down while a run goes on."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ntk_equiv._check import instance, positive_integer, refusal, samples_in

POINTS_OF_A_CURVE = 100
STEPS_BETWEEN = 10


class History:
    """Losses and records, as lists that grow.

    Attributes:
        steps: after how many steps each loss was noted.
        losses: of all members, one array [members] for each of these steps.
        record_steps: after how many steps each record was made.
        records: for each name one array for each of these steps.

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
    """

    def __init__(self, names: Sequence[str] = ()) -> None:
        self.steps: list[int] = []
        self.losses: list[np.ndarray] = []
        self.record_steps: list[int] = []
        self.records: dict[str, list[np.ndarray]] = {name: [] for name in names}

    def __repr__(self) -> str:
        losses, records = (f"{len(at)} step{'s' * (len(at) != 1)}" for at in (self.steps, self.record_steps))
        return f"<losses at {losses}, records at {records} of {', '.join(self.records) or 'nothing'}>"

    def stored(self) -> dict[str, Any]:
        """As arrays, for a checkpoint; what is empty is left out."""
        arrays = {"steps": self.steps, "losses": self.losses, "record_steps": self.record_steps}
        found: dict[str, Any] = {name: np.asarray(values) for name, values in arrays.items() if values}
        if self.record_steps:
            found["records"] = {f"{i:04d}": np.asarray(values) for i, values in enumerate(self.records.values())}
        return found

    def restore(self, stored: Mapping[str, Any] | None) -> None:
        """Take over what a checkpoint holds."""
        stored = stored or {}
        self.steps = [int(step) for step in stored.get("steps", ())]
        self.losses = list(stored.get("losses", ()))
        self.record_steps = [int(step) for step in stored.get("record_steps", ())]
        for i, name in enumerate(self.records):
            self.records[name] = list(stored.get("records", {}).get(f"{i:04d}", ()))

    def of_members(self, members: np.ndarray) -> "History":
        """The losses of some members; records are of all of them, and left out."""
        found = History()
        found.steps, found.losses = self.steps, [losses[members] for losses in self.losses]
        return found


def log_steps(steps: int, count: int) -> list[int]:
    """About `count` steps from 0 to `steps`, evenly spaced in the logarithm.

    Args:
        steps: the last one.
        count: how many at most; small numbers that coincide are listed once.

    Example:
        >>> from ntk_equiv import ensembles
        >>> ensembles.log_steps(1000, 7)
        [0, 1, 4, 16, 63, 251, 1000]
    """
    steps, count = positive_integer(steps, "steps"), positive_integer(count, "count")
    spaced = np.geomspace(1, steps, max(count - 1, 1)) if count > 2 else [steps]
    return sorted({0, *(round(float(step)) for step in spaced)})


def curve_steps(steps: int) -> set[int]:
    """Where losses are noted: at every percent of a run (of more than a few steps), and at its end."""
    every = max(STEPS_BETWEEN, steps // POINTS_OF_A_CURVE)
    return {*range(every, steps + 1, every), steps}


def checked_record(record: Any, record_at: Any, steps: int) -> tuple[dict[str, tuple[Any, Callable | None]], list[int]]:
    """What to record, as inputs and what to make of the predictions, and when.

    Args:
        record: for each name inputs, or a pair of inputs and a function of the predictions.
        record_at: numbers of steps; the end by default.
        steps: steps of the run.
    """
    found = {}
    fix = 'Pass a dictionary, such as {"test": x_test} or {"accuracy": (x_test, function)}.'
    if record is not None:
        instance(record, Mapping, "record", expected="a mapping from names to inputs", fix=fix)
    for name, what in sorted((record or {}).items()):
        of_predictions = type(what) is tuple and len(what) == 2 and callable(what[1])
        found[str(name)] = (what[0], what[1]) if of_predictions else (what, None)
        samples_in(found[str(name)][0], "record")
    if record_at is not None and (not isinstance(record_at, Iterable) or isinstance(record_at, str)):
        raise refusal("record_at", expected="a list of steps", got=repr(record_at), fix="See `log_steps`.")
    at = sorted({steps} if record_at is None else {int(step) for step in record_at})
    if at and not (at[0] >= 0 and at[-1] <= steps):
        fix = "0 is before the first step."
        raise refusal("record_at", expected=f"steps from 0 to {steps}", got=at, fix=fix)
    return found, at if found else []
