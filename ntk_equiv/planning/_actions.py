"""How a group acts on the samples or labels of a user, by name, and which names fit which shapes.

    rot90           quarter turns and flips of square images [H, W, channels]; exact
    rotate          rotations of images by interpolation, linear; `rotate:0` from the nearest pixel. Not exact
    translations    of images on a torus, for a product C{rows}xC{columns}
    nodes           permutations of the first axis of [nodes, features]
    matrix          the matrices of the group on the last axis: C4 and D4 in the plane, O in space, S3 on three letters
    permutation     permutations of the last axis: S3 on three letters, C5 and D5 on five corners
    regular         permutations of the last axis, whose entries stand for the elements of the group
    sign            x ↦ ±x
    trivial         x ↦ x

Where the last axis holds several copies of what `matrix`, `permutation` or `regular` act on, one after the other, each
is acted upon. `rot90+matrix` turns the channels of a pixel along with the image, and so on.
"""

from typing import Any

import jax
import numpy as np

from ntk_equiv import reps
from ntk_equiv._check import refusal
from ntk_equiv.groups import FiniteGroup
from ntk_equiv.planning._groups import defining_matrices, defining_permutations, named_group
from ntk_equiv.reps import Representation

IMAGES = ("rot90", "rotate", "translations")
VECTORS = ("matrix", "permutation", "regular", "sign", "trivial")
KNOWN = (*IMAGES, "nodes", *VECTORS)
Shape = tuple[int, ...]


def named_action(
    name: str | Representation, group: FiniteGroup, shape: Shape, /, argument: str = "action"
) -> Representation:
    """How a group acts on samples of this shape; a representation stays as it is, if it fits.

    Args:
        name: of the action: rot90, rotate, translations, nodes, matrix, permutation, regular, sign or trivial; with
            `+` and one of the last five for the channels of a pixel or a node.
        group: the group.
        shape: that of one sample, without the axis of samples.
        argument: what to call the name in a refusal.

    Raises:
        ValueError: there is no such action, or the group does not act on such samples; the message says what would fit.

    Example:
        >>> from ntk_equiv import groups, planning
        >>> planning.named_action("matrix", groups.cyclic(8), (6,))     # three vectors in the plane
        <matrix of cyclic(8) on 6 channels>
    """
    try:
        rep = name if isinstance(name, Representation) else _built(name, group, shape, argument)
        if rep.group != group:
            raise ValueError(f"{rep} belongs to another group than {group.label}")
        jax.eval_shape(lambda x: rep(group.identity, x), jax.ShapeDtypeStruct((1, *shape), float))
    except _Unknown as error:
        raise error.refused from None
    except ValueError as error:
        expected = f"an action of {group.label} on samples of shape {shape}"
        fix = f"In detail: {error} {_advice(group, shape, argument)}"
        raise refusal(argument, expected=expected, got=repr(name), fix=fix) from None
    return rep


def acts_on_images(name: str | Representation, /) -> bool:
    """Whether samples are images, whose last axis counts channels."""
    if isinstance(name, Representation):
        return name.domain.rank == 2
    return isinstance(name, str) and name.partition("+")[0].partition(":")[0] in IMAGES


class _Unknown(Exception):
    """A name that means nothing."""

    def __init__(self, argument: str, name: Any) -> None:
        expected = f"one of {', '.join(KNOWN)}"
        fix = "Channels that transform along are written behind a plus, as rot90+matrix; nearest pixels as rotate:0."
        self.refused = refusal(argument, expected=expected, got=repr(name), fix=fix)


def _built(name: str, group: FiniteGroup, shape: Shape, argument: str) -> Representation:
    if not isinstance(name, str):
        raise _Unknown(argument, name)
    base, plus, channels = name.partition("+")
    kind, colon, option = base.partition(":")
    bad_option = colon and (kind != "rotate" or option not in ("0", "1"))
    bad_channels = plus and (channels not in VECTORS or kind not in (*IMAGES, "nodes"))
    if kind not in KNOWN or bad_option or bad_channels:
        raise _Unknown(argument, name)
    if not shape:
        raise ValueError("A single number has no axis to act on.")
    if kind in VECTORS:
        return _on_vectors(kind, group, shape[-1])
    tau = _on_vectors(channels, group, shape[-1]) if plus else None
    if kind == "rot90":
        return reps.rot90(group, tau)
    if kind == "rotate":
        return reps.rotate(group, int(option or 1), channels=tau)
    if kind == "translations":
        return _translations(group, shape, tau)
    perms = _required(defining_permutations(group), group, "permutations")
    return reps.nodes(group, perms, channels=tau)


def _on_vectors(kind: str, group: FiniteGroup, size: int) -> Representation:
    if kind == "trivial":
        return reps.trivial(group)
    if kind == "sign":
        signs = reps.sign(group).channels.matrices(group.order)
        return reps.matrix(group, np.asarray(signs) * np.eye(size))
    if kind == "matrix":
        mats = _required(defining_matrices(group), group, "matrices")
        return reps.matrix(group, np.kron(np.eye(_copies(size, mats.shape[1])), mats))
    perms = group.table if kind == "regular" else _required(defining_permutations(group), group, "permutations")
    d = perms.shape[1]
    starts = d * np.arange(_copies(size, d))[:, None]
    return reps.permutation(group, (perms[:, None, :] + starts).reshape(group.order, -1))


def _translations(group: FiniteGroup, shape: Shape, tau: Representation | None) -> Representation:
    """By as many steps as the group is a product of; the finest that divide the image are tried first."""
    for rows in range(group.order, 0, -1):
        if group.order % rows == 0 and len(shape) == 3 and not shape[0] % rows and not shape[1] % (group.order // rows):
            rep = reps.translations(rows, group.order // rows)
            if rep.group == group:
                return rep if tau is None else reps.translations(rows, group.order // rows, channels=tau)
    raise ValueError("Translations are a product such as C4xC4, whose factors divide height and width of an image.")


def _required(found: np.ndarray | None, group: FiniteGroup, what: str) -> np.ndarray:
    if found is None:
        raise ValueError(f"{group.label} is not known as a group of {what}.")
    return found


def _copies(size: int, dim: int) -> int:
    if size % dim:
        raise ValueError(f"It acts on {dim} entries, or several times {dim}, of which the last axis has {size}.")
    return size // dim


def _advice(group: FiniteGroup, shape: Shape, argument: str) -> str:
    """What would fit points of this shape: with the same group, or else with others."""
    names = VECTORS if argument == "label_action" else KNOWN[:-2]  # every group acts by signs or not at all
    own = [name for name in names if _fits(name, group, shape)]
    if own or not shape:
        return f"With this group, these fit: {', '.join(own) or 'none'}."
    sizes = sorted({size for size in (shape[0], shape[-1]) if 2 <= size <= 64})
    others = ["C4", "D4", "C2", "O", *(f"C{size}" for size in sizes), *(f"S{size}" for size in sizes if size < 6)]
    others += [f"C{shape[0]}xC{shape[1]}"] if len(shape) == 3 and shape[0] * shape[1] <= 256 else []
    others = list(dict.fromkeys(others))
    found = [f"{other} with {name}" for name in names for other in others if _fits(name, named_group(other), shape)]
    return f"Samples of this shape fit {', '.join(found[:8])}." if found else "No other group that is known here fits."


def _fits(name: str, group: FiniteGroup, shape: Shape) -> bool:
    try:
        rep = _built(name, group, shape, "action")
        jax.eval_shape(lambda x: rep(group.identity, x), jax.ShapeDtypeStruct((1, *shape), float))
    except ValueError:
        return False
    return True
