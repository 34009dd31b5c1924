# %% [markdown]
# # 5 · From C_k to SO(2)
#
# **The question.** My data may be turned by *any* angle, and nobody can
# augment by infinitely many angles. I use k equally spaced ones, the group
# C_k. How far is the ensemble from invariant under the angles in between, and
# how large must k be?

# %%
import jax
import numpy as np

from ntk_equiv import InfiniteEnsemble, augment, bounds, groups, reps, stax

jax.config.update("jax_enable_x64", True)

hidden = stax.Dense(512, W_std=1.5, b_std=0.3)
network = stax.serial(hidden, stax.Erf(), stax.Dense(1))
x = np.array([[0.5, 0.2], [1.0, -0.9], [-0.4, 2.1]])
y = np.array([1.0, -1.0, 0.5])
t = 100.0

degrees = np.arange(360)
angles = np.radians(degrees)
circle = 1.5 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
test = circle[:1]  # one input; the others are its turned copies

# %% [markdown]
# The loss is a *mean* over the data (`reduction="mean"`). With a sum, more
# copies would also mean longer training, and we would compare two things at
# once.

# %%
orders = (2, 3, 4, 8, 12)
ensembles, curves, seen, bound = {}, {}, {}, {}
print(" k      seen   bound   bound / seen")
for k in orders:
    train = augment(x, y, reps.matrix(groups.SO2.finite(k)))
    ens = InfiniteEnsemble(network.kernel_fn, train, reduction="mean")
    f = np.asarray(ens.mean(circle, t))
    seen[k] = np.abs(f - f[0]).max()
    proven = bounds.continuous_group_bound(ens, groups.SO2, test, t)
    bound[k] = proven.upper[0]
    ratio = bound[k] / seen[k]
    print(f"{k:2d}   {seen[k]:.5f}   {bound[k]:5.1f}   {ratio:12.0f}")
    ensembles[k], curves[k] = ens, f

assert all(seen[k] < bound[k] for k in orders)

# %% [markdown]
# *Seen* is the largest change among the 360 angles. *Bound* is a number that
# the change exceeds at no angle, not even between two whole degrees. It is
# proven, and computed without trying any angle.
#
# Two things stand out.
#
# **The change falls fast.** From k = 4 on, every step divides what is seen by
# a large factor. The bound falls at most as 1/k and is soon thousands of times
# too large. It compares every angle with the nearest one of C_k, and adds up
# the worst effect that each training sample could have. It does not see that
# these effects cancel.

# %%
from ntk_equiv import plotting

fall = [errors[4] / errors[8] for errors in (seen, bound)]
print("from k = 4 to 8: seen / {:.0f}, bound / {:.1f}".format(*fall))

with plotting.style():
    fig, (left, right) = plotting.panels(2)
    for colour, k in zip(plotting.COLOURS, (2, 4, 8), strict=False):
        left.plot(degrees, curves[k], color=colour, label=f"k = {k}")
    left.set(title="prediction for one input", xlabel="turned by, degrees")
    left.set_xticks(range(0, 361, 90))
    left.legend()
    largest, certified = list(seen.values()), list(bound.values())
    plotting.predicted(right, orders, certified, label="bound")
    plotting.measured(right, orders, largest, label="seen", joined=True)
    right.set(title="largest change under any angle", yscale="log")
    right.set(xlabel="k, number of angles", xticks=orders)
    right.legend(loc="lower left")
plotting.save(fig, "results/from-few-angles-to-all")

# %% [markdown]
# **The change does not always fall.** Three angles are worse than two. Could
# this depend on the angles that we tried? What was seen for k = 3 is a lower
# limit of the true change. For k = 2 we need an upper limit, and a better one
# than the bound. A search provides it: it cuts the angles into smaller and
# smaller cells until the result is precise enough.

# %%
two = bounds.certified_continuous_deviation(
    ensembles[2], groups.SO2, test, t, rtol=0.2
)
print(f"k = 2: proven to be from {two.lower[0]:.2f} to {two.upper[0]:.2f}")
print(f"k = 3: at least {seen[3]:.2f}")
assert two.upper[0] < seen[3]

# %% [markdown]
# **What surprised us.** More augmentation can be worse, provably. C_2 is not
# contained in C_3, so the larger group need not win. To find the smallest k
# that is good enough, try all of them, as `bounds.min_group_order` does. Do
# not bisect.
#
# How fast the change falls depends on the network. This one is smooth (erf),
# and the change falls exponentially in k. The kernel of a ReLU network has a
# kink, and the change falls like a power of k: see [Continuous
# groups](../experiments/continuous_groups.md).
#
# **Where to go on.** [Bounds](../bounds.md) has the formulas, SO(3), and
# labels that turn with the input. Then use your own data: [planning an
# ensemble](../planning.md).
