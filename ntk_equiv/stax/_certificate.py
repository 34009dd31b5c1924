"""What a network knows about its own kernel as a function of the inputs.

For a fully connected network, 𝒦(x, x') and Θ(x, x') depend on ‖x‖, ‖x'‖ and the cosine c between them alone. At
fixed norms they are power series h(c), and their coefficients are products a_k(‖x‖) a_k(‖x'‖) of the Hermite
coefficients of the activations, composed and multiplied from layer to layer. If the sign of each a_k does not depend
on the norm (true for ReLU-like activations, erf, GELU, sine and cosine, exponentials, Gaussians and the sign, for
polynomials only if powers of equal parity have coefficients of equal sign), every coefficient of h is non-negative,
and |h(c)| ≤ h(1), h' ≥ 0 for c ≥ 0, and so on follow. Bounds on continuous groups rest on this.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Certificate:
    """Properties of a kernel that hold for all inputs, proven layer by layer.

    Attributes:
        dot_product: the kernels depend only on the two norms and the cosine.
        nonnegative: at fixed norms, the kernels are power series in the cosine with non-negative coefficients.
        smooth: the activations are continuously differentiable, so that ∂f/∂w depends smoothly on the input.

    Example:
        >>> from ntk_equiv import stax
        >>> stax.serial(stax.Dense(1), stax.Relu(), stax.Dense(1)).kernel_fn.certificate
        Certificate(dot_product=True, nonnegative=True, smooth=False)
    """

    dot_product: bool
    nonnegative: bool
    smooth: bool

    def __and__(self, other: "Certificate") -> "Certificate":
        """What both share: the certificate of a composition, or of a sum of independent branches."""
        return Certificate(
            self.dot_product and other.dot_product,
            self.nonnegative and other.nonnegative,
            self.smooth and other.smooth,
        )


NOTHING_BUT_SMOOTH = Certificate(False, False, True)
EVERYTHING = Certificate(True, True, True)
