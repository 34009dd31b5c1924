"""How members are laid out over devices.

Members are dealt out to all devices, of all processes. A device trains its members in chunks: one chunk after the
other, the members of a chunk together by `vmap`. Accelerators want large chunks. On CPUs batched products of matrices
are slow, so that chunks of one member are best, with one device for each core (see `use_cores`); only networks so tiny
that calling their operations takes longer than executing them are trained a few at a time.

Members that only fill up the last chunk are trained like the others, and dropped.

A device runs its chunks and their steps in one compiled loop. There is one exception: XLA has fast convolutions for
CPUs, but not inside of loops, where they take up to 35 times as long. So networks with these are trained step by step
there, in a loop of Python over chunks and steps, of which each is a program of its own.
"""

import dataclasses
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from ntk_equiv._check import one_of, positive_integer, refusal

AXIS = "members"
# What the activations of a chunk may take: on an accelerator, and on a core of a CPU, in whose cache they should stay.
BYTES_PER_CHUNK = {"accelerator": 2**30, "cpu": 2**20}
# More members at a time do not help a core.
LARGEST_CHUNK = {"accelerator": 2**31, "cpu": 8}


@dataclasses.dataclass(frozen=True, repr=False)
class Layout:
    """Where members are trained: `members` of them on the devices of `mesh`, `chunk` at a time on each.

    With `stepwise`, each step of a chunk is a program of its own, rather than all steps together.

    Example:
        >>> import jax
        >>> from ntk_equiv import ensembles
        >>> layout = ensembles.Layout(members=5, chunk=2, mesh=jax.make_mesh((1,), ("members",)))
        >>> layout, layout.padded                                        # the last chunk is filled up
        (<5 members, 2 at a time on each of 1 cpu device>, 6)
    """

    members: int
    chunk: int
    mesh: Mesh
    stepwise: bool = False

    def __repr__(self) -> str:
        devices = self.mesh.devices.ravel()
        kind = f"{len(devices)} {devices[0].platform} device{'s' * (len(devices) > 1)}"
        together = "one at a time" if self.chunk == 1 else f"{self.chunk} at a time"
        return f"<{self.members} members, {together} on each of {kind}{', step by step' * self.stepwise}>"

    @property
    def padded(self) -> int:
        """Members including those that fill up the last chunk."""
        group = self.chunk * self.mesh.size
        return -(-self.members // group) * group

    def over_members(self, function: Callable) -> Callable:
        """`function(member, *shared)` of every member, [padded, ...], with arrays that all members share."""

        def local(members: Any, *shared: Any) -> Any:
            each = lambda member: function(member, *shared)  # noqa: E731
            if self.chunk == 1:
                return jax.lax.map(each, members)
            chunks = jax.tree.map(lambda leaf: leaf.reshape(-1, self.chunk, *leaf.shape[1:]), members)
            found = jax.lax.map(jax.vmap(each), chunks)
            return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), found)

        return self._on_devices(local)

    def over_chunk(self, function: Callable) -> Callable:
        """The same for one chunk of members on each device, and without a loop."""

        def local(members: Any, *shared: Any) -> Any:
            if self.chunk == 1:
                found = function(jax.tree.map(lambda leaf: leaf[0], members), *shared)
                return jax.tree.map(lambda leaf: leaf[None], found)
            return jax.vmap(lambda member: function(member, *shared))(members)

        return self._on_devices(local)

    def chunk_of(self, members: Any, number: jax.Array) -> Any:
        """The chunk of this number of every device."""

        def local(members: Any, number: jax.Array) -> Any:
            start = number * self.chunk
            return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, self.chunk), members)

        return self._on_devices(local)(members, number)

    def with_chunk(self, members: Any, chunk: Any, number: jax.Array) -> Any:
        """Members of which the chunk of this number of every device is replaced."""

        def local(both: tuple, number: jax.Array) -> Any:
            start = number * self.chunk
            return jax.tree.map(lambda leaf, new: jax.lax.dynamic_update_slice_in_dim(leaf, new, start, 0), *both)

        return self._on_devices(local)((members, chunk), number)

    @property
    def chunks(self) -> int:
        """How many chunks a device has."""
        return self.padded // (self.chunk * self.mesh.size)

    def numbers_of_chunk(self, number: int) -> np.ndarray:
        """The numbers of the members in the chunk of this number of every device."""
        numbers = np.arange(self.padded).reshape(self.mesh.size, self.chunks, self.chunk)
        return numbers[:, number].ravel()

    def _on_devices(self, local: Callable) -> Callable:
        """`local(members, *shared)` on each device with its own members, and arrays that all of them share."""

        def mapped(members: Any, *shared: Any) -> Any:
            specs = (P(AXIS), *(P() for _ in shared))
            # Loops mix values that are shared with values that are not, which the check of shard_map cannot follow.
            return jax.shard_map(local, mesh=self.mesh, in_specs=specs, out_specs=P(AXIS), check_vma=False)(
                members, *shared
            )

        return mapped

    def deal(self, tree: Any) -> Any:
        """Arrays of all members [members, ...] on the devices, filled up with copies of the first."""
        filling = self.padded - self.members

        def dealt(leaf: Any) -> jax.Array:
            leaf = np.asarray(leaf)
            leaf = np.concatenate([leaf, np.repeat(leaf[:1], filling, axis=0)]) if filling else leaf
            return self._placed(leaf, P(AXIS))

        return jax.tree.map(dealt, tree)

    def share(self, tree: Any) -> Any:
        """Arrays that all members share, on all devices."""
        return jax.tree.map(lambda leaf: self._placed(np.asarray(leaf), P()), tree)

    def collect(self, tree: Any) -> Any:
        """Arrays [members, ...] in the memory of every process, without what fills up."""
        return jax.tree.map(lambda leaf: leaf[: self.members], self.gather(tree))

    def gather(self, tree: Any) -> Any:
        """Arrays in the memory of every process, with all that they hold."""
        whole = multihost_utils.process_allgather(tree, tiled=True) if jax.process_count() > 1 else jax.device_get(tree)
        return jax.tree.map(np.asarray, whole)

    def _placed(self, leaf: np.ndarray, spec: P) -> jax.Array:
        return jax.make_array_from_callback(leaf.shape, NamedSharding(self.mesh, spec), lambda index: leaf[index])


