"""Data that are not in memory, and streams of batches: the same results as from arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ntk_equiv import augment, ensembles, groups, reps
from tests.tolerances import assert_close

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(7, 4, 4, 1)), RNG.normal(size=(7, 2))
KEY, ADAM = jax.random.key(3), optax.adam(0.05)
REP = reps.rot90(groups.cyclic(4))


def init(key, x):
    return {"W": jax.random.uniform(key, (16, 2), x.dtype), "b": jnp.zeros((1, 2), x.dtype)}


def apply(params, x):
    return jnp.tanh(x.reshape(len(x), -1) @ params["W"]) + params["b"]


NET = (init, apply)


def train(data, module=NET, **changes):
    settings = {"members": 3, "steps": 7, "batch_size": 3, "optimizer": ADAM, "key": KEY}
    return ensembles.train(module, data, **settings | changes)


@pytest.fixture
def on_disk(tmp_path):
    np.save(tmp_path / "x.npy", X)
    return np.load(tmp_path / "x.npy", mmap_mode="r")


class Indexed:
    """Samples that are made when they are asked for, one by one."""

    def __len__(self):
        return len(X)

    def __getitem__(self, number):
        return X[number]


class LikeHDF5:
    """An array of another library, which takes numbers in increasing order alone."""

    shape, dtype = X.shape, X.dtype
    batches = 0

    def __getitem__(self, chosen):
        self.batches += not isinstance(chosen, slice)
        assert isinstance(chosen, slice) or (np.diff(chosen) > 0).all()
        return X[chosen]

    def __array__(self, dtype=None, copy=None):
        raise AssertionError("all samples were read at once")


def same(run, other, ulps=0):
    def compare(one, two):
        np.testing.assert_array_max_ulp(one, two, ulps)

    jax.tree.map(compare, (run.params, run.curve[1]), (other.params, other.curve[1]))


def test_results_do_not_depend_on_where_samples_are(on_disk):
    memory, counted = train((X, Y)), LikeHDF5()
    for x in (X, on_disk, Indexed(), counted):
        same(train((x, Y), data_on="host"), memory)
    assert counted.batches == 7  # one in each step, for all members of a chunk
    same(train((on_disk, Y)), memory)
    same(train((Indexed(), Y), data_on="device"), memory)
    # The two programs for a single member may round differently, as those of JAX 0.7 do.
    same(train((on_disk, Y), data_on="host", chunk=1), train((X, Y), chunk=1), ulps=64)


@pytest.mark.parametrize("augmentation", ["full", "random"])
def test_base_samples_of_an_augmented_set_may_be_on_disk(on_disk, augmentation):
    stored = augment(on_disk, Y, REP)
    assert isinstance(stored.base_x, np.memmap)
    np.testing.assert_array_equal(stored.x, augment(X, Y, REP).x)
    settings = {"batch_size": 5, "augmentation": augmentation}
    same(train(stored, data_on="host", **settings), train(augment(X, Y, REP), **settings))


def test_data_that_do_not_fit_stay_where_they_are(monkeypatch):
    small, large = LikeHDF5(), LikeHDF5()
    memory = train((small, Y))
    monkeypatch.setattr("ntk_equiv.ensembles._sources.PART_OF_MEMORY", 0.0)
    same(train((large, Y)), memory)
    assert (small.batches, large.batches) == (0, 7)


def make_batches(epoch):
    order = np.random.default_rng(epoch).permutation(7)
    return ((X[chosen], Y[chosen]) for chosen in (order[:3], order[3:6]))


STREAM = ensembles.BatchStream(make_batches, 2)


def on_stream(**changes):
    return train(STREAM, **{"batch_size": None} | changes)


def test_a_stream_is_seen_by_all_members_in_its_order():
    """Gradient descent by hand on the same batches."""
    run = on_stream(optimizer=optax.sgd(0.1), steps=5)
    for member in range(3):
        params = init(jax.random.split(jax.random.fold_in(KEY, member))[0], X)
        for step in range(5):
            x, y = [*make_batches(step // 2)][step % 2]
            gradient = jax.grad(lambda params, x=x, y=y: jnp.mean((apply(params, x) - y) ** 2) / 2)(params)
            params = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient)
        assert_close(run.params["W"][member], params["W"])
    assert on_stream(steps=None, epochs=3).steps == 6
    same(on_stream(chunk=1), on_stream(layout="map"))


def test_runs_on_host_data_and_streams_are_resumed_to_the_same_bits(tmp_path):
    def stop(predictions):
        raise InterruptedError

    for name, run in {"stream": on_stream, "host": lambda **changes: train((X, Y), data_on="host", **changes)}.items():
        folder = {"checkpoint": tmp_path / name, "checkpoint_every": 3, "record_at": [5]}
        with pytest.raises(InterruptedError):
            run(record={"x": (X, stop)}, **folder)
        same(run(record={"x": (X, np.asarray)}, resume=True, **folder), run())


@pytest.mark.parametrize(
    ("batches", "error", "message"),
    [
        (
            [(X, Y), (X[:, :2], Y)],
            ValueError,
            r"all like the first one, .*\[4, 4, 1\].*, got .*\[2, 4, 1\].* at step 1",
        ),
        ([(X, Y), (X[:2], Y)], ValueError, "labels for all samples"),
        ([(X, Y), X], TypeError, r"pairs \(x, y\)"),
        ([(X, Y)], ValueError, "`per_epoch` must be 1 or less, got an end of epoch 0"),
    ],
)
def test_streams_that_change_are_refused(batches, error, message):
    with pytest.raises(error, match=message):
        train(ensembles.BatchStream(lambda epoch: batches, 2), batch_size=None, steps=2)


def test_labels_of_every_batch_are_checked():
    batches = [(X, np.array([0, 1, 1, 0, 1, 0, label])) for label in (1, 2)]
    with pytest.raises(ValueError, match="whole numbers from 0 to 1, got labels from 0 to 2"):
        train(ensembles.BatchStream(lambda epoch: batches, 2), batch_size=None, steps=2, loss="cross_entropy")


def test_predictions_from_anywhere(on_disk):
    run = ensembles.untrained(NET, X, members=2, key=KEY)
    expected = run.predict(X)
    for x in (on_disk, [*X], Indexed(), LikeHDF5()):
        np.testing.assert_array_equal(run.predict(x, batch_size=3), run.predict(X, batch_size=3))
        assert_close(run.predict(x), expected)
        assert_close(run.mean(x, batch_size=2), np.asarray(expected).mean(0))


class Sizes:
    """An image of 4 × 4 numbers and another one of 5 × 5."""

    def __len__(self):
        return 2

    def __getitem__(self, number):
        return np.ones((4 + number, 4 + number, 1))


def test_images_of_different_sizes_are_refused():
    run = ensembles.untrained(NET, X, members=2, key=KEY)
    with pytest.raises(
        ValueError, match=r"samples of one shape, as the first one, \(4, 4, 1\), got \(5, 5, 1\) for samp"
    ):
        run.predict(Sizes())
    with pytest.raises(ValueError, match=r"as in training, \[n, 4, 4, 1\], got samples of shape \(2, 5, 5, 1\)"):
        run.predict([np.ones((5, 5, 1))] * 2)


def test_bytes_after_bytes_are_what_they_were_in_training(tmp_path):
    """The network scales them. Fractions in their place are refused, as bytes are after fractions."""
    images = RNG.integers(0, 256, X.shape).astype(np.uint8)
    np.save(tmp_path / "images.npy", images)
    scaled = (lambda key, x: init(key, X), lambda params, x: apply(params, x.astype(float) / 255))
    run = train((images, Y), scaled)
    same(train((np.load(tmp_path / "images.npy", mmap_mode="r"), Y), scaled, data_on="host"), run)
    fractions = train((images / 255, Y))
    assert_close(run.params["W"], fractions.params["W"])
    assert_close(run.predict([*images]), fractions.predict(images / 255))
    with pytest.raises(TypeError, match=r"uint8 as in training, got float64\. .* whole numbers, such as the bytes"):
        run.predict(X)
