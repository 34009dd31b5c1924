"""Networks of every kind as one `Model`: parameters, state, and two modes.

A network has *parameters*, which are learnt, and may have a *state*, which it only remembers: running statistics and
whatever else is not learnt. It has two modes. In *training* it may draw random numbers and change its state. In
*evaluation* it does neither.

    module                              parameters          state                   training              evaluation
    Linen module                        "params"            all other collections   `mode arguments` of the call
    NNX factory (rngs -> module)        `nnx.Param`         all other variables     `.train()`            `.eval()`
    pair (init, apply)                  what init returns   none                    there is one mode alone
    triple (init_fn, apply_fn, …)       what init_fn draws  none                    `rng=key`             `mode="test"`

Mode arguments are those in `MODE_ARGUMENTS` that `__call__` takes; `with_modes` names others. Random numbers come from
a key that is passed in, so that they do not depend on what was drawn before. Variables that a module only sows, such as
intermediate results, are not kept.

Models compare equal if their modules and modes do, so that compiled programs are reused.
"""

import contextlib
import dataclasses
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import flax.core
import flax.errors
import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

from ntk_equiv._check import refusal
from ntk_equiv._typing import Inputs
from ntk_equiv.stax import KernelFn

Params = Any
"""Parameters of a network: any pytree of arrays, or of their shapes."""

State = Any
"""What a network remembers but does not learn: any pytree of arrays, or of their shapes. Most networks have none."""

# Arguments of `__call__` by which modules are switched, and their values in training.
MODE_ARGUMENTS = {
    "train": True,
    "training": True,
    "is_training": True,
    "deterministic": False,
    "use_running_average": False,
}
HOW_TO_SWITCH = (
    f"Give `__call__` one of the arguments {', '.join(MODE_ARGUMENTS)}, and pass it on to these layers; for an "
    "argument or attribute of another name use `ensembles.with_modes`. `nn.Sequential` passes none on: write a module "
    "of your own."
)
# What Flax says of a layer that was not told in which mode it is.
MODE_IS_MISSING = "must be passed to the constructor or at call time", "argument was provided to"


@dataclasses.dataclass(frozen=True)
class Modes:
    """How a module is switched: names and values of arguments, or of attributes if the call takes no such argument."""

    training: tuple[tuple[str, Any], ...]
    evaluation: tuple[tuple[str, Any], ...]


@dataclasses.dataclass(frozen=True)
class Model(ABC):
    """A network as functions; `module` is the network as the user passed it.

    Attributes:
        module: the network as the user passed it.
        modes: how the user says that it is switched between training and evaluation; None if that is known.
    """

    module: Any
    modes: Modes | None = None

    @abstractmethod
    def init_variables(self, key: jax.Array, x: Inputs) -> tuple[Params, State]:
        """Return random parameters for inputs like `x`, and the state before training."""

    @abstractmethod
    def apply(self, params: Params, x: Inputs, state: State = ()) -> Any:
        """Return the outputs [n, ...] in evaluation: without noise, from running statistics."""

    @abstractmethod
    def apply_in_training(self, params: Params, state: State, x: Inputs, key: jax.Array) -> tuple[Any, State]:
        """Return the outputs [n, ...] in training, with the noise of a key, and the state after that."""

    @abstractmethod
    def export(self, params: Params, state: State) -> Any:
        """Return one member as its own library takes it."""

    def init(self, key: jax.Array, x: Inputs) -> Params:
        """Return random parameters for inputs like `x`."""
        return self.init_variables(key, x)[0]

    def shapes_of_variables(self, x: Inputs) -> tuple[Params, State]:
        """Return the shapes of parameters and state for inputs like `x`, without computing them."""
        return jax.eval_shape(self.init_variables, jax.random.key(0), x)

    def draws_noise(self, x: Inputs) -> bool:
        """Return whether outputs in training depend on random numbers, for inputs of these shapes."""
        key = jax.random.key(0)
        variables = self.shapes_of_variables(x)
        traced = jax.make_jaxpr(lambda key, params, state, x: self.apply_in_training(params, state, x, key)[0])
        jaxpr = traced(key, *variables, x).jaxpr
        needed = {id(var) for var in jaxpr.outvars}
        for equation in reversed(jaxpr.eqns):
            if any(id(var) in needed for var in equation.outvars):
                needed |= {id(var) for var in equation.invars}
        return id(jaxpr.invars[0]) in needed


