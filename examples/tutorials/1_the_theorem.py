# %% [markdown]
# # 1 · The theorem in 20 lines
#
# **The question.** I train a neural network on data that I also show turned by
# 90°, 180° and 270°. The network has seen every turned copy. Does it now give
# the same answer for a new input and its turned copies?
#
# One network does not. The average over many networks does, on every input,
# even far away from the data, and at every moment of training. This is the
# theorem of Gerken and Kessel (2024). Here is all the code you need to see it.

# %%
import jax
import numpy as np

from ntk_equiv import InfiniteEnsemble, augment, groups, reps, stax

jax.config.update("jax_enable_x64", True)  # 16 digits, to see a zero

hidden = stax.Dense(512, W_std=1.5, b_std=0.3)
network = stax.serial(hidden, stax.Relu(), stax.Dense(1))

x = np.array([[0.5, 0.2], [1.0, -0.9], [-0.4, 2.1]])  # samples in the plane
y = np.array([1.0, -1.0, 0.5])  # and their labels
turns = reps.matrix(groups.SO2.finite(4))  # quarter turns of the plane
train = augment(x, y, turns)  # 12 samples: each of the three turned four ways
ensemble = InfiniteEnsemble(network.kernel_fn, train)

degrees = np.arange(0, 360, 3)  # a quarter turn is 30 steps
angles = np.radians(degrees)
circle = 5 * np.stack([np.cos(angles), np.sin(angles)], axis=1)  # far away

mean = np.asarray(ensemble.mean(circle, t=10.0))
change = np.abs(mean - np.roll(mean, 30)).max()
print("prediction at 12°, 102°, 192°, 282°:", mean[4::30])
print(f"largest change under a quarter turn: {change:.0e}")

# %% [markdown]
# The four numbers agree up to rounding. Nothing in the network knows about
# quarter turns: it is made of plain dense layers.
#
# Nothing was trained either. For very wide networks, training becomes a
# calculation. A training step on one input changes the answer at another input
# by a fixed amount, the *neural tangent kernel* of the two inputs.
# `network.kernel_fn` computes it. The average over all random initialisations
# then follows by linear algebra. `InfiniteEnsemble` does this for any training
# time `t`.
#
# ## One network alone
#
# How do single networks behave? They scatter around the average. Their
# distribution is Gaussian and known as well, so we can draw members from it.

# %%
key = jax.random.key(0)
members = np.asarray(ensemble.sample(key, circle, t=10.0, members=4))
for member in members:
    print("one member at 12°, 102°, 192°, 282°:", member[4::30].round(2))
print("infinitely many:                     ", mean[4::30].round(2))

# %% [markdown]
# Every member gives four different answers, although it was trained on all
# four turns of every sample. Away from the data, the random initialisation of
# a network decides its answer. Different members err in different directions,
# and in the average the errors cancel exactly.
#
# ## At any time
#
# "At any time" includes the start, where the average predicts 0, and the end,
# where it fits the labels.

# %%
times = np.array([0.0, 0.1, 1.0, 10.0, np.inf])
means = np.asarray(ensemble.mean(circle, times))
for t, f in zip(times, means, strict=True):
    change = np.abs(f - np.roll(f, 30)).max()
    print(f"t = {t:4}: at 12° {f[4]:6.3f}, largest change {change:.0e}")
    assert change < 1e-12

# %% [markdown]
# ## Without augmentation
#
# Does the symmetry come from the network after all? Train it on the three
# samples as they are.

# %%
plain = InfiniteEnsemble(network.kernel_fn, (x, y))
plain_mean = np.asarray(plain.mean(circle, 10.0))
change = np.abs(plain_mean - np.roll(plain_mean, 30)).max()
print("prediction at 12°, 102°, 192°, 282°:", plain_mean[4::30].round(2))
print(f"largest change under a quarter turn: {change:.1f}")
assert change > 1

# %% [markdown]
# The figure shows the same. Blue is the ensemble, and grey are four members.
# The left panel shows the predictions around the circle. Those of the ensemble
# repeat every 90°. The middle panel shows the change under a quarter turn:
# nothing for the ensemble, something for every member. The right panel shows
# this change without augmentation. So the symmetry comes from the data.

# %%
from ntk_equiv import plotting


def changes(predictions):
    return np.roll(predictions, -30, axis=-1) - predictions


curves = {
    "prediction": (mean, members),
    "change by a quarter turn": (changes(mean), changes(members)),
    "without augmentation": (changes(plain_mean), None),
}
with plotting.style():
    fig, axes = plotting.panels(3, width=2.5, height=2.4)
    for ax, title in zip(axes, curves, strict=True):
        average, single = curves[title]
        if single is not None:
            ax.plot(degrees, single.T, color="0.6", linewidth=0.8)
        ax.plot(degrees, average, color=plotting.COLOURS[0], linewidth=2.2)
        ax.set(title=title, xlabel="direction, degrees")
        ax.set_xticks(range(0, 361, 90))
plotting.save(fig, "results/predictions-around-the-circle")

# %% [markdown]
# ## Why it works, and when it does not
#
# A dense network with random weights has no preferred direction, so its kernel
# does not change when both inputs turn:

# %%
from ntk_equiv import theorems

check = theorems.kernel_transformation(network.kernel_fn, turns, circle[:4])
print(f"kernels of {check.scale:.0f} change by {check.largest:.0e} at most")
assert check.holds(1e-12)

# %% [markdown]
# This is the one thing to check for your own network and symmetry. It holds
# for every dense network and every rotation, and for convolutions if they
# cover the image evenly. The theorem assumes the squared error and gradient
# descent from Gaussian weights.
#
# **What surprised us.** The mean is invariant far away from the data, where
# nothing was learned, and at t = 0.1, when hardly anything was learned. It
# does not matter how well the networks are trained.
#
# **Where to go on.** A real ensemble is finite: [how many members do I
# need?](2_how_many_members.md) [The infinite ensemble](../ensembles.md) has
# the formulas, and [Kernels](../kernels.md) has other networks.
