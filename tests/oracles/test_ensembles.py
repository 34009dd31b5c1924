"""The trained ensemble against implementations that are not ours: neural-tangents, SciPy, steps taken one by one."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.linalg

from ntk_equiv import InfiniteEnsemble, filters, gram, interop, stax
from ntk_equiv.infinite import SampledEnsemble

nt = interop.neural_tangents()
INF = float("inf")


def network(stax):
    return stax.serial(stax.Dense(1, 1.4, 0.2), stax.Relu(), stax.Dense(1, 1.3, 0.1))


KERNEL_FN = network(stax)[2]
RNG = np.random.default_rng(2)
X, X_TEST = jnp.asarray(RNG.standard_normal((6, 3))), jnp.asarray(RNG.standard_normal((4, 3)))
Y = jnp.asarray(RNG.standard_normal((6, 2)))
# In neural-tangents' terms the last rows and columns are the test points.
THETA, K = (np.asarray(kernel) for kernel in reversed(gram(KERNEL_FN, jnp.concatenate([X, X_TEST]), None)))
N = len(X)


def theirs(call):
    with jax.numpy_rank_promotion("allow"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call()


def test_mean_and_covariance_are_those_of_neural_tangents():
    """In our precision but for the diagonal of their kernels, which is off by 1e-8."""
    kernel_fn, times = network(nt.stax)[2], jnp.array([0.0, 3.0, 500.0])
    predict = theirs(lambda: nt.predict.gradient_descent_mse_ensemble(kernel_fn, X, Y, learning_rate=0.7))
    law = theirs(lambda: predict(t=times, x_test=X_TEST, get="ntk", compute_cov=True))
    end = theirs(lambda: predict(t=None, x_test=X_TEST, get="ntk", compute_cov=True))
    bayes = theirs(lambda: predict(t=None, x_test=X_TEST, get="nngp", compute_cov=True))
    ens = InfiniteEnsemble(KERNEL_FN, (X, Y), filters.gradient_flow(0.7), reduction="mean")
    for ours, oracle in (
        (ens.mean(X_TEST, times), law.mean),
        (ens.cov(X_TEST, times), law.covariance),
        (ens.mean(X_TEST, INF), end.mean),
        (ens.cov(X_TEST, INF), end.covariance),
        (ens.nngp_posterior(X_TEST).mean, bayes.mean),
        (ens.nngp_posterior(X_TEST).cov, bayes.covariance),
    ):
        np.testing.assert_allclose(ours, oracle, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("beta", [None, 0.9], ids=["flow", "momentum"])
def test_other_losses_are_trained_as_by_neural_tangents(beta):
    labels, times = jax.nn.softmax(2 * Y), jnp.array([0.5, 20.0])
    start = jnp.asarray(RNG.standard_normal((N + 4, 2)))

    def loss(f, y):
        return -jnp.sum(y * jax.nn.log_softmax(f)) / len(f)

    predict = theirs(
        lambda: nt.predict.gradient_descent(loss, jnp.asarray(THETA[:N, :N]), labels, learning_rate=0.7, momentum=beta)
    )
    _, expected = theirs(lambda: predict(times, start[:N], start[N:], jnp.asarray(THETA[N:, :N])))
    filter = filters.gradient_flow(0.7) if beta is None else filters.momentum_flow(0.7, beta)
    ens = SampledEnsemble(
        KERNEL_FN, (X, labels), "cross_entropy", filter, key=jax.random.key(0), reduction="mean", rtol=1e-7
    )
    found = ens.trajectory(lambda x: start[:N] if len(x) == N else start[N:], X_TEST, times)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_guest_kernel_gives_the_same_ensemble():
    guest = network(nt.stax)[2]
    ours = InfiniteEnsemble(KERNEL_FN, (X, Y))
    with jax.numpy_rank_promotion("allow"):
        theirs = InfiniteEnsemble(guest, (X, Y))
        np.testing.assert_allclose(theirs.mean(X_TEST, 3.0), ours.mean(X_TEST, 3.0), rtol=1e-6)
        np.testing.assert_allclose(theirs.var(X_TEST, 3.0), ours.var(X_TEST, 3.0), rtol=1e-6)
        slope = jax.grad(lambda x: theirs.mean(x, 3.0).sum())(X_TEST)
    np.testing.assert_allclose(slope, jax.grad(lambda x: ours.mean(x, 3.0).sum())(X_TEST), rtol=1e-5, atol=1e-7)


def test_flow_is_the_matrix_exponential():
    """Eq. "mean" and "covariance" of the paper, with the inverse that they are written with."""
    t = 2.5
    theta, theta_x = THETA[:N, :N], THETA[N:, :N]
    A = theta_x @ np.linalg.inv(theta) @ (np.eye(N) - scipy.linalg.expm(-theta * t))
    cov = K[N:, N:] - A @ K[:N, N:] - K[N:, :N] @ A.T + A @ K[:N, :N] @ A.T
    ens = InfiniteEnsemble(KERNEL_FN, (X, Y))
    np.testing.assert_allclose(ens.mean(X_TEST, t), A @ Y, rtol=1e-10)
    np.testing.assert_allclose(ens.cov(X_TEST, t), cov, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(ens.cov(X_TEST[:1], t, X_TEST[1:]), cov[:1, 1:], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(ens.var(X_TEST, t), np.diag(cov), rtol=1e-10)
    np.testing.assert_allclose(ens.residual(t), scipy.linalg.expm(-theta * t) @ Y, rtol=1e-9)
    np.testing.assert_allclose(ens.coefficients(t), _alpha(t), rtol=1e-9)


def _alpha(t):
    theta = THETA[:N, :N]
    return np.linalg.solve(theta, (np.eye(N) - scipy.linalg.expm(-theta * t)) @ np.asarray(Y))


def test_flow_solves_the_training_equation_from_any_start():
    """ḟ = −ηΘ(·, X)(f(X) − y), integrated by SciPy from a function that is not zero."""
    start = lambda x: jnp.stack([jnp.sin(x[:, 0]), x[:, 1] * x[:, 2]], axis=1)  # noqa: E731
    points = np.concatenate([X, X_TEST])
    f0, eta, t = np.asarray(start(points)), 0.4, 1.7

    def slope(_, f):
        return (-eta * THETA[:, :N] @ (f.reshape(f0.shape)[:N] - np.asarray(Y))).ravel()

    end = scipy.integrate.solve_ivp(slope, (0, t), f0.ravel(), rtol=1e-11, atol=1e-12).y[:, -1].reshape(f0.shape)
    ens = InfiniteEnsemble(KERNEL_FN, (X, Y), filters.gradient_flow(eta))
    np.testing.assert_allclose(ens.mean(X_TEST, t, f0=start), end[N:], rtol=1e-8)


@pytest.mark.parametrize("beta", [0.0, 0.8])
@pytest.mark.parametrize("reduction", ["sum", "mean"])
def test_descent_is_descent(beta, reduction):
    """Steps of the linearised network, taken one after the other, with and without momentum."""
    entries = Y.size if reduction == "mean" else 1
    eta, steps = 0.9 * float(filters.max_learning_rate(THETA[:N, :N], size=entries)), 12
    f = before = np.zeros((len(THETA), 2))
    for _ in range(steps):
        f, before = f - eta / entries * THETA[:, :N] @ (f[:N] - np.asarray(Y)) + beta * (f - before), f
    filter = filters.momentum(eta, beta) if beta else filters.gradient_descent(eta)
    ens = InfiniteEnsemble(KERNEL_FN, (X, Y), filter, reduction=reduction)
    np.testing.assert_allclose(ens.mean(X_TEST, steps), f[N:], rtol=1e-10)
    np.testing.assert_allclose(ens.train_mean(steps), f[:N], rtol=1e-10)


def test_ridge_is_ridge_regression():
    theta = THETA[:N, :N]
    expected = THETA[N:, :N] @ np.linalg.solve(theta + 0.3 * np.eye(N), np.asarray(Y))
    ens = InfiniteEnsemble(KERNEL_FN, (X, Y), filters.ridge(0.3))
    np.testing.assert_allclose(ens.mean(X_TEST), expected, rtol=1e-10)
    noisy = ens.nngp_posterior(X_TEST, noise=0.3)
    gain = K[N:, :N] @ np.linalg.inv(K[:N, :N] + 0.3 * np.eye(N))
    np.testing.assert_allclose(noisy.mean, gain @ np.asarray(Y), rtol=1e-10)
    np.testing.assert_allclose(noisy.cov, K[N:, N:] - gain @ K[:N, N:], rtol=1e-9, atol=1e-12)
