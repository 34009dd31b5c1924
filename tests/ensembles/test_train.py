"""Training against plain loops, and what a run does not depend on."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ntk_equiv import augment, ensembles, groups, reps
from tests.tolerances import assert_close

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(5, 2)), RNG.normal(size=(5, 1))
REP = reps.matrix(groups.SO2.finite(4))
KEY = jax.random.key(7)


def init(key, x):
    # Uniform numbers compile much faster than normal ones.
    return {"W": jax.random.uniform(key, (x.shape[-1], 1), minval=-1.0), "b": jnp.zeros((1, 1))}


def apply(params, x):
    return jnp.tanh(x @ params["W"]) + params["b"]


TANH = (init, apply)
SGD = optax.sgd(0.3)


def settings(**changes):
    return {"members": 3, "steps": 6, "optimizer": SGD, "key": KEY} | changes


def start(member):
    """The initial parameters of a member, by the rule that is documented: its key is folded in from its number."""
    initial, _ = jax.random.split(jax.random.fold_in(KEY, member))
    return jax.tree.map(np.asarray, init(initial, X))


def descent(W, b, x, y, steps, rate, normalizer):
    """Gradient descent on ½ Σ (tanh(xW) + b − y)² / normalizer, in NumPy."""
    for _ in range(steps):
        hidden = np.tanh(x @ W)
        residual = (hidden + b - y) / normalizer
        W, b = W - rate * x.T @ (residual * (1 - hidden**2)), b - rate * residual.sum(keepdims=True)
    return W, b


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_full_batches_are_gradient_descent(reduction):
    train = augment(X, Y, REP)
    rate = 0.3 if reduction == "mean" else 0.3 / 20
    run = ensembles.train(TANH, train, **settings(optimizer=optax.sgd(rate), reduction=reduction))
    x, y = np.asarray(train.x), np.asarray(train.y)
    for member in range(3):
        begin = start(member)
        W, b = descent(begin["W"], begin["b"], x, y, 6, rate, 20 if reduction == "mean" else 1)
        assert_close(run.params["W"][member], W)
        assert_close(run.params["b"][member], b)
    assert_close(run.predict(X), np.tanh(X @ run.params["W"]) + run.params["b"])
    assert_close(run.mean(X), np.asarray(run.predict(X)).mean(0))


def test_members_do_not_depend_on_layout_chunk_or_number():
    run = ensembles.train(TANH, (X, Y), **settings(batch_size=2, layout="map"))
    for changes in ({"layout": "auto"}, {"layout": "auto", "chunk": 2}):
        other = ensembles.train(TANH, (X, Y), **settings(batch_size=2) | changes)
        assert other.layout.chunk == changes.get("chunk", 3)
        for name in ("W", "b"):
            assert_close(other.params[name], run.params[name], {"float64": 1e-13})
    larger = ensembles.train(TANH, (X, Y), **settings(batch_size=2, members=5, layout="map"))
    for name in ("W", "b"):
        np.testing.assert_array_equal(larger.params[name][:3], run.params[name])
        np.testing.assert_array_equal(larger.subset([0, 2]).params[name], run.params[name][[0, 2]])
    assert_close(larger.subset([4, 1]).predict(X), larger.predict(X)[np.array([4, 1])])


def test_layouts_say_what_they_are():
    layout = ensembles.train(TANH, (X, Y), **settings(steps=1, chunk=2)).layout
    assert repr(layout) == "<3 members, 2 at a time on each of 1 cpu device>"
    assert layout.padded == 4


FREQUENCIES = RNG.normal(size=(4, 50))


def features(x, y):
    """Fifty functions of samples and labels, so that a sum of them tells which of a few samples were added."""
    return jnp.cos(x @ FREQUENCIES[:2] + 0.7) * jnp.sin(y @ FREQUENCIES[2:] + 1.0)


# The gradient of this network under this loss is the sum of the features over all samples that it sees.
SUMMING = (
    lambda key, x: jnp.zeros((1, 50)),
    lambda params, x: jnp.concatenate([x + 0 * params[:, :2], params + 0 * x[:, :1]], 1),
)


def sum_of_features(outputs, y):
    x, params = outputs[:, :2], outputs[:, 2:]
    return jnp.sum(params * jax.lax.stop_gradient(features(x, y)), axis=1)


def seen(train, **changes):
    """The sum of features over all samples that each member has seen."""
    chosen = settings(loss=sum_of_features, reduction="sum", optimizer=optax.sgd(1.0)) | changes
    return -ensembles.train(SUMMING, train, **chosen).params[:, 0]


@pytest.mark.parametrize("batch_size", [4, 6, 20, None])
def test_an_epoch_is_every_sample_under_every_element_once(batch_size):
    train = augment(X, Y * np.ones((1, 2)), REP, REP)
    whole = np.sum(features(train.x, train.y), axis=0)
    for epochs in (1, 2):
        found = seen(train, steps=None, epochs=epochs, batch_size=batch_size)
        assert_close(found, np.tile(epochs * whole, (3, 1)), {"float64": 1e-13})


def test_every_member_has_an_order_of_its_own():
    first = seen(augment(X, Y * np.ones((1, 2)), REP, REP), steps=1, batch_size=4)
    assert np.abs(first[0] - first[1]).max() > 0.1


def test_random_augmentation_draws_from_the_whole_group():
    """One sample and one step: what each of 400 members has seen is one element."""
    labels = np.ones((1, 2))
    drawn = seen(augment(X[:1], labels, REP, elements=[0]), steps=1, members=400, augmentation="random")
    counts = [np.isclose(drawn, features(REP(g, X[:1]), labels)).all(1).sum() for g in range(4)]
    assert sum(counts) == 400
    assert max(abs(np.array(counts) - 100)) < 5 * np.sqrt(400 * 0.25 * 0.75)


def test_random_augmentation_by_a_continuous_group():
    """An epoch of two batches, the second of which is filled up: every sample once, moved but as long as before."""
    train = augment(X, np.ones((5, 2)), reps.matrix(groups.SO2), elements=np.eye(2)[None])
    squares = (lambda key, x: jnp.zeros((1, 1)), lambda w, x: w * jnp.sum(x**2, 1, keepdims=True) * jnp.ones((1, 2)))
    chosen = settings(steps=None, epochs=1, batch_size=3, augmentation="random", reduction="sum")
    run = ensembles.train(squares, train, **chosen | {"loss": lambda f, y: f[:, 0], "optimizer": optax.sgd(1.0)})
    assert_close(run.params[:, 0, 0], np.full(3, -np.sum(X**2)), {"float64": 1e-13})
    turned = seen(train, steps=1, augmentation="random")
    assert np.abs(turned[0] - turned[1]).max() > 0.1


def last_loss(outputs, y, **changes):
    """The loss on the last batch of networks that return their inputs and do not learn."""
    still = (lambda key, x: jnp.zeros((1, 1)), lambda w, x: x + w)
    run = ensembles.train(still, (outputs, y), **settings(members=1, optimizer=optax.sgd(0.0)) | changes)
    return run.curve[1][-1, 0]


def test_losses_and_their_reductions():
    outputs, y = RNG.normal(size=(4, 3)), RNG.normal(size=(4, 3))
    square = (outputs - y) ** 2 / 2
    assert_close(last_loss(outputs, y), square.mean())
    assert_close(last_loss(outputs, y, reduction="sum"), square.sum())
    labels, p = np.array([0, 2, 1, 1]), np.exp(outputs) / np.exp(outputs).sum(1, keepdims=True)
    entropy = -np.log(p[np.arange(4), labels])
    assert_close(last_loss(outputs, labels, loss="cross_entropy"), entropy.mean())
    assert_close(last_loss(outputs, np.eye(3)[labels], loss="cross_entropy", reduction="sum"), entropy.sum())


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_samples_that_fill_up_a_batch_do_not_count(reduction):
    """The second of two batches has one sample, and is filled up with two others."""
    outputs, y = RNG.normal(size=(4, 3)), RNG.normal(size=(4, 3))
    found = last_loss(outputs, y, batch_size=3, reduction=reduction)
    single = getattr((outputs - y) ** 2 / 2, reduction)(axis=1)
    assert np.abs(single / found - 1).min() < 1e-12


def test_classes_are_learnt():
    def classify(params, x):
        return apply(params, x) * jnp.array([[1.0, -1.0]])

    labels = (X[:, 0] < 0).astype(int)
    run = ensembles.train(
        (init, classify),
        augment(X, labels, reps.trivial(groups.cyclic(2))),
        **settings(loss="cross_entropy", epochs=30, steps=None, batch_size=4, optimizer=optax.adam(0.1)),
    )
    assert run.steps == 90
    assert (np.argmax(run.mean(X), 1) == labels).all()


def broken(key, x):
    params = init(key, x)
    return params | {"W": jnp.where(params["W"][0] > 0.2, jnp.nan, params["W"])}


def test_a_member_that_is_lost_is_named_and_the_others_go_on():
    lost = [member for member in range(6) if start(member)["W"][0] > 0.2]
    assert 0 < len(lost) < 6
    with pytest.warns(
        RuntimeWarning, match=rf"member {lost[0]} \(step 0\).*the others go on. Their very first outputs"
    ):
        run = ensembles.train((broken, apply), (X, Y), **settings(members=6))
    assert dict(run.failed) == dict.fromkeys(lost, 0)
    assert np.isnan(run.predict(X)).any((1, 2)).nonzero()[0].tolist() == lost
    assert np.isfinite(run.mean(X)).all()
    assert repr(run) == f"<ensemble of 6 members after 6 steps, {len(lost)} of them not finite>"
    assert dict(run.subset([lost[0], run.finished[0]]).failed) == {0: 0}


def test_records_are_made_when_asked_for(capsys):
    at = ensembles.log_steps(12, 4)
    assert at == [0, 1, 3, 12]
    record = {"all": X, "spread": (X, lambda p: p.std(0).max())}
    run = ensembles.train(TANH, (X, Y), **settings(steps=12, record=record, record_at=at, progress=True))
    assert run.record_steps.tolist() == at
    assert run.records["all"].shape == (4, 3, 5, 1)
    assert_close(run.records["all"][-1], run.predict(X))
    assert_close(run.records["spread"], run.records["all"].std(1).max((1, 2)))
    initial = [apply(start(member), X) for member in range(3)]
    assert_close(run.records["all"][0], initial)
    assert run.curve[0].tolist() == [10, 12]
    shown = capsys.readouterr().err
    assert "12/12" in shown
    assert "loss=" in shown


def test_predictions_do_not_depend_on_batches():
    run = ensembles.train(TANH, (X, Y), **settings(steps=1))
    assert_close(run.predict(X, batch_size=2), run.predict(X))
    with pytest.raises(ValueError, match="at least one sample"):
        run.predict(X[:0])


@pytest.mark.parametrize(
    ("inputs", "error", "message"),
    [
        (X.astype(np.uint8), TypeError, "float64 as in training, got uint8. .* divided by 255"),
        (X[0], ValueError, r"\[n, 2\], got an array of shape \(2,\) .* For a single sample pass `x\[None\]`"),
        (X[:, :1], ValueError, r"\[n, 2\], got an array of shape \(5, 1\) .* takes no other size"),
        ([*X, X[0, :1]], TypeError, r"\[n, 2\], got a list of 6 with shapes \(1,\), \(2,\). Crop, pad or scale"),
        (X.tolist(), TypeError, r"\[n, 2\], got a list of 5. Pass one array, or a list of samples that are arrays"),
        ((X, Y), TypeError, "got a tuple of 2. .* labels are not part of it"),
    ],
)
def test_inputs_unlike_those_of_training_are_refused(inputs, error, message):
    run = ensembles.untrained(TANH, X, members=2, key=KEY)
    with pytest.raises(error, match=f"`x` must be .*{message}"):
        run.predict(inputs)
    with pytest.raises(error, match=f"`record` must be .*{message}"):
        ensembles.train(TANH, (X, Y), **settings(record={"inputs": inputs}))


def test_inputs_of_any_size_are_taken_by_networks_that_do():
    run = ensembles.untrained(
        (init, lambda params, x: jnp.tanh(x @ params["W"]).mean(1)), X[:, None], members=2, key=KEY
    )
    assert_close(run.predict(np.repeat(X[:, None], 3, axis=1)), run.predict(X[:, None]))


def test_histories_print_a_line():
    run = ensembles.train(TANH, (X, Y), **settings(record={"x": X}))
    assert repr(run.history) == "<losses at 1 step, records at 1 step of x>"


def test_smaller_ensembles_scatter_as_they_should():
    predictions = jnp.asarray(RNG.normal(size=(500, 1)))
    found = ensembles.bootstrapped(predictions, sizes=(8,), draws=500, key=KEY)
    for size, means in found.items():
        variance = np.var(predictions) / size
        assert abs(means.mean() - predictions.mean()) < 5 * np.sqrt(variance / 500)
        assert abs(means.var() / variance - 1) < 5 * np.sqrt(2 / 500)
    run = ensembles.train(TANH, (X, Y), **settings(steps=1))
    assert run.bootstrap(X, sizes=[2], draws=3, key=KEY)[2].shape == (3, 5, 1)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"steps": None}, ValueError, "given one of them, got neither"),
        ({"epochs": 1}, ValueError, "got both"),
        ({"batch_size": 6}, ValueError, "at most the 5 samples there are, got 6"),
        ({"loss": "mae"}, ValueError, "one of mse, cross_entropy"),
        ({"loss": "cross_entropy"}, ValueError, "labels for loss="),
        ({"loss": lambda f, y: jnp.mean(f)}, ValueError, "losses of 5 samples"),
        ({"augmentation": "random"}, ValueError, "an augmented set"),
        ({"resume": True}, ValueError, "a folder, to resume"),
        ({"record": {"x": X}, "record_at": [7]}, ValueError, "steps from 0 to 6"),
        ({"layout": "map", "chunk": 2}, ValueError, "Chunks are for"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes, error, message):
    with pytest.raises(error, match=message):
        ensembles.train(TANH, (X, Y), **settings() | changes)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((X, np.zeros((5, 2))), r"outputs of the shape of y, \(5, 2\), got \(5, 1\)"),
        ((X, np.zeros(5, int)), "floating-point labels"),
        ((X, Y[:4]), "labels for all samples"),
        ((X[:0], Y[:0]), "at least one sample"),
    ],
)
def test_data_that_do_not_fit_are_refused(data, message):
    with pytest.raises(ValueError, match=message):
        ensembles.train(TANH, data, **settings())


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.array([-1, 1, 1, -1, 1]), "whole numbers from 0 to 1, got labels from -1 to 1"),
        (np.array([0, 1, 2, 0, 1]), "whole numbers from 0 to 1, got labels from 0 to 2"),
        (np.array([[-1.0, 1.0]] * 5), "positive and add up to 1, got entries down to -1"),
        (np.array([[1.0, 1.0]] * 5), "positive and add up to 1, got entries down to 1 and sums from 2 to 2"),
    ],
)
def test_labels_that_are_no_classes_are_refused(labels, message):
    two = (init, lambda params, x: apply(params, x) * jnp.array([[1.0, -1.0]]))
    with pytest.raises(ValueError, match=f"`y` must be .*{message}"):
        ensembles.train(two, (X, labels), **settings(loss="cross_entropy"))


def test_labels_whose_squares_overflow_are_refused():
    with pytest.raises(ValueError, match=r"`y` must be below 1.8e\+19, whose square float32 can hold, got labels"):
        ensembles.train(TANH, (X.astype(np.float32), np.full((5, 1), 1e30, np.float32)), **settings())


def test_one_channel_need_not_have_an_axis():
    run = ensembles.train(TANH, (X, Y[:, 0]), **settings())
    assert_close(run.predict(X), ensembles.train(TANH, (X, Y), **settings()).predict(X))


def test_cores_cannot_be_divided_any_more():
    jax.devices()
    with pytest.raises(RuntimeError, match="before JAX is"):
        ensembles.use_cores(len(jax.devices()) + 1)
