"""Which contraction is the cheapest, estimated from shapes alone.

For S positions and C channels of the output, and per pair of samples:

    "jacobian"     S²·C·P                       derivatives with respect to all P parameters, then a matrix product
    "structured"   s²·K + S²·s²·C·O             the same, but for parameters W [K, O] with a site y = a W, s rows of a,
                   instead of S²·C·K·O          wherever that is less
    "products"     2·S·C times the network      for every output of one sample the derivative of all outputs of the
                                                other in the direction of its gradient; nothing is stored

With channels apart, C is C² in the first two, and the third costs no more than before.
"""

import dataclasses
import functools
import math
from typing import Any

import jax

from ntk_equiv.empirical._network import output_spec, sample_outputs
from ntk_equiv.empirical._operations import operations
from ntk_equiv.empirical._sites import Site, program_of, sites_of

METHODS = ("auto", "structured", "jacobian", "products")
# More numbers than this for the derivatives of one sample are not worth having: 1 GB in single precision.
LARGEST_SAMPLE = 2**28


@dataclasses.dataclass(frozen=True)
class Plan:
    """How the kernel of one pair is computed, and what that takes.

    Attributes:
        method: "structured", "jacobian" or "products".
        sites: the parameters whose derivatives are kept as factors, by their number.
        grid: the positions of the output.
        channels: C.
        numbers_per_sample: how many numbers the derivatives of one sample are.
        numbers_per_pair: how many a pair of samples takes.
    """

    method: str
    sites: tuple[tuple[int, Site], ...]
    grid: tuple[int, ...]
    channels: int
    numbers_per_sample: int
    numbers_per_pair: int


def plan_of(method: str, apart: bool, apply: Any, params: Any, constants: Any, x: Any) -> Plan:
    """The plan for samples like those of `x`."""
    leaves, structure = jax.tree.flatten((params, constants, x))
    samples = len(jax.tree.leaves(x))
    shapes = [leaf.shape for leaf in leaves]
    shapes[-samples:] = [(1, *shape[1:]) for shape in shapes[-samples:]]
    return _planned(method, apart, apply, structure, tuple(zip(shapes, [leaf.dtype for leaf in leaves], strict=True)))


# Kept, because tracing a network takes longer than most of its kernels.
@functools.lru_cache(maxsize=256)
def _planned(method: str, apart: bool, apply: Any, structure: Any, specs: tuple) -> Plan:
    params, constants, x = structure.unflatten([jax.ShapeDtypeStruct(*spec) for spec in specs])
    outputs = output_spec(apply, params, constants, x)
    grid, channels = outputs.shape[1:-1], outputs.shape[-1] if outputs.ndim > 1 else 1
    sample = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), x)
    program = program_of(functools.partial(sample_outputs, apply), params, constants, sample)
    sizes = [leaf.size for leaf in jax.tree.leaves(params)]
    positions, both = math.prod(grid), channels**2 if apart else channels

    def factored(site: Site) -> int:
        return site.rows**2 * (site.inputs + positions**2 * both * site.outputs)

    sites = {} if method == "jacobian" else sites_of(program, len(sizes))
    sites = {i: site for i, site in sites.items() if factored(site) < positions**2 * both * sizes[i]}
    explicit = sum(size for i, size in enumerate(sizes) if i not in sites)
    kept = sum(site.rows * (site.inputs + positions * channels * site.outputs) for site in sites.values())
    per_sample = positions * channels * (explicit + 1) + kept
    per_pair = sum(factored(site) for site in sites.values()) + positions**2 * both * explicit
    if method == "auto":
        costly = per_sample > LARGEST_SAMPLE or 2 * positions * channels * operations(program.jaxpr) < per_pair
        method = "products" if costly else "structured"
    if method == "products":
        sites, per_sample = {}, max(math.prod(leaf.shape) for leaf in jax.tree.leaves((x, outputs)))
    rows = max((site.rows for site in sites.values()), default=1)
    entries = positions**2 * max(rows**2, 1) * (channels**2 if apart else 1)
    return Plan(method, tuple(sorted(sites.items())), grid, channels, per_sample, entries)
