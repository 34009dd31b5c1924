"""A trained ensemble: f̂(x) = (1/M) Σ_m f_m(x)."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Inexact, Int

from ntk_equiv._check import file_path, positive_integer, positive_integers, random_key, real_array, refusal, samples_in
from ntk_equiv.empirical import EmpiricalKernelFn, empirical_kernel_fn
from ntk_equiv.ensembles._checkpoint import Checkpoints, leaves, like, open_folder
from ntk_equiv.ensembles._configuration import parameter_specs
from ntk_equiv.ensembles._history import History
from ntk_equiv.ensembles._inputs import check_inputs, example_of
from ntk_equiv.ensembles._layout import Layout, layout_of, suited
from ntk_equiv.ensembles._loop import NEVER, SAMPLES_AT_A_TIME, predicted
from ntk_equiv.ensembles._model import Model, model_of


@dataclasses.dataclass(frozen=True, repr=False)
class Run:
    """The members of an ensemble after training; made by `train`.

    Attributes:
        model: the network.
        members: how many there are.
        steps: how many steps they were trained.
        configuration: all that decided the result, as plain text.
        layout: where members are evaluated.
        history: losses and records along the run.
        failed: members whose loss or parameters ceased to be finite, with the step at which they did.

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
    _params: Any

    def __repr__(self) -> str:
        lost = f", {len(self.failed)} of them not finite" if self.failed else ""
        return f"<ensemble of {self.members} members after {self.steps} steps{lost}>"

    @property
    def params(self) -> Any:
        """The parameters of all members, arrays [members, ...]."""
        return self.layout.collect(self._params)

    @property
    def curve(self) -> tuple[np.ndarray, np.ndarray]:
        """Steps, and the loss [steps, members] of every member on its last batch then."""
        return np.array(self.history.steps), np.array(self.history.losses)

    @property
    def records(self) -> dict[str, np.ndarray]:
        """What was recorded: for each name an array with a first axis that counts `record_steps`."""
        return {name: np.array(values) for name, values in self.history.records.items()}

    @property
    def record_steps(self) -> np.ndarray:
        """After how many steps the records were made."""
        return np.array(self.history.record_steps)

    @property
    def finished(self) -> Int[np.ndarray, "finite"]:
        """The numbers of the members that are finite."""
        return np.setdiff1d(np.arange(self.members), sorted(self.failed))

    def predict(self, x: Any, /, *, batch_size: int = SAMPLES_AT_A_TIME) -> Inexact[Array, "{self.members} n *out"]:
        """The outputs of every member, [members, n, out].

        Args:
            x: inputs, with the sample axis first, prepared as those of training.
            batch_size: how many samples at a time.

        Raises:
            TypeError: the inputs are no arrays, or whole numbers where those of training were not.
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
        size = positive_integer(batch_size, "batch_size")
        params = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), self._params)
        check_inputs(x, "x", self.configuration["inputs"], self.model, params)
        return jnp.asarray(predicted(self.model, self.layout, self._params, x, size))

    def mean(self, x: Any, /, *, batch_size: int = SAMPLES_AT_A_TIME) -> Inexact[Array, "n *out"]:
        """f̂(x), the mean over all members that are finite, [n, out]."""
        return jnp.mean(self.predict(x, batch_size=batch_size)[self.finished], axis=0)

    def subset(self, members: Any, /) -> "Run":
        """The ensemble of some of the members, which keep their order but not their numbers.

        Args:
            members: their numbers.
        """
        fix = "Members are counted from 0."
        chosen = np.asarray(real_array(members, "members", fix=fix)).ravel()
        whole = chosen.size and np.issubdtype(chosen.dtype, np.integer)
        if not whole or chosen.min() < 0 or chosen.max() >= self.members:
            raise refusal("members", expected=f"some of the numbers below {self.members}", got=members, fix=fix)
        kind = "map" if self.layout.chunk == 1 else "vmap"
        layout = layout_of(len(chosen), kind, devices=list(self.layout.mesh.devices.ravel()))
        layout = dataclasses.replace(layout, stepwise=self.layout.stepwise)
        return dataclasses.replace(
            self,
            members=len(chosen),
            layout=layout,
            history=self.history.of_members(chosen),
            failed={new: self.failed[old] for new, old in enumerate(chosen.tolist()) if old in self.failed},
            _params=layout.deal(jax.tree.map(lambda leaf: leaf[chosen], self.params)),
        )

    def bootstrap(self, x: Any, /, *, sizes: Sequence[int], draws: int, key: jax.Array) -> dict[int, jax.Array]:
        """Means of smaller ensembles, drawn from the members with replacement.

        About the mean of this run they scatter as ensembles of that size scatter about an infinite one.

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
        """The kernels of one trained member as it is now, for comparison with those at initialisation.

        Args:
            member: its number.
            settings: as for `empirical_kernel_fn`.

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
        if not isinstance(member, int | np.integer) or not 0 <= member < self.members:
            fix = "Members are counted from 0."
            raise refusal("member", expected=f"a number below {self.members}", got=member, fix=fix)
        params = jax.tree.map(lambda leaf: leaf[member], self.params)
        return empirical_kernel_fn(self.model.apply, params, **settings)

    def save(self, folder: Any, /) -> None:
        """Write the run to a new or empty folder, from which `Run.load` reads it."""
        failed = np.array([self.failed.get(m, NEVER) for m in range(self.members)], np.int32)
        text = {"configuration": dict(self.configuration), "members": self.members, "records": [*self.history.records]}
        arrays = {"params": leaves(self.params), "failed": leaves(failed), "history": self.history.stored()}
        checkpoints = open_folder(folder, resume=False, argument="folder")
        try:
            checkpoints.save(self.steps, {name: part for name, part in arrays.items() if part}, text)
        finally:
            checkpoints.close()

    @classmethod
    def load(cls, folder: Any, module: Any, /, *, layout: str = "auto") -> "Run":
        """A run that was saved, or the last checkpoint of one.

        Args:
            folder: where `run.save` or `checkpoint=` wrote it.
            module: the network it was trained with, of which only parameters are stored.
            layout: as for `train`.

        Raises:
            FileNotFoundError: there is no run in the folder.
            ValueError: the module has other parameters.
        """
        checkpoints = Checkpoints(file_path(folder, "folder", exists=True))
        try:
            (arrays, text), steps = checkpoints.load(), checkpoints.latest
        finally:
            checkpoints.close()
        assert steps is not None
        model, configuration = model_of(module), text["configuration"]
        structure = jax.eval_shape(model.init, jax.random.key(0), example_of(configuration["inputs"]))
        found, expected = parameter_specs(structure), configuration["parameters"]
        if found != expected:
            fix = "Pass the module that the run was trained with."
            raise refusal("module", expected=f"one with parameters {expected}", got=found, fix=fix)
        history = History(text["records"])
        history.restore(arrays.get("history"))
        failed = {m: int(step) for m, step in enumerate(arrays["failed"]["0000"]) if step != NEVER}
        where = layout_of(text["members"], layout)
        where = suited(where, model.apply, structure, example_of(configuration["inputs"]), chosen=layout != "auto")
        params = where.deal(like(structure, arrays.get("params")))
        return cls(model, text["members"], steps, configuration, where, history, failed, params)


def bootstrapped(predictions: Any, /, *, sizes: Sequence[int], draws: int, key: jax.Array) -> dict[int, jax.Array]:
    """Means over members drawn with replacement, for each size an array [draws, ...]; see `Run.bootstrap`.

    Args:
        predictions: of all members, [members, ...].
        sizes: how many members to draw.
        draws: how often.
        key: a JAX random key.

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
    found = {}
    for number, size in enumerate(positive_integers(sizes, "sizes", fix="List some sizes, such as (10, 100).")):
        shape = (draws, size)
        chosen = jax.random.randint(jax.random.fold_in(key, number), shape, 0, len(predictions))
        # One draw after the other: all of them at once would need draws × size predictions.
        found[size] = jax.lax.map(lambda members: jnp.mean(predictions[members], axis=0), chosen)
    return found
