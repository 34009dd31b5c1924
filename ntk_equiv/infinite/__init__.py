"""The infinitely wide deep ensemble, exactly: what it predicts at any training time, and how its members scatter.

    `InfiniteEnsemble`                  a fitted ensemble: one decomposition, any number of times and test points
    `ensemble_mean`, `ensemble_cov`     the same in one call
    `haar_limit`                        augmentation by all rotations of the plane, as a limit
    `RankWarning`, `ReductionWarning`   what it may have to say

The Gram matrix of the training set is decomposed in blocks: of the group that augments the data, or of the trivial one,
in which case there is one block, the whole. A block is as large as the base data times the dimension of an irrep, and
everything else is sums over blocks. How training acts on an eigenvalue is in `ntk_equiv.filters`.
"""

from ntk_equiv.infinite._ensemble import InfiniteEnsemble
from ntk_equiv.infinite._functions import ensemble_cov, ensemble_mean
from ntk_equiv.infinite._haar import HaarLimit, haar_limit

# For the parts above this one, not for users.
from ntk_equiv.infinite._laws import rounding_allowed as rounding_allowed
from ntk_equiv.infinite._method import ReductionWarning
from ntk_equiv.infinite._notices import RankWarning
from ntk_equiv.infinite._statistics import Estimate, ExpectedError, Posterior

__all__ = [
    "Estimate",
    "ExpectedError",
    "HaarLimit",
    "InfiniteEnsemble",
    "Posterior",
    "RankWarning",
    "ReductionWarning",
    "ensemble_cov",
    "ensemble_mean",
    "haar_limit",
]
