# %% [markdown]
# # 4 · Theory against training
#
# **The question.** All numbers so far were about networks of infinite width
# that nobody trained. Do they say anything about networks that I train?
#
# We train narrow networks and wide ones, and compare.

# %%
import jax
import numpy as np

from ntk_equiv import InfiniteEnsemble, augment, filters, groups, reps, stax

jax.config.update("jax_enable_x64", True)


def network(width):
    hidden = stax.Dense(width, W_std=1.5, b_std=0.3)
    return stax.serial(hidden, stax.Relu(), stax.Dense(1))


x = np.array([[0.5, 0.2], [1.0, -0.9], [-0.4, 2.1]])
y = np.array([[1.0], [-1.0], [0.5]])
train = augment(x, y, reps.matrix(groups.SO2.finite(4)))
rate, steps = 0.5, 50

# %% [markdown]
# ## What theory says
#
# Theory and training must describe the same thing: 50 steps of gradient
# descent at rate 0.5, on the mean squared error over all 12 samples. We
# evaluate both at 72 inputs on a circle.

# %%
kernel_fn = network(1).kernel_fn  # the same for every width
descent = filters.gradient_descent(rate)
theory = InfiniteEnsemble(kernel_fn, train, descent, reduction="mean")

degrees = np.arange(0, 360, 5)
angles = np.radians(degrees)
circle = 1.5 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
mean = np.asarray(theory.mean(circle, steps))[:, 0]
std = np.sqrt(theory.var(circle, steps))
print("mean at 0°, 90°, 180°, 270°:  ", mean[::18].round(4))
print("standard deviation of members:", std[::18].round(4))

# %% [markdown]
# ## What training says
#
# `ensembles.train` trains all members, each from its own random weights.
# `compare_with_theory` then compares the mean and variance of these members
# with the predicted ones, in units of the standard error of so many members.
# It refuses to compare if rate, loss, data or steps differ.

# %%
import optax

from ntk_equiv import ensembles

runs, compared = {}, {}
for width, members in ((16, 1024), (2048, 64)):  # narrow ones are cheap
    run = ensembles.train(
        network(width),
        train,
        members=members,
        steps=steps,
        optimizer=optax.sgd(rate),
        key=jax.random.key(0),
    )
    found = ensembles.compare_with_theory(run, theory, circle, steps)
    print(f"width {width}, {members} members")
    print("    mean    ", found.mean)
    print("    variance", found.var)
    runs[width], compared[width] = run, found

assert compared[2048].holds(5)
assert not compared[16].holds(5)

# %% [markdown]
# Among 72 inputs, chance alone leads to a few standard errors. The wide
# networks are within that range, and the narrow ones are far off. A finite
# width N shifts mean and variance by an amount of order 1/N. More members do
# not reduce this shift. They only make it easier to see.

# %%
from ntk_equiv import plotting

with plotting.style():
    fig, axes = plotting.panels(2, sharey=True)
    for ax, (width, found) in zip(axes, compared.items(), strict=True):
        seen, variance = found.mean.observed[:, 0], found.var.observed[:, 0]
        spread = np.sqrt(variance)
        plotting.uncertain(ax, degrees, seen, spread, label="trained")
        plotting.predicted(ax, degrees, mean, label="theory")
        plotting.predicted(ax, degrees, mean - 2 * std)
        plotting.predicted(ax, degrees, mean + 2 * std)
        ax.set(title=f"width {width}", xlabel="direction, degrees")
        ax.set(xticks=range(0, 361, 90), ylim=(-0.65, 0.7))
    axes[0].set_ylabel("prediction after 50 steps")
    axes[0].legend(loc="upper left", ncols=2)
plotting.save(fig, "results/theory-and-trained-networks")

# %% [markdown]
# The dashed lines are theory: the mean, and two standard deviations on each
# side. The coloured line and band are the trained networks: their mean and two
# standard deviations.
#
# ## And the symmetry?
#
# Theory also predicts how far the mean of M members is from invariant. On our
# circle a quarter turn is 18 inputs further, so the 72 inputs are 18 inputs
# with four turns each. This is how much predictions scatter over the four
# turns:

# %%
from ntk_equiv import bounds, metrics

law = bounds.orbit_deviation(theory, circle[:18], steps)
expected = [law.expected(M).mean() for M in (1, 64, 1024)]
print("                            one member  mean of 64  mean of 1024")
print("theory, infinite width     ", *(f"{e:11.4f}" for e in expected))
for width, run in runs.items():
    positions = np.asarray(run.predict(circle)).reshape(-1, 4, 18, 1)
    sizes = [M for M in (64, 1024) if len(positions) >= M]
    found = [metrics.orbit_std(positions).members.mean()]
    found += [metrics.orbit_std(positions[:M]).ensemble for M in sizes]
    print(f"trained, width {width:4}        ", *(f"{e:11.4f}" for e in found))

# %% [markdown]
# **What surprised us.** The narrow networks do not follow the theory of
# infinite width. Still, their mean becomes more and more invariant with more
# members, and we see no floor. This is no accident. If the initial weights
# have no preferred direction and the whole group augments the data, the
# *expected* prediction is exactly invariant at any width. You need width to
# predict the numbers, but not to get the symmetry.
#
# **Where to go on.** Longer training needs more width. The [Ising
# experiment](../experiments/ising.md) measures how much. [Training real
# ensembles](../training.md) covers devices, checkpoints and Flax modules.
# Next: [from C_k to SO(2)](5_from_ck_to_so2.md).
