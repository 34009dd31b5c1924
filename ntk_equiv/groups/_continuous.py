"""The continuous groups O(n) and SO(n): Haar samples, finite subgroups, grids, distances.

An element is its matrix.

**Samples.** The orthogonal factors of Gaussian matrices are Haar on O(n), if QR makes the diagonal of R positive.
Changing the sign of one column where det = −1 makes them Haar on SO(n).

**Distance.** The geodesic distance of a and b is

    d(a, b) = (Σ_planes θ²)^½,   θ the angles by which aᵀb rotates,

the angle itself for n = 2, 3. The singular values of aᵀb − 1 and aᵀb + 1 are 2 sin(θ/2) and 2 cos(θ/2), each twice.
Together they give θ accurately near 0 and near π.

**Grids on SO(3).** `grid` takes unit quaternions along a super-Fibonacci spiral, which has low discrepancy for any
number of them (Alexa, "Super-Fibonacci Spirals", CVPR 2022). For s = i + ½ of n,

    q = (√(s/n) e^{2πis/φ}, √(1 − s/n) e^{2πis/ψ}),     φ = √2,   ψ⁴ = ψ + 4.

`euler_grid` takes R = R_z(α)R_y(β)R_z(γ), uniform in α and γ, Gauss–Legendre in cos β. With degree + 1 angles each and
⌊degree/2⌋ + 1 nodes the weighted sum of a polynomial of that degree is its Haar average.
"""

import dataclasses
import re
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float, Key, UInt32
from scipy.spatial.transform import Rotation

from ntk_equiv._check import instance, positive_integer, random_key, real_array, refusal
from ntk_equiv._typing import Array
from ntk_equiv.groups._families import cyclic, dihedral, rotations
from ntk_equiv.groups._finite import FiniteGroup
from ntk_equiv.groups._irreps import root_of_unity

_PHI = np.sqrt(2)
_PSI = 1.533751168755204288118041  # the positive root of ψ⁴ = ψ + 4

