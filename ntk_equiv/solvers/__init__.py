"""Solvers: how a function of a block of the Gram matrix is applied to given vectors.

The symmetry of the data decides *which* blocks there are; a solver decides *how* f_t(B) acts for one of them.

    `Eigh()`       one full decomposition, B = U diag(λ) U†; exact up to rounding, for any filter and any time
    `Lanczos()`    products with B alone, for blocks too large to decompose; bounds the error of each prediction

    block ──► solver.solve(block, …) ──► solved block ──► apply(f, times, rows), spectrum, error_bound, …
    (`BlockOperator`)                    (`SolvedBlock`)

A block is an operator: it has a shape, a dtype and a product with a matrix, and `dense()` gives its entries where they
fit into memory; a `DenseBlock` holds them. A solved block is a frozen value. Everything above speaks to the protocols
`BlockOperator`, `Solver` and `SolvedBlock`, never to an algorithm. A new solver is two classes: one with the methods of
`Solver`, one with those of `SolvedBlock`.
"""

from ntk_equiv.solvers._certificate import perturbation_gain as perturbation_gain
from ntk_equiv.solvers._eigh import Eigh
from ntk_equiv.solvers._hermitian import positive_root as positive_root
from ntk_equiv.solvers._hermitian import product as product
from ntk_equiv.solvers._lanczos import Lanczos, SolverWarning
from ntk_equiv.solvers._noise import ROUNDINGS as ROUNDINGS
from ntk_equiv.solvers._noise import FilterAboveNoise as FilterAboveNoise
from ntk_equiv.solvers._noise import noise_level as noise_level
from ntk_equiv.solvers._protocols import BlockOperator, DenseBlock, PredictionScale, SolvedBlock, Solver
from ntk_equiv.solvers._protocols import SpectralFunction as SpectralFunction
from ntk_equiv.solvers._protocols import check_solver as check_solver
from ntk_equiv.solvers._protocols import refuse_tracers as refuse_tracers
from ntk_equiv.solvers._protocols import refusing_tracers as refusing_tracers
from ntk_equiv.solvers._sharded import ShardedBlock as ShardedBlock
from ntk_equiv.solvers._sharded import all_devices as all_devices
from ntk_equiv.solvers._sharded import failing_together as failing_together
from ntk_equiv.solvers._sharded import join_strips as join_strips
from ntk_equiv.solvers._square_root import multiply_by_roots as multiply_by_roots
from ntk_equiv.solvers._tiled import TiledBlock as TiledBlock
from ntk_equiv.solvers._tiled import TileSource as TileSource

__all__ = [
    "BlockOperator",
    "DenseBlock",
    "Eigh",
    "Lanczos",
    "PredictionScale",
    "SolvedBlock",
    "Solver",
    "SolverWarning",
]