def check_has_parameters(params: Params) -> None:
    """Refuse a network without parameters, of which there is one alone, and no ensemble."""
    if not jax.tree.leaves(params):
        fix = "All members would be the same function. Add a layer with parameters, such as `Dense`."
        raise refusal("module", expected="a network with parameters", got="one without any", fix=fix)


Module = nn.Module | Callable | tuple | Model
"""A network as users pass it: a Linen module, an NNX factory, a pair `(init, apply)`, a stax triple; or its model."""


class _Linen(Model):
    module: nn.Module

    def init_variables(self, key: jax.Array, x: Inputs) -> tuple[Params, State]:
        module, arguments = self._in_mode(training=False)
        with _refusing_to_be_switched():
            variables = flax.core.unfreeze(module.init(key, x, **arguments))
        params = variables.pop("params", {})
        if not variables:
            return params, {}
        after = jax.eval_shape(self.apply_in_training, params, variables, x, key)[1]
        # What is sown grows with every call: it is a result, and not a state.
        state = {name: part for name, part in variables.items() if _shapes(part) == _shapes(after[name])}
        # Statistics that begin in single precision continue in that of the inputs.
        return params, _with_dtypes_of(after, state)

    def apply(self, params: Params, x: Inputs, state: State = ()) -> Any:
        module, arguments = self._in_mode(training=False)
        with _refusing_to_be_switched():
            return module.apply({"params": params, **dict(state)}, x, **arguments)

    def apply_in_training(self, params: Params, state: State, x: Inputs, key: jax.Array) -> tuple[Any, State]:
        module, arguments = self._in_mode(training=True)
        # Flax takes streams that are not named from "params".
        streams = {"dropout": key, "params": jax.random.fold_in(key, 1)}
        with _refusing_to_be_switched():
            outputs, after = module.apply(
                {"params": params, **dict(state)}, x, **arguments, rngs=streams, mutable=list(dict(state))
            )
        return outputs, flax.core.unfreeze(after)

    def export(self, params: Params, state: State) -> Any:
        return {"params": params, **dict(state)}

    def _in_mode(self, *, training: bool) -> tuple[nn.Module, dict[str, Any]]:
        """Return the module and the arguments of its call that put it into a mode."""
        known = _known_arguments(type(self.module).__call__, self.modes, training=training)
        fields = {field.name: getattr(self.module, field.name) for field in dataclasses.fields(self.module)}
        # An attribute that is set in the constructor is what the user wants: Flax does not take it twice.
        arguments = {name: value for name, value in known.items() if fields.get(name) is None}
        chosen = dict(_chosen(self.modes, training=training))
        attributes = {name: value for name, value in chosen.items() if name not in _takes(type(self.module).__call__)}
        arguments |= {name: value for name, value in chosen.items() if name not in attributes}
        _refuse_unknown(sorted(attributes.keys() - fields), type(self.module))
        return (self.module.clone(**attributes) if attributes else self.module), arguments


