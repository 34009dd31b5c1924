# %% [markdown]
# # 4 · Theory against training
#
# **The question.** All numbers so far were about networks of infinite width that nobody
# trained. Do they say anything about networks that I train?
#
# We train narrow networks and wide ones, and compare.

# %%
import jax
import numpy as np
import optax

from ntk_equiv import (
    InfiniteEnsemble,
    augment,
    bounds,
    ensembles,
    filters,
    groups,
    metrics,
    plotting,
    reps,
    stax,
)

jax.config.update("jax_enable_x64", True)


def network(width):
    hidden = stax.Dense(width, W_std=1.5, b_std=0.3)
    return stax.serial(hidden, stax.Relu(), stax.Dense(1))


x = np.array([[0.5, 0.2], [1.0, -0.9], [-0.4, 2.1]])
y = np.array([[1.0], [-1.0], [0.5]])
turns = reps.matrix(groups.SO2.finite(4))
train = augment(x, y, turns)

rate, steps = 0.5, 50

# %% [markdown]
# ## What theory says
#
# Theory and training have to be about the same training: 50 steps of gradient descent
# at rate 0.5, on the mean squared error of all 12 points. We ask it about 72 points on
# a circle.

# %%
kernel_fn = network(1).kernel_fn  # the same for every width
descent = filters.gradient_descent(rate)
theory = InfiniteEnsemble(kernel_fn, train, descent, reduction="mean")

degrees = np.arange(0, 360, 5)
angles = np.radians(degrees)
circle = 1.5 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
mean = np.asarray(theory.mean(circle, steps))[:, 0]
std = np.sqrt(theory.var(circle, steps))
print("mean at 0°, 90°, 180°, 270°:", mean[::18].round(4))
print("standard deviation of members:", std[::18].round(4))

# %% [markdown]
# ## What training says
#
# `ensembles.train` trains all members, each from random weights of its own.
# `compare_with_theory` then asks: how far are mean and variance of these members from
# the predicted ones, in units of the standard error that so many members have? It
# refuses to compare if rate, loss, data or steps differ.

# %%
settings = {"steps": steps, "optimizer": optax.sgd(rate), "key": jax.random.key(0)}
runs = {  # narrow networks are cheap, so we train more of them
    16: ensembles.train(network(16), train, members=1024, **settings),
    2048: ensembles.train(network(2048), train, members=64, **settings),
}
compared = {}
for width, run in runs.items():
    compared[width] = ensembles.compare_with_theory(run, theory, circle, steps)
    print(f"width {width}, {compared[width].members} members")
    print("    mean    ", compared[width].mean)
    print("    variance", compared[width].var)
assert compared[2048].holds(5)
assert not compared[16].holds(5)

# %% [markdown]
# Among 72 points, a few standard errors are what chance does. The wide networks are
# within that, the narrow ones are far off. A finite width N moves mean and variance by
# an amount of the order of 1/N. More members do not help against it: they only make it
# easier to see.
#
# ## And the symmetry?
#
# Theory also said how far the mean of M members would be from invariant. On our circle
# a quarter turn is 18 points further, so the 72 points are 18 points in four positions
# each.

# %%
law = bounds.orbit_deviation(theory, circle[:18], steps)
print("deviation over the four positions")
print("                          one member  mean of 64  mean of 1024")
row = "{:24} {:11.4f} {:11.4f} {:13.4f}".format
print(row("theory, infinite width", *(law.expected(M).mean() for M in (1, 64, 1024))))
for width, run in runs.items():
    positions = np.asarray(run.predict(circle)).reshape(-1, 4, 18, 1)
    member = metrics.orbit_std(positions).members.mean()
    means = [metrics.orbit_std(positions[:M]).ensemble for M in (64, 1024)]
    means[1] = means[1] if len(positions) == 1024 else np.nan  # too few were trained
    print(row(f"trained, width {width}", member, *means))

# %%
with plotting.style():
    fig, axes = plotting.panels(2, sharey=True)
    for ax, (width, found) in zip(axes, compared.items(), strict=True):
        seen, spread = found.mean.observed[:, 0], np.sqrt(found.var.observed[:, 0])
        plotting.uncertain(
            ax, degrees, seen, spread, label="trained: mean ± 2 deviations"
        )
        plotting.predicted(ax, degrees, mean, label="theory")
        plotting.predicted(ax, degrees, mean - 2 * std)
        plotting.predicted(ax, degrees, mean + 2 * std)
        ax.set(title=f"width {width}", xlabel="direction, degrees")
        ax.set(xticks=range(0, 361, 90), ylim=(-0.65, 0.75))
    axes[0].set_ylabel("prediction after 50 steps")
    axes[0].legend(loc="upper left")
plotting.save(fig, "results/theory-and-trained-networks")

# %% [markdown]
# Dashed is theory: the mean, and two standard deviations on each side. Coloured is what
# was trained.
#
# **What surprised us.** The narrow networks do not follow the theory of infinite width,
# and their mean is invariant all the same: the more of them, the more so, without a
# floor in sight. That is no accident. If the initial weights have no preferred
# direction and the data are augmented by the whole group, then the *expected*
# prediction is exactly invariant at any width. Width is needed to know the numbers, not
# to have the symmetry.
#
# **Where to go on.** Longer training takes more width; the [Ising
# experiment](../experiments/ising.md) measures how much. Devices, checkpoints and Flax
# modules are in [Training real ensembles](../training.md). Next: [from C_k to
# SO(2)](5_from_ck_to_so2.md).
