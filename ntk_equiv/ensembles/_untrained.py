"""The ensemble before training: f_m(x; θ_m) with θ_m drawn from the initial law, which `train` begins with."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from ntk_equiv._check import positive_integer, random_key, refusal, samples_in
from ntk_equiv.ensembles._configuration import parameter_specs
from ntk_equiv.ensembles._history import History
from ntk_equiv.ensembles._inputs import spec
from ntk_equiv.ensembles._layout import Layout, activation_bytes, layout_of, suited
from ntk_equiv.ensembles._loop import initial_params, raw_key
from ntk_equiv.ensembles._model import model_of
from ntk_equiv.ensembles._run import Run


def expected_layout(
    module: Any,
    x: Any,
    /,
    *,
    members: int,
    layout: str = "auto",
    chunk: int | None = None,
    devices: Sequence[Any] | None = None,
) -> Layout:
    """How members would be laid out over devices, by `train` in steps of such inputs, or by `untrained`.

    Args:
        module: as for `train`.
        x: a batch of inputs, or their shapes as `jax.ShapeDtypeStruct`.
        members: how many.
        layout: as for `train`.
        chunk: likewise.
        devices: likewise.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import ensembles
        >>> ensembles.expected_layout(ensembles.mlp((512,), 1), jnp.ones((128, 25)), members=1).members
        1
    """
    model = model_of(module)
    samples_in(x, "x")
    structure = jax.eval_shape(model.init, jax.random.key(0), x)
    bytes_each = 0 if layout == "map" else activation_bytes(model.apply, structure, x)
    found = layout_of(members, layout, chunk=chunk, devices=devices, bytes_each=bytes_each)
    return suited(found, model.apply, structure, x, chosen=layout != "auto" or chunk is not None)


def untrained(
    module: Any,
    x: Any,
    /,
    *,
    members: int,
    key: jax.Array,
    layout: str = "auto",
    chunk: int | None = None,
    devices: Sequence[Any] | None = None,
) -> Run:
    """The ensemble with which `train` begins, given the same module and key: a run of 0 steps.

    Its parameters are `run.params`, arrays [members, ...], and one member is the function
    `run.model.apply(params, x)`, which may be differentiated by parameters and inputs alike.

    Args:
        module: as for `train`.
        x: inputs [n, ...] that the networks are made for, of which only the shapes matter.
        members: how many; the first of them are those of a smaller ensemble.
        key: a JAX random key.
        layout: as for `train`.
        chunk: likewise.
        devices: likewise.

    Returns:
        The run, with `predict` and all the rest.

    Raises:
        ValueError: there are no inputs.
        TypeError: the module is none, or the inputs are no arrays.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> from ntk_equiv import ensembles
        >>> line = lambda key, x: jax.random.uniform(key, (2, 1)), lambda w, x: x @ w[:1] + w[1:]
        >>> data, settings = (jnp.eye(1), jnp.eye(1)), {"members": 3, "key": jax.random.key(0)}
        >>> before = ensembles.untrained(line, data[0], **settings)
        >>> before
        <ensemble of 3 members after 0 steps>
        >>> still = ensembles.train(line, data, steps=1, optimizer=optax.sgd(0.0), **settings)
        >>> bool(jnp.array_equal(before.predict(data[0]), still.predict(data[0])))
        True
    """
    model, members = model_of(module), positive_integer(members, "members")
    random_key(key)
    if not samples_in(x, "x"):
        raise refusal("x", expected="at least one sample", got="none", fix="Pass inputs [n, ...].")
    example = jax.tree.map(lambda leaf: np.asarray(leaf[:1]), x)
    structure = jax.eval_shape(model.init, jax.random.key(0), example)
    where = expected_layout(module, x, members=members, layout=layout, chunk=chunk, devices=devices)
    numbers, key_impl = raw_key(key)
    shared = where.share((numbers, example))
    params = initial_params(model, where, key_impl, where.deal(np.arange(members, dtype=np.int32)), *shared)
    described = {
        "members": members,
        "steps": 0,
        "key": [key_impl, *numbers.ravel().tolist()],
        "parameters": parameter_specs(structure),
        "inputs": [spec(leaf) for leaf in jax.tree.leaves(example)],
    }
    return Run(model, members, 0, described, where, History(), {}, params)
