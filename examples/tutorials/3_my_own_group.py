# %% [markdown]
# # 3 · My own group
#
# **The question.** My data have a symmetry that no library has heard of. What do I have
# to write down?
#
# The example is tic-tac-toe. A board may be turned and mirrored, and the two players
# may be exchanged. The first two do not change who is ahead. The third one does: it
# turns the score into its negative. Together these are 16 symmetries.
#
# ## The group
#
# A board is 9 numbers: 1 for a cross, −1 for a nought, 0 for an empty square. Every
# symmetry is then a 9 × 9 matrix. Give three of them, and the library finds all their
# products.

# %%
import jax
import numpy as np

from ntk_equiv import InfiniteEnsemble, augment, groups, plotting, reps, stax, theorems

jax.config.update("jax_enable_x64", True)

squares = np.arange(9).reshape(3, 3)
turn = np.eye(9)[np.rot90(squares).ravel()]  # each row picks a square of the old board
mirror = np.eye(9)[np.fliplr(squares).ravel()]
exchange = -np.eye(9)
G = groups.from_matrices([turn, mirror, exchange], label="tic-tac-toe")
print("elements:", G.order)
print("sizes of its irreps:", [irrep.shape[1] for irrep in G.irreps()])

# %% [markdown]
# How it acts on boards is given by its matrices. How it acts on scores is a sign: −1
# for the elements that exchange the players, and these are the ones whose matrix has
# negative entries.

# %%
on_boards = reps.matrix(G)
signs = G.matrices.sum(axis=(1, 2)) / 9
on_scores = reps.matrix(G, signs[:, None, None])
print("signs:", signs.astype(int))

# %% [markdown]
# ## The data
#
# The score of a board is the number of lines that are still open for crosses, minus
# those open for noughts. We label 40 random boards, and check that boards and scores
# really move together as we claim.

# %%
diagonals = squares.diagonal(), np.fliplr(squares).diagonal()
lines = np.array([*squares, *squares.T, *diagonals])


def score(boards):
    marks = np.asarray(boards)[:, lines]  # [boards, 8 lines, 3 squares]
    for_crosses = (marks >= 0).all(axis=2).sum(axis=1, keepdims=True)
    for_noughts = (marks <= 0).all(axis=2).sum(axis=1, keepdims=True)
    return (for_crosses - for_noughts).astype(float)


boards = np.random.default_rng(0).integers(-1, 2, (240, 9)).astype(float)
boards[-1] = 0  # the empty board, of which we will hear again
x, x_test = boards[:40], boards[40:]
y, y_test = score(x), score(x_test)
theorems.assert_equivariant(score, on_boards, on_scores, x_test)
print("the score changes with the board as on_scores says")

# %% [markdown]
# ## Does the network respect it?
#
# That is for the kernel of the network to tell. A dense network respects every rotation
# and mirror image of its inputs, and so these. The check compares all elements on a few
# boards.

# %%
network = stax.serial(stax.Dense(512, W_std=1.5, b_std=0.1), stax.Relu(), stax.Dense(1))
check = theorems.kernel_transformation(network.kernel_fn, on_boards, x[:4])
print("kernel respects the group:", check.holds(1e-12))

# %% [markdown]
# ## The ensemble
#
# From here on everything is as for the groups that the library has. 40 boards become
# 640.

# %%
train = augment(x, y, on_boards, on_scores)
ensemble = InfiniteEnsemble(network.kernel_fn, train)
print(f"{ensemble.method}, because {ensemble.reason}")

# %% [markdown]
# It says *reduced*. The kernel of all pairs is a matrix of 640 × 640 entries, and it is
# never built: the symmetry splits it into one small block for each irrep.

