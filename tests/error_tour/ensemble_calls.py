"""Wrong calls of the infinite ensemble, its filters, metrics and bounds, and the argument that the answer must name."""

import jax
import jax.numpy as jnp
import numpy as np

from ntk_equiv import (
    InfiniteEnsemble,
    augment,
    groups,
    reps,
    stax,
)

KEY = jax.random.key(0)
NAN, INF = float("nan"), float("inf")
REGULAR = reps.regular(groups.cyclic(3))
X, Y = jnp.array([[1.0, 2.0, 4.0], [0.0, 1.0, 5.0]]), jnp.array([1.0, -1.0])
TRAIN = augment(X, Y, REGULAR)
NET = stax.serial(stax.Dense(4, 1.5, 0.1), stax.Relu(), stax.Dense(1))
KERNEL = NET.kernel_fn
ENS = InfiniteEnsemble(KERNEL, (X, Y))
PLANE, CIRCLE = X[:, :2], reps.matrix(groups.SO2)
PREDICTIONS = np.ones((2, 4, 5, 3))

CALLS = {
    # filters
    "filters.gradient_flow(0.0)": "learning_rate",
    "filters.gradient_flow(jnp.ones(2))": "learning_rate",
    "filters.gradient_descent(-1.0)": "learning_rate",
    "filters.momentum(0.1, 1.0)": "beta",
    "filters.ridge(-1.0)": "lam",
    "filters.custom(3.0)": "filter",
    "filters.max_learning_rate(jnp.ones(3))": "theta",
    "filters.max_learning_rate(jnp.ones((2, 3)))": "theta",
    "filters.max_learning_rate('theta')": "theta",
    "filters.max_learning_rate(jnp.eye(2), beta=1.5)": "beta",
    "filters.max_learning_rate(jnp.eye(2), size=0)": "size",
    # the ensemble: data and settings
    "InfiniteEnsemble(NET[:2], (X, Y))": "kernel_fn",
    "InfiniteEnsemble((X, Y), KERNEL)": "kernel_fn",
    "InfiniteEnsemble(KERNEL, X)": "train",
    "InfiniteEnsemble(KERNEL, (X, Y, Y))": "train",
    "InfiniteEnsemble(KERNEL, (Y, X))": "x",
    "InfiniteEnsemble(KERNEL, (X, Y[:1]))": "y",
    "InfiniteEnsemble(KERNEL, (X, None))": "y",
    "InfiniteEnsemble(KERNEL, (X, jnp.array([0, 1])))": "y",
    "InfiniteEnsemble(KERNEL, (X, Y * NAN))": "y",
    "InfiniteEnsemble(KERNEL, (X, jnp.ones((2, 0))))": "y",
    "InfiniteEnsemble(KERNEL, (X * NAN, Y))": "x",
    "InfiniteEnsemble(KERNEL, (X.astype(int), Y))": "x",
    "InfiniteEnsemble(KERNEL, (X[:0], Y[:0]))": "train",
    "InfiniteEnsemble(KERNEL, (X, jnp.ones((2, 4, 1))))": "y",
    "InfiniteEnsemble(KERNEL, (X, Y), 'flow')": "filter",
    "InfiniteEnsemble(KERNEL, (X, Y), filters.gradient_flow)": "filter",
    "InfiniteEnsemble(KERNEL, (X, Y), filters.gradient_descent(100.0))": "learning_rate",
    "InfiniteEnsemble(KERNEL, (X, Y), filters.momentum(100.0, 0.5))": "learning_rate",
    "InfiniteEnsemble(KERNEL, (X, Y), reduction='average')": "reduction",
    "InfiniteEnsemble(KERNEL, (X, Y), method='fast')": "method",
    "InfiniteEnsemble(KERNEL, (X, Y), method='reduced')": "method",
    "InfiniteEnsemble(KERNEL, (X, Y), solver='krylov')": "solver",
    "InfiniteEnsemble(KERNEL, (X, Y), solver=solvers.Eigh)": "solver",
    # the ensemble: predictions
    "ENS.mean(X)": "t",
    "ENS.mean(X, -1.0)": "t",
    "ENS.mean(X, NAN)": "t",
    "ENS.mean(X, 'inf')": "t",
    "ENS.mean(X, [[1.0]])": "t",
    "ENS.mean(1.0, X)": "x",
    "ENS.mean(X[0], 1.0)": "x",
    "ENS.mean(X[:, :2], 1.0)": "x",
    "ENS.mean([[1.0, 2.0, 3.0]], 1.0)": "x",
    "ENS.mean(X.astype(int), 1.0)": "x",
    "ENS.mean(X * NAN, 1.0)": "x",
    "ENS.mean(X, 1.0, f0=3.0)": "f0",
    "ENS.mean(X, 1.0, f0=lambda x: x)": "f0",
    "ENS.cov(X, 1.0, X[:, :2])": "x2",
    "ENS.cov(X[0], 1.0)": "x",
    "ENS.var(X[0], 1.0)": "x",
    "ENS.sample(0, X, 1.0)": "key",
    "ENS.sample(KEY, X, 1.0, 0)": "members",
    "ENS.sample(KEY, X, [[1.0, 2.0]], 2)": "t",
    "ENS.error_bound(X[0], 1.0)": "x",
    "ENS.train_mean()": "t",
    "ENS.residual('late')": "t",
    "ENS.coefficients(-1)": "t",
    "ENS.nngp_posterior(X, noise=-1.0)": "noise",
    "ENS.nngp_posterior(X[0])": "x",
    "ENS.log_marginal_likelihood(noise=-1.0)": "noise",
    "ENS.expected_mse(X, Y[:1], 1.0)": "y",
    "ENS.expected_mse(X, Y, 1.0, members=0)": "members",
    "ENS.expected_accuracy(0, X, Y, 1.0)": "key",
    "ENS.expected_accuracy(KEY, X, Y[:1], 1.0)": "y",
    "ENS.expected_accuracy(KEY, X, Y, 1.0, samples=0)": "samples",
    "ENS.save(3)": "path",
    "InfiniteEnsemble.load('no such file.npz', KERNEL, (X, Y))": "path",
    "ensemble_mean(KERNEL, (X, Y), X, -1.0)": "t",
    "ensemble_mean(KERNEL, (X, Y), 1.0, X)": "t",
    "ensemble_mean((X, Y), KERNEL, X, 1.0)": "kernel_fn",
    "ensemble_mean(KERNEL, X, Y, 1.0)": "train",
    "ensemble_mean(KERNEL, (X, Y), X[0], 1.0)": "x_test",
    "ensemble_mean(KERNEL, (X, Y), X[:, :2], 1.0)": "x_test",
    "ensemble_mean(KERNEL, (X, Y), X, 1.0, learning_rate=0)": "learning_rate",
    "ensemble_mean(KERNEL, (X, Y), X, 1.0, reduction='max')": "reduction",
    "ensemble_mean(KERNEL, (X, Y), X, 1.0, method='krylov')": "method",
    "ensemble_cov(KERNEL, (X, Y), X, 1.0, diag='yes')": "diag",
    "ensemble_cov(KERNEL, (X, Y), X, 1.0, diag=True, x_test2=X)": "x_test2",
    "ensemble_cov(KERNEL, (X, Y), X, 1.0, x_test2=X[0])": "x_test2",
    "infinite.haar_limit(KERNEL, X, Y, REGULAR, X, 1.0)": "rep",
    "infinite.haar_limit(KERNEL, PLANE, Y, CIRCLE, PLANE, 1.0, start=0)": "start",
    "infinite.haar_limit(KERNEL, PLANE, Y, CIRCLE, PLANE, 1.0, rtol='fine')": "rtol",
    "infinite.haar_limit(KERNEL, X, Y, CIRCLE, X, 1.0)": "x",
    # metrics
    "metrics.orbit_std(3.0)": "predictions",
    "metrics.orbit_std(np.ones((2, 3)))": "predictions",
    "metrics.orbit_std(np.ones((2, 0, 5, 1)))": "predictions",
    "metrics.orbit_std(PREDICTIONS + 1j)": "predictions",
    "metrics.relative_orbit_std(PREDICTIONS, normalizer=0.0)": "normalizer",
    "metrics.orbit_same_prediction(PREDICTIONS, identity=9)": "identity",
    "metrics.orbit_same_prediction(None)": "predictions",
    "metrics.continuous_orbit_same_prediction(PREDICTIONS, None)": "reference",
    "metrics.continuous_orbit_same_prediction(PREDICTIONS, np.ones((2, 2)))": "reference",
    "metrics.orbit_mse(PREDICTIONS, np.ones((2, 2)))": "reference",
    "metrics.orbit_mse(PREDICTIONS, PREDICTIONS[:, 0], 'same')": "rep_y",
    "metrics.symmetric_kl(None)": "logits",
    "metrics.symmetric_kl(PREDICTIONS[..., :1])": "logits",
    "metrics.symmetric_kl(PREDICTIONS, identity=1.5)": "identity",
}