class _NNX(Model):
    module: Callable

    def init_variables(self, key: jax.Array, x: Inputs) -> tuple[Params, State]:
        _, params, _, state = _split(self.module(nnx.Rngs(key)))
        # NNX keeps the dtypes of variables, so that single precision would limit inputs in double precision.
        dtypes = [leaf.dtype for leaf in jax.tree.leaves(x) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        return params, jax.tree.map(lambda leaf: _at_least(leaf, dtypes), state)

    def apply(self, params: Params, x: Inputs, state: State = ()) -> Any:
        key = jax.random.key(0)
        module = self._merge(params, state, key)
        before = _split(module)[2:]
        outputs = self._call(module, x, None, training=False)
        changed = [*map(_is_other, jax.tree.leaves(before), jax.tree.leaves(_split(module)[2:]))]
        if any(changed):
            raise _refusal_of_one_mode("one that draws random numbers or changes its variables in evaluation too")
        return outputs

    def apply_in_training(self, params: Params, state: State, x: Inputs, key: jax.Array) -> tuple[Any, State]:
        module = self._merge(params, state, key)
        outputs = self._call(module, x, jax.random.fold_in(key, 1), training=True)
        return outputs, _entries_of(dict(state), _split(module)[3])

    def export(self, params: Params, state: State) -> Any:
        graph, variables = nnx.split(self.module(nnx.Rngs(0)))
        nnx.replace_by_pure_dict(variables, params)
        nnx.replace_by_pure_dict(variables, dict(state))
        module = nnx.merge(graph, variables)
        module.eval()
        return module

    def _merge(self, params: Params, state: State, key: jax.Array) -> nnx.Module:
        """Return the module with these variables, whose streams of random numbers begin anew with this key."""
        module = nnx.eval_shape(lambda: self.module(nnx.Rngs(0)))
        graph, variables = nnx.split(module)
        streams, tree = jax.tree.flatten(_split(module)[2])
        if _shapes(dict(state)) != _shapes(_split(module)[3]):
            raise _refusal_of_state("other variables" if state else "none")
        streams = [_new_stream(leaf, jax.random.fold_in(key, number)) for number, leaf in enumerate(streams, 2)]
        for part in (params, dict(state), jax.tree.unflatten(tree, streams)):
            nnx.replace_by_pure_dict(variables, part)
        return nnx.merge(graph, variables)

    def _call(self, module: nnx.Module, x: Inputs, key: jax.Array | None, *, training: bool) -> Any:
        """Return the outputs of a module in a mode; `key` is for modules that take their streams as an argument."""
        if isinstance(module, nnx.Module):
            module.train() if training else module.eval()
        takes = _takes(type(module).__call__)
        arguments: dict[str, Any] = {**_known_arguments(type(module).__call__, self.modes, training=training)}
        if "rngs" in takes:
            arguments["rngs"] = None if key is None else nnx.Rngs(key)
        for name, value in _chosen(self.modes, training=training):
            if name in takes:
                arguments[name] = value
            else:
                _refuse_unknown([] if _has_attribute(module, name) else [name], type(module))
                module.set_attributes(**{name: value})
        with _refusing_to_be_switched():
            return module(x, **arguments)


class _Pair(Model):
    module: tuple

    def init_variables(self, key: jax.Array, x: Inputs) -> tuple[Params, State]:
        return self.module[0](key, x), ()

    def apply(self, params: Params, x: Inputs, state: State = ()) -> Any:
        return self.module[1](params, x)

    def apply_in_training(self, params: Params, state: State, x: Inputs, key: jax.Array) -> tuple[Any, State]:
        return self.module[1](params, x), state

    def export(self, params: Params, state: State) -> Any:
        return params


class _Triple(Model):
    module: tuple

    def init_variables(self, key: jax.Array, x: Inputs) -> tuple[Params, State]:
        return self.module[0](key, _input_shape(x))[1], ()

    def apply(self, params: Params, x: Inputs, state: State = ()) -> Any:
        return _apply_stax(self.module[1], params, x, None)

    def apply_in_training(self, params: Params, state: State, x: Inputs, key: jax.Array) -> tuple[Any, State]:
        return _apply_stax(self.module[1], params, x, key), state

    def export(self, params: Params, state: State) -> Any:
        return params


def as_model(module: Module) -> Model:
    """Return the model of whatever `train` accepts as a module."""
    if isinstance(module, Model):
        return module
    if isinstance(module, nn.Module):
        return _Linen(_with_frozen_attributes(module))
    if isinstance(module, tuple) and all(callable(part) for part in module[:2]) and len(module) in (2, 3):
        return _Pair(module) if len(module) == 2 else _Triple(tuple(module))
    if callable(module) and not isinstance(module, nnx.Module | KernelFn) and not _is_linen_class(module):
        return _NNX(module)
    expected = "a Linen module, an NNX factory (rngs -> module), a pair (init, apply) or a stax triple"
    fix = "Call a Linen class to make a module of it: `Net(...)`."
    if isinstance(module, nnx.Module):
        fix = "Members differ in their random keys, so pass a factory: `lambda rngs: Net(..., rngs=rngs)`."
    raise refusal("module", expected=expected, got=repr(module)[:80], fix=fix, kind=TypeError)


def _with_frozen_attributes(module: nn.Module) -> nn.Module:
    """Return the module as Flax itself binds it, lists as tuples, because compiled programs are found by its hash."""
    frozen = _freeze(module, {})
    if not _is_hashable(frozen):
        names = [field.name for field in dataclasses.fields(frozen) if not _is_hashable(getattr(frozen, field.name))]
        got = f"{type(module).__name__} with {', '.join(names)}"
        fix = "Pass numbers instead of arrays, and compute arrays from them inside of the module."
        raise refusal("module", expected="a module with hashable attributes", got=got, fix=fix, kind=TypeError)
    return frozen


def _freeze(value: Any, known: dict[int, nn.Module]) -> Any:
    """Return an attribute of a Linen module without lists and dictionaries; modules that are shared stay shared."""
    if isinstance(value, dict | flax.core.FrozenDict):
        return flax.core.FrozenDict({key: _freeze(part, known) for key, part in value.items()})
    if isinstance(value, list) or type(value) is tuple:
        return tuple(_freeze(part, known) for part in value)
    if not isinstance(value, nn.Module) or _is_hashable(value):
        return value
    if id(value) not in known:
        names = [field.name for field in dataclasses.fields(value) if field.init and field.name != "parent"]
        known[id(value)] = value.clone(**{name: _freeze(getattr(value, name), known) for name in names})
    return known[id(value)]


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def with_modes(module: Module, /, *, training: Mapping[str, Any], evaluation: Mapping[str, Any]) -> Model:
    """Return a Flax module together with how it is switched between training and evaluation.

    This is needed only for modules that are switched in a way of their own. Arguments of `__call__` that are named
    `train`, `training`, `is_training`, `deterministic` or `use_running_average` are found without it, and NNX modules
    are switched by their methods `train` and `eval`.

    Args:
        module: a Linen module, or an NNX factory `rngs -> module`.
        training: names and values of arguments of `__call__` in training. A name that is no argument is an attribute.
        evaluation: the same for predictions.

    Returns:
        What `train`, `untrained`, `expected_layout`, `as_pair` and `Run.load` take as a module.

    Raises:
        TypeError: `module` is no Flax module.
        ValueError: the settings of a mode are no dictionary of hashable values, or not about the same names.

    Example:
        >>> import flax.linen as nn
        >>> import jax, jax.numpy as jnp
        >>> from ntk_equiv import ensembles
        >>> class Net(nn.Module):
        ...     @nn.compact
        ...     def __call__(self, x, phase="fit"):
        ...         x = nn.Dropout(0.5, deterministic=phase == "use")(x)
        ...         return nn.Dense(1, kernel_init=nn.initializers.ones)(x)
        >>> net = ensembles.with_modes(Net(), training={"phase": "fit"}, evaluation={"phase": "use"})
        >>> print(ensembles.untrained(net, jnp.ones((1, 2)), members=1, key=jax.random.key(0)).mean(jnp.ones((1, 2))))
        [[2.]]
    """
    model = as_model(module)
    if not isinstance(model, _Linen | _NNX):
        fix = "Pairs have one mode alone, and the layers of stax are switched without it."
        raise refusal("module", expected="a Flax module", got=repr(module)[:80], fix=fix, kind=TypeError)
    for argument, value in {"training": training, "evaluation": evaluation}.items():
        fix = 'Pass names and values of arguments of `__call__`, for example {"phase": "fit"}.'
        fine = isinstance(value, Mapping) and all(isinstance(name, str) for name in value)
        if not fine or not all(isinstance(entry, Hashable) for entry in value.values()):
            raise refusal(argument, expected="a dictionary of names and hashable values", got=repr(value), fix=fix)
    if training.keys() != evaluation.keys():
        fix = "Give each argument a value in both modes."
        got = f"{sorted(evaluation)}"
        raise refusal("evaluation", expected=f"about the names in `training`, {sorted(training)}", got=got, fix=fix)
    modes = Modes(tuple(sorted(training.items())), tuple(sorted(evaluation.items())))
    return dataclasses.replace(model, modes=modes)


def as_pair(module: Module, /) -> tuple[Callable, Callable]:
    """Return any network that `train` accepts as two functions, `init(key, x) -> params` and `apply(params, x)`.

    A network with dropout is evaluated without noise.

    Args:
        module: a Linen module, an NNX factory `rngs -> module`, a pair `(init, apply)` or a stax triple.

    Returns:
        The pair. It identifies compiled programs, so make it once and keep it. If the network has a state, such as
        running statistics, pass that too: `apply(params, x, state)`.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from flax import nnx
        >>> from ntk_equiv import empirical_kernel_fn, ensembles
        >>> init, apply = ensembles.as_pair(lambda rngs: nnx.Linear(2, 1, use_bias=False, rngs=rngs))
        >>> x = jnp.array([[1.0, 2.0], [0.0, 1.0]])
        >>> print(empirical_kernel_fn(apply, init(jax.random.key(0), x))(x, None, "ntk"))
        [[5. 2.]
         [2. 1.]]
    """
    model = as_model(module)
    return model.init, model.apply


def to_flax(net: tuple, /) -> nn.Module:
    """Return a Linen module around a stax triple: the same function, parameterization and initial law.

    Args:
        net: a triple `(init_fn, apply_fn, kernel_fn)`, or its first two parts.

    Returns:
        A Linen module whose parameters are those of the triple, under the name "net". Called with `train=True` and a
        stream of random numbers, `rngs={"dropout": key}`, it has the noise of dropout layers.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from ntk_equiv import ensembles, stax
        >>> module = ensembles.to_flax(stax.serial(stax.Dense(8), stax.Relu(), stax.Dense(1)))
        >>> variables = module.init(jax.random.key(0), jnp.ones((2, 3)))
        >>> jax.tree.map(jnp.shape, variables["params"]["net"])
        [((3, 8), None), (), ((8, 1), None)]
        >>> module.apply(variables, jnp.ones((2, 3))).shape
        (2, 1)
    """
    if not (isinstance(net, tuple) and len(net) in (2, 3) and all(callable(part) for part in net[:2])):
        fix = "Build one with `ntk_equiv.stax`."
        raise refusal("net", expected="a triple (init_fn, apply_fn, kernel_fn)", got=repr(net)[:80], fix=fix)
    return StaxModule(net[0], net[1])


class StaxModule(nn.Module):
    """A Linen module that evaluates a stax network; made by `to_flax`."""

    init_fn: Callable
    apply_fn: Callable

    @nn.compact
    def __call__(self, x: Inputs, train: bool = False) -> Any:
        """Return the outputs of the network."""
        params = self.param("net", lambda key: self.init_fn(key, _input_shape(x))[1])
        return _apply_stax(self.apply_fn, params, x, self.make_rng("dropout") if train else None)


def _apply_stax(apply_fn: Callable, params: Params, x: Inputs, key: jax.Array | None) -> Any:
    """Return the outputs of a stax network, with the noise of a key if there is one."""
    takes = inspect.signature(apply_fn).parameters
    anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values())
    if key is not None:
        return apply_fn(params, x, rng=key) if anything or "rng" in takes else apply_fn(params, x)
    return apply_fn(params, x, mode="test") if "mode" in takes else apply_fn(params, x)


