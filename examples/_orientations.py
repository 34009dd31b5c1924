"""Why does a canonicalised network change its mind? What it finds of the orientation of an image that is rotated.

An image is rotated by steps of 360/k degrees: by whole steps, which are the elements of C_k, or by half a step more,
which is as far from C_k as a rotation can be. The orientation that is found should move by as many steps, up to half a
step. Where it does not, the classifier sees the image in another orientation. To tell this fault from that of the
pixels, the rotated image is also turned back by the right number of steps. What is left then is that the image was
interpolated twice.

    <set>.<steps>.found   how often the orientation moves by so many steps, by one more or less, or else, [networks, 3]
    <set>.<steps>.same    how often the class stays in each of these three cases, [networks, 3]; NaN if there is none
    <set>.<steps>.all     the same in all cases together, [networks]
    <set>.<steps>.known   how often it stays if the right orientation is given, [networks]
    <set>.<steps>.next    how often it stays if an orientation is given that is wrong by one step, [networks]

`<steps>` is "whole" or "half".
"""

import jax
import jax.numpy as jnp
import numpy as np
from _rotated_images import SETS, rotate

STEPS = {"whole": "C_k", "half": "half a step off"}
AT_ONCE = 100


def follow_rotations(module, params, tests, order):
    """Follow the orientations that networks find while images rotate.

    Args:
        module: a `Canonicalised`.
        params: the parameters of all networks, [networks, ...].
        tests: images [n, H, W, C] by set.
        order: k.
    """
    angles = {"whole": np.arange(1, order), "half": np.arange(order) + 0.5}
    watch = jax.jit(lambda one, x, moved, steps: _watch(module, {"params": one}, x, moved, steps, order))
    networks = [_take(params, number) for number in range(len(jax.tree.leaves(params)[0]))]
    found = {}
    for name, x in tests.items():
        for kind, steps in angles.items():
            moved = rotate(x, jnp.asarray(_matrices(2 * np.pi * steps / order), x.dtype))
            each = [
                [np.stack(watch(one, x, turned, step)) for turned, step in zip(moved, steps, strict=True)]
                for one in networks
            ]
            numbers = np.moveaxis(np.array(each), 2, 0)  # first the four numbers of each image
            found |= {f"{name}.{kind}.{what}": value for what, value in _summary(*numbers).items()}
    return found


def _take(params, number):
    return jax.tree.map(lambda leaf: leaf[number], params)


def _watch(module, params, x, moved, steps, order):
    """Return by how many steps the orientation is off, and whether the class stays: as it is, known, and one step off.

    Each of the four has shape [n].
    """

    def of_images(pair):
        upright, turned = pair
        orient = lambda images: module.apply(params, images, method="orient")  # noqa: E731
        classify = lambda images, g: module.apply(params, images, g % order, method="classify")  # noqa: E731
        first, second = orient(upright), orient(turned)
        off = jnp.abs((second - first - steps + order / 2) % order - order / 2)
        label = classify(upright, first)
        should = first + jnp.floor(steps + 0.5).astype(first.dtype)
        return off, *(classify(turned, g) == label for g in (second, should, should + 1))

    parts = jax.tree.map(lambda images: images.reshape(-1, min(AT_ONCE, len(x)), *images.shape[1:]), (x, moved))
    return [jnp.ravel(row).astype(x.dtype) for row in jax.lax.map(of_images, parts)]


def _summary(off, same, known, beside):
    """Average over rotations and images, the last two axes of arrays [networks, rotations, images]."""
    cases = np.stack([off < 0.75, (off > 0.75) & (off < 1.75), off > 1.75])
    count = cases.sum((-2, -1))
    with np.errstate(invalid="ignore"):
        stays = (cases * same).sum((-2, -1)) / count
    return {
        "found": (count / off[0].size).T,
        "same": stays.T,
        "all": same.mean((-2, -1)),
        "known": known.mean((-2, -1)),
        "next": beside.mean((-2, -1)),
    }


def _matrices(angles):
    cos, sin = np.cos(angles), np.sin(angles)
    return np.stack([np.stack([cos, -sin], -1), np.stack([sin, cos], -1)], -2)


def table_of_orientations(found, orders):
    """Return the lines of a table, averages over networks."""
    lines = ["Orientations that Canon finds when images rotate, and how often the class stays (averages over networks)"]
    cases = ("as rotated", "next", "other")
    heading = "".join(f"{case:>12}" for case in cases) + "".join(f"{f'if {case}':>15}" for case in cases)
    lines += [f"{'':16}{'k':>4}  {'rotated by':16}{heading}{'class stays':>13}{'if known':>10}{'known + 1':>11}"]
    for name in ("fashion", "mnist"):
        for order in orders:
            for kind, title in STEPS.items():
                part, of = found[f"C{order}-canonical"], f"{name}.{kind}"
                where = "".join(f"{value:12.3f}" for value in part[f"{of}.found"].mean(0))
                stays = "".join(f"{_mean(column):15.3f}" for column in part[f"{of}.same"].T)
                rest = [part[f"{of}.{what}"].mean() for what in ("all", "known", "next")]
                last = f"{rest[0]:13.3f}{rest[1]:10.3f}{rest[2]:11.3f}"
                lines.append(f"{SETS[name]:16}{order:4}  {title:16}{where}{stays}{last}")
    return lines


def _mean(values):
    """Return the mean of the values that there are."""
    there = values[np.isfinite(values)]
    return there.mean() if len(there) else np.nan