RandomKey: TypeAlias = Key[Array, ""] | UInt32[Array, "2"]


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, repr=False)
class ContinuousGroup:
    """O(n) or SO(n), whose elements are their matrices.

    Attributes:
        n: the size of the matrices.
        special: whether the determinant is 1.

    Example:
        >>> from ntk_equiv import groups
        >>> groups.SO3, groups.O(5)
        (SO(3), O(5))
        >>> groups.SO3 == groups.SO(3)
        True
    """

    n: int
    special: bool

    def __repr__(self) -> str:
        return self.label

    @property
    def label(self) -> str:
        """A name for the group."""
        return f"{'SO' if self.special else 'O'}({self.n})"

    def sample(self, key: RandomKey, count: int) -> Float[Array, "{count} {self.n} {self.n}"]:
        """Independent elements from the Haar measure.

        Args:
            key: a JAX random key.
            count: how many.

        Example:
            >>> import jax, jax.numpy as jnp
            >>> from ntk_equiv import groups
            >>> R = groups.SO3.sample(jax.random.key(0), 100)
            >>> R.shape, bool(jnp.allclose(jnp.linalg.det(R), 1, atol=1e-5))
            ((100, 3, 3), True)
        """
        random_key(key)
        count = positive_integer(count, "count")
        Q, R = jnp.linalg.qr(jax.random.normal(key, (count, self.n, self.n)))
        Q = Q * jnp.sign(jnp.diagonal(R, axis1=1, axis2=2))[:, None, :]
        if self.special:
            Q = Q.at[:, :, 0].multiply(jnp.sign(jnp.linalg.det(Q))[:, None])
        return Q

    def finite(self, which: int | str, /) -> FiniteGroup:
        """A finite subgroup, with its matrices.

        Args:
            which: for SO(2) the number k of rotations of C_k, for O(2) that of D_k, whose flip is (x, y) ↦ (−x, y);
                for SO(3) one of "T", "O", "I", "C5", "D3" and the like, in SciPy's conventions: C_k and D_k about the
                z axis, the flip of D_k the half turn about the x axis.

        Returns:
            A finite group with `.matrices`; C_k and D_k have the tables of `cyclic(k)` and `dihedral(k)`.

        Raises:
            ValueError: there is no such subgroup, or none are listed for this group (n > 3, O(3)).

        Example:
            >>> from ntk_equiv import groups
            >>> groups.SO2.finite(4).matrices[1].tolist()
            [[0.0, -1.0], [1.0, 0.0]]
            >>> groups.SO3.finite("D3") == groups.dihedral(3)
            True
        """
        if self.n == 2:
            return _planar_subgroup(positive_integer(which, "which"), flips=not self.special)
        if self != SO3:
            fix = "Pass matrices that generate the subgroup to `groups.from_matrices`."
            raise refusal("finite", expected="asked of SO(2), O(2) or SO(3)", got=self, fix=fix)
        if not isinstance(which, str) or not re.fullmatch(r"[TOI]|[CD][1-9]\d*", which):
            fix = "For other subgroups pass their matrices to `groups.from_matrices`."
            raise refusal("which", expected='"T", "O", "I", or "C" or "D" with a number', got=repr(which), fix=fix)
        return rotations(which, label=f"{which} in SO(3)")

    def grid(self, count: int, /) -> Float[np.ndarray, "{count} {self.n} {self.n}"]:
        """Elements spread evenly: uniform angles for SO(2), a super-Fibonacci spiral for SO(3).

        Args:
            count: how many.

        Returns:
            Matrices. On SO(2) these are the elements of `finite(count)`, on SO(3) no subgroup.

        Example:
            >>> from ntk_equiv import groups
            >>> groups.SO2.grid(2).tolist()
            [[[1.0, 0.0], [0.0, 1.0]], [[-1.0, 0.0], [0.0, -1.0]]]
        """
        positive_integer(count, "count")
        if self == SO2:
            z = root_of_unity(np.arange(count), count)
            return np.stack([z.real, -z.imag, z.imag, z.real], axis=-1).reshape(count, 2, 2) + 0.0
        if self == SO3:
            return _super_fibonacci(count)
        raise refusal("grid", expected="asked of SO(2) or SO(3)", got=self, fix="Draw from `sample` instead.")

    def euler_grid(self, degree: int, /) -> tuple[Float[np.ndarray, "count 3 3"], Float[np.ndarray, "count"]]:
        """A product grid of Euler angles on SO(3), with weights that average exactly up to a degree.

        Args:
            degree: every polynomial of this degree or less in the entries of R is averaged exactly.

        Returns:
            Matrices, and weights that sum to 1.

        Example:
            >>> from ntk_equiv import groups
            >>> R, weights = groups.SO3.euler_grid(2)
            >>> R.shape, round(float(weights @ R[:, 0, 0] ** 2), 12)      # the Haar average is 1/3
            ((18, 3, 3), 0.333333333333)
        """
        if self != SO3:
            raise refusal("euler_grid", expected="asked of SO(3)", got=self, fix="Use `grid` or `sample`.")
        return _euler_angles(positive_integer(degree, "degree"))

    def contains(self, mats: ArrayLike | Sequence, /, *, tol: float = 1e-5) -> bool:
        """Whether all matrices [..., n, n] are elements of this group, up to `tol` in their entries.

        Example:
            >>> from ntk_equiv import groups
            >>> groups.SO2.contains([[0, 1], [1, 0]]), groups.O(2).contains([[0, 1], [1, 0]])
            (False, True)
        """
        mats = np.asarray(real_array(mats, "mats", fix="Pass matrices [..., n, n].", or_complex=True))
        if mats.ndim < 2 or mats.shape[-2:] != (self.n, self.n) or np.iscomplexobj(mats):
            return False
        orthogonal = np.abs(mats @ np.swapaxes(mats, -1, -2) - np.eye(self.n)).max() <= tol
        return bool(orthogonal and (not self.special or (np.linalg.det(mats) > 0).all()))

    def distance(self, a: Float[Array, "*batch n n"], b: Float[Array, "*batch n n"], /) -> Float[Array, "*batch"]:
        """The geodesic distance: the angle between rotations for n ≤ 3, else the root of the sum of squared angles.

        Elements of different components of O(n) are infinitely far apart.

        Example:
            >>> import jax.numpy as jnp
            >>> from ntk_equiv import groups
            >>> C8 = jnp.asarray(groups.SO2.finite(8).matrices)
            >>> bool(jnp.isclose(groups.SO2.distance(C8[0], C8[3]), 3 * jnp.pi / 4))
            True
        """
        for matrices, argument in ((a, "a"), (b, "b")):
            shape = real_array(matrices, argument).shape
            if shape[-2:] != (self.n, self.n):
                expected = f"matrices [..., {self.n}, {self.n}] of {self}"
                raise refusal(argument, expected=expected, got=f"shape {shape}", fix="Elements are their matrices.")
        R = jnp.einsum("...ji,...jk->...ik", a, b, precision=jax.lax.Precision.HIGHEST)
        # Singular values come in decreasing order: where the sine of an angle is largest, its cosine is smallest.
        identity = jnp.broadcast_to(jnp.eye(self.n, dtype=R.dtype), R.shape)
        sines, cosines = (jnp.linalg.svd(R + shift, compute_uv=False) for shift in (-identity, identity))
        angles = 2 * jnp.arctan2(sines, cosines[..., ::-1])
        distance = jnp.sqrt(jnp.sum(angles**2, axis=-1) / 2)
        return jnp.where(jnp.linalg.det(R) > 0, distance, jnp.inf)


