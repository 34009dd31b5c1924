# %% [markdown]
# # 3 · My own group
#
# **The question.** My data have a symmetry that no library knows. What do I
# have to write down?
#
# The example is tic-tac-toe. We may turn the board, mirror it, and exchange
# the two players. Turning and mirroring do not change who is ahead. Exchanging
# the players changes the sign of the score. Together these are 16 symmetries.
#
# ## The group
#
# A board has 9 numbers: 1 for a cross, −1 for a nought, 0 for an empty square.
# So every symmetry is a 9 × 9 matrix. Give three of them, and the library
# finds all their products. It also finds the *irreps*, the smallest pieces
# into which an action of the group can be split.

# %%
import jax
import numpy as np

from ntk_equiv import InfiniteEnsemble, augment, groups, reps, stax, theorems

jax.config.update("jax_enable_x64", True)

squares = np.arange(9).reshape(3, 3)
turn = np.eye(9)[np.rot90(squares).ravel()]  # each row picks one square
mirror = np.eye(9)[np.fliplr(squares).ravel()]
exchange = -np.eye(9)
G = groups.from_matrices([turn, mirror, exchange], label="tic-tac-toe")
print("elements:", G.order)
print("sizes of its irreps:", [irrep.shape[1] for irrep in G.irreps()])

# %% [markdown]
# The matrices of the group act on boards. On scores the group acts by a sign:
# −1 for the elements that exchange the players. These are the elements whose
# matrix has negative entries.

# %%
on_boards = reps.matrix(G)
signs = G.matrices.sum(axis=(1, 2)) / 9
on_scores = reps.matrix(G, signs[:, None, None])
print("signs:", signs.astype(int))

# %% [markdown]
# ## The data
#
# The score of a board is the number of lines that are still open for crosses,
# minus the number of those open for noughts. We label 40 random boards, and
# check that scores change with the boards as we claim.

# %%
diagonals = squares.diagonal(), np.fliplr(squares).diagonal()
lines = np.array([*squares, *squares.T, *diagonals])


def score(boards):
    marks = np.asarray(boards)[:, lines]  # [boards, 8 lines, 3 squares]
    for_crosses = (marks >= 0).all(axis=2).sum(axis=1, keepdims=True)
    for_noughts = (marks <= 0).all(axis=2).sum(axis=1, keepdims=True)
    return (for_crosses - for_noughts).astype(float)


boards = np.random.default_rng(0).integers(-1, 2, (240, 9)).astype(float)
boards[-1] = 0  # the empty board, which returns below
x, x_test = boards[:40], boards[40:]
y, y_test = score(x), score(x_test)
theorems.assert_equivariant(score, on_boards, on_scores, x_test)
print("scores change with the boards as on_scores says")

# %% [markdown]
# ## Does the network respect it?
#
# The kernel of the network tells us. A dense network respects every rotation
# and every reflection of its inputs, so it respects these. The check compares
# all elements on a few boards.

# %%
hidden = stax.Dense(512, W_std=1.5, b_std=0.1)
network = stax.serial(hidden, stax.Relu(), stax.Dense(1))
check = theorems.kernel_transformation(network.kernel_fn, on_boards, x[:4])
print("the kernel respects the group:", check.holds(1e-12))

# %% [markdown]
# ## The ensemble
#
# From here on everything works as for the groups of the library. The 40 boards
# become 640.

# %%
train = augment(x, y, on_boards, on_scores)
ensemble = InfiniteEnsemble(network.kernel_fn, train)
print(f"{ensemble.method}, because {ensemble.reason}")

# %% [markdown]
# *Reduced* means this: the kernel of all pairs is a matrix of 640 × 640
# entries, and the library never builds it. The symmetry splits it into one
# small block for each irrep.

# %%
blocks = [irrep.shape[1] * len(x) for irrep in G.irreps()]
work = len(train.x) ** 3 / sum(size**3 for size in blocks)
print("sizes of the blocks:", blocks)
print(f"decomposing the whole matrix is {work:.0f} times the work")

