"""Wrong calls of `bounds` and `empirical`, and the argument that the answer must name."""

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv import InfiniteEnsemble, augment, bounds, empirical, groups, reps, stax

KEY = jax.random.key(0)
NAN, INF = float("nan"), float("inf")
SO2 = groups.SO2
C3 = groups.SO2.finite(3)
X, Y = jnp.array([[1.0, 2.0], [0.5, -1.0]]), jnp.array([1.0, -1.0])
NET = stax.serial(stax.Dense(4, 1.5, 0.1), stax.Relu(), stax.Dense(1))
INIT, APPLY, KERNEL = NET
PARAMS = INIT(KEY, (-1, 2))[1]
ENS = InfiniteEnsemble(KERNEL, augment(X, Y, reps.matrix(C3)), method="dense")
PLAIN = InfiniteEnsemble(KERNEL, (X, Y))
LAW = bounds.OrbitDeviation(np.zeros((1, 3, 1)), np.eye(3)[None], np.ones((2, 1, 1)), None)
BUILD = lambda matrices: ENS  # noqa: E731
CORRECTION = empirical.Correction(jnp.ones(2), jnp.ones(2), 0.0)

CALLS = {
    # members
    "bounds.min_ensemble_size(-1.0, 0.1, 0.05)": "variance",
    "bounds.min_ensemble_size(NAN, 0.1, 0.05)": "variance",
    "bounds.min_ensemble_size(1j, 0.1, 0.05)": "variance",
    "bounds.min_ensemble_size(1.0, 0.0, 0.05)": "delta",
    "bounds.min_ensemble_size(1.0, 1e-200, 0.05)": "delta",
    "bounds.min_ensemble_size(1.0, 0.1, 1.5)": "epsilon",
    "bounds.min_ensemble_size(1.0, 0.1, 0.05, bound='best')": "bound",
    "bounds.min_ensemble_size(1.0, 0.1, 0.05, channels=0)": "channels",
    "bounds.min_ensemble_size(1.0, 0.1, 0.05, norm='l2')": "norm",
    "bounds.min_ensemble_size(1.0, 0.1, 0.05, channels=2, bound='tight')": "bound",
    "bounds.min_ensemble_size(jnp.ones(2), jnp.ones(3), 0.05)": "variance, delta, epsilon",
    "bounds.deviation_probability(1.0, 0, 0.1)": "members",
    "bounds.deviation_probability(jnp.ones(2), jnp.ones(3), 0.1)": "variance, members, delta",
    "bounds.deviation_quantile(1.0, 10, 1.0)": "epsilon",
    "bounds.deviation_quantile(jnp.ones(2), jnp.ones(3), 0.1)": "variance, members, epsilon",
    "bounds.simultaneous_probability(jnp.ones(2), [1, 2], 0.1)": "members",
    "bounds.simultaneous_probability(jnp.ones(2), 10, 0.1, method='bonferroni')": "method",
    "bounds.simultaneous_ensemble_size(jnp.ones(2), 0.1, [0.1, 0.2])": "epsilon",
    "bounds.simultaneous_ensemble_size(jnp.ones(2), jnp.ones(3), 0.1)": "delta",
    "bounds.sampled_ensemble_size(jnp.ones(2), 0.1, 0.05, key=KEY)": "covariance",
    "bounds.sampled_ensemble_size(-jnp.eye(2), 0.1, 0.05, key=KEY)": "covariance",
    "bounds.sampled_ensemble_size(NAN * jnp.eye(2), 0.1, 0.05, key=KEY)": "covariance",
    "bounds.sampled_ensemble_size(jnp.eye(2), jnp.ones(3), 0.05, key=KEY)": "delta",
    "bounds.sampled_ensemble_size(jnp.eye(2), 0.1, 0.05, key=0)": "key",
    "bounds.sampled_ensemble_size(jnp.eye(2), 0.1, 0.05, key=KEY, samples=0)": "samples",
    "bounds.required_members(KERNEL, X, 1.0, 0.1, 0.05)": "ens",
    "bounds.required_members(ENS, X[:, :1], 1.0, 0.1, 0.05)": "x",
    "bounds.required_members(ENS, X, [1.0, 2.0], 0.1, 0.05)": "t",
    "bounds.required_members(ENS, X, -1.0, 0.1, 0.05)": "t",
    "bounds.required_members(ENS, X, 1.0, 0.1, 0.05, simultaneous='all')": "simultaneous",
    "bounds.required_members(ENS, X, 1.0, 0.1, 0.05, simultaneous='sampled')": "key",
    "bounds.finite_width_estimate(1.0, 10, 0.1, None, 64)": "mean",
    "bounds.finite_width_estimate(1.0, 10, 0.1, CORRECTION, 0)": "width",
    "bounds.finite_width_estimate(jnp.ones(3), 10, 0.1, CORRECTION, 64)": "variance, mean",
    # orbits
    "bounds.orbit_deviation(KERNEL, X, 1.0)": "ens",
    "bounds.orbit_deviation(PLAIN, X, 1.0)": "rep_x",
    "bounds.orbit_deviation(ENS, X)": "t",
    "bounds.orbit_deviation(ENS, X, [1.0, 2.0])": "t",
    "bounds.orbit_deviation(ENS, X[0], 1.0)": "x",
    "bounds.orbit_deviation(ENS, X, 1.0, rep_x='rot90')": "rep_x",
    "bounds.orbit_deviation(ENS, X, 1.0, rep_y=reps.regular(groups.cyclic(2)))": "rep_y",
    "bounds.orbit_deviation(ENS, X, 1.0, elements=[9])": "elements",
    "bounds.orbit_deviation(ENS, X, 1.0, readout=jnp.ones(3))": "readout",
    "LAW.expected([1, 2])": "members",
    "LAW.probability(10, [0.1, 0.2])": "delta",
    "LAW.probability(10, 0.1, samples=0)": "samples",
    "LAW.probability(10, 0.1, key=3)": "key",
    "LAW.quantile(10, 1.5)": "epsilon",
    "LAW.members(None, 0.05)": "delta",
    "LAW.same_predictions(None, key=KEY)": "members",
    "bounds.expected_osp(ENS, X, 1.0, 10, KEY)": "ens",
    # continuous groups
    "bounds.discretization_error('SO2', C3)": "rep",
    "bounds.discretization_error(SO2, 3)": "subgroup",
    "bounds.discretization_error(SO2, groups.cyclic(3))": "subgroup",
    "bounds.discretization_error(SO2, C3, rtol='fine')": "rtol",
    "bounds.discretization_error(SO2, C3, max_cells=0)": "max_cells",
    "bounds.continuous_group_bound(KERNEL, SO2, X, 1.0)": "ens",
    "bounds.continuous_group_bound(ENS, C3, X, 1.0)": "rep",
    "bounds.continuous_group_bound(PLAIN, SO2, X, 1.0)": "ens",
    "bounds.continuous_group_bound(ENS, groups.SO3, X, 1.0)": "x",
    "bounds.continuous_group_bound(ENS, SO2, X, [1.0, 2.0])": "t",
    "bounds.continuous_group_bound(ENS, SO2, X, 1.0, form='smooth')": "form",
    "bounds.continuous_group_bound(ENS, SO2, X, 1.0, rep_y=3)": "rep_y",
    "bounds.continuous_group_estimate(ENS, SO2, X, 1.0, key=0)": "key",
    "bounds.continuous_group_estimate(ENS, SO2, X, 1.0, key=KEY, samples=0)": "samples",
    "bounds.certified_continuous_deviation(ENS, SO2, X, 1.0, rtol=-1.0)": "rtol",
    "bounds.certified_continuous_deviation(ENS, SO2, X, 1.0, atol=NAN)": "atol",
    "bounds.certified_continuous_deviation(ENS, SO2, X, 1.0, max_cells=1.5)": "max_cells",
    "bounds.measured_continuous_deviation(ENS, SO2, X, 1.0, count=0)": "count",
    "bounds.measured_continuous_deviation(X, SO2, ENS, 1.0)": "ens",
    "bounds.min_group_order('build', SO2, X, 1.0, 0.1, [3])": "build",
    "bounds.min_group_order(lambda k: ENS, SO2, X, 1.0, 0.1, 3)": "orders",
    "bounds.min_group_order(lambda k: ENS, SO2, X, 1.0, [0.1, 0.2], [3])": "delta",
    "bounds.min_group_order(lambda k: k, SO2, X, 1.0, 0.1, [3])": "build",
    "bounds.random_augmentation_deviation(ENS, SO2, X, 1.0, count=2, key=KEY)": "build",
    "bounds.random_augmentation_deviation(BUILD, SO2, X, 1.0, count=0, key=KEY)": "count",
    "bounds.random_augmentation_deviation(BUILD, SO2, X, 1.0, count=2, key=3)": "key",
    "bounds.random_augmentation_deviation(BUILD, SO2, X, 1.0, count=2, key=KEY, with_identity='no')": "with_identity",
    # networks of finite width
    "empirical.empirical_kernel_fn('f', PARAMS)": "apply",
    "empirical.empirical_kernel_fn(APPLY, None)": "params",
    "empirical.empirical_kernel_fn(APPLY, PARAMS, method='fast')": "method",
    "empirical.empirical_kernel_fn(APPLY, PARAMS, channels=1)": "channels",
    "empirical.empirical_kernel_fn(APPLY, PARAMS)(X[0])": "params",
    "empirical.empirical_kernel_fn(APPLY, PARAMS)(jnp.ones((2, 5)))": "params",
    "empirical.empirical_kernel_fn(APPLY, PARAMS)(None)": "x1",
    "empirical.empirical_kernel_fn(APPLY, PARAMS)(X, 'x')": "x2",
    "empirical.empirical_kernel_fn(APPLY, PARAMS)(X, None, 'cov')": "get",
    "empirical.monte_carlo_kernel_fn(None, APPLY, KEY, 2)": "init, apply",
    "empirical.monte_carlo_kernel_fn(INIT, None, KEY, 2)": "init, apply",
    "empirical.monte_carlo_kernel_fn(INIT, APPLY, 0, 2)": "key",
    "empirical.monte_carlo_kernel_fn(INIT, APPLY, KEY, 0)": "samples",
    "empirical.monte_carlo_kernel_fn(INIT, APPLY, KEY, 2, together=0)": "together",
    "empirical.monte_carlo_kernel_fn(INIT, APPLY, KEY, 2)(None)": "x1",
    "empirical.width_scaling('build', (8, 16), X, key=KEY, samples=2)": "build",
    "empirical.width_scaling(lambda N: NET, 8, X, key=KEY, samples=2)": "widths",
    "empirical.width_scaling(lambda N: NET, (8,), X, key=KEY, samples=2)": "widths",
    "empirical.width_scaling(lambda N: NET, (8, 16), X, key=KEY, samples=1)": "samples",
    "empirical.width_scaling(lambda N: NET, (8, 16), X, key=1, samples=2)": "key",
    "empirical.width_scaling(lambda N: 3, (8, 16), X, key=KEY, samples=2)": "build",
    "empirical.fitted_correction({8: np.ones(1)}, {16: np.ones(1)})": "errors",
    "empirical.fitted_correction({}, {})": "errors",
    "empirical.fitted_correction([1.0], [1.0])": "differences",
    "empirical.fitted_correction({8: np.ones(1)}, {8: np.ones(2)})": "differences, errors",
    "empirical.fitted_correction({'a': np.ones(1)}, {'a': np.ones(1)})": "differences",
    "CORRECTION.at(0)": "width",
    "CORRECTION.error_at(None)": "width",
}
