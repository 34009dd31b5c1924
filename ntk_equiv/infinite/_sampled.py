"""The infinite ensemble trained with any loss, known through members that are drawn from its law.

With losses other than the squared error the law at time t is no longer Gaussian, and its mean has no formula. But each
member is known exactly, given the function with which it begins: `_loss_problem` draws these functions,
`_loss_training` trains them. A member at a test sample has two parts: one that its values on the training samples
determine, and the rest r, which is independent of them and of training, and has mean zero. So the mean over members
needs no r; the variance takes that of r, which is known; and only members that are shown one by one need a draw of it.

**Equivariance.** Initial functions on the training samples are √𝒦 w with independent normal numbers w. Their law is
invariant under the permutations by which the group acts, the kernels transform under the group, and the loss of an
augmented set is invariant. So the expected prediction is equivariant at every time, for every such loss. The mean of a
few members is not. If each member counts together with those that the group moves it to, it is: then coefficients are
replaced by their averages over the group, at no further cost.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from ntk_equiv import filters
from ntk_equiv._check import boolean, describe, function, is_number, one_of, positive_integer, random_key, refusal
from ntk_equiv._gram import kernel_function, split_kernel
from ntk_equiv._losses import LossFn
from ntk_equiv._typing import Inputs, KernelFunction, Scalar, SplitKernel
from ntk_equiv.infinite._blocks import irreps_of
from ntk_equiv.infinite._cost import choose_solver, solver_reason
from ntk_equiv.infinite._loss_problem import (
    DrawingError,
    Kernels,
    count_losses,
    draw_rest,
    inner_with_rows,
    prepare_labels,
)
from ntk_equiv.infinite._loss_training import (
    LossTraining,
    Tolerance,
    find_minimum,
    find_minimum_by_products,
    follow_descent,
    follow_flow,
    follow_momentum_flow,
)
from ntk_equiv.infinite._symmetry import choose_training_set
from ntk_equiv.infinite._training_set import EnsembleOnData, TrainingSet
from ntk_equiv.solvers import Eigh, Lanczos, Solver, check_solver, positive_root

# The error of outputs under gradient flow that is allowed unless given, and the part of it for a single step.
SHARE_OF_STEP = 0.1
TOLERANCES = {"float64": 1e-4, "float32": 1e-3}
MOST_STEPS = 20_000
# Matrices for each block: Θ, 𝒦 or its eigenvectors, and both roots of 𝒦.
MATRICES_KEPT = 4
# How close to the end of training Newton's method must come, relative to the start, and how flat the loss may be there.
# Without a minimum both numbers fall together, so that the second is well above the first.
CLOSE, FLAT = {"float64": 1e-10, "float32": 1e-4}, {"float64": 1e-8, "float32": 1e-3}


@dataclasses.dataclass(frozen=True, eq=False, init=False, repr=False)
class SampledEnsemble(EnsembleOnData):
    """The infinite ensemble trained with any loss: members drawn from its law, at any time, at any samples.

    Each member follows f_t(x) = f_0(x) + Θ(x, X) a_t with a' = −η ∇L(f_t(X)), up to the tolerance. The Gram matrix is
    used through the blocks of the group that augments the data. For small data they are held in memory, and those of 𝒦
    are decomposed. For large ones there are products alone, with tiles that `solvers.Lanczos` keeps in memory, in a
    folder or nowhere; `drawing_error` says how exact the initial functions are then. It works outside of `jit`.

    Attributes:
        train: the data, as they were given.
        filter: how it is trained.
        reduction: whether the loss is the "sum" or the "mean" of the losses.
        solver: how roots of 𝒦 are applied, and where the kernels are kept.
        members: how many members were drawn.
        key: the random key with which they were drawn.
        whole_orbits: whether each member counts together with those that the group moves it to.
        method: "dense" or "reduced".
        reason: why this method.
        drawing_error: what the solver changes in the law of members before training; nothing if it decomposes.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from ntk_equiv import augment, groups, reps, stax
        >>> from ntk_equiv.infinite import SampledEnsemble
        >>> _, _, kernel_fn = stax.serial(stax.Dense(64, 1.5, 0.1), stax.Relu(), stax.Dense(2))
        >>> x, classes = jnp.array([[1.0, 2.0, 4.0], [0.0, 1.0, 5.0]]), jnp.array([0, 1])
        >>> train = augment(x, classes, reps.regular(groups.cyclic(3)))
        >>> ens = SampledEnsemble(kernel_fn, train, "cross_entropy", key=jax.random.key(0), members=50)
        >>> ens
        <infinite ensemble of 50 drawn members on 6 samples, reduced by cyclic(3), GradientFlow(learning_rate=1.0)>
        >>> test = jnp.array([[1.0, 2.0, 4.0], [2.0, 4.0, 1.0], [0.0, 1.0, 5.0]])
        >>> ens.mean(test, jnp.array([0.0, 100.0])).shape                   # at two times, outputs of two classes
        (2, 3, 2)
        >>> print(ens.probabilities(test, 100.0).round(1))
        [[1. 0.]
         [1. 0.]
         [0. 1.]]
    """

    train: Any
    filter: filters.Filter
    reduction: str
    solver: Solver
    members: int
    key: jax.Array
    whole_orbits: bool
    drawing_error: DrawingError
    _kernels: Kernels
    _training: LossTraining
    # 𝒦^(−½)w, which determines members before training at other samples; None for members that were not drawn.
    _prior: jax.Array | None
    _tolerance: Tolerance
    # Coefficients at times that were asked for: a cache, and no part of the value.
    _known: dict[tuple, jax.Array]

    def __init__(
        self,
        kernel_fn: KernelFunction | tuple,
        train: Any,
        loss: str | LossFn = "cross_entropy",
        filter: filters.Filter | None = None,
        *,
        key: jax.Array,
        members: int = 64,
        outputs: int | None = None,
        label_smoothing: Scalar = 0.0,
        reduction: str = "sum",
        method: str = "auto",
        solver: Solver | str = "auto",
        whole_orbits: bool = False,
        rtol: Scalar | None = None,
        atol: Scalar | None = None,
    ):
        """Evaluate the kernels of the training set, and draw members as they are before training.

        Args:
            kernel_fn: from `ntk_equiv.stax`, from neural-tangents, or any function with the same arguments; a whole
                network (init_fn, apply_fn, kernel_fn) stands for its third part.
            train: `augment(x, y, rep_x, rep_y)`, or a plain pair `(x, y)`. For "cross_entropy" y are whole numbers
                [n] that count classes, or probabilities [n, classes]; for "mse" they are numbers [n] or [n, outputs].
            loss: "cross_entropy", "mse", or a function of outputs [N, outputs] and labels that returns one loss per
                sample, or one per entry of the labels, and that JAX can differentiate, such as those of optax.
            filter: how it is trained: any of `ntk_equiv.filters` but `custom`; gradient flow at rate 1 unless given.
            key: a JAX random key.
            members: how many members to draw; those of a smaller ensemble are the first ones of a larger one.
            outputs: how many outputs the network has. Left out: as many as the labels have channels or classes.
            label_smoothing: for "cross_entropy", the probability that is shared out evenly over all classes.
            reduction: "sum" adds the losses up; "mean" divides by their number.
            method: "dense", "reduced" or "auto", as for `InfiniteEnsemble`.
            solver: `solvers.Eigh()` decomposes 𝒦. `solvers.Lanczos(rtol, storage=…)` uses products with both kernels
                alone. Its `rtol` is the error of outputs before training that is allowed, relative to their size. It
                reaches t = ∞ with `filters.ridge` alone. `"auto"` decomposes while that is fast and fits into memory,
                and then takes `Lanczos` with the `rtol` of training.
            whole_orbits: whether each member counts together with those that the group moves it to. Then `mean` is
                exactly equivariant, and closer to the expected prediction.
            rtol: the error of outputs under a flow that is aimed at, relative to the outputs; a step may make a tenth
                of it. Left out: 1e-4 in double and 1e-3 in single precision.
            atol: the same in absolute terms. Left out: as `rtol`.

        Raises:
            ValueError: the data, the loss, the network and the group do not fit together.
        """
        kernel = split_kernel(kernel_function(kernel_fn))
        one_of(reduction, ("sum", "mean"), "reduction")
        random_key(key)
        filter = _check_filter(filter)
        chosen = _check_solver(solver)
        labels = prepare_labels(train, loss, outputs, label_smoothing)
        data = choose_training_set(method, kernel, labels.with_outputs(train))
        if boolean(whole_orbits, "whole_orbits"):
            _check_orbits(data, "whole_orbits", expected="False for data that no group reduces")
        tolerance = _check_tolerance(rtol, atol, data.y.dtype)
        if isinstance(solver, str):
            numbers = range(len(irreps_of(data.group)))
            chosen = choose_solver(data, numbers, filters.gradient_flow(), matrices=MATRICES_KEPT)
        if isinstance(solver, str) and isinstance(chosen, Lanczos):
            chosen = dataclasses.replace(chosen, rtol=tolerance.rtol / SHARE_OF_STEP)
        kernels = Kernels.evaluate(kernel, data, chosen)
        dtype = kernels.dtype
        y = labels.at_all_samples(data, train)
        y = y.astype(dtype) if jnp.issubdtype(y.dtype, jnp.floating) else y
        entries = count_losses(labels, y) if reduction == "mean" else 1
        nothing = jnp.zeros((data.order, data.n, 0), dtype)
        self._fill(
            train=train,
            filter=filter,
            reduction=reduction,
            solver=chosen,
            whole_orbits=whole_orbits,
            _kernels=kernels,
            _training=LossTraining(kernels.theta, nothing, y, labels.loss, labels.outputs, entries),
            _tolerance=tolerance,
        )
        self._draw(key, positive_integer(members, "members"))

    def __repr__(self) -> str:
        how = "dense" if self._data.group is None else f"reduced by {self._data.group.label}"
        return f"<infinite ensemble of {self.members} drawn members on {self._data.size} samples, {how}, {self.filter}>"

    @property
    def solver_reason(self) -> str:
        """Why this solver is used."""
        numbers = range(len(irreps_of(self._data.group)))
        return solver_reason(self._data, numbers, filters.gradient_flow(), self.solver, matrices=MATRICES_KEPT)

    @property
    def channels(self) -> int:
        """How many outputs a member has."""
        return self._training.outputs

    # What it predicts

    def mean(self, x: Inputs, t: Any = None) -> Float[jax.Array, "*times m outputs"]:
        """Estimate the expected prediction, by the mean over the members that were drawn.

        Args:
            x: test samples, [m, ...].
            t: the training time: a number, inf, or a vector of times; the filter's own unless given.

        Returns:
            [m, outputs], with an axis of times in front if t is a vector.
        """
        return jnp.mean(self.contributions(x, t), axis=-3)

    def standard_error(self, x: Inputs, t: Any = None) -> Float[jax.Array, "*times m outputs"]:
        """Return the standard error of `mean`, in the same shape.

        Args:
            x: test samples, [m, ...].
            t: as for `mean`.
        """
        self._check_several()
        return jnp.std(self.contributions(x, t), axis=-3, ddof=1) / self.members**0.5

    def var(self, x: Inputs, t: Any = None) -> Float[jax.Array, "*times m outputs"]:
        """Estimate the variance of members at each sample and output.

        Args:
            x: test samples, [m, ...].
            t: as for `mean`.
        """
        self._check_several()
        found = jnp.var(self._copy(whole_orbits=False).contributions(x, t), axis=-3, ddof=1)
        rest = self._kernels.remaining_variance(self.check_samples(x))
        return found + rest.reshape((1,) * (found.ndim - 2) + (-1, 1))

    def contributions(self, x: Inputs, t: Any = None) -> Float[jax.Array, "*times members m outputs"]:
        """Return what each member contributes to `mean`: that part of its outputs which training samples determine.

        Args:
            x: test samples, [m, ...].
            t: as for `mean`.
        """
        x, t = self.check_samples(x), np.asarray(self.filter.checked_time(t), float)
        learned = self._coefficients(np.atleast_1d(t))
        moves = partial(_average_over_group, self._data) if self.whole_orbits else lambda values: values
        shape = (*learned.shape[1:3], self.members, self._training.outputs)
        parts = [moves(one.reshape(shape)).reshape(learned.shape[1:]) for one in learned]
        v = jnp.concatenate(parts, axis=-1)
        prior = None if self._prior is None else moves(self._prior.reshape(shape)).reshape(self._prior.shape)
        found = []
        for theta, nngp in self._kernels.rows(x):
            outputs = inner_with_rows(self._kernels.theta, theta, v)
            outputs = outputs.reshape(len(outputs), len(learned), self.members, shape[-1])
            if prior is not None:
                begun = inner_with_rows(self._kernels.theta, nngp, prior)
                outputs = outputs + begun.reshape(len(begun), 1, self.members, shape[-1])
            found.append(outputs)
        outputs = jnp.transpose(jnp.concatenate(found), (1, 2, 0, 3))
        return outputs if t.ndim else outputs[0]

    def outputs(self, x: Inputs, t: Any = None) -> Float[jax.Array, "*times members m outputs"]:
        """Return the outputs of the members that were drawn.

        Values of one call belong to the same functions. A call with other samples draws anew what the training samples
        leave open.

        Args:
            x: test samples, [m, ...].
            t: as for `mean`. Several times show the same members while they are trained.
        """
        x = self.check_samples(x)
        determined = self._copy(whole_orbits=False).contributions(x, t)
        _, remaining = jax.random.split(self.key)
        keys = _member_keys(remaining, self.members)
        rest = draw_rest(keys, positive_root(self._kernels.remaining_covariance(x)), self._training.outputs)
        return determined + (rest if determined.ndim == 3 else rest[None])

    def sample(self, key: jax.Array, x: Inputs, t: Any = None, members: int = 1) -> jax.Array:
        """Draw other members, and return their outputs.

        Args:
            key: a JAX random key.
            x: test samples, [m, ...].
            t: as for `mean`.
            members: how many.

        Returns:
            [members, m, outputs], after an axis of times if t is a vector.
        """
        return self.redrawn(key, members).outputs(x, t)

    def probabilities(self, x: Inputs, t: Any = None) -> Float[jax.Array, "*times m outputs"]:
        """Return class probabilities of the ensemble: the mean over members of the softmax of their outputs.

        Args:
            x: test samples, [m, ...].
            t: as for `mean`.
        """
        return jnp.mean(jax.nn.softmax(self.outputs(x, t), axis=-1), axis=-3)

    def trajectory(self, f0: Callable[[Inputs], Any], x: Inputs, t: Any = None) -> jax.Array:
        """Return what becomes of given networks: f0(x) + Θ(x, X) a_t, exact as their width goes to infinity.

        Args:
            f0: a function of samples [m, ...] that returns the outputs of one network before training, [m, outputs],
                or of several, [networks, m, outputs].
            x: test samples, [m, ...].
            t: as for `mean`.

        Returns:
            Outputs in the shape of f0(x), after an axis of times if t is a vector.
        """
        function(f0, "f0")
        x = self.check_samples(x)
        begun, elsewhere = self._check_initial(f0, self._data.samples()), self._check_initial(f0, x)
        start = begun.reshape(-1, *begun.shape[-2:])
        columns = jnp.moveaxis(start, 0, 1).reshape(self._data.order, self._data.n, -1)
        given = self._copy(
            members=len(start),
            whole_orbits=False,
            _prior=None,
            _training=dataclasses.replace(self._training, start=columns.astype(self._training.start.dtype)),
        )
        learned = given.contributions(x, t)
        learned = learned if elsewhere.ndim == 3 else learned[..., 0, :, :]
        return learned + elsewhere.reshape((1,) * (learned.ndim - elsewhere.ndim) + elsewhere.shape)

    def redrawn(self, key: jax.Array, members: int) -> "SampledEnsemble":
        """Return the ensemble with other members; no kernel of the training samples is evaluated again.

        Args:
            key: a JAX random key.
            members: how many.
        """
        other = self._copy()
        other._draw(random_key(key), positive_integer(members, "members"))
        return other

    def over_orbits(self) -> "SampledEnsemble":
        """Return the same members, each of which counts together with those that the group moves it to.

        Nothing is computed again. `mean` and `contributions` change, and `outputs` do not.

        Raises:
            ValueError: the computation is not reduced by a group.
        """
        _check_orbits(self._data, "train", expected="reduced by a group")
        return self._copy(whole_orbits=True)

    # How it is made

    @property
    def _data(self) -> TrainingSet:
        return self._kernels.data

    @property
    def _kernel(self) -> SplitKernel:
        return self._kernels.kernel

    def _fill(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _copy(self, **changes: Any) -> "SampledEnsemble":
        """Return the same ensemble with some fields changed; what is known of it is kept if its members are."""
        other = object.__new__(type(self))
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        known = {} if "_training" in changes else self._known
        other._fill(**(values | {"_known": known} | changes))
        return other

    def _draw(self, key: jax.Array, members: int) -> None:
        beginning, _ = jax.random.split(key)
        drawn = self._kernels.draw(_member_keys(beginning, members), self._training.outputs)
        training = dataclasses.replace(self._training, start=drawn.start)
        self._fill(
            key=key, members=members, drawing_error=drawn.error, _training=training, _prior=drawn.prior, _known={}
        )

    def _check_several(self) -> None:
        if self.members < 2:
            fix = "Draw more members."
            raise refusal("members", expected="at least 2, to see how they scatter", got=self.members, fix=fix)

    def _check_initial(self, f0: Callable, x: Inputs) -> jax.Array:
        """Return the outputs of given networks, [m, outputs] or [networks, m, outputs]."""
        values, count = jnp.asarray(f0(x)), jax.tree.leaves(x)[0].shape[0]
        wanted = (count, self._training.outputs)
        if values.ndim not in (2, 3) or values.shape[-2:] != wanted:
            fix = "It is a network before training, with one output for each class or label."
            expected = f"a function with values of shape {wanted}, after an axis of networks or none"
            raise refusal("f0", expected=expected, got=f"shape {values.shape}", fix=fix)
        return values

    # How it is trained

    def _coefficients(self, times: np.ndarray) -> jax.Array:
        """Return a at times in any order, [T, order, n, columns]."""
        asked = tuple(times.tolist())
        if asked not in self._known:
            finite = np.unique(times[np.isfinite(times)])
            at = dict(zip(finite.tolist(), self._train_until(finite), strict=True)) if len(finite) else {}
            if np.isinf(times).any():
                at[float("inf")] = self._train_to_end()
            self._known[asked] = jnp.stack([at[time] for time in asked])
        return self._known[asked]

    def _train_until(self, times: np.ndarray) -> jax.Array:
        """Return a at increasing finite times."""
        dtype, way = self._training.start.dtype, self.filter
        if isinstance(way, filters.MomentumFlow):
            begun = jnp.zeros((int((times == 0).sum()), *self._training.start.shape), dtype)
            settings = way.learning_rate, way.beta, jnp.asarray(times[times > 0], dtype), self._tolerance
            values = jnp.concatenate([begun, follow_momentum_flow(self._training, *settings)[:, 0]])
            if not np.isfinite(values).all():
                fix = "Take an earlier time, a larger `rtol`, double precision, or a loss with a continuous slope."
                raise refusal("t", expected="a time that the integrator reaches", got=float(times[-1]), fix=fix)
            return values
        dynamics = way.dynamics(1)
        assert dynamics is not None
        if dynamics.in_steps:
            values = follow_descent(self._training, dynamics, jnp.asarray(times, dtype))
            if not np.isfinite(values[-1]).all():
                fix = "Choose a smaller rate, or `gradient_flow`, which is stable."
                got = f"{float(dynamics.rate):.3g}, with which training diverges"
                raise refusal("learning_rate", expected="one that is stable", got=got, fix=fix)
            return values[:, 0]
        wanted = jnp.asarray(times, dtype)
        path = follow_flow(self._training, dynamics, wanted, self._tolerance, most_steps=MOST_STEPS)
        if not bool(path.reached):
            fix = "Take an earlier time, a larger `rtol`, double precision, or a loss with a continuous slope."
            got = f"one that is not reached in {MOST_STEPS} steps"
            raise refusal("t", expected="a time that gradient flow reaches", got=got, fix=fix)
        return path.values[:, 0]

    def _train_to_end(self) -> jax.Array:
        """Return a at the end of training."""
        training, name = self._training, self._training.start.dtype.name
        ridge = jnp.asarray(self.filter.shift_at_end or 0.0, training.start.dtype)
        if not training.theta.traceable:
            return self._train_to_end_by_products(ridge)
        projection, root, inverse, inverse_root = self._kernels.spectral_functions()
        S, back = (root, inverse_root) if ridge else (projection, inverse)
        found = find_minimum(training, S, ridge, jnp.asarray(CLOSE[name], training.start.dtype))
        if not float(found.slope) <= CLOSE[name] or (not ridge and not float(found.flatness) > FLAT[name]):
            reason = "the loss has no minimum, or is flat around it"
            fix = (
                "Labels that are certain have none: smooth them with `label_smoothing`, add `filters.ridge`, or take a "
                "finite time."
            )
            raise refusal("t", expected="finite for this loss", got=f"inf, where {reason}", fix=fix)
        return back.times(found.z if ridge else found.u)

    def _train_to_end_by_products(self, ridge: jax.Array) -> jax.Array:
        close = CLOSE[self._training.start.dtype.name]
        a, slope = find_minimum_by_products(self._training, ridge, close) if ridge else (None, np.inf)
        if a is None or not slope <= close:
            fix = (
                "Take a finite time, which gradient flow reaches with few products, a larger `filters.ridge`, or "
                "`solver=solvers.Eigh()`."
            )
            got = f"inf, which {self.solver} cannot reach"
            raise refusal("t", expected="finite for this solver", got=got, fix=fix)
        return a


def _member_keys(key: jax.Array, members: int) -> jax.Array:
    """Return a key for each member, which does not depend on how many there are."""
    return jax.vmap(partial(jax.random.fold_in, key))(jnp.arange(members))


def _average_over_group(data: TrainingSet, values: jax.Array) -> jax.Array:
    """Return the equivariant part of functions [order, n, members, outputs] on the training samples."""
    assert data.group is not None
    assert data.rep_y is not None
    back = jnp.stack([data.rep_y(int(data.group.inverse[g]), values[g]) for g in range(data.order)])
    return data.rep_y.orbit(jnp.mean(back, axis=0))


def _check_orbits(data: TrainingSet, argument: str, *, expected: str) -> None:
    if data.group is None:
        fix = "Pass `augment(x, y, rep_x)` with a network that respects the action."
        raise refusal(argument, expected=expected, got=f"{data.method} data: {data.reason}", fix=fix)


def _check_filter(filter: filters.Filter | None) -> filters.Filter:
    filter = filters.gradient_flow() if filter is None else filter
    followed = isinstance(filter, filters.MomentumFlow) or (
        isinstance(filter, filters.Filter) and filter.dynamics(1) is not None
    )
    if not followed:
        fix = "Choose any filter of `ntk_equiv.filters` but `custom`."
        raise refusal("filter", expected="a way of training", got=describe(filter), fix=fix, kind=TypeError)
    return filter


def _check_solver(solver: Solver | str) -> Solver:
    chosen = check_solver(solver, auto=Eigh())
    if not isinstance(chosen, Eigh | Lanczos):
        fix = "Pass `solvers.Eigh()` or `solvers.Lanczos()`."
        raise refusal("solver", expected="one that applies square roots", got=describe(solver), fix=fix, kind=TypeError)
    return chosen


def _check_tolerance(rtol: Scalar | None, atol: Scalar | None, dtype: Any) -> Tolerance:
    rtol = TOLERANCES[dtype.name] if rtol is None else rtol
    atol = rtol if atol is None else atol
    lowest = 1000 * float(jnp.finfo(dtype).eps)
    for name, value in (("rtol", rtol), ("atol", atol)):
        if not is_number(value) or not lowest <= float(value) < 1:
            fix = f"Rounding in {dtype.name} allows no less."
            raise refusal(name, expected=f"between {lowest:.1g} and 1", got=repr(value), fix=fix)
    return Tolerance(SHARE_OF_STEP * float(rtol), SHARE_OF_STEP * float(atol))