def layout_of(
    members: int,
    kind: str = "auto",
    *,
    chunk: int | None = None,
    devices: Sequence[Any] | None = None,
    bytes_each: int = 0,
) -> Layout:
    """The layout that fits the devices, or the one asked for.

    Args:
        members: how many.
        kind: "map", one member at a time; "vmap", chunks as for an accelerator; "auto", what suits the devices.
        chunk: members in a chunk; by default as many as leave room for their activations.
        devices: which; all by default.
        bytes_each: what the activations of a member take.
    """
    members = positive_integer(members, "members")
    one_of(kind, ("auto", "map", "vmap"), "layout")
    devices = jax.devices() if devices is None else _listed(devices)
    # A device without a member would train one for nothing; processes must all take part.
    devices = devices if jax.process_count() > 1 else devices[:members]
    if kind == "map" and chunk not in (None, 1):
        fix = 'Chunks are for layout="vmap".'
        raise refusal("chunk", expected='left out for layout="map"', got=chunk, fix=fix)
    largest = math.ceil(members / len(devices))
    if chunk is None:
        device = "cpu" if kind == "auto" and devices[0].platform == "cpu" else "accelerator"
        room = min(max(1, BYTES_PER_CHUNK[device] // max(1, bytes_each)), LARGEST_CHUNK[device])
        # Equal chunks: of 100 members with room for 60, twice 50.
        chunk = 1 if kind == "map" else math.ceil(largest / math.ceil(largest / room))
    chunk = min(positive_integer(chunk, "chunk"), largest)
    return Layout(members, chunk, Mesh(np.array(devices), (AXIS,)))


def suited(layout: Layout, function: Callable, *arguments: Any, chosen: bool = False) -> Layout:
    """The layout, or one that goes step by step where that is faster for networks that evaluate this function.

    Args:
        layout: as found by `layout_of`.
        function: what members evaluate.
        arguments: those of the function, or their shapes.
        chosen: whether the user chose the size of chunks. Otherwise they are of one member: together, convolutions
            are even slower than in a loop.
    """
    if layout.mesh.devices.ravel()[0].platform != "cpu" or not convolves(function, *arguments):
        return layout
    return dataclasses.replace(layout, chunk=layout.chunk if chosen else 1, stepwise=True)


def convolves(function: Callable, *arguments: Any) -> bool:
    """Whether CPUs evaluate a function with the convolution of XLA.

    Example:
        >>> import jax.numpy as jnp
        >>> from jax import lax
        >>> convolves(lambda x: lax.conv(x, x, (1, 1), "SAME"), jnp.ones((1, 1, 3, 3))), convolves(jnp.sin, 1.0)
        (True, False)
    """
    traced = jax.jit(function).trace(*arguments)
    if "conv_general_dilated" not in str(traced.jaxpr):
        return False
    # Those of ours are products on CPUs, which shows in what is compiled for them.
    return "stablehlo.convolution" in traced.lower(lowering_platforms=("cpu",)).as_text()


def _listed(devices: Any) -> list[Any]:
    found = list(devices) if isinstance(devices, Sequence | np.ndarray) else []
    if not found or not all(isinstance(device, jax.Device) for device in found):
        fix = "Pass some of `jax.devices()`, or leave it out for all."
        raise refusal("devices", expected="devices of JAX", got=repr(devices), fix=fix, kind=TypeError)
    return found


def activation_bytes(function: Callable, *arguments: Any) -> int:
    """What all intermediate results of a function take together, from above."""
    jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
    return sum(math.prod(v.aval.shape) * v.aval.dtype.itemsize for eqn in jaxpr.eqns for v in eqn.outvars)


def use_cores(count: int | None = None, /) -> int:
    """Make JAX see one device for every core of the CPU, so that members are trained side by side.

    JAX decides how many devices a CPU is when it is first used, so this has to be called before: at the top of a
    script. It does what the environment variable `XLA_FLAGS=--xla_force_host_platform_device_count=8` does.

    Args:
        count: how many devices; by default as many as this process may use cores.

    Returns:
        The number of devices.

    Raises:
        RuntimeError: JAX is already running.

    Example:
        >>> from ntk_equiv import ensembles
        >>> ensembles.use_cores(4)      # doctest: +SKIP
        4
    """
    count = available_cores() if count is None else positive_integer(count, "count")
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError as error:
        fix = "Call it at the top of the script, before anything is computed with JAX."
        raise refusal(
            "use_cores", expected="called before JAX is used", got="a call after", fix=fix, kind=RuntimeError
        ) from error
    return count


def available_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
