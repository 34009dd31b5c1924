"""The theorems on symmetry as functions that measure how well they hold.

With Θ the neural tangent kernel, 𝒦 the NNGP kernel, ρ_X the action on inputs, ρ_K = `rep_x.spatial(shape)` the action
on the positions of outputs (the identity if there are none), 𝒳 an augmented set and Π(g) its `permutation_matrix`:

    `kernel_transformation`   Θ(ρ_X(g)x, ρ_X(g)x') = ρ_K(g) Θ(x, x') ρ_K(g)ᵀ, and the same of 𝒦
    `shift_of_permutation`    Π(g) F = ρ_K(g) F Π(g) ρ_K(g)ᵀ for analytic functions F of Θ(𝒳, 𝒳) and 𝒦(𝒳, 𝒳)
    `emergent_equivariance`   μ_t(ρ_X(g)x) = ρ_Y(g) μ_t(x), and the covariance likewise, for a trained ensemble
    `assert_equivariant`      f(ρ_X(g)x) = ρ_Y(g) f(x) for any function f
    `averaged_kernel`         Θ_G(x, x') = 1/|G| Σ_g Θ(x, ρ_X(g)x') ρ_K(g) for matching networks of group convolutions
    `augmentation_equivalence`   their ensemble on plain data has the mean μ_t of the plain network on 𝒳

The first three are Theorem "Kernel transformation", Lemma "Shift of permutation" and Theorem "Emergent Equivariance"
of Gerken & Kessel, "Emergent Equivariance in Deep Ensembles"; the last two are after Misof, Kessel & Gerken,
"Equivariant Neural Tangent Kernels".

Their assumptions can fail in ways that are easy to overlook, such as a stride that leaves out a column of pixels. So
each returns a `Violation`: how far the two sides are apart at most, for which element and in which entry, and how large
the two sides are.
"""

from ntk_equiv.theorems._augmentation import augmentation_equivalence, averaged_kernel
from ntk_equiv.theorems._equivariance import assert_equivariant, emergent_equivariance
from ntk_equiv.theorems._kernels import kernel_transformation, shift_of_permutation

# For the parts above this one, not for users.
from ntk_equiv.theorems._kernels import measure_kernel_transformation as measure_kernel_transformation
from ntk_equiv.theorems._violation import Violation

__all__ = [
    "Violation",
    "assert_equivariant",
    "augmentation_equivalence",
    "averaged_kernel",
    "emergent_equivariance",
    "kernel_transformation",
    "shift_of_permutation",
]
