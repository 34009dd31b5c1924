# %% [markdown]
# # 4 · Theory against training
#
# **The question.** All numbers so far were about networks of infinite width that nobody trained. Do they say anything
# about networks that I train?
#
# We train narrow networks and wide ones, and compare.

# %%
import jax
import numpy as np
import optax

from ntk_equiv import InfiniteEnsemble, augment, bounds, ensembles, filters, groups, metrics, plotting, reps, stax

jax.config.update("jax_enable_x64", True)


def network(width):
    return stax.serial(stax.Dense(width, W_std=1.5, b_std=0.3), stax.Relu(), stax.Dense(1))


x = np.array([[0.5, 0.2], [1.0, -0.9], [-0.4, 2.1]])
y = np.array([[1.0], [-1.0], [0.5]])
turns = reps.matrix(groups.SO2.finite(4))
train = augment(x, y, turns)

rate, steps = 0.5, 50

# %% [markdown]
# ## What theory says
#
# Theory and training have to be about the same training: 50 steps of gradient descent at rate 0.5, on the mean squared
# error of all 12 points. We ask it about 24 points on a circle.

# %%
theory = InfiniteEnsemble(network(1).kernel_fn, train, filters.gradient_descent(rate), reduction="mean")
angles = np.arange(24) * (2 * np.pi / 24)
circle = 1.5 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
mean, std = np.asarray(theory.mean(circle, steps))[:, 0], np.sqrt(theory.var(circle, steps))
print("mean at 0°, 90°, 180°, 270°:", mean[::6].round(4))
print("standard deviation of members:", std[::6].round(4))

# %% [markdown]
# ## What training says
#
# `ensembles.train` trains all members, each from random weights of its own. `compare_with_theory` then asks: how far
# are mean and variance of these members from the predicted ones, in units of the standard error that so many members
# have? It refuses to compare if rate, loss, data or steps differ.

# %%
sizes = {16: 1024, 2048: 64}  # narrow networks are cheap, so we train more of them
runs, compared = {}, {}
for width, members in sizes.items():
    runs[width] = ensembles.train(
        network(width), train, members=members, steps=steps, optimizer=optax.sgd(rate), key=jax.random.key(0)
    )
    compared[width] = ensembles.compare_with_theory(runs[width], theory, circle, steps)
    print(f"width {width:4}, {members:4} members:     mean {compared[width].mean}")
    print(f"                      variance {compared[width].var}")
assert compared[2048].holds(5)
assert not compared[16].holds(5)

# %% [markdown]
# Among 24 points, a few standard errors are what chance does. The wide networks are within that, the narrow ones are
# far off. A finite width N moves mean and variance by an amount of the order of 1/N. More members do not help against
# it: they only make it easier to see.
#
# ## And the symmetry?
#
# Theory also said how far the mean of M members would be from invariant. On our circle a quarter turn is 6 points
# further, so all 24 points are 6 points in four positions each.

# %%
law = bounds.orbit_deviation(theory, circle[:6], steps)
print("deviation over the four positions:  1 member   mean of 64   mean of 1024")
expected = [law.expected(M).mean() for M in (1, 64, 1024)]
print("theory, infinite width               {:.4f}      {:.4f}       {:.4f}".format(*expected))
for width, run in runs.items():
    predictions = np.asarray(run.predict(circle)).reshape(-1, 4, 6, 1)
    one = metrics.orbit_std(predictions).members.mean()
    means = [f"{metrics.orbit_std(predictions[:M]).ensemble:.4f}" for M in (64, 1024) if len(predictions) >= M]
    print(f"trained, width {width:4}                  {one:.4f}      {'       '.join(means)}")

# %%
with plotting.style():
    fig, axes = plotting.panels(2, sharey=True)
    degrees = np.degrees(angles)
    for number, (ax, (width, found)) in enumerate(zip(axes, compared.items(), strict=True)):
        seen, error = found.mean.observed[:, 0], found.var.observed[:, 0] ** 0.5
        plotting.uncertain(ax, degrees, seen, error, label="trained: mean ± 2 deviations", number=number)
        plotting.predicted(ax, degrees, mean, label="theory")
        for side in (-2, 2):
            plotting.predicted(ax, degrees, mean + side * std)
        ax.set(title=f"width {width}", xlabel="direction of the input, in degrees", xticks=range(0, 361, 90))
        ax.legend(loc="upper left")
    axes[0].set_ylabel("prediction after 50 steps")
plotting.save(fig, "results/theory-and-trained-networks")

# %% [markdown]
# Dashed is theory: the mean, and two standard deviations on each side. Coloured is what was trained.
#
# **What surprised us.** The narrow networks do not follow the theory of infinite width, and their mean is invariant all
# the same: the more of them, the more so, without a floor in sight. That is no accident. If the initial weights have no
# preferred direction and the data are augmented by the whole group, then the *expected* prediction is exactly invariant
# at any width. Width is needed to know the numbers, not to have the symmetry.
#
# **Where to go on.** Longer training takes more width; the [Ising experiment](../experiments/ising.md) measures how
# much. Devices, checkpoints and Flax modules are in [Training real ensembles](../training.md). Next: [from C_k to
# SO(2)](5_from_ck_to_so2.md).