def O(n: int, /) -> ContinuousGroup:  # noqa: E743
    """The orthogonal group, of all real matrices with RᵀR = 1.

    Example:
        >>> import jax
        >>> O(4).sample(jax.random.key(0), 2).shape
        (2, 4, 4)
    """
    return ContinuousGroup(positive_integer(n, "n"), special=False)


def SO(n: int, /) -> ContinuousGroup:
    """The rotation group, of all orthogonal matrices with determinant 1.

    Example:
        >>> SO(2) == SO2
        True
    """
    return ContinuousGroup(positive_integer(n, "n"), special=True)


def _planar_subgroup(k: int, *, flips: bool) -> FiniteGroup:
    mats = SO2.grid(k)
    if not flips:
        return FiniteGroup(cyclic(k).table, names=cyclic(k).names, label=f"C{k} in SO(2)", matrices=mats)
    mats = np.concatenate([mats, mats @ np.diag([-1.0, 1.0])]) + 0.0
    return FiniteGroup(dihedral(k).table, names=dihedral(k).names, label=f"D{k} in O(2)", matrices=mats)


def _super_fibonacci(count: int) -> Float[np.ndarray, "{count} 3 3"]:
    """Rotations along a super-Fibonacci spiral."""
    s = np.arange(count) + 0.5
    first = np.sqrt(s / count) * np.exp(2j * np.pi * s / _PHI)
    second = np.sqrt(1 - s / count) * np.exp(2j * np.pi * s / _PSI)
    return Rotation.from_quat(np.stack([first.imag, first.real, second.imag, second.real], axis=1)).as_matrix()


def _euler_angles(degree: int) -> tuple[Float[np.ndarray, "count 3 3"], Float[np.ndarray, "count"]]:
    """Rotations and weights that average polynomials up to `degree` exactly."""
    angles = 2 * np.pi * np.arange(degree + 1) / (degree + 1)
    nodes, weights = np.polynomial.legendre.leggauss(degree // 2 + 1)
    grid = np.stack(np.meshgrid(angles, np.arccos(nodes), angles, indexing="ij"), axis=-1).reshape(-1, 3)
    repeated = np.broadcast_to(weights[:, None], (degree + 1, len(nodes), degree + 1)).reshape(-1)
    return Rotation.from_euler("ZYZ", grid).as_matrix(), repeated / repeated.sum()


def check_group(value: Any, argument: str = "group") -> FiniteGroup | ContinuousGroup:
    """Return `value`, if it is a group, finite or continuous."""
    fix = "Pass `groups.cyclic(4)`, `groups.SO3` and the like; the group comes first."
    return instance(value, (FiniteGroup, ContinuousGroup), argument, expected="a group", fix=fix)


SO2 = SO(2)
"""The rotations of the plane."""
SO3 = SO(3)
"""The rotations of space."""
