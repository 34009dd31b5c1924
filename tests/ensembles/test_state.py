"""Networks with batch statistics and dropout, against Flax used by hand."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from ntk_equiv import InfiniteEnsemble, ensembles, filters, stax
from tests.tolerances import assert_close

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(7, 3)), RNG.normal(size=(7, 2))
KEY, RATE, STEPS, BATCH = jax.random.key(5), 0.1, 5, 3
SGD = optax.sgd(RATE)


@pytest.fixture(autouse=True)
def _rank_promotion(rank_promotion_allowed):
    """Flax's own layers need it."""


class Linen(nn.Module):
    """Statistics, noise, and a variable of another kind."""

    @nn.compact
    def __call__(self, x, train=False):
        seen = self.variable("counts", "seen", lambda: jnp.zeros((), jnp.int32))
        if train and self.is_mutable_collection("counts"):
            seen.value += len(x)
        x = nn.Dense(4, use_bias=False, param_dtype=x.dtype, name="first")(x)
        x = nn.BatchNorm(use_running_average=not train, momentum=0.8, param_dtype=x.dtype, name="norm")(x)
        x = nn.Dropout(0.25, deterministic=not train)(nn.tanh(x))
        self.sow("intermediates", "hidden", x)
        return nn.Dense(2, param_dtype=x.dtype, name="last")(x)


def train(module, **changes):
    settings = {"members": 3, "steps": STEPS, "batch_size": BATCH, "optimizer": SGD, "key": KEY}
    return ensembles.train(module, (X, Y), **settings | changes)


@pytest.fixture(scope="module")
def run():
    with jax.numpy_rank_promotion("allow"):
        return train(Linen())


def keys_of(member):
    """The keys of a member for its parameters, its batches and its noise, by the rule that is documented."""
    initial, own = jax.random.split(jax.random.fold_in(KEY, member))
    return initial, jax.random.split(own)[0], jax.random.fold_in(own, 2)


