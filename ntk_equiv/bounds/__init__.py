"""TODO"""
from ntk_equiv.bounds._members import deviation_probability, deviation_quantile, min_ensemble_size
from ntk_equiv.bounds._records import Enclosure, Sampled
from ntk_equiv.bounds._simultaneous import sampled_ensemble_size, simultaneous_ensemble_size, simultaneous_probability
from ntk_equiv.bounds._discretization import DiscretizationError, discretization_error
from ntk_equiv.bounds._orbit import OrbitDeviation, expected_osp, orbit_deviation
from ntk_equiv.bounds._required import required_members
from ntk_equiv.bounds._certified import ContinuousDeviation, certified_continuous_deviation
from ntk_equiv.bounds._continuous import GroupBound, continuous_group_bound, continuous_group_estimate
from ntk_equiv.bounds._measured import GroupOrders, MeasuredDeviation, measured_continuous_deviation, min_group_order
from ntk_equiv.bounds._random import RandomAugmentation, random_augmentation_deviation