# %% [markdown]
# The mean needs only the irreps that the labels contain. Here this is a single
# block of 40 × 40, no larger than without augmentation. (`method="dense"`
# decomposes the whole matrix and gives the same result.)
#
# ## Was it worth it?

# %%
plain = InfiniteEnsemble(network.kernel_fn, (x, y))
answers = {
    "always 0": np.zeros_like(y_test),
    "plain": np.asarray(plain.mean(x_test, np.inf)),
    "augmented": np.asarray(ensemble.mean(x_test, np.inf)),
}
print("           error   empty board")
for name, answer in answers.items():
    error = np.sqrt(np.mean((answer - y_test) ** 2))
    print(f"{name:9}  {error:5.2f}   {abs(answer[-1, 0]):11.1g}")
assert abs(answers["augmented"][-1, 0]) < 1e-9

# %% [markdown]
# The augmented ensemble is better on the 200 test boards, and perfect on the
# last one. This is the empty board, which was not in the data. Exchanging the
# players does not change it, but changes the sign of its score. So its score
# must be 0, and the ensemble knows this.
#
# ## One board in sixteen forms

# %%
from ntk_equiv import plotting

board = np.array([[1.0, 0, -1, 0, 1, 0, 0, 0, -1]])
forms = np.asarray(on_boards.orbit(board))[:, 0]
by_ensemble = np.asarray(ensemble.mean(forms, np.inf))[:, 0]
draws = ensemble.sample(jax.random.key(0), forms, np.inf, members=1)
by_member = np.asarray(draws)[0, :, 0]
spread = [np.std(signs * scores) for scores in (by_ensemble, by_member)]
print("true score:", score(board)[0, 0])
print("spread, signs undone: ensemble {:.0e}, member {:.2f}".format(*spread))
assert spread[0] < 1e-9

symbols, centred = {1: "×", -1: "○", 0: ""}, {"ha": "center", "va": "center"}
with plotting.style():
    fig, axes = plotting.panels(8, 2, width=0.9, height=1.4)
    for g, ax in enumerate(axes):
        for square, mark in enumerate(forms[g]):
            row, column = divmod(square, 3)
            ax.text(column, row, symbols[mark], fontsize=13, **centred)
        ax.set(xlim=(-0.5, 2.5), ylim=(2.5, -0.5), aspect="equal")
        ax.set_xticks((0.5, 1.5), labels=("", ""))
        ax.set_yticks((0.5, 1.5), labels=("", ""))
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        ax.grid(color="0.4", linewidth=1)
        ax.set_title(f"{by_ensemble[g]:+.2f}", color=plotting.COLOURS[0])
        ax.set_xlabel(f"{by_member[g]:+.2f}", fontsize=9, color="0.4")
plotting.save(fig, "results/one-board-in-sixteen-forms")

# %% [markdown]
# Above each form, in blue, is the prediction of the infinite ensemble: one
# number and its negative. Below, in grey, is the prediction of one member:
# sixteen different numbers. The true score is ±1, so forty boards are not
# enough to learn the score of this board well. A symmetric prediction need not
# be right.
#
# **What surprised us.** Some boards are their own mirror image, so the same
# board appears several times among the 640, and the matrix has no inverse.

# %%
distinct = len(np.unique(np.asarray(train.x), axis=0))
print(f"distinct boards: {distinct} of {len(train.x)}, rank: {ensemble.rank}")
assert ensemble.rank <= distinct

# %% [markdown]
# Nothing breaks, because the library never inverts the matrix.
#
# **Where to go on.** [Groups and how they act](../groups.md) explains groups,
# irreps and actions on images and graphs. [The infinite
# ensemble](../ensembles.md) explains the blocks. Next: [theory against
# training](4_theory_against_training.md).