def by_hand(member):
    """One member, trained with Flax alone on two whole batches in each epoch of seven samples."""
    initial, shuffling, noise = keys_of(member)
    variables = Linen().init(initial, X[:1])
    # Flax begins in single precision, and continues in double precision after a step that is rounded.
    variables["batch_stats"] = jax.tree.map(lambda leaf: leaf.astype(X.dtype), variables["batch_stats"])
    for step in range(STEPS):
        order = jax.random.permutation(jax.random.fold_in(shuffling, step // 2), 7)
        chosen = np.asarray(order)[BATCH * (step % 2) :][:BATCH]

        def loss(params, variables=variables, chosen=chosen, step=step):
            outputs, after = Linen().apply(
                {**variables, "params": params},
                X[chosen],
                train=True,
                rngs={"dropout": jax.random.fold_in(noise, step)},
                mutable=["batch_stats", "counts"],
            )
            return jnp.mean((outputs - Y[chosen]) ** 2) / 2, after

        gradient, after = jax.grad(loss, has_aux=True)(variables["params"])
        params = jax.tree.map(lambda p, g: p - RATE * g, variables["params"], gradient)
        variables = {"params": params, **after}
    return variables


def test_training_is_that_of_flax_by_hand(run):
    for member in (0, 2):
        hand, ours = by_hand(member), run.member(member)
        assert ours.keys() == hand.keys() == {"params", "batch_stats", "counts"}
        assert ours.pop("counts") == hand["counts"] == {"seen": STEPS * BATCH}
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves({name: hand[name] for name in ours}), strict=True):
            assert_close(a, b)
        assert_close(run.predict(X)[member], Linen().apply(hand, X))


def test_an_epoch_has_whole_batches_alone(run):
    """Samples that fill up a batch would be counted by its statistics. Seven samples make two batches of three."""
    assert train(Linen(), steps=None, epochs=2, members=1).steps == 4
    seen = run.state["counts"]["seen"]
    assert seen.tolist() == [STEPS * BATCH] * 3


def test_members_do_not_depend_on_layout_chunk_or_number(run):
    for changes in ({"layout": "map"}, {"chunk": 2, "members": 4}):
        other = train(Linen(), **changes).subset([0, 1, 2])
        for ours, first in zip(
            jax.tree.leaves((other.params, other.state["batch_stats"])),
            jax.tree.leaves((run.params, run.state["batch_stats"])),
            strict=True,
        ):
            assert_close(ours, first, {"float64": 1e-12})
        assert_close(other.subset([2, 1]).predict(X), run.predict(X)[2:0:-1])


def test_runs_are_resumed_and_loaded_to_the_same_bits(run, tmp_path):
    def stop(predictions):
        raise InterruptedError

    folder = {"checkpoint": tmp_path / "run", "checkpoint_every": 2, "record_at": [3]}
    with pytest.raises(InterruptedError):
        train(Linen(), record={"x": (X, stop)}, **folder)
    record = {"x": (X, np.asarray)}
    resumed = train(Linen(), record=record, resume=True, **folder)
    resumed.save(tmp_path / "saved")
    for other in (
        resumed,
        ensembles.Run.load(tmp_path / "run", Linen()),
        ensembles.Run.load(tmp_path / "saved", Linen()),
    ):
        jax.tree.map(np.testing.assert_array_equal, (other.params, other.state), (run.params, run.state))
    assert_close(ensembles.Run.load(tmp_path / "saved", Linen()).predict(X), run.predict(X))
    assert_close(resumed.records["x"][0], train(Linen(), steps=3).predict(X))
    with pytest.raises(ValueError, match=r"`module` must be one with state \{.*counts.*, got \{\}"):
        ensembles.Run.load(tmp_path / "saved", Without())
    with pytest.raises(ValueError, match="first state"):
        train(Slower(), record=record, resume=True, **folder)


class Without(nn.Module):
    """The same parameters without a state."""

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(4, use_bias=False, param_dtype=x.dtype, name="first")(x)
        x = nn.LayerNorm(param_dtype=x.dtype, name="norm")(x)
        return nn.Dense(2, param_dtype=x.dtype, name="last")(nn.tanh(x))


class Slower(Linen):
    """The same network, which counts twice: neither its outputs nor its gradients show that."""

    def __call__(self, x, train=False):
        outputs = super().__call__(x, train)
        if train and self.is_mutable_collection("counts"):
            self.put_variable("counts", "seen", 2 * self.get_variable("counts", "seen"))
        return outputs


class LinenNorm(nn.Module):
    @nn.compact
    def __call__(self, x, *, use_running_average):
        x = nn.BatchNorm(use_running_average, momentum=0.9, param_dtype=x.dtype)(x)
        return nn.Dense(2, param_dtype=x.dtype, kernel_init=nn.initializers.ones)(x)


class NNXNorm(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(3, momentum=0.9, param_dtype=np.float64, rngs=rngs)
        self.dense = nnx.Linear(3, 2, param_dtype=np.float64, kernel_init=nn.initializers.ones, rngs=rngs)

    def __call__(self, x):
        return self.dense(self.norm(x))


def test_linen_and_nnx_are_the_same():
    linen, flax_nnx = train(LinenNorm()), train(NNXNorm)
    assert_close(flax_nnx.predict(X), linen.predict(X))
    for name in ("mean", "var"):
        assert_close(flax_nnx.state["norm"][name], linen.state["batch_stats"]["BatchNorm_0"][name])
    assert_close(flax_nnx.params["dense"]["kernel"], linen.params["Dense_0"]["kernel"])
    module = flax_nnx.member(1)
    assert_close(module(X), linen.predict(X)[1])
    assert isinstance(module, NNXNorm)


# Dropout of ones, times a parameter. Its gradient is the sum of what is left, so a parameter counts that.
ENTRIES, KEPT = 3000, 0.75


class LinenNoise(nn.Module):
    @nn.compact
    def __call__(self, x, deterministic=True):
        x = nn.Dropout(1 - KEPT, deterministic=deterministic)(x)
        return x * self.param("w", nn.initializers.ones, (1, 1), x.dtype)


class NNXNoise(nnx.Module):
    def __init__(self, rngs):
        self.dropout, self.w = nnx.Dropout(1 - KEPT, rngs=rngs), nnx.Param(jnp.ones((1, 1)))

    def __call__(self, x):
        return self.dropout(x) * self.w[...]


class NNXNoiseFromOutside(nnx.Module):
    def __init__(self, rngs):
        self.dropout, self.w = nnx.Dropout(1 - KEPT), nnx.Param(jnp.ones((1, 1)))

    def __call__(self, x, *, rngs):
        return self.dropout(x, rngs=rngs) * self.w[...]


def stax_noise():
    """Dropout of inputs has no kernel, but a finite network has one."""
    dropout = stax.Dropout(KEPT)
    init_fn = lambda key, shape: (shape, jnp.ones((1, 1)))  # noqa: E731
    return init_fn, lambda w, x, **kwargs: dropout.apply_fn((), x, **kwargs) * w, None


class Phases(nn.Module):
    """Switched by an argument that nobody knows."""

    @nn.compact
    def __call__(self, x, phase):
        return LinenNoise()(x, deterministic=phase == "use")


class Attributes(nn.Module):
    """Switched by an attribute."""

    noisy: bool = True

    @nn.compact
    def __call__(self, x):
        return LinenNoise()(x, deterministic=not self.noisy)


class NNXAttributes(NNXNoise):
    """Switched by an attribute, and not by the method `eval`."""

    def __init__(self, rngs):
        super().__init__(rngs)
        self.noisy = True

    def __call__(self, x):
        return self.dropout(x, deterministic=not self.noisy) * self.w[...]


def with_modes(module, name, training, evaluation):
    return ensembles.with_modes(module, training={name: training}, evaluation={name: evaluation})


@pytest.mark.parametrize(
    "module",
    [
        LinenNoise(),
        NNXNoise,
        NNXNoiseFromOutside,
        ensembles.to_flax(
            (*stax_noise()[:1], lambda w, x, *, rng=None, mode="train": stax_noise()[1](w, x, rng=rng, mode=mode))
        ),
        with_modes(Phases(), "phase", "fit", "use"),
        with_modes(Attributes(), "noisy", True, False),
        with_modes(NNXAttributes, "noisy", True, False),
    ],
    ids=["linen", "nnx", "rngs", "stax", "argument", "attribute", "nnx attribute"],
)
def test_noise_is_drawn_for_each_member_and_step_and_not_in_evaluation(module):
    x = np.ones((1, ENTRIES))
    settings = {"members": 20, "optimizer": optax.sgd(1.0), "key": KEY, "reduction": "sum", "loss": lambda f, y: f}
    runs = [ensembles.train(module, (x, x), steps=steps, **settings) for steps in (1, 2)]
    once, twice = (np.asarray(jax.tree.leaves(run.params)[0]).ravel() for run in runs)
    draws = np.concatenate([1 - once, once - twice])
    assert len(set(draws.round(3))) > 30  # by chance some are equal
    np.testing.assert_allclose((draws * KEPT).round(), draws * KEPT, rtol=1e-9)  # each is 0 or 1 / KEPT
    variance = ENTRIES * (1 / KEPT - 1)
    assert abs(draws.mean() - ENTRIES) < 5 * np.sqrt(variance / 40)
    assert abs(draws.var() / variance - 1) < 5 * np.sqrt(2 / 40)
    np.testing.assert_array_equal(runs[0].predict(x), np.broadcast_to(once[:, None, None], (20, 1, ENTRIES)))
    params = jax.tree.map(lambda leaf: leaf[3], runs[0].params)
    np.testing.assert_array_equal(runs[0].model.apply(params, x), np.full((1, ENTRIES), once[3]))


class HardNorm(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.BatchNorm(use_running_average=False)(x)


class NNXAlwaysNoisy(NNXNoise):
    def __call__(self, x):
        return self.dropout(x, deterministic=False) * self.w[...]


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (HardNorm(), "one that changes variables in both: .*batch_stats"),
        (
            nn.Dropout(0.5, deterministic=False),
            'one that draws random numbers in both: Dropout_0|needs PRNG for "dropout"',
        ),
        (nn.Sequential([nn.Dense(4), nn.BatchNorm()]), "one of which Flax says: .*use_running_average"),
        (Phases(), "called with inputs alone, got one that also needs phase. .*`ensembles.with_modes`"),
        (NNXAlwaysNoisy, "one that draws random numbers or changes its variables in evaluation too. Give `__call__`"),
        (with_modes(Attributes(), "noise", True, False), "one with arguments or attributes noise, got Attributes"),
        (with_modes(NNXAttributes, "noise", True, False), "one with arguments or attributes noise, got NNXAttributes"),
    ],
)
def test_modules_that_cannot_be_switched_are_refused(module, message):
    with pytest.raises(ValueError, match=f"`module` must be .*{message}"):
        train(module)


def test_a_choice_in_the_constructor_is_kept():
    noisy, quiet = nn.Dropout(0.5), nn.Dropout(0.5, deterministic=True)
    settings = {"members": 1, "steps": 1, "optimizer": SGD, "key": KEY}
    losses = [ensembles.train(module, (X, X), **settings).curve[1][0, 0] for module in (noisy, quiet)]
    assert losses[0] > 0
    assert losses[1] == 0


def test_the_state_of_a_network_cannot_be_forgotten(run):
    params = jax.tree.map(lambda leaf: leaf[0], run.params)
    with pytest.raises(ValueError, match=r"`state` must be that of the network, got .* which is in `run.state`"):
        run.model.apply(params, X)
    with pytest.raises(ValueError, match="`state` must be that of the network, got none"):
        ensembles.as_pair(NNXNorm)[1](ensembles.as_pair(NNXNorm)[0](KEY, X), X)


def test_theory_is_said_not_to_apply(run):
    ens = InfiniteEnsemble(stax.Dense(2).kernel_fn, (X, Y), filters.gradient_descent(RATE), reduction="mean")
    with pytest.raises(ValueError, match=r"`run` must be .* got a network with a state, .*batch_stats"):
        ensembles.compare_with_theory(run, ens, X)
    net = stax.serial(stax.Dense(4), stax.Dropout(0.5), stax.Dense(2))
    noisy = ensembles.untrained(net, X, members=2, key=KEY)
    with pytest.raises(ValueError, match=r"draws random numbers in training, as dropout does\. Theory does not apply"):
        ensembles.compare_with_theory(noisy, ens, X)
    quiet = ensembles.untrained(stax.serial(stax.Dense(4), stax.Dense(2)), X, members=2, key=KEY)
    assert ensembles.compare_with_theory(quiet, ens, X).members == 2
