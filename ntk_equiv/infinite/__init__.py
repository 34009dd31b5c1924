"""The infinitely wide deep ensemble, exactly: what it predicts at any training time, and how its members scatter.

    `InfiniteEnsemble`                  a trained ensemble: any number of times and test samples
    `ensemble_mean`, `ensemble_cov`     the same in one call
    `SampledEnsemble`                   trained with any loss, known through members that are drawn
    `DrawingError`                      how exact its members are before training
    `estimate_cost`                     what an ensemble will take, before any work
    `haar_limit`                        augmentation by all rotations of the plane, as a limit
    `RankWarning`, `ReductionWarning`   what it may warn of

The Gram matrix of the training set falls into blocks: those of the group that augments the data, or a single one, the
whole. A block is as large as the base data times the dimension of an irrep. `ntk_equiv.solvers` applies functions of
a block, `ntk_equiv.filters` says which function training is, and everything here is a sum over blocks:

    `_training_set`, `_symmetry`   the data as a function on the group, and whether the group can be used
    `_blocks`                      the Fourier transform of the group: from kernels to solved blocks
    `_tiles`                       the same for large data: tiles of blocks, in memory, on disk, or on demand
    `_cost`                        what that takes, and which solver that suggests
    `_moments`                     mean, covariance and errors, block by block
    `_ensemble`, `_functions`      what users call
    `_loss_problem`, `_loss_training`, `_chebyshev`, `_sampled`      the same for any loss, by drawing members
    `_kernel_matrix`               the same on kernel matrices that are given
    `_statistics`, `_storage`, `_warnings`
"""

from ntk_equiv.infinite._cost import Cost, estimate_cost

# For the parts above this one, not for users.
from ntk_equiv.infinite._cost import duration as duration
from ntk_equiv.infinite._cost import seconds_per_pair as seconds_per_pair
from ntk_equiv.infinite._cost import seconds_per_product as seconds_per_product
from ntk_equiv.infinite._ensemble import InfiniteEnsemble
from ntk_equiv.infinite._functions import HaarLimit, ensemble_cov, ensemble_mean, haar_limit
from ntk_equiv.infinite._kernel_matrix import KernelMatrix as KernelMatrix
from ntk_equiv.infinite._kernel_matrix import follow_loss as follow_loss
from ntk_equiv.infinite._kernel_matrix import follow_loss_with_momentum as follow_loss_with_momentum
from ntk_equiv.infinite._kernel_matrix import follow_to_the_end as follow_to_the_end
from ntk_equiv.infinite._loss_problem import DrawingError
from ntk_equiv.infinite._moments import ErrorBudget
from ntk_equiv.infinite._moments import rounding_allowed as rounding_allowed
from ntk_equiv.infinite._sampled import SampledEnsemble
from ntk_equiv.infinite._statistics import Estimate, ExpectedError, Posterior
from ntk_equiv.infinite._symmetry import ReductionWarning
from ntk_equiv.infinite._warnings import RankWarning

__all__ = [
    "Cost",
    "DrawingError",
    "ErrorBudget",
    "Estimate",
    "ExpectedError",
    "HaarLimit",
    "InfiniteEnsemble",
    "Posterior",
    "RankWarning",
    "ReductionWarning",
    "SampledEnsemble",
    "ensemble_cov",
    "ensemble_mean",
    "estimate_cost",
    "haar_limit",
]
