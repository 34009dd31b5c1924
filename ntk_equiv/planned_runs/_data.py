"""The data of a plan, prepared for training: checked against the plan, split as by the plan, and in units of their own.

Networks train best on numbers of order one. Samples and labels are therefore brought to such units, in a way that
commutes with the group, and predictions are brought back to the units of the labels.
"""

import dataclasses
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ntk_equiv import planning
from ntk_equiv._check import refusal
from ntk_equiv.groups import FiniteGroup
from ntk_equiv.planning import Plan
from ntk_equiv.reps import Representation


@dataclasses.dataclass(frozen=True)
class Units:
    """How samples and labels are shifted and scaled for training: (x − x_shift) / x_scale, and y alike."""

    x_shift: float = 0.0
    x_scale: float = 1.0
    y_shift: tuple[float, ...] = (0.0,)
    y_scale: float = 1.0

    @classmethod
    def from_data(cls, x: np.ndarray, y: np.ndarray | None, *, images: bool, labels_move: bool) -> "Units":
        """Return units in which training samples and labels are of order one.

        Args:
            x: training samples.
            y: labels that are numbers, [n, channels]; None for classes.
            images: whether samples are images. Only these are shifted, because the group may turn vectors.
            labels_move: whether the group acts on labels, which are not shifted then.
        """
        # One shift and one scale for all channels, which the group may mix.
        x_shift = float(x.mean()) if images else 0.0
        x_scale = float(np.sqrt(np.mean((x - x_shift) ** 2))) or 1.0
        if y is None:
            return cls(x_shift, x_scale)
        y_shift = np.zeros(y.shape[1]) if labels_move else y.mean(axis=0, dtype=float)
        y_scale = float(np.sqrt(np.mean((y - y_shift) ** 2))) or 1.0
        return cls(x_shift, x_scale, tuple(y_shift.tolist()), y_scale)

    def of_samples(self, x: np.ndarray) -> np.ndarray:
        """Return samples in these units."""
        return np.asarray((x - self.x_shift) / self.x_scale, np.float32)

    def of_labels(self, y: np.ndarray) -> np.ndarray:
        """Return labels in these units."""
        return np.asarray((y - np.array(self.y_shift)) / self.y_scale, np.float32)

    def restore(self, outputs: ArrayLike) -> np.ndarray:
        """Return outputs of networks in the units of the labels."""
        return np.asarray(np.asarray(outputs, float) * self.y_scale + np.array(self.y_shift), np.float32)


@dataclasses.dataclass(frozen=True, eq=False)
class PlannedData:
    """What is trained and tested on.

    Attributes:
        x: training samples in the units of training, [n, ...].
        y: their labels: classes as whole numbers, or one-hot if the group moves classes, or numbers in those units.
        raw_test: test samples as they were given, [m, ...].
        test_labels: their labels: classes [m], or numbers [m, channels] in their own units.
        index: the place of each test sample in the data.
        units: the units of training.
        group: the group.
        rep_x: how it acts on samples.
        rep_y: how it acts on outputs.
        actions: that as matrices, [order, channels, channels].
    """

    x: np.ndarray
    y: np.ndarray
    raw_test: np.ndarray
    test_labels: np.ndarray
    index: np.ndarray
    units: Units
    group: FiniteGroup
    rep_x: Representation
    rep_y: Representation
    actions: np.ndarray

    @property
    def x_test(self) -> np.ndarray:
        """Test samples in the units of training."""
        return self.units.of_samples(self.raw_test)

    def labels_of(self, chosen: np.ndarray) -> np.ndarray:
        """Return the labels of some training samples, as they are compared with predictions."""
        y = self.y[chosen]
        if self.test_labels.ndim == 1:
            return y.argmax(axis=1) if y.ndim == 2 else y
        return self.units.restore(y)


