"""How members are laid out over devices.

Members are dealt out to all devices, of all processes. A device trains its members in chunks: one chunk after the
other, the members of a chunk together by `vmap`. Accelerators work best with large chunks. On CPUs batched products of
matrices are slow, so chunks of one member are best, with one device for each core (see `use_cores`). Only tiny
networks, whose operations take longer to call than to execute, are trained a few at a time.

The last chunk is filled up with copies, which are trained like the others and then dropped.

A device runs its chunks and their steps in one compiled loop. There is one exception: XLA has fast convolutions for
CPUs, but not inside of loops, where they take up to 35 times as long. So on CPUs networks with convolutions of XLA are
trained step by step, in a Python loop over chunks and steps in which each step is a program of its own.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from ntk_equiv._check import one_of, positive_integer, refusal
from ntk_equiv._machine import available_cores

AXIS = "members"
# Memory for the activations of a chunk. On a core of a CPU they should stay in its cache.
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
        """The number of members including those that fill up the last chunk."""
        group = self.chunk * self.mesh.size
        return -(-self.members // group) * group

    def over_members(self, function: Callable) -> Callable:
        """Return a function that applies `function(member, *shared)` to every member, [padded, ...].

        The arrays in `shared` are the same for all members.
        """

        def local(members: Any, *shared: Any) -> Any:
            each = lambda member: function(member, *shared)  # noqa: E731
            if self.chunk == 1:
                return jax.lax.map(each, members)
            chunks = jax.tree.map(lambda leaf: leaf.reshape(-1, self.chunk, *leaf.shape[1:]), members)
            results = jax.lax.map(jax.vmap(each), chunks)
            return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), results)

        return self._on_devices(local)

    def in_place(self, function: Callable) -> Callable:
        """Return what `over_members` returns, for a function that returns a member like the one that it was given.

        Every chunk is replaced by its result. So the memory of the members, if it is donated, serves both.
        """

        def local(members: Any, *shared: Any) -> Any:
            each = self._together(lambda member: function(member, *shared))

            def replace(number: jax.Array, members: Any) -> Any:
                return self._replace_chunk(members, each(self._cut_chunk(members, number)), number)

            count = jax.tree.leaves(members)[0].shape[0] // self.chunk
            return jax.lax.fori_loop(0, count, replace, members)

        return self._on_devices(local)

    def over_chunk(self, function: Callable) -> Callable:
        """Return what `over_members` returns, but for one chunk of members on each device, and without a loop."""

        def local(members: Any, *shared: Any) -> Any:
            return self._together(lambda member: function(member, *shared))(members)

        return self._on_devices(local)

    def chunk_of(self, members: Any, number: jax.Array) -> Any:
        """Return the chunk with this number from every device."""
        return self._on_devices(self._cut_chunk)(members, number)

    def with_chunk(self, members: Any, chunk: Any, number: jax.Array) -> Any:
        """Return the members with the chunk of this number replaced on every device."""
        replace = self._on_devices(lambda both, number: self._replace_chunk(both[0], both[1], number))
        return replace((members, chunk), number)

    def _together(self, function: Callable) -> Callable:
        """Return a function that applies `function` to the members of one chunk."""
        if self.chunk > 1:
            return jax.vmap(function)

        def alone(members: Any) -> Any:
            result = function(jax.tree.map(lambda leaf: leaf[0], members))
            return jax.tree.map(lambda leaf: leaf[None], result)

        return alone

    def _cut_chunk(self, members: Any, number: jax.Array) -> Any:
        start = number * self.chunk
        return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, self.chunk), members)

    def _replace_chunk(self, members: Any, chunk: Any, number: jax.Array) -> Any:
        start = number * self.chunk
        update = jax.lax.dynamic_update_slice_in_dim
        return jax.tree.map(lambda leaf, new: update(leaf, new, start, 0), members, chunk)

    @property
    def chunks(self) -> int:
        """The number of chunks on a device."""
        return self.padded // (self.chunk * self.mesh.size)

    def numbers_of_chunk(self, number: int) -> np.ndarray:
        """Return the numbers of the members in the chunk with this number, of all devices."""
        numbers = np.arange(self.padded).reshape(self.mesh.size, self.chunks, self.chunk)
        return numbers[:, number].ravel()

    def _on_devices(self, local: Callable) -> Callable:
        """Return a function that applies `local(members, *shared)` on each device to the members of that device."""

        def mapped(members: Any, *shared: Any) -> Any:
            specs = (P(AXIS), *(P() for _ in shared))
            # Loops mix values that are shared with values that are not. The check of `shard_map` cannot follow that.
            return jax.shard_map(local, mesh=self.mesh, in_specs=specs, out_specs=P(AXIS), check_vma=False)(
                members, *shared
            )

        return mapped

    def deal(self, tree: Any) -> Any:
        """Put arrays of all members [members, ...] on the devices, filled up with copies of the first member."""
        filling = self.padded - self.members

        def deal_leaf(leaf: Any) -> jax.Array:
            leaf = np.asarray(leaf)
            leaf = np.concatenate([leaf, np.repeat(leaf[:1], filling, axis=0)]) if filling else leaf
            return self._place(leaf, P(AXIS))

        return jax.tree.map(deal_leaf, tree)

    def share(self, tree: Any) -> Any:
        """Put arrays that all members share on all devices."""
        return jax.tree.map(lambda leaf: self._place(np.asarray(leaf), P()), tree)

    def fetch(self, shape: tuple[int, ...], part: Callable[[Any], np.ndarray]) -> jax.Array:
        """Return an array of a chunk of members on each device, from a function that returns the part at an index.

        Each process asks only for what its own devices need.
        """
        return jax.make_array_from_callback(shape, NamedSharding(self.mesh, P(AXIS)), part)

    def collect(self, tree: Any) -> Any:
        """Return arrays [members, ...] in the memory of every process, without the copies that fill up chunks."""
        return jax.tree.map(lambda leaf: leaf[: self.members], self.gather(tree))

    def gather(self, tree: Any) -> Any:
        """Return arrays [padded, ...] in the memory of every process."""
        whole = multihost_utils.process_allgather(tree, tiled=True) if jax.process_count() > 1 else jax.device_get(tree)
        return jax.tree.map(np.asarray, whole)

    def _place(self, leaf: np.ndarray, spec: P) -> jax.Array:
        return jax.make_array_from_callback(leaf.shape, NamedSharding(self.mesh, spec), lambda index: leaf[index])


def choose_layout(
    function: Callable,
    *arguments: Any,
    members: int,
    layout: str,
    chunk: int | None,
    devices: Sequence[jax.Device] | np.ndarray | None,
) -> Layout:
    """Return the layout that suits the devices and the size of a network, or the one that was asked for.

    Args:
        function: what each member evaluates.
        arguments: those of the function, or their shapes.
        members: how many members there are.
        layout: as for `make_layout`.
        chunk: as for `make_layout`.
        devices: as for `make_layout`.
    """
    bytes_each = 0 if layout == "map" else activation_bytes(function, *arguments)
    chosen = make_layout(members, layout, chunk=chunk, devices=devices, bytes_each=bytes_each)
    keep_chunk = layout != "auto" or chunk is not None
    return step_by_step_if_faster(chosen, function, *arguments, keep_chunk=keep_chunk)


def make_layout(
    members: int,
    kind: str = "auto",
    *,
    chunk: int | None = None,
    devices: Sequence[jax.Device] | np.ndarray | None = None,
    bytes_each: int = 0,
) -> Layout:
    """Return the layout for members whose activations take so much memory.

    Args:
        members: how many members there are.
        kind: "map", one member at a time; "vmap", chunks as for an accelerator; "auto", what suits the devices.
        chunk: members in a chunk; by default as many as leave room for their activations.
        devices: the devices to use; by default all of them.
        bytes_each: the size of the activations of a member.
    """
    one_of(kind, ("auto", "map", "vmap"), "layout")
    devices = jax.devices() if devices is None else _device_list(devices)
    # A device without a member would train a copy for nothing. But every process must take part.
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


def step_by_step_if_faster(layout: Layout, function: Callable, *arguments: Any, keep_chunk: bool) -> Layout:
    """Return a layout that goes step by step if that is faster for networks that evaluate this function.

    Args:
        layout: the layout with a compiled loop.
        function: what each member evaluates.
        arguments: those of the function, or their shapes.
        keep_chunk: whether to keep the size of chunks, because the user chose it. Otherwise chunks have one member:
            together, convolutions are even slower than in a loop.
    """
    if layout.mesh.devices.ravel()[0].platform != "cpu" or not uses_xla_convolution(function, *arguments):
        return layout
    return dataclasses.replace(layout, chunk=layout.chunk if keep_chunk else 1, stepwise=True)


def uses_xla_convolution(function: Callable, *arguments: Any) -> bool:
    """Return whether CPUs evaluate a function with the convolution of XLA.

    Example:
        >>> import jax.numpy as jnp
        >>> from jax import lax
        >>> convolve = lambda x: lax.conv(x, x, (1, 1), "SAME")
        >>> uses_xla_convolution(convolve, jnp.ones((1, 1, 3, 3))), uses_xla_convolution(jnp.sin, 1.0)
        (True, False)
    """
    traced = jax.jit(function).trace(*arguments)
    if "conv_general_dilated" not in str(traced.jaxpr):
        return False
    # On CPUs the convolutions of this library are matrix products. This shows only in the program lowered for CPUs.
    return "stablehlo.convolution" in traced.lower(lowering_platforms=("cpu",)).as_text()


def activation_bytes(function: Callable, *arguments: Any) -> int:
    """Return an upper bound on the memory that all intermediate results of a function take together."""
    jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
    return sum(math.prod(v.aval.shape) * v.aval.dtype.itemsize for eqn in jaxpr.eqns for v in eqn.outvars)


def _device_list(devices: Sequence[jax.Device] | np.ndarray) -> list[jax.Device]:
    listed = list(devices) if isinstance(devices, Sequence | np.ndarray) else []
    if not listed or not all(isinstance(device, jax.Device) for device in listed):
        fix = "Pass some of `jax.devices()`, or leave it out for all."
        raise refusal("devices", expected="devices of JAX", got=repr(devices), fix=fix, kind=TypeError)
    return listed


def use_cores(count: int | None = None, /) -> int:
    """Make JAX see one device for every core of the CPU, so that members are trained side by side.

    JAX decides how many devices a CPU has when it is first used. So call this before, at the top of a script. It has
    the same effect as the environment variable `XLA_FLAGS=--xla_force_host_platform_device_count=8`.

    Args:
        count: how many devices; by default as many as there are cores that this process may use.

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
