"""Draw the pictures of the concept pages, docs/figures/concept_*.png, from what the library computes.

`make pictures` runs this script.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

from ntk_equiv import (
    InfiniteEnsemble,
    augment,
    bounds,
    ensembles,
    filters,
    gram,
    groups,
    metrics,
    plotting,
    reps,
    stax,
)

FOLDER = Path(__file__).parents[1] / "figures"
LABELLED = [[1.0, 0.25], [0.35, 0.6], [-0.2, 1.25]]
_HIDDEN = stax.Dense(512, 1.5, 0.1), stax.Relu()
_, _, kernel_fn = stax.serial(*_HIDDEN, *_HIDDEN, stax.Dense(1))


def letter() -> jax.Array:
    """Return an F of 9 × 9 pixels, [9, 9, 1], which every turn and every flip changes."""
    rows = ["", "", "  ######", "  ##", "  #####", "  ##", "  ##", "  ##", ""]
    return jnp.array([[char == "#" for char in row.ljust(9)] for row in rows], float)[..., None]


def show(ax: Any, image: Any, title: str, **settings: Any) -> Any:
    """Show a matrix or image as pixels, without ticks."""
    ax.grid(False)
    ax.set(xticks=[], yticks=[], title=title)
    ax.spines[:].set(visible=True, color="#999999")
    return ax.imshow(np.squeeze(np.asarray(image)), **settings)


def action() -> Figure:
    """Draw the eight turns and flips of a square, acting on an image."""
    rep = reps.rot90(groups.dihedral(4))
    fig, axes = plotting.panels(4, 2, width=1.5, height=1.65)
    for g, ax in enumerate(axes):
        show(ax, rep(g, letter()), f"{g}: {rep.group.names[g]}", cmap="Blues", vmin=0, vmax=1.3)
    return fig


def interpolation() -> Figure:
    """Show that two eighths of a turn are not a quarter turn of pixels."""
    rep = reps.rotate(groups.cyclic(8))
    once, quarter = rep(1, letter()), rep(2, letter())
    images = [once, rep(1, once), quarter, rep(1, once) - quarter]
    titles = ["45°", "45° twice", "90°", "the difference"]
    fig, axes = plotting.panels(4, width=1.5, height=1.9)
    for ax, image, title in zip(axes[:3], images[:3], titles[:3], strict=True):
        show(ax, image, title, cmap="Blues", vmin=0, vmax=1.3)
    show(axes[3], images[3], titles[3], cmap="RdBu", vmin=-1, vmax=1)
    return fig


def augmentation() -> Figure:
    """Draw three samples under quarter turns with their indices g·n + i, and how a quarter turn permutes these."""
    train = augment(jnp.array(LABELLED), jnp.zeros(3), reps.matrix(groups.SO2.finite(4)))
    fig, (left, right) = plotting.panels(2, width=3.3, height=3.1)
    for i in range(3):
        orbit, colour, mark = train.x[i::3], plotting.COLOURS[i], plotting.MARKERS[i]
        left.plot(*orbit.T, mark, color=colour, markersize=6)
        left.plot(*orbit[:1].T, mark, color="none", markeredgecolor=colour, markersize=11)
    for index, sample in enumerate(train.x):
        left.annotate(str(index), sample, textcoords="offset points", xytext=(8, 6), fontsize=8, color="#222222")
    left.axhline(0, color="#999999", linewidth=0.5)
    left.axvline(0, color="#999999", linewidth=0.5)
    left.set(aspect="equal", xlim=(-1.6, 1.6), ylim=(-1.6, 1.6), title="index (g, i) is g·n + i, here n = 3")
    show(right, train.permutation_matrix(1), "Π(1), the quarter turn as a permutation", cmap="Blues", vmin=0, vmax=1.3)
    for edge in (2.5, 5.5, 8.5):
        right.axhline(edge, color="#999999", linewidth=0.5)
        right.axvline(edge, color="#999999", linewidth=0.5)
    right.set(xticks=range(12), yticks=range(12))
    right.tick_params(labelsize=7, length=0)
    return fig


def training() -> Figure:
    """Draw the fraction λφ_t(λ) of a mode that is learned, for several times and several filters."""
    lam = jnp.logspace(-4, 0.255, 400)
    fig, (left, right) = plotting.panels(2, sharey=True, width=3.5)
    for number, t in enumerate((1.0, 10.0, 100.0, 1000.0)):
        left.plot(lam, lam * filters.gradient_flow(1.0)(lam, t), color=plotting.COLOURS[number], label=f"t = {t:.0f}")
    left.set(title="gradient flow: small eigenvalues are slow")
    ways = [
        ("flow", "-", filters.gradient_flow(1.0)(lam, 10.0)),
        ("descent", "--", filters.gradient_descent(1.0)(lam, 10)),
        ("momentum, β = 0.9", "-", filters.momentum(1.0, 0.9)(lam, 10)),
        ("ridge, λ₀ = 0.1", "-", filters.ridge(0.1)(lam, jnp.inf)),
    ]
    for number, (name, line, values) in enumerate(ways):
        right.plot(lam, lam * values, line, color=plotting.COLOURS[number], label=name)
    right.set(title="ten steps at rate 1, and ridge")
    left.set_ylabel(r"fraction learned, $\lambda\,\varphi_t(\lambda)$")
    for ax in (left, right):
        ax.set(xscale="log", xlabel="eigenvalue λ")
        ax.legend()
    return fig


def fourier(group: groups.FiniteGroup) -> np.ndarray:
    """Return the unitary matrix whose rows are √(d/|G|) σ(g)_ab for all irreps σ, ordered by a, then b."""
    rows = [
        np.sqrt(sigma.shape[1] / group.order) * np.moveaxis(np.asarray(sigma), 0, -1).reshape(-1, group.order)
        for sigma in group.irreps()
    ]
    return np.concatenate(rows)


def reduction() -> Figure:
    """Draw the Gram matrix of an augmented set, in its own order and sorted by irreps."""
    group = groups.O(2).finite(4)
    n = 5
    samples = jax.random.normal(jax.random.key(3), (n, 2))
    train = augment(samples, jnp.zeros(n), reps.matrix(group))
    theta = np.asarray(gram(kernel_fn, train.x, None, "ntk"))
    change = np.kron(fourier(group), np.eye(n))
    blocks = change @ theta @ change.conj().T
    fig, (left, right) = plotting.panels(2, width=3.4, height=3.3)
    show(left, theta, f"Θ of {n} samples under D4: {8 * n} × {8 * n}", cmap="Blues")
    show(right, np.log10(np.abs(blocks) + 1e-16), "the same, sorted by irreps", cmap="Blues", vmin=-3.5, vmax=1.5)
    for edge in range(1, 8):
        for ax in (left, right):
            ax.axhline(n * edge - 0.5, color="#bbbbbb", linewidth=0.4)
            ax.axvline(n * edge - 0.5, color="#bbbbbb", linewidth=0.4)
    names = ["g = " + name for name in group.names]
    left.set(xticks=[], yticks=n * np.arange(8) + n / 2 - 0.5)
    left.set_yticklabels(names, fontsize=7)
    start, ticks, labels = 0, [], []
    for number, sigma in enumerate(group.irreps()):
        d = sigma.shape[1]
        for _ in range(d):
            ticks.append(start + n * d / 2 - 0.5)
            labels.append(f"irrep {number}\nd = {d}")
            start += n * d
    right.set(yticks=ticks)
    right.set_yticklabels(labels, fontsize=7)
    return fig


def members() -> Figure:
    """Show on a circle that members differ from their turned copies, and that the infinite ensemble does not."""
    rep = reps.matrix(groups.SO2.finite(4))
    ens = InfiniteEnsemble(kernel_fn, augment(jnp.array(LABELLED), jnp.array([1.0, -1.0, 0.5]), rep))
    angles = jnp.linspace(0, 2 * jnp.pi, 121)
    circle = 4 * jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1)
    draws = ens.sample(jax.random.key(2), circle, 3.0, members=400)
    fig, (left, right) = plotting.panels(2, width=3.6, height=3.1)
    degrees = np.degrees(angles)
    left.plot(degrees, draws[:12].T, color=plotting.COLOURS[4], linewidth=0.8)
    left.plot([], [], color=plotting.COLOURS[4], label="12 members")
    left.plot(degrees, draws[:100].mean(axis=0), color=plotting.COLOURS[1], label="mean of 100")
    plotting.predicted(left, degrees, ens.mean(circle, 3.0), label="infinite ensemble")
    left.set(xticks=range(0, 361, 90), xlabel="direction, degrees", ylabel="prediction")
    left.set_title("period 90°: the ensemble, not its members")
    left.legend(loc="upper left", ncols=2, columnspacing=1)
    left.set_ylim(None, 1.5 * draws[:12].max())
    here, turned = draws[:, 10], draws[:, 40]
    right.plot(here, turned, "o", color=plotting.COLOURS[4], markersize=2.5, label="single members")
    tens = draws.reshape(40, 10, -1).mean(axis=1)
    right.plot(tens[:, 10], tens[:, 40], "s", color=plotting.COLOURS[1], markersize=3, label="means of 10")
    right.axline((float(here.mean()), float(here.mean())), slope=1, color="#222222", linestyle="--", linewidth=1)
    right.set(aspect="equal", xlabel="f(x)", ylabel="f(gx), a quarter turn on", title="dashed: invariant")
    right.set_ylim(None, turned.max() + 0.3 * (turned.max() - turned.min()))
    right.legend(loc="upper left")
    return fig


def calibration() -> Figure:
    """Compare likelihood and reliability of trained ensembles with what is predicted before training."""
    rng, scale, steps, rate, count = np.random.default_rng(0), 3.0, 20, 0.5, 96
    labels = rng.integers(0, 3, 72)
    angles = 2 * np.pi * labels / 3
    x = 1.5 * np.stack([np.cos(angles), np.sin(angles)], axis=1) + rng.normal(size=(72, 2))
    net, data = stax.serial(*_HIDDEN, stax.Dense(3)), (x[:12], np.eye(3)[labels[:12]] - 1 / 3)
    run = ensembles.train(net, data, members=count, steps=steps, optimizer=optax.sgd(rate), key=jax.random.key(1))
    z, truth = scale * np.asarray(run.predict(x[12:]), float), labels[12:]
    ens = InfiniteEnsemble(net, data, filters.gradient_descent(rate), reduction="mean")
    sizes = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
    found = bounds.expected_metrics(ens, x[12:], truth, steps, members=sizes, key=jax.random.key(0), scale=scale)
    fig, (left, right) = plotting.panels(2, width=3.7, height=3.4)
    for number, average in enumerate(("probabilities", "logits")):
        expected = getattr(found.negative_log_likelihood, average)
        name = f"average of {average}"
        plotting.predicted(left, sizes, expected.value[:-1], errors=expected.scatter[:-1], label=name, number=number)
        left.axhline(expected.value[-1], color=plotting.COLOURS[number], linewidth=0.6)
        for size in (1, 2, 4, 8, 16):
            groups = z.reshape(-1, size, *z.shape[1:])
            values = [getattr(metrics.negative_log_likelihood(group, truth), average).value for group in groups]
            error = np.std(values, ddof=1) / len(values) ** 0.5
            plotting.measured(left, [size * 1.04 ** (2 * number - 1)], [np.mean(values)], [error], number=number)
    left.set(xscale="log", xlabel="members M", ylabel="negative log-likelihood", xticks=[1, 3, 10, 30])
    left.set_xticklabels(["1", "3", "10", "30"])
    left.minorticks_off()
    left.legend()
    measured = metrics.reliability(z[:8], truth, bins=8, average="logits")
    plotting.reliability(right, found.reliability(8, average="logits"), theory=True, label="predicted", number=1)
    plotting.reliability(right, measured, label="eight trained networks")
    right.legend(loc="upper left")
    return fig


PICTURES = (action, interpolation, augmentation, training, reduction, members, calibration)

if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    with plotting.style():
        for picture in PICTURES:
            path = FOLDER / f"concept_{picture.__name__}.png"
            picture().savefig(path, metadata={"Software": None})
            print(path.relative_to(FOLDER.parents[1]))