def _input_shape(x: Inputs) -> tuple[int, ...]:
    """Return the shape that `init_fn` takes: that of the array, or of the nodes of a graph."""
    return (-1, *jax.tree.leaves(x)[0].shape[1:])


def _is_linen_class(module: Any) -> bool:
    return isinstance(module, type) and issubclass(module, nn.Module)


# How modules are switched.


def _chosen(modes: Modes | None, *, training: bool) -> tuple[tuple[str, Any], ...]:
    """Return names and values that the user chose for a mode."""
    if modes is None:
        return ()
    return modes.training if training else modes.evaluation


def _takes(call: Callable) -> Mapping[str, inspect.Parameter]:
    """Return the arguments of a call beside the module itself and its inputs."""
    return dict([*inspect.signature(call).parameters.items()][2:])


def _known_arguments(call: Callable, modes: Modes | None, *, training: bool) -> dict[str, bool]:
    """Return the mode arguments of a call with their values; refuse other arguments without a default."""
    takes = _takes(call)
    chosen = dict(_chosen(modes, training=training))
    required = [
        name
        for name, parameter in takes.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and name not in {*MODE_ARGUMENTS, *chosen, "rngs"}
    ]
    if required:
        fix = "If they tell training from evaluation, use `ensembles.with_modes`; otherwise give them default values."
        got = f"one that also needs {', '.join(required)}"
        raise refusal("module", expected="one that is called with inputs alone", got=got, fix=fix)
    return {name: value == training for name, value in MODE_ARGUMENTS.items() if name in takes and name not in chosen}


