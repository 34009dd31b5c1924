"""The infinite-width half of a layer: its rule, which says how kernels pass through it.

    linear with weights      𝒦' = σ_w² L𝒦 + σ_b²,    Θ' = σ_w² LΘ + 𝒦'       (in NTK parameterization)
    linear, parameter-free   𝒦' = L𝒦,                Θ' = LΘ
    activation φ             𝒦' = E[φ(u)φ(v)],       Θ' = Θ · E[φ'(u)φ'(v)],      (u, v) ~ N(0, 𝒦)

L is the identity (dense), a mean over the taps of a filter (convolution), a sum over windows (pooling) or over
neighbours (graphs). To evaluate kernels, a network goes through its rules three times:

    1. `requirements_for`, backwards, before anything is computed

           input ◄── Requirements ── layer 1 ◄── Requirements ── layer 2 ◄── what the caller wants

       A layer is told what is wanted of its output, and answers what it must know about its input.

    2. `per_sample`, forwards, once for each sample

           input ──► SampleState ──► layer 1 ──► SampleState ──► layer 2
                                        │                           │
                                        ▼                           ▼
                                      Memo                        Memo

       Variances pass from layer to layer, and each layer leaves a memo (`remember`): what it has to know about
       this sample in the third pass.

    3. `per_pair`, forwards, once for each pair of samples

                                 Memo, Memo                  Memo, Memo
                                of both samples             of both samples
                                        │                           │
                                        ▼                           ▼
           input ──► PairState ────► layer 1 ──► PairState ────► layer 2 ──► 𝒦, Θ

Norms and square roots belong to samples, so they are computed in the second pass and not for each pair. Where layers
stand side by side, requirements, states and memos are tuples with one entry per branch. Rules are pytrees whose leaves
are the hyperparameters, so that kernels can be differentiated in those too.
"""

import dataclasses
from abc import abstractmethod
from dataclasses import dataclass

from ntk_equiv._typing import Array
from ntk_equiv.stax._state import Branches, Memo, PairState, Requirements, SampleState


@dataclass(frozen=True)
class Certificate:
    """Properties of a kernel that hold for all inputs, proven layer by layer.

    For a fully connected network, 𝒦(x, x') and Θ(x, x') depend on ‖x‖, ‖x'‖ and the cosine c between them alone. At
    fixed norms they are power series h(c), and their coefficients are products a_k(‖x‖) a_k(‖x'‖) of the Hermite
    coefficients of the activations, composed and multiplied from layer to layer. If the sign of each a_k does not
    depend on the norm, every coefficient of h is non-negative. Then |h(c)| ≤ h(1), h' ≥ 0 for c ≥ 0, and so on; bounds
    on continuous groups rest on this. It is true for ReLU-like activations, erf, GELU, sine and cosine, exponentials,
    Gaussians and the sign, and for polynomials only if powers of equal parity have coefficients of equal sign.

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
        """Return what both share: the certificate of a composition, or of a sum of independent branches."""
        return Certificate(
            self.dot_product and other.dot_product,
            self.nonnegative and other.nonnegative,
            self.smooth and other.smooth,
        )


NOTHING_BUT_SMOOTH = Certificate(False, False, True)
EVERYTHING = Certificate(True, True, True)


class Rule:
    """How one layer transforms kernels.

    Subclasses define `per_pair`, and the other methods where the default does not fit.
    """

    # Whether what comes in, and what goes out, may be several branches.
    takes_branches = False
    makes_branches = False

    @property
    def mixes_samples(self) -> bool:
        """Whether outputs depend on the other samples of a batch, so that pairs cannot be treated one by one."""
        return False

    @property
    def certificate(self) -> Certificate:
        """What is known about the kernel as a function of its inputs."""
        return NOTHING_BUT_SMOOTH

    def requirements_for(self, wanted: Requirements | Branches) -> Requirements | Branches:
        """Return what this layer must know about its input, so that it can deliver what is wanted of its output."""
        return wanted

    def widening(self) -> int:
        """Return the factor by which the number of positions may grow on the way; tile sizes depend on it."""
        return 1

    def after_flattening(self) -> "Rule | None":
        """Return what is left to do on flattened inputs, if this rule begins by flattening them."""
        return None

    def mask_after(self, mask: Array | Branches) -> Array:
        """Return which positions of the output are masked, `[n, *grid]`, from those of the input.

        What is computed at masked positions is set to zero after each layer.
        """
        return mask

    def remember(self, state: SampleState) -> Memo:
        """Return what `per_pair` will have to know about each sample."""
        return ()

    def describe_output(self, state: SampleState) -> SampleState:
        """Return the state with the metadata of the output (grid, whether Gaussian); `cov` is still that of the input.

        Refuse an input that this layer cannot follow.
        """
        return state

    def per_sample(
        self, state: SampleState | Branches, wanted: Requirements | Branches
    ) -> tuple[SampleState | Branches, Memo]:
        """Return the state of each sample after this layer, and the memo about it.

        By default the new covariance is what `per_pair` makes of each sample paired with itself.
        """
        memo = self.remember(state)
        after = self.describe_output(state)
        if state.cov is None:
            return after, memo
        with_itself = PairState(state.cov, None, None, full=state.full, with_ntk=False, paired=True)
        with_itself = self.per_pair(with_itself, memo, memo, wanted)
        return after.with_cov(with_itself.nngp, full=with_itself.full), memo

    @abstractmethod
    def per_pair(
        self, state: PairState | Branches, left: Memo, right: Memo, wanted: Requirements | Branches
    ) -> PairState | Branches:
        """Return the kernels after this layer, from those before it and the memos about the two samples.

        `wanted` is what will be asked of the result.
        """


class Linear(Rule):
    """A layer that is linear in its input and adds nothing: subclasses define `mix_positions`, the action of L."""

    def requirements_for(self, wanted: Requirements) -> Requirements:
        return dataclasses.replace(wanted, gap=False, stored=True)

    def mix_positions(self, k: Array, state: PairState, left: Memo, right: Memo) -> Array:
        """Return L applied to one kernel, an array laid out as `state.nngp`."""
        return k

    def is_full_after(self, state: PairState) -> bool:
        """Return whether the output still distinguishes pairs of positions."""
        return state.full

    def per_pair(self, state: PairState, left: Memo, right: Memo, wanted: Requirements) -> PairState:
        nngp = self.mix_positions(state.nngp, state, left, right)
        ntk = None if state.ntk is None else self.mix_positions(state.ntk, state, left, right)
        return dataclasses.replace(state, nngp=nngp, ntk=ntk, gap=None, full=self.is_full_after(state))