# %%
n = len(x)
blocks = [irrep.shape[1] * n for irrep in G.irreps()]
print("sizes of the blocks:", blocks)
whole = (G.order * n) ** 3 / sum(size**3 for size in blocks)
print(f"decomposing the whole matrix instead would be {whole:.0f} times the work")
dense = InfiniteEnsemble(network.kernel_fn, train, method="dense")
away = np.abs(ensemble.mean(x_test, np.inf) - dense.mean(x_test, np.inf)).max()
print(f"largest difference from doing so: {away:.0e}")
assert away < 1e-10

# %% [markdown]
# For the mean, only the irreps that the labels contain matter. Here that is a single
# block of 40 × 40, no larger than it would be without augmentation.
#
# ## Was it worth it?

# %%
plain = InfiniteEnsemble(network.kernel_fn, (x, y))
for name, ens in (("plain", plain), ("augmented", ensemble)):
    predictions = np.asarray(ens.mean(x_test, np.inf))
    error = np.sqrt(np.mean((predictions - y_test) ** 2))
    empty = predictions[-1, 0]
    print(f"{name:9}: error on 200 boards {error:.2f}, empty board {empty:+.3f}")
print(f"(always guessing 0 has an error of {np.sqrt(np.mean(y_test**2)):.2f})")
assert abs(empty) < 1e-10

# %% [markdown]
# The empty board was not in the data. But exchanging the players does not change it,
# and does change the sign of its score. So its score must be its own negative: the
# ensemble is certain that it is 0.

# %%
board = np.array([[1.0, 0, -1, 0, 1, 0, 0, 0, -1]])
orbit = np.asarray(on_boards.orbit(board))[:, 0]
by_ensemble = np.asarray(ensemble.mean(orbit, np.inf))[:, 0]
draws = np.asarray(ensemble.sample(jax.random.key(0), orbit, np.inf, members=1))
by_member = draws[0, :, 0]
print(f"true score {score(board)[0, 0]:.0f}, ensemble {by_ensemble[G.identity]:.2f}")
spread = [np.std(signs * scores) for scores in (by_ensemble, by_member)]
print("spread, signs undone: ensemble {:.0e}, one member {:.2f}".format(*spread))
assert spread[0] < 1e-10

symbols = {1: "×", -1: "○", 0: ""}
scores = zip(by_ensemble, by_member, strict=True)
with plotting.style():
    fig, axes = plotting.panels(8, 2, width=0.9, height=1.25)
    for ax, marks, (mean, member) in zip(axes, orbit, scores, strict=True):
        for square, mark in enumerate(marks):
            row, column = divmod(square, 3)
            ax.text(column, row, symbols[mark], ha="center", va="center", fontsize=13)
        ax.set(xlim=(-0.5, 2.5), ylim=(2.5, -0.5), aspect="equal")
        ax.set(xticks=(0.5, 1.5), yticks=(0.5, 1.5), xticklabels=(), yticklabels=())
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        ax.grid(color="0.4", linewidth=1)
        ax.set_title(f"{mean:+.2f}", fontsize=9, color=plotting.COLOURS[0])
        ax.set_xlabel(f"{member:+.2f}", fontsize=8, color="0.4")
plotting.save(fig, "results/one-board-in-sixteen-ways")

# %% [markdown]
# One board in its 16 forms, none of which was in the data. Above each, in blue, what
# the infinite ensemble predicts: one number and its negative. Below each, in grey, what
# one member predicts: sixteen numbers of its own.
#
# **What surprised us.** Some boards are their own mirror image, so the same board
# stands several times among the 640 and the matrix has no inverse:

# %%
distinct = len(np.unique(np.asarray(train.x), axis=0))
print(f"distinct boards: {distinct} of {len(train.x)}, rank: {ensemble.rank}")
assert ensemble.rank <= distinct

# %% [markdown]
# Nothing breaks, because the inverse is never taken.
#
# **Where to go on.** Groups, irreps and actions on images and graphs are in [Groups and
# how they act](../groups.md), the blocks in [The infinite ensemble](../ensembles.md).
# Next: [theory against training](4_theory_against_training.md).