def _has_attribute(module: nnx.Module, name: str) -> bool:
    # `nnx.iter_modules` is newer than the oldest Flax that is supported.
    return any(isinstance(part, nnx.Module) and hasattr(part, name) for _, part in nnx.iter_graph(module))


def _refuse_unknown(names: list[str], module: type) -> None:
    if names:
        fix = "Check their spelling in `with_modes`."
        expected = f"one with arguments or attributes {', '.join(names)}"
        raise refusal("module", expected=expected, got=module.__name__, fix=fix)


@contextlib.contextmanager
def _refusing_to_be_switched() -> Iterator[None]:
    """Refuse modules that cannot be switched, or are called without their state, in place of what Flax says of them."""
    try:
        yield
    except flax.errors.InvalidRngError as error:
        raise _refusal_of_one_mode(f"one that draws random numbers in both: {_first_sentence(error)}") from None
    except flax.errors.ModifyScopeVariableError as error:
        raise _refusal_of_one_mode(f"one that changes variables in both: {_first_sentence(error)}") from None
    except flax.errors.ScopeCollectionNotFound as error:
        raise _refusal_of_state(_first_sentence(error)) from None
    except ValueError as error:
        if not any(text in str(error) for text in MODE_IS_MISSING):
            raise
        raise _refusal_of_one_mode(f"one of which Flax says: {_first_sentence(error)}") from None


