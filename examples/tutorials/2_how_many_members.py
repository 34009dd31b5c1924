# %% [markdown]
# # 2 · How many members do I need?
#
# **The question.** [An infinite ensemble](1_the_theorem.md) trained on
# augmented data is exactly invariant. Mine will have ten members, or a
# hundred. How far from invariant will it be, and how many members are enough?
#
# The answer is known before anything is trained. It differs from input to
# input.

# %%
import jax
import numpy as np

from ntk_equiv import InfiniteEnsemble, augment, bounds, groups, reps, stax

jax.config.update("jax_enable_x64", True)

hidden = stax.Dense(512, W_std=1.5, b_std=0.3)
network = stax.serial(hidden, stax.Relu(), stax.Dense(1))
x = np.array([[0.5, 0.2], [1.0, -0.9], [-0.4, 2.1]])
y = np.array([1.0, -1.0, 0.5])
turns = reps.matrix(groups.SO2.finite(4))
ensemble = InfiniteEnsemble(network.kernel_fn, augment(x, y, turns))

t = 10.0
names = ("near", "far")  # one input among the data, one far outside
test = np.array([[1.0, 0.5], [4.0, 3.0]])

# %% [markdown]
# ## How far from invariant?
#
# Take the average of M members at an input and at its turned copies. The four
# answers differ randomly, and `orbit_deviation` is the exact distribution of
# these differences. `expected(M)` is the expected standard deviation over the
# four copies.

# %%
law = bounds.orbit_deviation(ensemble, test, t)
print("members   near     far")
for M in (1, 10, 100, 1000):
    near, far = law.expected(M)
    print(f"{M:7d}   {near:.4f}   {far:.4f}")

# %% [markdown]
# A hundred times as many members are ten times as invariant: the deviation
# falls as 1/√M for every input. But its size depends on the input. Far away
# from the data it is many times as large.
#
# ## How many are enough?
#
# Say what you tolerate: a change of at most `delta` under any of the turns,
# except with probability `epsilon`.

# %%
delta, epsilon = 0.1, 0.05
needed = law.members(delta, epsilon)
rows = zip(names, needed.value, needed.lower, needed.upper, strict=True)
for name, M, low, high in rows:
    print(f"{name:4}: {M} members ({low} to {high} with 99.9 % confidence)")

# %% [markdown]
# These numbers come from sampling, so each has an interval.
#
# ## Is it true?
#
# Build 2,000 ensembles of exactly that size, and count how many change by more
# than `delta`. The members are drawn from the infinite ensemble, which is
# quick. [Tutorial 4](4_theory_against_training.md) trains real ones.

# %%
count, key = 2000, jax.random.key(1)
copies = np.asarray(turns.orbit(test)).reshape(8, 2)  # both inputs, four times
draws = np.asarray(ensemble.sample(key, copies, t, members=count * 128))
draws = draws.reshape(count, 128, 4, 2)  # [ensembles, members, copies, inputs]

share = {}
for place, name in enumerate(names):
    M = int(needed.value[place])
    answers = draws[:, :M, :, place].mean(axis=1)
    change = np.abs(answers[:, 1:] - answers[:, :1]).max(axis=1)
    share[name] = (change > delta).mean()
    print(f"{name:4}: {share[name]:.1%} of ensembles of {M} change by more")

error = np.sqrt(epsilon * (1 - epsilon) / count)
assert share["near"] < epsilon + 4 * error
assert abs(share["far"] - epsilon) < 6 * error

# %% [markdown]
# For the far input the share is the 5 % that we asked for, up to the counting
# error of ± 0.5 %. For the near input the share may be smaller. The number of
# members is a whole number, and when it is small, one member makes a
# difference.
#
# ## Another question, and three answers to it
#
# The paper asks something else: how far is the average of M members from that
# of infinitely many? The difference is Gaussian with variance Σ/M, where Σ is
# the variance of one member. Three formulas say how many members keep it below
# `delta`: the exact one, the bound in the paper's appendix (tight) and the
# bound in its main text (lemma). The bounds are simpler and ask for a few more
# members.

# %%
variance = np.asarray(ensemble.var(test, t))
for bound in ("exact", "tight", "lemma"):
    sizes = bounds.min_ensemble_size(variance, delta, epsilon, bound=bound)
    print(f"{bound:5}: near {sizes[0]:3d}, far {sizes[1]:3d}")
    assert (needed.value > sizes).all()

# %% [markdown]
# Compare this with the first question. To keep the change under turns small,
# the far input needs nearly twice as many members as to be near the limit.
# The table shows the probability of both for the far input, and for the
# distance from the limit also how often it occurs among drawn ensembles.

# %%
sizes = np.array([40, 60, 80, 120])
limit = np.asarray(ensemble.mean(copies, t))[1]
far = draws[:, :, 0, 1]
off = [np.abs(far[:, :M].mean(axis=1) - limit) > delta for M in sizes]
counted = np.mean(off, axis=1)
theory = bounds.deviation_probability(variance[1], sizes, delta)
between = [law.probability(int(M), delta).value[1] for M in sizes]
print("members   off the limit: theory   counted   off its copies: theory")
for row in zip(sizes, theory, counted, between, strict=True):
    print("{:7d} {:23.3f} {:9.3f} {:24.3f}".format(*row))

# %%
from ntk_equiv import plotting

with plotting.style():
    fig, (left, right) = plotting.panels(2)
    decades = [1, 10, 100, 1000]
    for number, name in enumerate(names):
        curve = [law.expected(M)[number] for M in decades]
        plotting.predicted(left, decades, curve, label=name, number=number)
    left.set(xscale="log", yscale="log", xlabel="members")
    left.set(ylabel="expected deviation", title="over four copies of an input")
    left.legend()
    many, V = np.arange(40, 131, 5), variance[1]
    for number, bound in enumerate(("exact", "tight", "lemma")):
        curve = bounds.deviation_probability(V, many, delta, bound=bound)
        plotting.predicted(right, many, curve, label=bound, number=number)
    errors = np.sqrt(counted * (1 - counted) / count)
    plotting.measured(right, sizes, counted, errors, label="counted", number=3)
    right.set(yscale="log", xlabel="members", ylabel="probability")
    right.set_title(f"far input: off the limit by more than {delta}")
    right.legend()
plotting.save(fig, "results/members-needed")

# %% [markdown]
# **What surprised us.** The two questions have different answers. An ensemble
# can be close to its limit and still change by more than that when the input
# turns, because we then compare two answers and both are off. So do not use
# the variance of a member to decide how invariant an ensemble is. Use
# `orbit_deviation`.
#
# **Where to go on.** [Bounds](../bounds.md) has all formulas, and says where
# the paper needs care. For your own data, [planning](../planning.md) answers
# these questions with one command. Next: [a group of your
# own](3_my_own_group.md).
