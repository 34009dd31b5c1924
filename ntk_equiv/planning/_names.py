"""Groups, actions, networks and training times by their names, as on the command line.

Names of groups are those of `groups.named`. Actions:

    rot90           quarter turns and flips of square images [H, W, channels]; exact
    rotate          rotations of images by linear interpolation, or by the nearest pixel (`rotate:0`); not exact
    translations    shifts of images on a torus, for a product C{rows}xC{columns}
    nodes           permutations of the first axis of [nodes, features]
    matrix          the matrices of the group on the last axis: C4 and D4 in the plane, O in space, S3 on three letters
    permutation     permutations of the last axis: S3 on three letters, C5 and D5 on five corners
    regular         permutations of the last axis, whose entries stand for the elements of the group
    sign            x ↦ ±x
    trivial         x ↦ x

The last axis may hold several copies of what `matrix`, `permutation` or `regular` act on, one after the other. They act
on each copy. `rot90+matrix` also acts on the channels of each pixel, and so on.

Networks, in the NTK parameterization with weights of standard deviation w_std/√(fan-in) and biases of b_std:

    mlp:relu:2        two hidden layers; images are flattened first
    cnn:relu:2        two 3 × 3 convolutions with padding "SAME", then flattening and a dense layer
    cnn:relu:2:gap    the same with an average over all positions instead of flattening

Times: numbers, `inf`, `log:FIRST:LAST:COUNT`, or `auto`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from ntk_equiv import groups, reps, stax
from ntk_equiv._check import instance, is_listed, positive_integer, real_number, refusal
from ntk_equiv._typing import KernelFunction, Scalar
from ntk_equiv.groups import FiniteGroup, defining_matrices, defining_permutations
from ntk_equiv.reps import Representation

ACTIONS_ON_IMAGES = ("rot90", "rotate", "translations")
ACTIONS_ON_VECTORS = ("matrix", "permutation", "regular", "sign", "trivial")
ACTIONS = (*ACTIONS_ON_IMAGES, "nodes", *ACTIONS_ON_VECTORS)
ACTIVATIONS: dict[str, Callable[[], stax.Network]] = {
    "relu": stax.Relu,
    "erf": stax.Erf,
    "gelu": stax.Gelu,
    "leaky": lambda: stax.LeakyRelu(0.01),
    "abs": stax.Abs,
    "sin": stax.Sin,
}
Shape = tuple[int, ...]
Times = Scalar | str | Sequence | np.ndarray


def named_group(name: str | FiniteGroup, /) -> FiniteGroup:
    """Return the finite group of this name; a group is returned as it is.

    Args:
        name: C4, D4, S3, A4, T, O, I, V4, Q8, SO2:8, O2:4, SO3:D3 or a product such as C2xC4.

    Raises:
        ValueError: no group has this name; the message lists the names there are.

    Example:
        >>> from ntk_equiv import planning
        >>> planning.named_group("D4").order, planning.named_group("C2xC3").label
        (8, 'product(cyclic(2), cyclic(3))')
    """
    return groups.named(name)


def named_action(
    name: str | Representation, group: FiniteGroup, shape: Shape, /, argument: str = "action"
) -> Representation:
    """Return the action of a group on samples of a given shape; a representation that fits is returned as it is.

    Args:
        name: rot90, rotate, translations, nodes, matrix, permutation, regular, sign or trivial. The first four may be
            followed by `+` and one of the last five, which then acts on the channels of a pixel or a node.
        group: the group.
        shape: the shape of one sample, without the axis of samples.
        argument: what to call the name in an error message.

    Raises:
        ValueError: there is no such action, or the group does not act on such samples; the message says what would fit.

    Example:
        >>> from ntk_equiv import groups, planning
        >>> planning.named_action("matrix", groups.cyclic(8), (6,))     # three vectors in the plane
        <matrix of cyclic(8) on 6 channels>
    """
    if not isinstance(name, Representation):
        _check_action_name(name, argument)
    try:
        rep = name if isinstance(name, Representation) else _build_action(name, group, shape)
        if rep.group != group:
            raise ValueError(f"{rep} belongs to another group than {group.label}")
        _try_action(rep, group, shape)
    except ValueError as error:
        expected = f"an action of {group.label} on samples of shape {shape}"
        fix = f"In detail: {error} {_what_would_fit(group, shape, argument)}"
        raise refusal(argument, expected=expected, got=repr(name), fix=fix) from None
    return rep


def acts_on_images(name: str | Representation, /) -> bool:
    """Return whether the action is on images, whose last axis counts channels."""
    if isinstance(name, Representation):
        return name.domain.rank == 2
    return isinstance(name, str) and name.partition("+")[0].partition(":")[0] in ACTIONS_ON_IMAGES


def _check_action_name(name: str, argument: str) -> None:
    known = isinstance(name, str)
    if known:
        kind, colon, option, plus, channels = _parse_action(name)
        known = kind in ACTIONS
        known &= not colon or (kind == "rotate" and option in ("0", "1"))
        known &= not plus or (channels in ACTIONS_ON_VECTORS and kind in (*ACTIONS_ON_IMAGES, "nodes"))
    if not known:
        fix = "To act on channels too, join two names by a plus, as in rot90+matrix; rotate:0 takes nearest pixels."
        raise refusal(argument, expected=f"one of {', '.join(ACTIONS)}", got=repr(name), fix=fix)


def _parse_action(name: str) -> tuple[str, str, str, str, str]:
    """Return the parts of kind:option+channels, with the separators, each empty if it is missing."""
    base, plus, channels = name.partition("+")
    return *base.partition(":"), plus, channels


def _build_action(name: str, group: FiniteGroup, shape: Shape) -> Representation:
    kind, _, option, plus, channels = _parse_action(name)
    if not shape:
        raise ValueError("A single number has no axis to act on.")
    if kind in ACTIONS_ON_VECTORS:
        return _action_on_vectors(kind, group, shape[-1])
    tau = _action_on_vectors(channels, group, shape[-1]) if plus else None
    if kind == "rot90":
        return reps.rot90(group, tau)
    if kind == "rotate":
        return reps.rotate(group, int(option or 1), channels=tau)
    if kind == "translations":
        return _translations(group, shape, tau)
    perms = _require(defining_permutations(group), group, "permutations")
    return reps.nodes(group, perms, channels=tau)


def _action_on_vectors(kind: str, group: FiniteGroup, size: int) -> Representation:
    if kind == "trivial":
        return reps.trivial(group)
    if kind == "sign":
        signs = reps.sign(group).channels.matrices(group.order)
        return reps.matrix(group, np.asarray(signs) * np.eye(size))
    if kind == "matrix":
        mats = _require(defining_matrices(group), group, "matrices")
        return reps.matrix(group, np.kron(np.eye(_count_copies(size, mats.shape[1])), mats))
    perms = group.table if kind == "regular" else _require(defining_permutations(group), group, "permutations")
    d = perms.shape[1]
    starts = d * np.arange(_count_copies(size, d))[:, None]
    return reps.permutation(group, (perms[:, None, :] + starts).reshape(group.order, -1))


def _translations(group: FiniteGroup, shape: Shape, tau: Representation | None) -> Representation:
    # A group does not say which product it is, so all factorizations that divide the image are tried, the finest along
    # rows first.
    for rows in range(group.order, 0, -1):
        if group.order % rows == 0 and len(shape) == 3 and not shape[0] % rows and not shape[1] % (group.order // rows):
            rep = reps.translations(rows, group.order // rows)
            if rep.group == group:
                return rep if tau is None else reps.translations(rows, group.order // rows, channels=tau)
    raise ValueError(
        "Translations need a product such as C4xC4, whose factors divide the height and width of an image."
    )


def _require(known: np.ndarray | None, group: FiniteGroup, what: str) -> np.ndarray:
    if known is None:
        raise ValueError(f"{group.label} is not known as a group of {what}.")
    return known


def _count_copies(size: int, dim: int) -> int:
    if size % dim:
        raise ValueError(f"It acts on {dim} entries, or on a multiple of {dim}, but the last axis has {size}.")
    return size // dim


def _what_would_fit(group: FiniteGroup, shape: Shape, argument: str) -> str:
    """Return advice on samples of this shape: actions of the same group or, if there are none, of others."""
    # Every group acts by signs or trivially, which is no advice for samples.
    names = ACTIONS_ON_VECTORS if argument == "label_action" else ACTIONS[:-2]
    own = [name for name in names if _fits(name, group, shape)]
    if own or not shape:
        return f"With this group, these fit: {', '.join(own) or 'none'}."
    sizes = sorted({size for size in (shape[0], shape[-1]) if 2 <= size <= 64})
    others = ["C4", "D4", "C2", "O", *(f"C{size}" for size in sizes), *(f"S{size}" for size in sizes if size < 6)]
    others += [f"C{shape[0]}xC{shape[1]}"] if len(shape) == 3 and shape[0] * shape[1] <= 256 else []
    others = list(dict.fromkeys(others))
    fitting = [f"{other} with {name}" for name in names for other in others if _fits(name, named_group(other), shape)]
    return f"Samples of this shape fit {', '.join(fitting[:8])}." if fitting else "No other known group fits either."


def _fits(name: str, group: FiniteGroup, shape: Shape) -> bool:
    try:
        _try_action(_build_action(name, group, shape), group, shape)
    except ValueError:
        return False
    return True


def _try_action(rep: Representation, group: FiniteGroup, shape: Shape) -> None:
    """Refuse samples that the representation cannot act on, without moving any."""
    jax.eval_shape(lambda x: rep(group.identity, x), jax.ShapeDtypeStruct((1, *shape), float))


def named_network(
    name: str, shape: Shape, /, *, w_std: Scalar = 2**0.5, b_std: Scalar = 0.1, width: int = 1, outputs: int = 1
) -> stax.Network:
    """Return the network of this name, for samples of a given shape.

    Args:
        name: mlp:ACTIVATION:LAYERS or cnn:ACTIVATION:LAYERS; the second may end in :gap for global average pooling.
        shape: the shape of one sample, without the axis of samples.
        w_std: standard deviation of the weights, before division by the square root of the fan-in.
        b_std: standard deviation of the biases.
        width: of hidden layers, or their number of channels, on which kernels do not depend.
        outputs: how many outputs.

    Raises:
        ValueError: no network has this name, or it does not fit the shape; the message lists what there is.

    Example:
        >>> import jax.numpy as jnp
        >>> from ntk_equiv import planning
        >>> _, _, kernel_fn = planning.named_network("mlp:relu:1", (2,), b_std=0.0)
        >>> print(kernel_fn(jnp.array([[1.0, 0.0]]), None, "ntk"))
        [[2.]]
    """
    kind, activation, depth, pooling = _parse_network(name)
    width, outputs = positive_integer(width, "width"), positive_integer(outputs, "outputs")
    scale: dict[str, Any] = {"W_std": _check_scale(w_std, "w_std"), "b_std": _check_scale(b_std, "b_std", zero=True)}
    phi = ACTIVATIONS[activation]
    if kind == "mlp":
        hidden = [layer for _ in range(depth) for layer in (stax.Dense(width, **scale), phi())]
        return stax.serial(*([stax.Flatten()] if len(shape) > 1 else []), *hidden, stax.Dense(outputs, **scale))
    if len(shape) != 3:
        fix = "Convolutions are for images; take mlp for everything else."
        raise refusal("arch", expected=f"an mlp for samples of shape {shape}", got=repr(name), fix=fix)
    hidden = [layer for _ in range(depth) for layer in (stax.Conv(width, (3, 3), padding="SAME", **scale), phi())]
    head = stax.GlobalAvgPool() if pooling == "gap" else stax.Flatten()
    return stax.serial(*hidden, head, stax.Dense(outputs, **scale))


def kernel_function(arch: Any, shape: Shape, *, w_std: Scalar, b_std: Scalar) -> KernelFunction:
    """Return the kernel function of a network that is given by its name, as a triple, or by that function itself."""
    if isinstance(arch, str):
        return named_network(arch, shape, w_std=w_std, b_std=b_std).kernel_fn
    kernel_fn = arch[2] if isinstance(arch, tuple) and len(arch) == 3 else arch
    if not callable(kernel_fn):
        fix = "Pass a name such as mlp:relu:2, a triple from `ntk_equiv.stax`, or a kernel_fn."
        raise refusal("arch", expected="a network", got=type(arch).__name__, fix=fix, kind=TypeError)
    return kernel_fn


def _parse_network(name: str) -> tuple[str, str, int, str]:
    """Return kind, activation, number of hidden layers and what stands before the last layer: "flat" or "gap"."""
    fix = "For example mlp:relu:2, cnn:erf:3, or cnn:relu:2:gap for global average pooling."
    expected = f"of the form mlp or cnn, then {', '.join(ACTIVATIONS)}, then the number of hidden layers"
    instance(name, str, "arch", expected=f"{expected}, joined by colons", fix=fix)
    match name.split(":"):
        case ["mlp" | "cnn" as kind, activation, depth] | ["cnn" as kind, activation, depth, "flat" | "gap"]:
            if activation in ACTIVATIONS and depth.isdecimal() and 1 <= int(depth) <= 100:
                return kind, activation, int(depth), "gap" if name.endswith(":gap") else "flat"
    raise refusal("arch", expected=f"{expected}, joined by colons", got=repr(name), fix=fix)


def _check_scale(value: Scalar, argument: str, *, zero: bool = False) -> float:
    value = real_number(value, argument)
    if value < 0 or (value == 0 and not zero):
        expected = "zero or more" if zero else "positive"
        raise refusal(argument, expected=expected, got=value, fix="It is a standard deviation.")
    return value


def named_times(times: Times, /) -> np.ndarray | None:
    """Return training times in increasing order, [k], or None for "auto".

    Args:
        times: numbers, "inf", "log:FIRST:LAST:COUNT", a list of these, or "auto".

    Raises:
        ValueError: something is not a time.

    Example:
        >>> from ntk_equiv import planning
        >>> print(planning.named_times(["log:1:100:3", "inf", 0]))
        [  0.   1.  10. 100.  inf]
    """
    parts: list[Any] = list(times) if is_listed(times) else [times]  # type: ignore[arg-type]
    if parts == ["auto"]:
        return None
    values = np.unique(np.concatenate([_parse_times(part) for part in parts]) if parts else np.zeros(0))
    if not values.size or np.isnan(values).any() or (values < 0).any():
        fix = "Times start at 0, the untrained ensemble, and may end at inf."
        raise refusal("times", expected="one or more numbers, none negative", got=repr(times), fix=fix)
    return values


def check_time(at: Scalar | str | None, /) -> float | None:
    """Return the time that a plan is made for as a number, "inf" included; None stays None."""
    if at is None:
        return None
    at = at if at in (np.inf, "inf") else real_number(at, "at")
    if float(at) < 0:
        fix = "Leave it out to have the best one taken."
        raise refusal("at", expected="a training time, 0 or more", got=at, fix=fix)
    return float(at)


def _parse_times(part: Any) -> np.ndarray:
    try:
        if not isinstance(part, str) or not part.startswith("log:"):
            return np.array([float(part)])
        first, last, count = part.removeprefix("log:").split(":")
        ends = float(first), float(last)
        if not (0 < ends[0] <= ends[1] < np.inf and 1 <= int(count) <= 10_000):
            raise ValueError(part)
        return np.geomspace(*ends, int(count))
    except (TypeError, ValueError):
        fix = "Write numbers, inf, or log:FIRST:LAST:COUNT such as log:1:1e5:20; auto chooses them for you."
        raise refusal("times", expected="training times", got=repr(part), fix=fix) from None