def _refusal_of_one_mode(got: str) -> Exception:
    expected = "one that can be switched between training and evaluation"
    return refusal("module", expected=expected, got=got, fix=HOW_TO_SWITCH)


def _refusal_of_state(got: str) -> Exception:
    fix = "Pass the state of the member, which is in `run.state`, as the third argument of `apply`."
    return refusal("state", expected="that of the network", got=got, fix=fix)


def _first_sentence(error: Exception) -> str:
    return str(error).split(" (http")[0].splitlines()[0].rstrip(".")


# Variables as nested dictionaries.


def _split(module: nnx.Module) -> tuple[Any, dict, dict, dict]:
    """Return the structure of a module, its parameters, its streams of random numbers, and its state."""
    parts: Any = nnx.split(module, nnx.Param, nnx.RngState, nnx.Intermediate, ...)
    graph, params, streams, _, state = parts
    return graph, nnx.to_pure_dict(params), nnx.to_pure_dict(streams), nnx.to_pure_dict(state)


def _new_stream(leaf: Any, key: jax.Array) -> jax.Array:
    """Return the key of a stream of random numbers, or the number 0 of those that it has drawn."""
    if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jnp.zeros(leaf.shape, leaf.dtype)
    return jax.random.split(key, leaf.shape) if leaf.shape else key


def _is_other(before: Any, after: Any) -> bool:
    return before is not after


def _entries_of(wanted: Any, tree: Any) -> Any:
    """Return the entries of nested dictionaries that other ones have too."""
    return {name: _entries_of(part, tree[name]) for name, part in wanted.items()} if isinstance(wanted, dict) else tree


def with_dtype(leaf: Any, dtype: Any) -> Any:
    """Return an array of exactly this dtype: none of JAX's weak types, which change when they meet others."""
    return leaf if jnp.issubdtype(dtype, jax.dtypes.prng_key) else jnp.asarray(leaf).astype(dtype)


def _shapes(tree: Any) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [leaf.shape for leaf in leaves]


def _at_least(leaf: Any, dtypes: list) -> Any:
    """Return an array with at least the precision of these dtypes, if it holds floating-point numbers."""
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        return leaf
    return jnp.asarray(leaf, jnp.result_type(leaf.dtype, *dtypes))


def _with_dtypes_of(wanted: Mapping[str, Any], tree: dict[str, Any]) -> dict[str, Any]:
    return {
        name: jax.tree.map(lambda leaf, like: with_dtype(leaf, like.dtype), part, wanted[name])
        for name, part in tree.items()
    }