def prepare_data(plan: Plan, x: Any, y: Any, x_test: Any, y_test: Any, *, max_test_points: int) -> PlannedData:
    """Return the data of a plan with its group and actions.

    Raises:
        ValueError: the data are not those of the plan, or the plan cannot be trained.
    """
    asked = plan.settings
    images = planning.acts_on_images(asked["action"])
    fields = {field.name for field in dataclasses.fields(planning.Settings)}
    # All training samples are used; the seed of the plan decides which samples are held out.
    own = {**asked, "max_points": None, "max_test_points": max_test_points, "minutes": math.inf, "dtype": "float32"}
    settings = planning.Settings.from_arguments(**{name: value for name, value in own.items() if name in fields})
    problem = planning.prepare_problem(x, y, x_test, y_test, settings, images=images, class_names=None)
    _check_same_data(plan, problem, (x, y, x_test, y_test))
    if problem.y_test is None:
        fix = "Add y_test, or leave x_test out so that samples are held out."
        raise refusal("y_test", expected="labels of the test samples", got="nothing", fix=fix)
    group, rep_x, rep_y = _look_up_actions(plan, settings, problem)
    actions = _action_matrices(rep_y, group.order, problem.channels)
    moves = bool(np.abs(actions - np.eye(problem.channels)).max() > 0)
    if problem.classes is None:
        y, test_labels = (each.reshape(len(each), -1) for each in (problem.y, problem.y_test))
        units = Units.from_data(problem.x, y, images=problem.x.ndim == 4, labels_move=moves)
        y = units.of_labels(y)
    else:
        _check_classes_are_permuted(actions)
        numbers, test_labels = problem.y.argmax(axis=1), problem.y_test.argmax(axis=1)
        units = Units.from_data(problem.x, None, images=problem.x.ndim == 4, labels_move=moves)
        y = np.eye(problem.channels, dtype=np.float32)[numbers] if moves else numbers
    return PlannedData(
        units.of_samples(problem.x),
        y,
        problem.x_test,
        test_labels,
        problem.index,
        units,
        group,
        rep_x,
        rep_y,
        actions,
    )


def _check_same_data(plan: Plan, problem: Any, given: tuple) -> None:
    """Refuse other data than those of the plan."""
    fix = "Train on the data for which the plan was made, or make another plan."
    planned, classes = plan.problem["classes"], problem.classes
    # Names of classes are those of the plan; what the data call them does not matter.
    for name, there, here in (
        ("samples of shape", plan.problem["shape"], list(problem.x.shape[1:])),
        ("labels that are", "numbers" if planned is None else "classes", "numbers" if classes is None else "classes"),
        ("a number of classes of", len(planned or ()), len(classes or ())),
    ):
        if here != there:
            raise refusal("data", expected=f"those of the plan, with {name} {there}", got=f"{name} {here}", fix=fix)
    # Plans of earlier versions do not know the checksum of their data.
    known, checksum = plan.origin.get("sha256"), planning.checksum_of_data(*given)
    if known not in (None, checksum):
        got = f"others (SHA-256 {checksum[:12]}… instead of {known[:12]}…): they have changed since"
        raise refusal("data", expected="those of the plan", got=got, fix=fix)


def _look_up_actions(
    plan: Plan, settings: planning.Settings, problem: Any
) -> tuple[FiniteGroup, Representation, Representation]:
    try:
        group = planning.named_group(settings.group)
        return group, *planning.choose_actions(settings, group, problem.x.shape[1:], problem.channels)
    except ValueError as error:
        names = ", ".join(repr(plan.settings[name]) for name in ("group", "action", "label_action"))
        fix = f"Make the plan with names of group and actions, such as C4 and rot90. In detail: {error}"
        raise refusal("plan", expected="one whose group and actions have names", got=names, fix=fix) from None


def _action_matrices(rep_y: Representation, order: int, channels: int) -> np.ndarray:
    """Return ρ_Y(g) as matrices, [order, channels, channels]."""
    moved = np.asarray(rep_y.orbit(jnp.eye(channels)))
    return moved.reshape(order, channels, channels).swapaxes(1, 2)


def _check_classes_are_permuted(actions: np.ndarray) -> None:
    if not np.allclose(np.sort(actions, axis=2)[..., -1], 1) or not np.allclose(actions.sum(axis=2), 1):
        fix = "Make a plan with the label action trivial, permutation or regular."
        got = "one that makes other combinations of them"
        raise refusal("plan", expected="one whose group permutes the classes, or leaves them", got=got, fix=fix)
