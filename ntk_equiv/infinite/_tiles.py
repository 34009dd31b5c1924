"""Blocks of the Gram matrix, tile by tile, for data too large to have them at once.

For ranges I ≤ J of base samples, the tile of an irrep σ is summed up over the group, one element after the other:

    B_σ[I, J] = Σ_k conj(σ(k)) ⊗ Φ(k)[I, J],        Φ(k) = Θ(x_i, ρ_X(k)x_j) ρ_K(k)         `sum_over_group`

All irreps and kernels that are wanted come from the same evaluations, and nothing is kept of single elements. With test
samples in place of x_i the sum gives conj(û), the coefficients of their rows, likewise without the |G| times as many
kernels of all moved samples.

    `TilesInMemory`, `TilesOnDemand`, `TilesInFolder`         where tiles are kept, each a `TileSource` of `solvers`

With several devices, tiles in memory are evaluated where their rows are kept, and become a `ShardedBlock`.
"""

import dataclasses
import hashlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from tqdm.auto import tqdm

from ntk_equiv._check import is_concrete, refusal
from ntk_equiv._gram import ENTRIES_PER_TILE, evaluate_gram, kernel_diagonal
from ntk_equiv._machine import check_fits, run_in_threads
from ntk_equiv._tile_folder import TileFolder, check_disk
from ntk_equiv._typing import Inputs, SplitKernel
from ntk_equiv.infinite._training_set import TrainingSet
from ntk_equiv.solvers import (
    BlockOperator,
    ShardedBlock,
    TiledBlock,
    TileSource,
    all_devices,
    failing_together,
    join_strips,
)

# Entries of one tile of a block: large enough for products to be fast, small enough to have several at a time.
ENTRIES_PER_STORED_TILE = 2**22
FEWEST_RANGES = 12
OTHER_STORAGE = 'Take fewer samples or float32, or a solver with `storage="recompute"` or `storage=` a folder.'


