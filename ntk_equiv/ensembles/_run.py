"""A trained ensemble, f̂(x) = (1/M) Σ_m f_m(x), and what was recorded while it was trained."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Inexact, Int

from ntk_equiv._check import file_path, positive_integer, positive_integers, random_key, real_array, refusal, samples_in
from ntk_equiv._typing import Inputs
from ntk_equiv.empirical import EmpiricalKernelFn, empirical_kernel_fn
from ntk_equiv.ensembles._checkpoint import Checkpoints, Stored, leaves_by_number, open_folder, restore_structure
from ntk_equiv.ensembles._fingerprints import hash_data
from ntk_equiv.ensembles._history import History
from ntk_equiv.ensembles._inputs import check_inputs, parameter_specs, sample_from_specs
from ntk_equiv.ensembles._layout import Layout, make_layout, step_by_step_if_faster
from ntk_equiv.ensembles._members import NEVER, initial_variables, select_members
from ntk_equiv.ensembles._models import Model, Module, Params, State, as_model, check_has_parameters
from ntk_equiv.ensembles._predict import predict_in_parts, samples_for
from ntk_equiv.ensembles._validation import EarlyStopping, Patience


@dataclasses.dataclass(frozen=True, repr=False)
class Run:
    """The members of an ensemble after training; made by `train`.

    Attributes:
        model: the network.
        members: how many members there are.
        steps: how many steps they were trained: fewer than asked for, if all members were stopped early or a callback
            ended the run.
        configuration: everything that decided the result, as it is stored.
        layout: where members are evaluated.
        history: losses, validations and records of the run.
        failed: members whose loss or variables became infinite or NaN, with the step at which they did.
        stopped: members that were stopped early, with the step at which they were.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> from ntk_equiv import ensembles, stax
        >>> data, net = (jnp.array([[1.0, 2.0]]), jnp.array([[1.0]])), stax.Dense(1)
        >>> run = ensembles.train(net, data, members=3, steps=50, optimizer=optax.sgd(0.5), key=jax.random.key(0))
        >>> print(run.predict(data[0]).round(3).ravel(), run.subset([0, 2]))
        [1. 1. 1.] <ensemble of 2 members after 50 steps>
    """

    model: Model
    members: int
    steps: int
    configuration: Mapping[str, Any]
    layout: Layout
    history: History
    failed: Mapping[int, int]
    _params: Params
    _state: State = ()
    stopped: Mapping[int, int] = dataclasses.field(default_factory=dict)
    _kept: np.ndarray | None = None
    _numbers: np.ndarray | None = None  # those of the members when they were trained, if this is a part of them

    def __repr__(self) -> str:
        lost = f", {len(self.failed)} of them not finite" if self.failed else ""
        early = f", {len(self.stopped)} of them stopped early" if self.stopped else ""
        return f"<ensemble of {self.members} members after {self.steps} steps{early}{lost}>"

    @property
    def member_steps(self) -> Int[np.ndarray, "{self.members}"]:
        """How many steps led to the parameters of each member: `steps`, unless members were stopped early."""
        return np.full(self.members, self.steps) if self._kept is None else self._kept

    @property
    def params(self) -> Params:
        """The parameters of all members, arrays [members, ...]."""
        return self.layout.collect(self._params)

    @property
    def state(self) -> State:
        """What members remember but do not learn, such as running statistics: arrays [members, ...]. Most have none."""
        return self.layout.collect(self._state)

    @property
    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        """Steps, and the loss of every member on its last batch at each of them, [steps, members]."""
        return np.array(self.history.steps), np.array(self.history.losses)

    @property
    def records(self) -> dict[str, np.ndarray]:
        """The records: for each name an array whose first axis counts `record_steps`."""
        return {name: np.array(values) for name, values in self.history.records.items()}

    @property
    def record_steps(self) -> np.ndarray:
        """After how many steps the records were made."""
        return np.array(self.history.record_steps)

    @property
    def finished(self) -> Int[np.ndarray, "finite"]:
        """The numbers of the members that are finite."""
        return np.setdiff1d(np.arange(self.members), sorted(self.failed))

    def predict(self, x: Inputs, /, *, batch_size: int | None = None) -> Inexact[Array, "{self.members} n *out"]:
        """Return the outputs of every member, [members, n, out].

        Args:
            x: inputs, with the sample axis first, prepared as those of training: an array, in memory or mapped to a
                file; a list of samples; or any object with a length and an index.
            batch_size: how many samples to evaluate at a time; by default as many as have activations of a gigabyte,
                and at most 1000.

        Raises:
            TypeError: the inputs are not arrays, or they are whole numbers and those of training were not.
            ValueError: the network does not take their shape.

        Example:
            >>> import jax, jax.numpy as jnp, optax
            >>> from ntk_equiv import ensembles
            >>> data = jnp.array([[-1.], [1.]]), jnp.array([[0.], [1.]])
            >>> line = lambda key, x: jax.random.uniform(key, (2, 1)), lambda w, x: x @ w[:1] + w[1:]
            >>> run = ensembles.train(line, data, members=3, steps=50, optimizer=optax.sgd(0.5), key=jax.random.key(0))
            >>> run.predict(data[0]).shape
            (3, 2, 1)
            >>> print(run.mean(data[0]).round(3).ravel())
            [0. 1.]
        """
        return jnp.asarray(np.concatenate([*self._parts(x, batch_size)], axis=1))

    def mean(self, x: Inputs, /, *, batch_size: int | None = None) -> Inexact[Array, "n *out"]:
        """Return f̂(x), the mean over all members that are finite, [n, out].

        Predictions of members are kept for one batch at a time.

        Args:
            x: as for `predict`.
            batch_size: as for `predict`.
        """
        means = [np.asarray(jnp.mean(part[self.finished], axis=0)) for part in self._parts(x, batch_size)]
        return jnp.asarray(np.concatenate(means))

    def _parts(self, x: Inputs, batch_size: int | None) -> Iterator[np.ndarray]:
        """Return the outputs of all members for one batch after the other, once the inputs are checked."""
        size = None if batch_size is None else positive_integer(batch_size, "batch_size")
        variables = self._params, self._state
        shapes = self._shapes_of_variables()
        check_has_parameters(shapes[0])
        x = check_inputs(x, "x", self.configuration["inputs"], self.model, *shapes)
        size = samples_for(self.model, self.layout, shapes, x) if size is None else size
        return predict_in_parts(self.model, self.layout, variables, x, size)

    def subset(self, members: ArrayLike | Sequence, /) -> "Run":
        """Return the ensemble of some of the members, in the given order and numbered anew from 0.

        Args:
            members: the numbers of the members.
        """
        fix = "Members are counted from 0."
        chosen = np.asarray(real_array(members, "members", fix=fix)).ravel()
        whole = chosen.size and np.issubdtype(chosen.dtype, np.integer)
        if not whole or chosen.min() < 0 or chosen.max() >= self.members:
            raise refusal("members", expected=f"some of the numbers below {self.members}", got=members, fix=fix)
        kind = "map" if self.layout.chunk == 1 else "vmap"
        layout = make_layout(len(chosen), kind, devices=list(self.layout.mesh.devices.ravel()))
        layout = dataclasses.replace(layout, stepwise=self.layout.stepwise)
        params, state = layout.deal(jax.tree.map(lambda leaf: leaf[chosen], (self.params, self.state)))
        return dataclasses.replace(
            self,
            members=len(chosen),
            layout=layout,
            history=self.history.of_members(chosen),
            failed={new: self.failed[old] for new, old in enumerate(chosen.tolist()) if old in self.failed},
            stopped={new: self.stopped[old] for new, old in enumerate(chosen.tolist()) if old in self.stopped},
            _kept=None if self._kept is None else self._kept[chosen],
            _numbers=self._trained_numbers()[chosen] if self.knows_its_initial_members else None,
            _params=params,
            _state=state,
        )

    def initial(self) -> "Run":
        """Return the same members before their first step, a run of 0 steps.

        They are made again from the random key of the run, as `untrained` makes them.

        Raises:
            ValueError: this is a part of a run, saved by a version that did not store which.

        Example:
            >>> import jax, jax.numpy as jnp, optax
            >>> from ntk_equiv import ensembles, stax
            >>> data, net = (jnp.array([[1.0, 2.0]]), jnp.array([[1.0]])), stax.Dense(1)
            >>> run = ensembles.train(net, data, members=3, steps=50, optimizer=optax.sgd(0.5), key=jax.random.key(0))
            >>> before = ensembles.untrained(net, data[0], members=3, key=jax.random.key(0))
            >>> run.initial(), bool(jnp.array_equal(run.initial().predict(data[0]), before.predict(data[0])))
            (<ensemble of 3 members after 0 steps>, True)
        """
        if not self.knows_its_initial_members:
            got = f"{self.members} of {self.configuration['members']} members, and it is not known which"
            raise refusal("run", expected="one with all its members", got=got, fix="Load the whole run.")
        generator, *numbers = self.configuration["key"]
        specs = sample_from_specs(self.configuration["inputs"])
        sample = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), specs)
        indices = self.layout.deal(self._trained_numbers().astype(np.int32))
        shared = self.layout.share((np.array(numbers, np.uint32), sample))
        variables = initial_variables(self.model, self.layout, generator, indices, *shared)
        entries = {name: self.configuration[name] for name in ("members", "key", "parameters", "inputs")}
        entries |= {"steps": 0, **({"state": self.configuration["state"]} if "state" in self.configuration else {})}
        params, state = variables
        before = Run(self.model, self.members, 0, entries, self.layout, History(), {}, params, state)
        return dataclasses.replace(before, _numbers=self._numbers)

    @property
    def knows_its_initial_members(self) -> bool:
        """Whether `initial` can make the members again; not for parts of runs that earlier versions saved."""
        return self._numbers is not None or self.members == self.configuration["members"]

    def predictions_recorded_for(self, x: Inputs, /) -> dict[int, np.ndarray]:
        """Return the predictions for x that were recorded while training, and those of now, by steps.

        Args:
            x: inputs; those of a record, if there are to be others than those of now.

        Example:
            >>> import jax, jax.numpy as jnp, optax
            >>> from ntk_equiv import ensembles, stax
            >>> x, y, net = jnp.array([[1.0, 2.0]]), jnp.array([[1.0]]), stax.Dense(1)
            >>> settings = {"members": 3, "steps": 50, "optimizer": optax.sgd(0.5), "key": jax.random.key(0)}
            >>> run = ensembles.train(net, (x, y), record={"train": x}, record_at=[0, 10], **settings)
            >>> [*run.predictions_recorded_for(x)]
            [0, 10, 50]
        """
        last = np.asarray(self.predict(x))
        same = hash_data(check_inputs(x, "x", self.configuration["inputs"], self.model, *self._shapes_of_variables()))
        hashes = self.configuration.get("record", [{}, []])[0]
        found: dict[int, np.ndarray] = {}
        for name, values in self.records.items():
            # Records of functions of the predictions have other hashes.
            if hashes.get(name) == same and values.shape[1:] == last.shape:
                found.update(zip(self.record_steps.tolist(), values, strict=True))
        if self.steps in found and not np.allclose(found[self.steps], last, rtol=1e-3, atol=1e-5, equal_nan=True):
            found = {}
        return {**found, self.steps: last}

    def _shapes_of_variables(self) -> tuple[Params, State]:
        """Return the shapes of parameters and state of one member."""
        variables = self._params, self._state
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), variables)

    def _trained_numbers(self) -> np.ndarray:
        return np.arange(self.members) if self._numbers is None else self._numbers

    def bootstrap(self, x: Inputs, /, *, sizes: Sequence[int], draws: int, key: jax.Array) -> dict[int, jax.Array]:
        """Return means of smaller ensembles, drawn from the members with replacement.

        They scatter about the mean of this run as ensembles of their size scatter about an infinite ensemble.

        Args:
            x: inputs.
            sizes: how many members the smaller ensembles have.
            draws: how many ensembles of each size.
            key: a JAX random key.

        Returns:
            For each size an array [draws, n, out].
        """
        return bootstrapped(self.predict(x)[self.finished], sizes=sizes, draws=draws, key=key)

    def kernel_fn(self, member: int, /, **settings: Any) -> EmpiricalKernelFn:
        """Return the kernels of one member with its present parameters, to compare them with those before training.

        Args:
            member: the number of the member.
            settings: keyword arguments of `empirical_kernel_fn`.

        Example:
            >>> import jax, jax.numpy as jnp, optax
            >>> from ntk_equiv import ensembles
            >>> data = jnp.array([[-1.], [1.]]), jnp.array([[0.], [1.]])
            >>> square = lambda key, x: jax.random.uniform(key, (1, 1)), lambda w, x: x @ w**2 + 0.5
            >>> key, optimizer = jax.random.key(0), optax.sgd(0.5)
            >>> run = ensembles.train(square, data, members=2, steps=100, optimizer=optimizer, key=key)
            >>> print(run.kernel_fn(1)(data[0], None, "ntk").round(3))      # (2w)² ⟨x, x'⟩ with w² = ½
            [[ 2. -2.]
             [-2.  2.]]
        """
        params, state = self._variables_of(member)
        apply = partial(self.model.apply, state=state) if jax.tree.leaves(state) else self.model.apply
        return empirical_kernel_fn(apply, params, **settings)

    def member(self, member: int, /) -> Any:
        """Return one member as an ordinary network of its library, for evaluation and export.

        Args:
            member: the number of the member.

        Returns:
            For a Linen module the variables that `module.apply` takes, `{"params": …, "batch_stats": …}`; for an NNX
            factory the module itself, in evaluation mode; otherwise the parameters.

        Example:
            >>> import flax.linen as nn
            >>> import jax, jax.numpy as jnp, optax
            >>> from ntk_equiv import ensembles
            >>> class Net(nn.Module):
            ...     @nn.compact
            ...     def __call__(self, x, train=False):
            ...         return nn.Dense(1)(nn.BatchNorm(use_running_average=not train)(x))
            >>> data = jnp.array([[-1.], [1.]]), jnp.array([[0.], [1.]])
            >>> run = ensembles.train(Net(), data, members=3, steps=2, optimizer=optax.sgd(0.5), key=jax.random.key(0))
            >>> variables = run.member(1)
            >>> sorted(variables), bool(jnp.allclose(Net().apply(variables, data[0]), run.predict(data[0])[1]))
            (['batch_stats', 'params'], True)
        """
        return self.model.export(*self._variables_of(member))

    def _variables_of(self, member: int) -> tuple[Params, State]:
        if isinstance(member, bool) or not isinstance(member, int | np.integer) or not 0 <= member < self.members:
            fix = "Members are counted from 0."
            raise refusal("member", expected=f"a number below {self.members}", got=repr(member), fix=fix)
        return jax.tree.map(lambda leaf: leaf[member], (self.params, self.state))

    def save(self, folder: Path | str, /) -> None:
        """Write the run to a new or empty folder, from which `Run.load` reads it."""
        failed, stopped = (
            np.array([steps.get(m, NEVER) for m in range(self.members)], np.int32)
            for steps in (self.failed, self.stopped)
        )
        text = {
            "configuration": dict(self.configuration),
            "members": self.members,
            "records": [*self.history.records],
            "metrics": [*self.history.validation],
        }
        parts = {"params": self.params, "state": self.state, "failed": failed, "stopped": stopped, "kept": self._kept}
        parts["numbers"] = self._numbers
        arrays = {name: leaves_by_number(part) for name, part in parts.items()} | {"history": self.history.stored()}
        checkpoints = open_folder(folder, resume=False, argument="folder")
        try:
            checkpoints.save(self.steps, {name: part for name, part in arrays.items() if part}, text)
            checkpoints.wait()
        finally:
            checkpoints.close()

    @classmethod
    def load(cls, folder: Path | str, module: Module, /, *, layout: str = "auto") -> "Run":
        """Read a run that was saved, or the last checkpoint of a run.

        Args:
            folder: the folder that `run.save` or `checkpoint=` wrote to.
            module: the network that the run was trained with; only its variables are stored.
            layout: as for `train`.

        Raises:
            FileNotFoundError: there is no run in the folder.
            ValueError: the module has other parameters or another state.
        """
        checkpoints = Checkpoints(file_path(folder, "folder", exists=True))
        try:
            (arrays, text), steps = checkpoints.load(), checkpoints.latest
        finally:
            checkpoints.close()
        assert steps is not None
        model, configuration = as_model(module), text["configuration"]
        sample = sample_from_specs(configuration["inputs"])
        structure = model.shapes_of_variables(sample)
        for part, entry in zip(structure, ("parameters", "state"), strict=True):
            specs, expected = parameter_specs(part), configuration.get(entry, {})
            if specs != expected:
                fix = "Pass the module that the run was trained with."
                raise refusal("module", expected=f"one with {entry} {expected}", got=specs, fix=fix)
        history = History(text["records"], metrics=text.get("metrics", ()))
        history.restore(arrays.get("history"))
        variables, kept, restored = _kept_variables(structure, arrays, steps, configuration)
        failed, stopped = (_steps_by_member(arrays.get(name)) for name in ("failed", "stopped"))
        failed = {member: step for member, step in failed.items() if not restored[member]}
        count, (params, state) = text["members"], structure
        where = make_layout(count, layout)
        where = step_by_step_if_faster(where, model.apply, params, sample, state, keep_chunk=layout != "auto")
        params, state = where.deal(variables)
        numbers = arrays["numbers"]["0000"] if "numbers" in arrays else None
        return cls(model, count, steps, configuration, where, history, failed, params, state, stopped, kept, numbers)


def _steps_by_member(stored: Mapping[str, np.ndarray] | None) -> dict[int, int]:
    """Return the members for which a step is stored, with their steps."""
    return {} if stored is None else {m: int(step) for m, step in enumerate(stored["0000"]) if step != NEVER}


def _kept_variables(
    structure: tuple[Params, State], arrays: Stored, steps: int, configuration: Mapping[str, Any]
) -> tuple[tuple[Params, State], np.ndarray | None, np.ndarray]:
    """Return what the members of a stored run are, as the run that was stored would end now.

    Args:
        structure: parameters and state of a network.
        arrays: those of a run that was saved, or of a checkpoint, which has both the last and the best variables.
        steps: how many steps the run has taken.
        configuration: its settings, as they are stored.

    Returns:
        Parameters and state, how many steps led to those of each member (None if all have the same), and which of them
        are those of the best validation, while the checkpoint has later ones too.
    """
    variables = (
        restore_structure(structure[0], arrays.get("params")),
        restore_structure(structure[1], arrays.get("state")),
    )
    none = np.zeros(len(arrays["failed"]["0000"]), bool)
    if "patience" not in arrays:
        return variables, (arrays["kept"]["0000"] if "kept" in arrays else None), none
    patience = Patience(EarlyStopping(**configuration["early stopping"]), len(none))
    patience.restore(arrays["patience"])
    kept, restored = patience.kept_steps(steps)
    if not patience.settings.restore_best:
        return variables, kept, none
    best = restore_structure(structure, arrays.get("best"))
    return jax.tree.map(np.asarray, select_members(jnp.asarray(restored), best, variables)), kept, restored


def bootstrapped(
    predictions: ArrayLike | Sequence, /, *, sizes: Sequence[int], draws: int, key: jax.Array
) -> dict[int, jax.Array]:
    """Return means over members drawn with replacement; see `Run.bootstrap`.

    Args:
        predictions: those of all members, [members, ...].
        sizes: how many members to draw for a mean.
        draws: how many means of each size.
        key: a JAX random key.

    Returns:
        For each size an array [draws, ...].

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from ntk_equiv import ensembles
        >>> found = ensembles.bootstrapped(jnp.ones((5, 2)), sizes=(1, 3), draws=4, key=jax.random.key(0))
        >>> {size: means.shape for size, means in found.items()}
        {1: (4, 2), 3: (4, 2)}
    """
    predictions, draws = jnp.asarray(real_array(predictions, "predictions")), positive_integer(draws, "draws")
    random_key(key)
    if not samples_in(predictions, "predictions"):
        raise refusal("predictions", expected="those of at least one member", got="none", fix="Train some.")
    means = {}
    for number, size in enumerate(positive_integers(sizes, "sizes", fix="List some sizes, such as (10, 100).")):
        shape = (draws, size)
        chosen = jax.random.randint(jax.random.fold_in(key, number), shape, 0, len(predictions))
        # One draw after the other: all of them at once would need draws × size predictions.
        means[size] = jax.lax.map(lambda members: jnp.mean(predictions[members], axis=0), chosen)
    return means


def log_steps(steps: int, count: int) -> list[int]:
    """Return about `count` steps from 0 to `steps`, evenly spaced on a logarithmic scale.

    Args:
        steps: the last step.
        count: how many at most; small numbers that coincide are listed once.

    Example:
        >>> from ntk_equiv import ensembles
        >>> ensembles.log_steps(1000, 7)
        [0, 1, 4, 16, 63, 251, 1000]
    """
    steps, count = positive_integer(steps, "steps"), positive_integer(count, "count")
    spaced = np.geomspace(1, steps, max(count - 1, 1)) if count > 2 else [steps]
    return sorted({0, *(round(float(step)) for step in spaced)})
