"""The first correction of kernels by finite width, at initialisation, for fully connected networks.

Given the layer before, preactivations of a layer are independent Gaussians. Their covariance G and the conditional mean
T of their tangent kernel are means over the n neurons of the layer before,

    G' = σ_b² + (σ_w²/n) Σ_k φ(z_k)φ(z'_k),      T' = G' + (σ_w²/n) Σ_k φ'(z_k)φ'(z'_k) Θ_kk

with z_k ~ N(0, G). So G and T fluctuate by O(1/√n) about their limits 𝒦 and Θ. With F(𝒦) = σ_b² + σ_w² E[φφ],
Ḟ = σ_w² E[φ'φ'], derivatives with respect to the variances and the covariance of two samples a, b, and δ for the
correction of a mean, to first order in 1/n

    Cov(G', G')  = σ_w⁴/n Cov(φφ, φφ) + DF Cov(G, G) DFᵀ
    Cov(T', G')  = σ_w⁴/n Cov(φφ + Θφ'φ', φφ) + (J Cov(G, G) + Ḟ Cov(T, G)) DFᵀ,        J = DF + Θ DḞ
    Var(T')      = σ_w⁴/n Var(φφ + Θφ'φ') + J Cov(G, G) Jᵀ + 2 Ḟ J Cov(G, T) + Ḟ² Var(T)
    δ𝒦'          = DF δ𝒦 + ½ D²F : Cov(G, G)
    δΘ'          = δ𝒦' + Ḟ δΘ + Θ (DḞ δ𝒦 + ½ D²Ḟ : Cov(G, G)) + DḞ Cov(G, T) + Σ_cd ⟨∂_c∂_d φ'φ'⟩ σ_w² P_cd

The tangent kernel of a neuron also depends on its own weights, hence on its z. Gaussian integration by parts gives

    P'_cd = σ_w⁴/n Θ ⟨φ_c φ_d φ'_a φ'_b⟩ + σ_w⁴ Σ_ef ⟨∂_e(φ_c φ'_a)⟩ ⟨∂_f(φ_d φ'_b)⟩ P_ef

Kernels Θ_12(a, b) between different neurons are random with mean squares, and products with Θ_21(a, b),

    E Θ_12²'     = σ_w⁴/n Θ² ⟨φ'_a² φ'_b²⟩ + σ_w⁴ ⟨φ'_a²⟩⟨φ'_b²⟩ E Θ_12²
    E Θ_12Θ_21'  = σ_w⁴/n Θ² ⟨φ'_a² φ'_b²⟩ + Ḟ² E Θ_12Θ_21

so that the kernel of one output has the variance Var(T) + E Θ_12² + E Θ_12Θ_21, and the mean over C outputs has
Var(T) + (E Θ_12² + E Θ_12Θ_21)/C. All of it closes over the two samples of an entry. (The four-point vertices of Yaida
2020 and of Roberts, Yaida & Hanin 2022 are these numbers, times n.)

Expectations are sums over Hermite coefficients at cosine c, which need no derivative beyond φ',

    E[f⁽ⁱ⁾(u) g⁽ʲ⁾(v)] = Σ_l A_l B_l cˡ,      A_l = √((l+i)!/l!) q^{−i/2} a_{l+i}

and closed forms for piecewise linear φ, whose coefficients fall slowly.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jax.typing import ArrayLike

from ntk_equiv._check import floating, refusal
from ntk_equiv.stax import Activation, Affine, KernelFn, Network, PiecewiseLinear

# So many that GELU at criticality, where the variance is 3.56, has coefficients down to rounding.
NODES, TERMS = 500, 400
# Beyond three quarters of the terms, coefficients weighted as fourth derivatives are must be that small.
LARGEST_TAIL = 1e-6
# For activations with a kink: closer to parallel, second derivatives lose all digits.
SMALLEST_GAP = 1e-6


class KernelCorrections(NamedTuple):
    """What finite width adds to the kernels of random networks, to first order; made by `kernel_corrections`.

    Attributes:
        nngp: the mean of 𝒦 at finite width minus its limit, [n1, n2].
        ntk: the mean of Θ minus its limit.
        nngp_variance: the variance, between networks, of the covariance 𝒦 that outputs have given the hidden layers.
        ntk_variance: the variance of Θ between networks, as the mean over their outputs.

    Example:
        >>> import numpy as np
        >>> from ntk_equiv.empirical import KernelCorrections
        >>> zero = np.zeros((1, 1))
        >>> KernelCorrections(zero, zero + 0.5, zero, zero + 4.0).relative_noise(np.array([[8.0]]))
        array([[0.25]])
    """

    nngp: np.ndarray
    ntk: np.ndarray
    nngp_variance: np.ndarray
    ntk_variance: np.ndarray

    def relative_noise(self, ntk: ArrayLike) -> np.ndarray:
        """Return the standard deviation of Θ between networks, over the limit of Θ.

        Args:
            ntk: Θ at infinite width, [n1, n2].
        """
        return np.sqrt(self.ntk_variance) / np.abs(np.asarray(ntk, float))


class _Moments(NamedTuple):
    """Expectations at a batch of pairs (or single samples): β counts aa, ab, bb (or aa alone), c counts a, b (or a)."""

    pairs: np.ndarray  # ⟨φφ⟩_β
    slopes: np.ndarray  # its derivatives, [P, β, γ]
    bends: np.ndarray  # its second derivatives, [P, β, γ, δ]
    dot: np.ndarray  # ⟨φ'_a φ'_b⟩
    dot_slopes: np.ndarray  # [P, γ]
    dot_bends: np.ndarray  # [P, γ, δ]
    fours: np.ndarray  # ⟨(φφ)_β (φφ)_γ⟩
    mixed: np.ndarray  # ⟨(φφ)_β φ'_a φ'_b⟩
    dots: np.ndarray  # ⟨(φ'_a φ'_b)²⟩
    squares: np.ndarray  # ⟨φ'_a²⟩⟨φ'_b²⟩
    left: np.ndarray  # ⟨∂_e(φ_c φ'_a)⟩, [P, c, e]
    right: np.ndarray  # ⟨∂_f(φ_d φ'_b)⟩, [P, d, f]


def kernel_corrections(layers: Sequence[Network], x1: Any, x2: Any = None) -> KernelCorrections:
    """Return what the widths of a fully connected network add to its kernels at initialisation, to first order.

    The error is of second order in depth/width. `width_scaling` and `monte_carlo_kernel_fn` measure the same for any
    network, by drawing some. Smooth activations are refused at variances so large, for GELU about 8, that Hermite
    coefficients do not fall off fast enough.

    Args:
        layers: `stax.Dense` and activations in turn, beginning and ending with `Dense`, as for `stax.serial`. Hidden
            widths are those of the layers.
        x1: samples, [n1, features].
        x2: other samples, [n2, features]; `None` stands for `x1`.

    Returns:
        Corrections of the means and variances, each [n1, n2].

    Raises:
        ValueError: there are other layers, standard parameterization, or an activation that is neither piecewise linear
            nor smooth enough; or samples that are parallel, but not equal, meet an activation with a kink.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import empirical, stax
        >>> hidden = stax.Dense(100, W_std=2**0.5), stax.Relu()
        >>> found = empirical.kernel_corrections([*hidden, *hidden, stax.Dense(1)], jnp.array([[1.0, 1.0]]))
        >>> print(found.nngp, found.ntk, found.nngp_variance.round(3))      # 5/n for each hidden layer, times 𝒦²
        [[0.]] [[0.]] [[0.1]]
    """
    dense, activations, functions = _check_layers(layers)
    one, two = (np.asarray(floating(x, "x"), float) for x in (x1, x1 if x2 is None else x2))
    if one.ndim != 2 or two.ndim != 2 or one.shape[1] != two.shape[1]:
        fix = "Fully connected networks take samples [n, features]; flatten them."
        raise refusal("x1, x2", expected="of shape [n, features]", got=f"{one.shape} and {two.shape}", fix=fix)
    rows, columns = (index.ravel() for index in np.indices((len(one), len(two))))
    if x2 is None:
        rows, columns = np.triu_indices(len(one))
    equal = (one[rows] == two[columns]).all(1)
    results = np.zeros((4, len(rows)))
    dots = np.stack([np.sum(a * b, 1) for a, b in _sides(one[rows], two[columns])], 1) / one.shape[1]
    results[:, equal] = _pass_layers(dots[equal, :1], dense, activations, functions)
    results[:, ~equal] = _pass_layers(dots[~equal], dense, activations, functions)
    full = np.zeros((4, len(one), len(two)))
    full[:, rows, columns] = results
    if x2 is None:
        full[:, columns, rows] = results
    return KernelCorrections(*full)


def _sides(a: np.ndarray, b: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(a, a), (a, b), (b, b)]


def _check_layers(layers: Any) -> tuple[list, list, list]:
    """Return the rules of dense layers, those of activations, and the activations as functions."""
    fix = "Pass a list such as [stax.Dense(64), stax.Relu(), stax.Dense(1)], not the network that `serial` makes of it."
    if isinstance(layers, Network) or not isinstance(layers, Sequence) or len(layers) % 2 == 0:
        raise refusal("layers", expected="`Dense` and activations in turn", got=type(layers).__name__, fix=fix)
    for number, layer in enumerate(layers):
        ours = isinstance(layer, Network) and isinstance(layer.kernel_fn, KernelFn)
        if not ours or not isinstance(layer.kernel_fn.rule, Activation if number % 2 else Affine):
            what = type(layer.kernel_fn.rule if ours else layer).__name__
            got = f"{what} at position {number}"
            raise refusal("layers", expected="`Dense` and activations in turn", got=got, fix=fix)
    rules: list[Any] = [layer.kernel_fn.rule for layer in layers]
    dense = rules[::2]
    if any(rule.parameterization.standard for rule in dense):
        fix = 'Use parameterization="ntk", in which kernels do not depend on the width.'
        raise refusal("layers", expected="in NTK parameterization", got="the standard one", fix=fix)
    return dense, rules[1::2], [layer.apply_fn for layer in layers[1::2]]


def _pass_layers(dots: np.ndarray, dense: list, activations: list, functions: list) -> np.ndarray:
    """Return the four corrections of pairs with inner products [P, β] of their inputs."""
    count, size = dots.shape
    if not count:
        return np.zeros((4, 0))
    own = size // 2
    affine = [(float(rule.W_var), 0.0 if rule.b_var is None else float(rule.b_var), rule.channels) for rule in dense]
    w, b, _ = affine[0]
    K = w * dots + b
    if not (K[:, [0, -1]] > 0).all():
        fix = "Leave out samples that are 0, or give the first layer a bias."
        raise refusal("x1, x2", expected="samples with a signal", got="one whose variance is 0", fix=fix)
    theta, theta_change = K[:, own].copy(), np.zeros(count)
    change, cov, mixed, var = np.zeros(K.shape), np.zeros((count, size, size)), np.zeros(K.shape), np.zeros(count)
    own_weights = np.zeros((count, (size + 1) // 2, (size + 1) // 2))
    squares, products = np.zeros(count), np.zeros(count)
    for (w, b, _), (_, _, width), rule, function in zip(affine[1:], affine, activations, functions, strict=False):
        E = _moments(rule, function, K)
        DF, F_dot, DF_dot = w * E.slopes, w * E.dot, w * E.dot_slopes
        J = DF[:, own] + theta[:, None] * DF_dot
        noise = w**2 / width
        # φφ + Θφ'φ' of the entry, with φφ of all entries and with itself.
        with_all = E.fours[:, own] - E.pairs[:, own, None] * E.pairs
        with_all = with_all + theta[:, None] * (E.mixed - E.dot[:, None] * E.pairs)
        with_dot = E.mixed[:, own] - E.dot * E.pairs[:, own] + theta * (E.dots - E.dot**2)
        by_fluctuation = np.einsum("pcd,pbcd->pb", cov, w * E.bends) / 2
        dot_by_fluctuation = np.einsum("pcd,pcd->p", cov, w * E.dot_bends) / 2
        new_change = np.einsum("pbc,pc->pb", DF, change) + by_fluctuation
        new_theta_change = (
            new_change[:, own]
            + F_dot * theta_change
            + theta * (np.sum(DF_dot * change, 1) + dot_by_fluctuation)
            + np.sum(DF_dot * mixed, 1)
            + np.sum(DF_dot * _symmetric_sums(own_weights), 1)
        )
        new_var = (
            noise * (with_all[:, own] + theta * with_dot)
            + np.einsum("pb,pbc,pc->p", J, cov, J)
            + 2 * F_dot * np.sum(J * mixed, 1)
            + F_dot**2 * var
        )
        through = np.einsum("pb,pbc->pc", J, cov) + F_dot[:, None] * mixed
        new_mixed = noise * with_all + np.einsum("pc,pbc->pb", through, DF)
        cov = noise * (E.fours - E.pairs[:, :, None] * E.pairs[:, None]) + np.einsum("pac,pcd,pbd->pab", DF, cov, DF)
        own_weights = noise * theta[:, None, None] * _as_matrix(E.mixed) + w**2 * np.einsum(
            "pce,pef,pdf->pcd", E.left, own_weights, E.right
        )
        squares = noise * theta**2 * E.dots + w**2 * E.squares * squares
        products = noise * theta**2 * E.dots + F_dot**2 * products
        K, theta = w * E.pairs + b, w * E.pairs[:, own] + b + F_dot * theta
        change, theta_change, mixed, var = new_change, new_theta_change, new_mixed, new_var
    outputs = dense[-1].channels
    return np.stack([change[:, own], theta_change, cov[:, own, own], var + (squares + products) / outputs])


def _symmetric_sums(P: np.ndarray) -> np.ndarray:
    """Return what multiplies the derivatives by K_aa, K_ab, K_bb in Σ_cd ⟨∂_c∂_d …⟩ P_cd, as ∂/∂K_aa is ½⟨∂_a²⟩."""
    if P.shape[1] == 1:
        return 2 * P[:, 0]
    return np.stack([2 * P[:, 0, 0], P[:, 0, 1] + P[:, 1, 0], 2 * P[:, 1, 1]], 1)


def _as_matrix(values: np.ndarray) -> np.ndarray:
    """Return values by aa, ab, bb as a symmetric matrix over a, b."""
    if values.shape[1] == 1:
        return values[:, :, None]
    return values[:, np.array([[0, 1], [1, 2]])]


def _moments(rule: Any, function: Callable, K: np.ndarray) -> _Moments:
    slopes = _slopes_of_kink(rule)
    if slopes is not None:
        return _kinked_single(*slopes, K[:, 0]) if K.shape[1] == 1 else _kinked_pairs(*slopes, K)
    return _smooth_single(function, K[:, 0]) if K.shape[1] == 1 else _smooth_pairs(function, K)


# Smooth activations


@cache
def _hermite() -> tuple[np.ndarray, np.ndarray]:
    """Return Gauss–Hermite nodes, and the matrix that takes values there to coefficients, [nodes, terms]."""
    places, weights = scipy.special.roots_hermitenorm(NODES)
    weights = weights / np.sqrt(2 * np.pi)
    polynomials = [np.zeros_like(places), np.ones_like(places)]
    for order in range(TERMS - 1):
        polynomials.append((places * polynomials[-1] - np.sqrt(order) * polynomials[-2]) / np.sqrt(order + 1))
    return places, weights[:, None] * np.stack(polynomials[1:], 1)


class _Expansion:
    """Hermite coefficients, at variances q [P], of the functions that are made of φ and φ'."""

    def __init__(self, function: Callable, q: np.ndarray):
        places, self._projection = _hermite()
        z = jnp.asarray(np.sqrt(q)[:, None] * places)
        values, slopes = jax.jvp(lambda z: function((), z), (z,), (jnp.ones_like(z),))
        self.q, self.phi, self.dot = q, np.asarray(values, float), np.asarray(slopes, float)
        self._known: dict = {}
        for name in ("phi", "dot"):
            self._check_tail(self.of(name))

    def of(self, *names: str) -> np.ndarray:
        """Return the coefficients [P, terms] of a product, such as φ² φ' of "phi", "phi", "dot"."""
        if names not in self._known:
            product = np.ones_like(self.phi)
            for name in names:
                product = product * getattr(self, name)
            self._known[names] = product @ self._projection
        return self._known[names]

    def derivative(self, order: int, *names: str) -> np.ndarray:
        """Return the coefficients of a derivative of a product."""
        coefficients = self.of(*names)[:, order:]
        factor = np.sqrt(scipy.special.poch(np.arange(TERMS - order) + 1, order))
        return np.pad(factor * coefficients / self.q[:, None] ** (order / 2), ((0, 0), (0, order)))

    @staticmethod
    def _check_tail(coefficients: np.ndarray) -> None:
        squares = coefficients**2
        tail = squares[:, 3 * TERMS // 4 :] @ np.arange(3 * TERMS // 4, TERMS, dtype=float) ** 4
        if not (tail <= LARGEST_TAIL * np.maximum(squares.sum(1), 1e-300)).all():
            fix = "Enable x64 if this is float32; `width_scaling` estimates the same for any activation."
            expected = "smooth activations, at the variances that the samples have"
            raise refusal("layers", expected=expected, got="Hermite coefficients that do not fall off", fix=fix)


def _smooth_single(function: Callable, q: np.ndarray) -> _Moments:
    f = _Expansion(function, q)
    mean = lambda *names: f.of(*names)[:, 0]  # noqa: E731
    first = lambda *names: f.derivative(2, *names)[:, 0] / 2  # noqa: E731
    second = lambda *names: f.derivative(4, *names)[:, 0] / 4  # noqa: E731
    phi2, dot2 = ("phi", "phi"), ("dot", "dot")
    return _Moments(
        mean(*phi2)[:, None],
        first(*phi2)[:, None, None],
        second(*phi2)[:, None, None, None],
        mean(*dot2),
        first(*dot2)[:, None],
        second(*dot2)[:, None, None],
        mean(*phi2, *phi2)[:, None, None],
        mean(*phi2, *dot2)[:, None],
        mean(*dot2, *dot2),
        mean(*dot2) ** 2,
        first(*phi2)[:, None, None],
        first(*phi2)[:, None, None],
    )


def _smooth_pairs(function: Callable, K: np.ndarray) -> _Moments:
    f, g = _Expansion(function, K[:, 0]), _Expansion(function, K[:, 2])
    cosine = np.clip(K[:, 1] / np.sqrt(K[:, 0] * K[:, 2]), -1, 1)
    powers = cosine[:, None] ** np.arange(TERMS)

    def joint(left: tuple, right: tuple, i: int = 0, j: int = 0) -> np.ndarray:
        return np.sum(f.derivative(i, *left) * g.derivative(j, *right) * powers, 1)

    def of_entries(left: tuple, right: tuple) -> tuple[np.ndarray, np.ndarray]:
        """Return first and second derivatives by K_aa, K_ab, K_bb, which are ½∂_a², ∂_a∂_b, ½∂_b²."""
        steps = ((2, 0, 0.5), (1, 1, 1.0), (0, 2, 0.5))
        first = np.stack([c * joint(left, right, i, j) for i, j, c in steps], 1)
        second = [[c * d * joint(left, right, i + k, j + m) for k, m, d in steps] for i, j, c in steps]
        return first, np.moveaxis(np.array(second), -1, 0)

    phi, dot = ("phi",), ("dot",)
    one, two = _smooth_single(function, K[:, 0]), _smooth_single(function, K[:, 2])
    slopes, bends = of_entries(phi, phi)
    dot_slopes, dot_bends = of_entries(dot, dot)
    by_power = [joint(phi * (4 - j), phi * j) for j in range(5)]
    mixed = [joint(phi * (2 - j) + dot, phi * j + dot) for j in range(3)]
    return _assemble_pairs(
        one,
        two,
        pair=joint(phi, phi),
        slopes=slopes,
        bends=bends,
        dot=joint(dot, dot),
        dot_slopes=dot_slopes,
        dot_bends=dot_bends,
        by_power=by_power,
        mixed=mixed,
        dots=joint(dot + dot, dot + dot),
    )


def _assemble_pairs(
    one: _Moments,
    two: _Moments,
    *,
    pair: np.ndarray,
    slopes: np.ndarray,
    bends: np.ndarray,
    dot: np.ndarray,
    dot_slopes: np.ndarray,
    dot_bends: np.ndarray,
    by_power: list,
    mixed: list,
    dots: np.ndarray,
) -> _Moments:
    """Return the moments of pairs from those of their samples, and from what depends on both."""
    count = len(pair)
    all_slopes, all_bends = np.zeros((count, 3, 3)), np.zeros((count, 3, 3, 3))
    for place, single in ((0, one), (2, two)):
        all_slopes[:, place, place] = single.slopes[:, 0, 0]
        all_bends[:, place, place, place] = single.bends[:, 0, 0, 0]
    all_slopes[:, 1], all_bends[:, 1] = slopes, bends
    left, right = np.zeros((count, 2, 2)), np.zeros((count, 2, 2))
    # φ_a φ'_a depends on z_a alone; φ_b φ'_a has the derivatives ⟨φ_b φ''_a⟩ and ⟨φ'_b φ'_a⟩.
    left[:, 0, 0], left[:, 1, 0], left[:, 1, 1] = one.left[:, 0, 0], 2 * slopes[:, 0], dot
    right[:, 1, 1], right[:, 0, 1], right[:, 0, 0] = two.left[:, 0, 0], 2 * slopes[:, 2], dot
    powers = np.stack(by_power, 1)
    return _Moments(
        np.stack([one.pairs[:, 0], pair, two.pairs[:, 0]], 1),
        all_slopes,
        all_bends,
        dot,
        dot_slopes,
        dot_bends,
        powers[:, np.add.outer(np.arange(3), np.arange(3))],
        np.stack(mixed, 1),
        dots,
        one.dot * two.dot,
        left,
        right,
    )


# Piecewise linear activations: slope a for negative and b for positive arguments


def _slopes_of_kink(rule: Any) -> tuple[float, float] | None:
    """Return a and b, up to a common sign and their order, which no kernel depends on; None for other activations."""
    if not isinstance(rule, PiecewiseLinear):
        return None
    # (b − a)²/2 is the bend and (a² + b²)/2 the moment, so (a + b)²/2 is what the first lacks to twice the second.
    bend, moment = float(rule.bend), float(rule.moment)
    difference, total = np.sqrt(2 * bend), np.sqrt(max(4 * moment - 2 * bend, 0.0))
    return (total - difference) / 2, (total + difference) / 2


def _kinked_single(a: float, b: float, q: np.ndarray) -> _Moments:
    second, fourth, zero = (a**2 + b**2) / 2, (a**4 + b**4) / 2, np.zeros_like(q)
    one = np.ones_like(q)
    return _Moments(
        (second * q)[:, None],
        (second * one)[:, None, None],
        zero[:, None, None, None],
        second * one,
        zero[:, None],
        zero[:, None, None],
        (3 * fourth * q**2)[:, None, None],
        (fourth * q)[:, None],
        fourth * one,
        second**2 * one,
        (second * one)[:, None, None],
        (second * one)[:, None, None],
    )


def _kinked_pairs(a: float, b: float, K: np.ndarray) -> _Moments:
    q, k, r = K.T
    cosine = k / np.sqrt(q * r)
    if (1 - np.abs(cosine) < SMALLEST_GAP).any():
        fix = "Leave out samples that are multiples of others, or give the first layer a bias."
        expected = "samples that are equal or not parallel, for an activation with a kink"
        raise refusal("x1, x2", expected=expected, got=f"a cosine of {cosine[np.argmax(np.abs(cosine))]:.9f}", fix=fix)
    bend, slope = (b - a) ** 2 / 2, a * b
    root, pi = np.sqrt(q * r - k**2), np.pi
    k0 = 1 - np.arccos(cosine) / pi
    first = np.stack([root / (2 * pi * q), k0, root / (2 * pi * r)], 1)
    qq, rr = ((s / (2 * t * root) - root / t**2) / (2 * pi) for s, t in ((r, q), (q, r)))
    kq, kr, kk, qr = -k / (2 * pi * q * root), -k / (2 * pi * r * root), 1 / (pi * root), 1 / (4 * pi * root)
    cube = pi * root**3
    dqq, drr = (k / (2 * pi * t**2 * root) + k * s / (4 * t * cube) for s, t in ((r, q), (q, r)))
    dkk, dkq, dkr, dqr = k / cube, -r / (2 * cube), -q / (2 * cube), k / (4 * cube)
    moment = lambda i, j, m, n: _sector_moment(a, b, i, j, m, n, np.arccos(cosine)) * q ** (i / 2) * r ** (j / 2)  # noqa: E731
    return _assemble_pairs(
        _kinked_single(a, b, q),
        _kinked_single(a, b, r),
        pair=slope * k + bend * (root / pi + k0 * k),
        slopes=bend * first + slope * np.array([[0.0, 1.0, 0.0]]),
        bends=bend * _symmetric(qq, kq, qr, kk, kr, rr),
        dot=slope + bend * k0,
        dot_slopes=bend * np.stack([kq, kk, kr], 1),
        dot_bends=bend * _symmetric(dqq, dkq, dqr, dkk, dkr, drr),
        by_power=[moment(4 - j, j, 0, 0) for j in range(5)],
        mixed=[moment(2 - j, j, 1, 1) for j in range(3)],
        dots=moment(0, 0, 2, 2),
    )


def _symmetric(aa: Any, ab: Any, ac: Any, bb: Any, bc: Any, cc: Any) -> np.ndarray:
    return np.moveaxis(np.array([[aa, ab, ac], [ab, bb, bc], [ac, bc, cc]]), -1, 0)


def _sector_moment(a: float, b: float, i: int, j: int, m: int, n: int, angle: np.ndarray) -> np.ndarray:
    """Return ⟨φ(u)ⁱ φ'(u)ᵐ φ(v)ʲ φ'(v)ⁿ⟩ at unit variances and an angle, by integrals over sectors of the plane."""
    places, weights = np.polynomial.legendre.leggauss(24)
    radial = 2 ** ((i + j) / 2) * scipy.special.gamma((i + j) / 2 + 1) / (2 * np.pi)
    total = np.zeros_like(angle)
    # u ∝ cos ψ is positive for |ψ| < π/2, and v ∝ cos(ψ − angle) for |ψ − angle| < π/2.
    edges = [angle - np.pi / 2, np.full_like(angle, np.pi / 2), angle + np.pi / 2, np.full_like(angle, 1.5 * np.pi)]
    ends = [*edges[1:], angle + 1.5 * np.pi]
    for (u, v), start, end in zip(((b, b), (a, b), (a, a), (b, a)), edges, ends, strict=True):
        psi = ((start + end) / 2)[:, None] + ((end - start) / 2)[:, None] * places
        values = (np.cos(psi) ** i * np.cos(psi - angle[:, None]) ** j) @ weights * (end - start) / 2
        total += u ** (i + m) * v ** (j + n) * values
    return radial * total