@dataclasses.dataclass(frozen=True, eq=False)
class KernelTiles:
    """What is evaluated for a tile: which kernels, and which irreps.

    Attributes:
        kernel: any kernel function.
        data: the training set.
        weights: conj(σ), [order, d, d], for each matrix; by names such as "ntk-3", of the kernel and the irrep.
        piece: how many samples on each side are evaluated at once, in cache.
        pieces: how many such pieces a tile has on each side.
        device: where tiles are evaluated; where the samples are unless given.
    """

    kernel: SplitKernel
    data: TrainingSet
    weights: Mapping[str, jax.Array]
    piece: int
    pieces: int
    device: jax.Device | None = None

    @classmethod
    def plan(cls, kernel: SplitKernel, data: TrainingSet, weights: Mapping[str, jax.Array]) -> "KernelTiles":
        """Return the same with sizes that fit the data."""
        largest = max(1, math.isqrt(ENTRIES_PER_TILE // kernel.entries_per_pair(data.x)))
        # As many pieces as needed, of equal size, so that the last one is not mostly filled up.
        piece = math.ceil(data.n / math.ceil(data.n / largest))
        rows = piece * math.prod(data.positions)
        # Of a tile on the diagonal half is evaluated in vain: with more ranges there are relatively fewer of them.
        pieces = min(math.isqrt(ENTRIES_PER_STORED_TILE) // rows, math.ceil(data.n / (FEWEST_RANGES * piece)))
        return cls(kernel, data, weights, piece, max(1, pieces))

    def spread(self, devices: int) -> "KernelTiles":
        """Return the same with smaller tiles, so that all devices have equally many ranges of samples."""
        samples = math.ceil(self.data.n / devices)
        tile = math.ceil(samples / math.ceil(samples / (self.piece * self.pieces)))
        pieces = math.ceil(tile / self.piece)
        return dataclasses.replace(self, piece=math.ceil(tile / pieces), pieces=pieces)

    def on(self, device: jax.Device) -> "KernelTiles":
        """Return the same with its tiles evaluated on a device. Samples are brought there a tile at a time."""
        kernel, weights, y = jax.device_put((self.kernel, dict(self.weights), self.data.y), device)
        data = dataclasses.replace(self.data, y=y)
        return dataclasses.replace(self, kernel=kernel, data=data, weights=weights, device=device)

    @property
    def sample_edges(self) -> np.ndarray:
        """Where ranges of samples begin, and where the last one ends."""
        return np.append(np.arange(0, self.data.n, self.piece * self.pieces), self.data.n)

    @property
    def edges(self) -> np.ndarray:
        """The same, counted in rows: samples times positions."""
        return self.sample_edges * math.prod(self.data.positions)

    @property
    def corners(self) -> list[tuple[int, int]]:
        """All pairs of ranges I ≤ J."""
        count = len(self.sample_edges) - 1
        return [(i, j) for j in range(count) for i in range(j + 1)]

    @property
    def size(self) -> int:
        """How many bytes all tiles take."""
        edges = self.edges
        entries = sum(int((edges[i + 1] - edges[i]) * (edges[j + 1] - edges[j])) for i, j in self.corners)
        return sum(
            entries * weight.shape[1] * weight.shape[2] * weight.dtype.itemsize for weight in self.weights.values()
        )

    def samples(self, number: int) -> Inputs:
        """Return the base samples of a range."""
        start, stop = self.sample_edges[number : number + 2]
        samples = jax.tree.map(lambda leaf: leaf[start:stop], self.data.x)
        return samples if self.device is None else jax.device_put(samples, self.device)

    def prepare(self, left: Inputs, right: Inputs) -> Callable[[], dict[str, jax.Array]]:
        """Return a program without arguments for the sums over the group, [a, (i, p), b, (j, p')] for each matrix.

        It is compiled here and may run in any thread. Rows and columns that were filled up are still there.
        """
        counts = [jax.tree.leaves(x)[0].shape[0] for x in (left, right)]
        sizes = [min(self.piece, count) for count in counts]
        numbers = tuple(math.ceil(count / size) for count, size in zip(counts, sizes, strict=True))
        if self.device is not None:
            # A program is compiled for each device and each shape: one shape is enough.
            sizes, numbers = [self.piece] * 2, (self.pieces,) * 2
        x = [_fill(x, size * number) for x, size, number in zip((left, right), sizes, numbers, strict=True)]
        frame = dataclasses.replace(self.data, x=None, y=self.data.y[:1])
        arguments = self.kernel, frame, *x, dict(self.weights)
        program = sum_over_group.lower(*arguments, numbers).compile()
        return lambda: jax.block_until_ready(program(*arguments))

    def prepare_tile(self, i: int, j: int) -> Callable[[], dict[str, jax.Array]]:
        """Return a program for the tiles of a pair of ranges."""
        return self.prepare(self.samples(i), self.samples(j))

    def finish_tile(self, i: int, j: int, sums: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """Return tiles [(a, i), (b, j)] from what their program gave; refuse what is not finite."""
        rows, columns = (int(self.edges[number + 1] - self.edges[number]) for number in (i, j))
        tiles, finite = _as_matrices(sums, rows, columns, i == j)
        if not bool(finite):
            self.refuse(i, j, tiles)
        return tiles

    def several(self, corners: list[tuple[int, int]]) -> Iterator[tuple[int, int, dict[str, jax.Array]]]:
        """Yield the tiles of several pairs of ranges, in order; refuse what is not finite."""
        return _evaluate_in_order([(self, i, j) for i, j in corners])

    def refuse(self, i: int, j: int, tiles: dict[str, jax.Array]) -> None:
        """Say which samples have kernels that are not finite."""
        name, matrix = next((name, np.asarray(m)) for name, m in tiles.items() if not np.isfinite(m).all())
        positions, (first, second) = math.prod(self.data.positions), np.argwhere(~np.isfinite(matrix))[0]
        counts = np.diff(self.edges)
        samples = [
            int(self.sample_edges[number] + place % counts[number] // positions)
            for number, place in ((i, first), (j, second))
        ]
        fix = "Look at their kernels with `gram`; remove or repair them."
        got = f"NaN or infinity for samples {samples[0]} and {samples[1]} ({_kernel_of(name)})"
        raise refusal("kernel_fn", expected="one with finite kernels", got=got, fix=fix)


class TilesOnDemand:
    """Tiles that are evaluated whenever they are asked for."""

    def __init__(self, plan: KernelTiles):
        self._plan, self.edges = plan, plan.edges

    def tiles(self, name: str) -> Iterator[tuple[int, int, Any]]:
        """Yield the tiles of one matrix; no other one is evaluated."""
        alone = dataclasses.replace(self._plan, weights={name: self._plan.weights[name]})
        for i, j, tiles in alone.several(alone.corners):
            yield i, j, tiles[name]


class TilesInMemory:
    """Tiles that are evaluated once and kept."""

    def __init__(self, plan: KernelTiles, *, progress: bool = False):
        self.edges = plan.edges
        bar = tqdm(plan.several(plan.corners), "tiles of the Gram matrix", len(plan.corners), disable=not progress)
        self._tiles = list(bar)

    def tiles(self, name: str) -> Iterator[tuple[int, int, Any]]:
        """Yield the tiles of one matrix."""
        return ((i, j, tiles[name]) for i, j, tiles in self._tiles)


class TilesInFolder:
    """Tiles in a folder. Those that are not there, or damaged, are evaluated and written."""

    def __init__(self, plan: KernelTiles, path: str | Path, about: Mapping[str, Any], *, progress: bool = False):
        self._plan, self.edges = plan, plan.edges
        self._folder = TileFolder.open(path, about)
        missing = [
            (i, j)
            for i, j in plan.corners
            if any(self._folder.read(_file(name, i, j)) is None for name in plan.weights)
        ]
        bar = tqdm(plan.several(missing), "tiles of the Gram matrix", len(missing), disable=not progress)
        for i, j, tiles in bar:
            self._write(i, j, tiles)

    def tiles(self, name: str) -> Iterator[tuple[int, int, Any]]:
        """Yield the tiles of one matrix."""
        for i, j in self._plan.corners:
            found = self._folder.read(_file(name, i, j))
            if found is None:  # damaged since it was written
                ((_, _, tiles),) = self._plan.several([(i, j)])
                self._write(i, j, tiles)
                found = {"entries": np.asarray(tiles[name])}
            yield i, j, found["entries"]

    def _write(self, i: int, j: int, tiles: dict[str, jax.Array]) -> None:
        for name, tile in tiles.items():
            self._folder.write(_file(name, i, j), {"entries": np.asarray(tile)})


def keep_blocks(plan: KernelTiles, solver: Any) -> dict[str, BlockOperator]:
    """Return the blocks, with tiles where a solver wants them: `solver.storage` is "memory", "recompute" or a folder.

    Refuse tiles that do not fit there, before anything is evaluated. With several processes or accelerators, what is in
    memory is spread over all devices.
    """
    if solver.storage == "memory" and has_several_memories():
        return _spread_blocks(plan, progress=bool(getattr(solver, "progress", False)))
    source = _keep_tiles(plan, solver)
    return {name: TiledBlock(source, name, w.shape[1], w.dtype) for name, w in plan.weights.items()}


def has_several_memories() -> bool:
    """Return whether there is more memory than that of one process: the cores of a CPU share theirs."""
    return jax.process_count() > 1 or (jax.default_backend() != "cpu" and len(jax.devices()) > 1)


def _keep_tiles(plan: KernelTiles, solver: Any) -> TileSource:
    size, progress = plan.size, bool(getattr(solver, "progress", False))
    what = f"the upper half of {_describe_blocks(plan)},"
    if solver.storage == "recompute":
        return TilesOnDemand(plan)
    if solver.storage == "memory":
        check_fits(size, "train", what=what, fix=OTHER_STORAGE)
        return TilesInMemory(plan, progress=progress)
    missing = size - sum(file.stat().st_size for file in Path(solver.storage).glob("*"))
    fix = 'Make room, name a folder on another disk, or choose `storage="recompute"`.'
    check_disk(solver.storage, max(0, missing), "storage", what=what, fix=fix)
    return TilesInFolder(plan, solver.storage, _identity(plan), progress=progress)


def _spread_blocks(plan: KernelTiles, *, progress: bool) -> dict[str, BlockOperator]:
    """Return the blocks with their rows spread over all devices of all processes."""
    mesh = all_devices()
    strips = _Strips(plan.spread(mesh.size), mesh)
    with failing_together():
        # Main memory is shared by the devices of a CPU; an accelerator has its own.
        devices = len(strips.devices) if jax.default_backend() == "cpu" else 1
        what = f"{_describe_blocks(plan)}, spread over {mesh.size} devices,"
        check_fits(devices * strips.size, "train", what=what, fix=OTHER_STORAGE)
        strips.evaluate(progress=progress)
        return {name: strips.join(name) for name in plan.weights}


class _Strips:
    """Tiles on the devices of this process, next to each other in the rows that belong to each device.

    Tiles of exchanged ranges are evaluated once in a process, and in the same way in all of them: a block is Hermitian
    to the last bit.

    Args:
        plan: what is evaluated, with tiles that suit the devices.
        mesh: all devices of all processes.
    """

    def __init__(self, plan: KernelTiles, mesh: Mesh):
        self._plan, self._mesh = plan, mesh
        self.devices = [device for device in mesh.devices.ravel() if device.process_index == jax.process_index()]
        self._each = math.ceil((len(plan.edges) - 1) / mesh.size)
        self._tiles: dict[tuple[str, int, int], jax.Array] = {}

    @property
    def rows(self) -> int:
        """How many rows i each device has, with those that are filled up."""
        return self._each * self._plan.piece * self._plan.pieces * math.prod(self._plan.data.positions)

    @property
    def size(self) -> int:
        """How many bytes the strips of one device take."""
        entries = self.rows * int(self._plan.edges[-1])
        return sum(entries * w.shape[1] * w.shape[2] * w.dtype.itemsize for w in self._plan.weights.values())

    def evaluate(self, *, progress: bool) -> None:
        """Evaluate all tiles in the rows of this process."""
        jobs = self._jobs()
        for i, j, found in tqdm(_evaluate_in_order(jobs), "tiles of the Gram matrix", len(jobs), disable=not progress):
            for name, tile in found.items():
                self._place(name, i, j, tile)
                if i != j:
                    self._place(name, j, i, tile.conj().T)

    def join(self, name: str) -> ShardedBlock:
        """Return one of the blocks, and forget its tiles."""
        numbers = range(len(self._plan.edges) - 1)
        strips = [join_strips([self._strip(name, device, j) for device in self.devices], self._mesh) for j in numbers]
        return ShardedBlock(strips, self._plan.edges, self._mesh)

    def _owner(self, number: int) -> jax.Device:
        return self._mesh.devices.ravel()[number // self._each]

    def _jobs(self) -> list[tuple[KernelTiles, int, int]]:
        """Return which tiles to evaluate, each on one of the devices that need it, in turn."""
        plans = {device: self._plan.on(device) for device in self.devices}
        queues: dict[jax.Device, list] = {device: [] for device in self.devices}
        for i, j in self._plan.corners:
            owners = [device for device in (self._owner(i), self._owner(j)) if device in queues]
            if owners:
                device = owners[(i + j) % len(owners)]
                queues[device].append((plans[device], i, j))
        return [job for turn in itertools.zip_longest(*queues.values()) for job in turn if job is not None]

    def _place(self, name: str, i: int, j: int, tile: jax.Array) -> None:
        owner = self._owner(i)
        if owner in self.devices:
            self._tiles[name, i, j] = jax.device_put(tile, owner)

    def _strip(self, name: str, device: jax.Device, j: int) -> jax.Array:
        """Return the rows of a device in one range of columns, [b, i, (b', j)], filled up with zeros."""
        weight, edges = self._plan.weights[name], self._plan.edges
        copies, columns = weight.shape[1], weight.shape[2] * int(edges[j + 1] - edges[j])
        mine = [i for i in range(len(edges) - 1) if self._owner(i) == device]
        parts = [self._tiles.pop((name, i, j)).reshape(copies, -1, columns) for i in mine]
        missing = self.rows - sum(part.shape[1] for part in parts)
        filling = jnp.zeros((copies, missing, columns), weight.dtype, device=device)
        return jnp.concatenate([*parts, filling], axis=1) if parts else filling


def _evaluate_in_order(jobs: list[tuple[KernelTiles, int, int]]) -> Iterator[tuple[int, int, dict[str, jax.Array]]]:
    """Yield tiles in the given order, with several of them under way; refuse what is not finite."""
    programs = (plan.prepare_tile(i, j) for plan, i, j in jobs)
    for (plan, i, j), sums in zip(jobs, run_in_threads(programs), strict=True):
        yield i, j, plan.finish_tile(i, j, sums)


def _describe_blocks(plan: KernelTiles) -> str:
    count = len(plan.weights)
    which = "one block" if count == 1 else f"{count} blocks"
    return f"{which} of {plan.edges[-1]} rows per dimension of {'its irrep' if count == 1 else 'their irreps'}"


def diagonal_in_portions(kernel: SplitKernel, x: Inputs, get: str) -> jax.Array:
    """Return the diagonal of a kernel over samples and positions, a bounded number of samples at a time."""
    count = jax.tree.leaves(x)[0].shape[0]
    at_a_time = max(1, ENTRIES_PER_STORED_TILE // kernel.entries_per_pair(x))
    if count <= at_a_time or not is_concrete((kernel, x)):
        return kernel_diagonal(kernel, x, get)
    starts = range(0, count, at_a_time)
    parts = [kernel_diagonal(kernel, jax.tree.map(lambda leaf: leaf[at : at + at_a_time], x), get) for at in starts]  # noqa: B023
    return jnp.concatenate(parts)


def digest_of_samples(data: TrainingSet, *others: jax.Array) -> str:
    """Return a name for samples, group and other arrays that is different for different ones."""
    digest = hashlib.sha256()
    for leaf in (*jax.tree.leaves(data.x), *others):
        array = np.ascontiguousarray(leaf)
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    if data.group is not None:
        digest.update(np.ascontiguousarray(data.group.table).tobytes())
    return digest.hexdigest()


def first_orbit(data: TrainingSet) -> np.ndarray:
    """Return the first base sample under all elements, by which another action of the same group is noticed."""
    first = dataclasses.replace(data, x=jax.tree.map(lambda leaf: leaf[:1], data.x))
    return np.asarray(jax.tree.leaves(first.samples())[0])


def _orbit_of_noise(data: TrainingSet) -> np.ndarray:
    """Return a random sample under all elements, by which another action of the same group is noticed.

    The training samples would not do: another action may leave them as they are.
    """
    rng = np.random.default_rng(0)
    noise = jax.tree.map(lambda leaf: jnp.asarray(rng.standard_normal((1, *leaf.shape[1:])), leaf.dtype), data.x)
    moved = dataclasses.replace(data, x=noise).samples()
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(moved)])


def _identity(plan: KernelTiles) -> dict[str, Any]:
    """Return what a folder of tiles is of, in words that tell it from others."""
    data = plan.data
    first = jax.tree.map(lambda leaf: leaf[:1], data.x)
    few = jax.tree.map(lambda leaf: leaf[:4], data.x)
    probe = evaluate_gram(plan.kernel, first, few, ("nngp", "ntk"))
    return {
        "format": 1,
        "version of ntk-equiv": version("ntk-equiv"),
        "samples": digest_of_samples(data),
        "group": "none" if data.group is None else data.group.label,
        "action": hashlib.sha256(_orbit_of_noise(data).tobytes()).hexdigest()[:16],
        # Few digits: another version of JAX may round differently.
        "kernel": [f"{value:.3e}" for part in probe for value in np.asarray(part).ravel()[:8].tolist()],
        "precision": str(next(iter(plan.weights.values())).real.dtype),
        "samples in a tile": plan.piece * plan.pieces,
    }


def row_coefficients_by_tiles(
    kernel: SplitKernel, data: TrainingSet, x: Inputs, get: tuple[str, ...], sigmas: tuple[jax.Array, ...]
) -> list[tuple[jax.Array, ...]]:
    """Return for every σ and each kernel conj(û) of the rows of test samples, [m, a, (b, i)]."""
    weights = {f"{name}-{number}": sigma.conj() for name in get for number, sigma in enumerate(sigmas)}
    plan = KernelTiles.plan(kernel, data, weights)
    programs = (plan.prepare(x, plan.samples(number)) for number in range(len(plan.sample_edges) - 1))
    tested = jax.tree.leaves(x)[0].shape[0] * math.prod(data.positions)
    parts = [
        {name: sums[name][:, :tested, :, :columns] for name in weights}
        for sums, columns in zip(run_in_threads(programs), np.diff(plan.edges).tolist(), strict=True)
    ]

    def whole(name: str) -> jax.Array:
        rows = jnp.concatenate([part[name] for part in parts], axis=3).swapaxes(0, 1)
        return rows.reshape(*rows.shape[:2], -1)

    return [tuple(whole(f"{name}-{number}") for name in get) for number in range(len(sigmas))]


def _file(name: str, i: int, j: int) -> str:
    return f"{name}-{i:05}-{j:05}"


def _fill(x: Inputs, size: int) -> Inputs:
    """Return samples, filled up with copies of the last one, so that pieces have the same size."""
    missing = size - jax.tree.leaves(x)[0].shape[0]
    return jax.tree.map(lambda leaf: jnp.concatenate([leaf, *[leaf[-1:]] * missing]), x) if missing else x


@partial(jax.jit, static_argnames="numbers")
def sum_over_group(
    kernel: SplitKernel,
    frame: TrainingSet,
    left: Inputs,
    right: Inputs,
    weights: Mapping[str, jax.Array],
    numbers: tuple[int, int],
) -> dict[str, jax.Array]:
    """Return Σ_k w(k) ⊗ Φ(k) for several w, [a, (i, p), b, (j, p')].

    Args:
        kernel: any kernel function.
        frame: the training set, for its group and the action on positions.
        left: samples x_i.
        right: samples x_j, which the group moves.
        weights: w [order, a, b], by names that begin with the kernel.
        numbers: into how many pieces each side is cut.
    """
    get = tuple(dict.fromkeys(map(_kernel_of, weights)))
    kernel, positions = kernel.restrict(get), math.prod(frame.positions)
    sizes = [jax.tree.leaves(x)[0].shape[0] // number for x, number in zip((left, right), numbers, strict=True)]
    rows, columns = (size * positions for size in sizes)
    of_left = kernel.per_sample(left)

    def add_element(totals: dict, k: jax.Array) -> tuple[dict, None]:
        of_right = kernel.per_sample(right if frame.rep_x is None else frame.rep_x(k, right))

        def add_piece(number: jax.Array, totals: dict) -> dict:
            r, c = number // numbers[1], number % numbers[1]
            kernels = kernel.per_pair(
                _cut(of_left, r * sizes[0], sizes[0]), _cut(of_right, c * sizes[1], sizes[1]), get
            )
            phi = {name: frame.frame_element(found, k) for name, found in zip(get, kernels, strict=True)}

            def add(name: str, total: jax.Array) -> jax.Array:
                w, place = weights[name][k], (0, r * rows, 0, c * columns)
                before = jax.lax.dynamic_slice(total, place, (w.shape[0], rows, w.shape[1], columns))
                new = before + w[:, None, :, None] * phi[_kernel_of(name)][None, :, None, :]
                return jax.lax.dynamic_update_slice(total, new, place)

            return {name: add(name, total) for name, total in totals.items()}

        return jax.lax.fori_loop(0, numbers[0] * numbers[1], add_piece, totals), None

    def empty(w: jax.Array) -> jax.Array:
        return jnp.zeros((w.shape[1], numbers[0] * rows, w.shape[2], numbers[1] * columns), w.dtype)

    return jax.lax.scan(add_element, jax.tree.map(empty, dict(weights)), jnp.arange(frame.order))[0]


def _kernel_of(name: str) -> str:
    """Return the kernel of a matrix, "ntk" or "nngp", from its name, such as "ntk-3" for the irrep number 3."""
    return name.split("-")[0]


def _cut(tree: Any, start: jax.Array, size: int) -> Any:
    return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, size), tree)


@partial(jax.jit, static_argnames=("rows", "columns", "diagonal"))
def _as_matrices(
    sums: dict[str, jax.Array], rows: int, columns: int, diagonal: bool
) -> tuple[dict[str, jax.Array], jax.Array]:
    """Return sums [a, i, b, j] as matrices, and whether all is finite; exactly Hermitian on the diagonal."""

    def matrix(total: jax.Array) -> jax.Array:
        whole = total[:, :rows, :, :columns].reshape(total.shape[0] * rows, -1)
        return (whole + whole.conj().T) / 2 if diagonal else whole

    tiles = jax.tree.map(matrix, sums)
    return tiles, jnp.all(jnp.stack([jnp.all(jnp.isfinite(tile)) for tile in tiles.values()]))
