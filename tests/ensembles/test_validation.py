"""Validation, early stopping, callbacks and histories, against plain loops over recorded predictions."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.special

from ntk_equiv import augment, datasets, ensembles, groups, reps
from tests.tolerances import assert_close

RNG = np.random.default_rng(3)
X, X_NEW = RNG.normal(size=(8, 2)), RNG.normal(size=(5, 2))
CLASSES, CLASSES_NEW = RNG.integers(0, 3, 8), RNG.integers(0, 3, 5)
KEY = jax.random.key(0)
STEPS, MEMBERS = 12, 4


def init(key, x):
    return {"W": jax.random.uniform(key, (2, 3), minval=-1.0)}


def apply(params, x):
    return 3 * jnp.tanh(x @ params["W"])


def convolve(params, x):
    """The same network with a convolution of XLA, which CPUs train step by step."""
    filters = params["W"][None, None]
    dimensions = ("NHWC", "HWIO", "NHWC")
    return 3 * jnp.tanh(
        jax.lax.conv_general_dilated(x[:, None, None], filters, (1, 1), "VALID", dimension_numbers=dimensions)[:, 0, 0]
    )


class Normalised(nn.Module):
    """A network with running statistics, whose members must keep those of their best validation too."""

    @nn.compact
    def __call__(self, x, train):
        x = nn.BatchNorm(use_running_average=not train, momentum=0.5, param_dtype=x.dtype)(x)
        return 3 * jnp.tanh(nn.Dense(3, param_dtype=x.dtype, use_bias=False)(x))


NET = (init, apply)
SGD = optax.sgd(0.3)


def trained(net=NET, **changes):
    settings = {"members": MEMBERS, "steps": STEPS, "optimizer": SGD, "key": KEY, "batch_size": 2}
    settings |= {"loss": "cross_entropy", "validation": (X_NEW, CLASSES_NEW), "validate_every": 1}
    return ensembles.train(net, (X, CLASSES), **settings | changes)


def log_probabilities(outputs):
    return scipy.special.log_softmax(np.asarray(outputs), axis=-1)


def mean_log_likelihood(log_p, y):
    return np.mean([row[label] for row, label in zip(log_p, y, strict=True)])


def test_members_and_ensemble_are_measured_as_by_hand():
    own = {
        "largest": lambda predictions, y: predictions.max((1, 2)),
        "spread": lambda predictions, y: predictions.std(0).mean(),
    }
    at = [0, 5, 10, 12]
    run = trained(validate_every=5, metrics=own, record={"new": X_NEW}, record_at=at)
    history = run.history
    assert history.validation_steps == at
    for place, outputs in enumerate(run.records["new"]):
        log_p = log_probabilities(outputs)
        together = np.log(np.mean(np.exp(log_p), axis=0))
        losses = [-mean_log_likelihood(one, CLASSES_NEW) for one in log_p]
        assert_close(history.validation["loss"][place], losses)
        assert_close(history.ensemble["loss"][place], -mean_log_likelihood(together, CLASSES_NEW))
        right = [(one.argmax(1) == CLASSES_NEW).mean() for one in log_p]
        assert history.validation["accuracy"][place].tolist() == right
        assert history.ensemble["accuracy"][place] == (together.argmax(1) == CLASSES_NEW).mean()
        assert_close(history.validation["largest"][place], outputs.max((1, 2)))
        assert_close(history.ensemble["largest"][place], together.max())
        assert_close(history.ensemble["spread"][place], outputs.std(0).mean())
        assert np.isnan(history.validation["spread"][place]).all()


def test_validation_changes_nothing():
    np.testing.assert_array_equal(trained().params["W"], trained(validation=None, validate_every=None).params["W"])


REP = reps.matrix(groups.SO2.finite(4))
LABELS = RNG.normal(size=(5, 3))


@pytest.mark.parametrize(
    "validation",
    [augment(X_NEW, LABELS, REP), datasets.LabelledSet(jnp.asarray(X_NEW), jnp.asarray(LABELS), REP, REP)],
    ids=["augmented set", "labelled set"],
)
def test_numbers_are_validated_by_their_square_error(validation):
    settings = {"members": MEMBERS, "steps": 2, "optimizer": SGD, "key": KEY, "reduction": "sum"}
    run = ensembles.train(NET, (X, np.ones((8, 3))), validation=validation, **settings)
    squares = (np.asarray(run.predict(validation.x)) - np.asarray(validation.y)) ** 2
    assert_close(run.history.validation["mse"][-1], squares.mean((1, 2)))
    assert_close(run.history.validation["loss"][-1], squares.sum((1, 2)) / 2)
    mean = (np.asarray(run.mean(validation.x)) - np.asarray(validation.y)) ** 2
    assert_close(run.history.ensemble["mse"][-1], mean.mean())


def stopped_by_hand(losses, patience, min_delta):
    """Return the best step of one member, and the step at which it stops (or None), from its losses at each step."""
    best, best_step, wait = float("inf"), None, 0
    for step, loss in enumerate(losses, 1):
        if loss < best - min_delta:
            best, best_step, wait = loss, step, 0
        else:
            wait += 1
        if wait == patience:
            return best_step, step
    return best_step, None


NEVER = ensembles.EarlyStopping(patience=10**6, restore_best=False)


@pytest.mark.parametrize(
    ("net", "steps", "changes"),
    [(NET, 8, {"layout": "map"}), (NET, 8, {"chunk": 3}), ((init, convolve), 8, {}), (Normalised(), 5, {})],
    ids=["one at a time", "in chunks", "step by step", "with a state"],
)
def test_members_stop_by_themselves_and_keep_their_best_parameters(net, steps, changes):
    at = {"steps": steps, "record_at": range(steps + 1)}
    # All steps of this run are made by the program that may stop members, so that bits can be compared.
    whole = trained(net, early_stopping=NEVER, record={"W": (X_NEW, np.asarray)}, **at, **changes)
    losses = np.array(whole.history.validation["loss"][1:]).T
    by_hand = [[-mean_log_likelihood(log_probabilities(one), CLASSES_NEW) for one in all] for all in whole.records["W"]]
    assert_close(losses, np.array(by_hand)[1:].T)
    rule = {"patience": 2, "min_delta": 0.01}
    expected = [stopped_by_hand(of_member, **rule) for of_member in losses]
    stopped = {member: step for member, (_, step) in enumerate(expected) if step is not None}
    assert 0 < len(stopped) < MEMBERS
    stopping = ensembles.EarlyStopping(**rule)
    run = trained(net, early_stopping=stopping, record={"x": X_NEW}, **at, **changes)
    assert dict(run.stopped) == stopped
    assert run.member_steps.tolist() == [best for best, _ in expected]
    assert run.layout.stepwise == (net == (init, convolve))
    assert f"{len(stopped)} of them stopped early" in repr(run)
    for member, (best, stop) in enumerate(expected):
        predictions = whole.records["W"][:, member]
        np.testing.assert_array_equal(run.predict(X_NEW)[member], predictions[best])
        if stop is not None:
            np.testing.assert_array_equal(
                run.records["x"][stop:, member], np.stack([predictions[best]] * (steps + 1 - stop))
            )
            before = np.array(run.history.validation["loss"])[: stop + 1, member]
            np.testing.assert_array_equal(before, np.array(whole.history.validation["loss"])[: stop + 1, member])
    last = trained(net, early_stopping=dataclasses.replace(stopping, restore_best=False), steps=steps, **changes)
    for member, (_, stop) in enumerate(expected):
        step = steps if stop is None else stop
        np.testing.assert_array_equal(last.predict(X_NEW)[member], whole.records["W"][step, member])
        assert last.member_steps[member] == step
    first = next(iter(stopped))
    part = run.subset([first])
    assert dict(part.stopped) == {0: stopped[first]}
    np.testing.assert_array_equal(part.history.validation["loss"][3], run.history.validation["loss"][3][[first]])


def test_a_run_ends_when_all_members_have_stopped():
    run = trained(steps=1000, early_stopping=ensembles.EarlyStopping(1, min_delta=100.0))
    assert run.steps == 2
    assert run.stopped == dict.fromkeys(range(MEMBERS), 2)
    assert run.configuration["steps"] == 1000


class Interruption(Exception):
    pass


def interrupt_at(step):
    def callback(event):
        if event.step == step:
            raise Interruption

    return callback


STOPPING = {"early_stopping": ensembles.EarlyStopping(2, min_delta=0.01), "checkpoint_every": 2}


def test_stopped_members_are_resumed_and_loaded_to_the_same_bits(tmp_path):
    whole = trained(early_stopping=STOPPING["early_stopping"])
    first = min(whole.stopped.values())
    with pytest.raises(Interruption):
        trained(checkpoint=tmp_path, callbacks=interrupt_at(first + 2), **STOPPING)
    # What is loaded now is the run as it would have ended at the checkpoint.
    loaded = ensembles.Run.load(tmp_path, NET)
    shorter = trained(early_stopping=STOPPING["early_stopping"], steps=loaded.steps)
    np.testing.assert_array_equal(loaded.params["W"], shorter.params["W"])
    run = trained(checkpoint=tmp_path, resume=True, **STOPPING)
    for found in (run, ensembles.Run.load(tmp_path, NET)):
        np.testing.assert_array_equal(found.params["W"], whole.params["W"])
        assert dict(found.stopped) == dict(whole.stopped)
        assert found.member_steps.tolist() == whole.member_steps.tolist()
        assert found.history.table() == whole.history.table()
    whole.save(tmp_path / "saved")
    assert ensembles.Run.load(tmp_path / "saved", NET).member_steps.tolist() == whole.member_steps.tolist()
    with pytest.raises(ValueError, match="early stopping: "):
        trained(checkpoint=tmp_path, resume=True, early_stopping=ensembles.EarlyStopping(3), checkpoint_every=2)
    with pytest.raises(ValueError, match="validation: "):
        trained(checkpoint=tmp_path, resume=True, validation=(X, CLASSES), **STOPPING)


def test_a_member_that_is_lost_later_keeps_its_best_parameters():
    exploding = optax.sgd(lambda step: jnp.where(step < 6, 0.1, jnp.nan))
    with pytest.warns(RuntimeWarning, match="no longer finite"):
        run = trained(optimizer=exploding, early_stopping=ensembles.EarlyStopping(3))
    assert not run.failed
    assert np.isfinite(run.mean(X)).all()
    assert (run.member_steps <= 6).all()


def test_a_longer_run_continues_a_finished_one_to_the_same_bits(tmp_path):
    adam = {"optimizer": optax.adam(0.1), "validation": None, "validate_every": None, "record": {"x": X}}
    trained(checkpoint=tmp_path, steps=6, **adam)
    longer = trained(checkpoint=tmp_path, resume=True, **adam)
    np.testing.assert_array_equal(longer.params["W"], trained(**adam).params["W"])
    assert longer.steps == longer.configuration["steps"] == STEPS
    assert longer.record_steps.tolist() == [6, STEPS]
    assert trained(checkpoint=tmp_path, resume=True, **adam).steps == STEPS
    for changes, difference in (
        ({"steps": 6}, "steps: 6 instead of 12"),
        ({"steps": 24, "optimizer": optax.adam(optax.cosine_decay_schedule(0.1, 24))}, "optimizer: other updates"),
        ({"steps": 24, "record_at": [3]}, "record: "),
    ):
        with pytest.raises(ValueError, match=f"of this very run, got .*{difference}.*or more steps"):
            trained(checkpoint=tmp_path, resume=True, **adam | changes)


def test_callbacks_are_told_what_happened_and_end_the_run(tmp_path):
    events = []

    def watch(event):
        events.append(event)
        return event.step == 8

    more = {"validate_every": 4, "record": {"x": X}, "record_at": [3], "checkpoint_every": 6}
    run = trained(checkpoint=tmp_path, callbacks=[watch, lambda event: None], **more)
    assert run.steps == 8
    told = [(event.step, event.epoch, event.happened) for event in events]
    assert told == [
        (0, 0.0, ("validation",)),
        (3, 0.75, ("record",)),
        (4, 1.0, ("validation",)),
        (6, 1.5, ("checkpoint",)),
        (8, 2.0, ("validation",)),
    ]
    np.testing.assert_array_equal(events[-1].losses, run.curve[1][-1])
    np.testing.assert_array_equal(events[-1].validation["loss"], run.history.validation["loss"][-1])
    assert events[-1].ensemble["accuracy"] == run.history.ensemble["accuracy"][-1]
    assert not events[1].validation
    with pytest.raises(ValueError, match="read-only"):
        events[-1].losses[0] = 1.0
    with pytest.raises(TypeError, match="does not support item assignment"):
        events[-1].ensemble["loss"] = 0.0
    np.testing.assert_array_equal(run.params["W"], trained(steps=8).params["W"])
    resumed = trained(checkpoint=tmp_path, resume=True, **more)
    np.testing.assert_array_equal(resumed.params["W"], trained().params["W"])


def test_the_learning_rate_is_noted_if_the_optimizer_knows_it():
    rate = ensembles.by_epoch(lambda epoch: 0.5 / (1 + epoch), NET, (X, CLASSES), batch_size=2)
    run = trained(optimizer=optax.inject_hyperparams(optax.sgd)(learning_rate=rate), validate_every=4)
    assert dict(zip(run.history.steps, run.history.rates, strict=True)) == {
        4: 0.5,
        8: 0.25,
        10: pytest.approx(0.5 / 3),
        12: pytest.approx(0.5 / 3),
    }
    assert "| rate |" in run.history.table()
    plain = trained(optimizer=optax.sgd(rate))
    np.testing.assert_allclose(plain.params["W"], run.params["W"], rtol=1e-12)
    assert np.isnan(plain.history.rates).all()


def test_tables_have_a_row_for_each_validation():
    run = trained(validate_every=4)
    head, rule, *rows = (line.strip("|").split("|") for line in run.history.table().splitlines())
    assert [name.strip() for name in head] == [
        *("step", "epoch", "loss", "validation loss", "validation accuracy", "ensemble loss", "ensemble accuracy")
    ]
    assert set(rule[:-1]) == {"---:"}
    assert [row[:2] for row in rows] == [[" 0 ", " 0 "], [" 4 ", " 1 "], [" 8 ", " 2 "], [" 12 ", " 3 "]]
    assert rows[0][2] == " – "
    assert float(rows[-1][3]) == pytest.approx(run.history.validation["loss"][-1].mean(), rel=1e-3)
    assert len(run.history.table(rows=2).splitlines()) == 4
    assert repr(run.history) == "<losses at 4 steps, 4 validations, records at 0 steps of nothing>"


@pytest.mark.parametrize(
    ("validation", "error", "message"),
    [
        ((X_NEW[:, :1], CLASSES_NEW), ValueError, r"\[n, 2\], got an array of shape \(5, 1\)"),
        ((X_NEW.astype(int), CLASSES_NEW), TypeError, "float64 as in training, got int64"),
        ((X_NEW.astype(np.float32), CLASSES_NEW), ValueError, "samples of float64, as in training, got float32"),
        ((X_NEW, CLASSES_NEW.astype(float)), ValueError, "labels of int64, as in training, got float64"),
        ((X_NEW, CLASSES_NEW[:, None]), ValueError, r"labels \[n\], as in training, got shape \(5, 1\)"),
        ((X_NEW, CLASSES_NEW + 3), ValueError, "whole numbers from 0 to 2, got labels from"),
        ((X_NEW, CLASSES_NEW[:4]), ValueError, "samples with their labels.*labels for all samples"),
    ],
)
def test_validation_sets_unlike_the_training_set_are_refused(validation, error, message):
    with pytest.raises(error, match=f"`validation` must be .*{message}"):
        trained(validation=validation)


@pytest.mark.parametrize(
    ("changes", "argument"),
    [
        ({"validation": None, "early_stopping": ensembles.EarlyStopping(1)}, "validation"),
        ({"metrics": {"none": lambda predictions, y: "no"}}, "metrics"),
        ({"metrics": {"all": lambda predictions, y: predictions}}, "metrics"),
        ({"callbacks": lambda event: 17}, "callbacks"),
    ],
)
def test_wrong_settings_of_validation_are_refused(changes, argument):
    with pytest.raises(ValueError, match=f"`{argument}` must be"):
        trained(**changes)
