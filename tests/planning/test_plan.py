"""Plans: their numbers against NumPy and against the library asked directly, and what is written."""

import base64
import dataclasses
import functools
import inspect
import io
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from ntk_equiv import InfiniteEnsemble, augment, bounds, filters, groups, metrics, planning, reps, stax
from tests.planning.page import Page
from tests.planning.problems import IMAGES, SETTINGS, VECTORS, settings
from tests.tolerances import REDUCTION, assert_close

DELTA, EPSILON = SETTINGS["delta"], SETTINGS["epsilon"]


@pytest.fixture(scope="module")
def found():
    """Regression, augmented exactly."""
    x, y, x_test, y_test = VECTORS
    return planning.plan(x, y, x_test=x_test, y_test=y_test, **SETTINGS)


@pytest.fixture(scope="module")
def approximate():
    """Classes of images, rotated by interpolation."""
    x, y, x_test, y_test = IMAGES
    settings = {"group": "C8", "action": "rotate", "arch": "mlp:relu:1", "times": [1, 100], "at": 100, "delta": 0.05}
    return planning.plan(x, y, x_test=x_test, y_test=y_test, samples=500, **settings)


@pytest.fixture(scope="module")
def ensemble():
    """The same regression, by hand."""
    x, y, _, _ = VECTORS
    rep = reps.matrix(groups.SO2.finite(4))
    kernel_fn = planning.named_network("mlp:relu:1", (2,)).kernel_fn
    train = augment(jnp.asarray(x), jnp.asarray(y), rep)
    return InfiniteEnsemble(kernel_fn, train, filters.gradient_flow(0.5), reduction="mean")


def test_errors_are_those_of_the_formulas_in_numpy(found):
    """μ_t = Θ(x,X) Θ⁻¹ (1 − e^{−ηΘt/N}) y, and Σ_t as a congruence of 𝒦, in plain NumPy on the augmented set."""
    x, y, x_test, y_test = VECTORS
    turns = np.array([[[1, 0], [0, 1]], [[0, -1], [1, 0]], [[-1, 0], [0, -1]], [[0, 1], [-1, 0]]], float)
    X = np.concatenate([x @ turn.T for turn in turns])
    Y = np.tile(y, 4)
    kernel_fn = planning.named_network("mlp:relu:1", (2,)).kernel_fn
    both = kernel_fn(jnp.asarray(np.concatenate([X, x_test])), None, ("nngp", "ntk"))
    K, Theta = np.asarray(both.nngp), np.asarray(both.ntk)
    N = len(X)
    values, vectors = np.linalg.eigh(Theta[:N, :N])
    for row, t in enumerate(found.times[:-1]):
        phi = vectors @ np.diag((1 - np.exp(-0.5 * values * t / N)) / values) @ vectors.T
        mean = Theta[N:, :N] @ phi @ Y
        weights = np.concatenate([-Theta[N:, :N] @ phi, np.eye(len(x_test))], axis=1)
        variance = np.diag(weights @ K @ weights.T)
        assert_close(found.test.infinite[row], np.mean((mean - y_test) ** 2), REDUCTION)
        assert_close(found.test.of(7)[row], np.mean((mean - y_test) ** 2) + variance.mean() / 7, REDUCTION)
    at = list(found.times).index(found.t)
    assert found.test.of(7)[at] <= 1.01 * found.test.of(7).min()
    assert (found.test.of(7)[:at] > 1.01 * found.test.of(7).min()).all()
    assert_close(np.array(found.stable_rate), np.array(2 * N / values.max()), REDUCTION)
    assert_close(np.array(found.baseline), np.mean((y_test - y.mean()) ** 2), REDUCTION)


def test_members_and_invariance_are_those_of_bounds(found, ensemble):
    x_test, key = jnp.asarray(VECTORS[2]), jax.random.split(jax.random.key(0), 3)[0]
    law = bounds.orbit_deviation(ensemble, x_test, found.t)
    members = law.members(DELTA, EPSILON, key=key, samples=2000)
    assert found.points.orbit_members.tolist() == members.value.tolist()
    assert found.points.orbit_upper.tolist() == members.upper.tolist()
    worst = np.argmax(members.value)
    assert found.needed.orbit_worst.tolist() == [members.value[worst], members.lower.max(), members.upper.max()]
    assert found.points.worst(1).tolist() == [worst]
    assert_close(found.points.orbit_one, law.expected(1), REDUCTION)
    assert_close(found.points.orbit_many, law.expected(7), REDUCTION)
    assert_close(found.orbit.mean[2], law.expected(10).mean(), REDUCTION)
    single = bounds.required_members(ensemble, x_test, found.t, DELTA, EPSILON)
    assert found.points.mean_members.tolist() == single.tolist()
    assert found.needed.mean_worst == single.max() <= found.needed.mean_bound
    # What is said to be enough is, and half of it is not, by draws of other members.
    other = jax.random.key(1)
    assert law.probability(members.upper[worst], DELTA, key=other).lower[worst] <= EPSILON
    assert law.probability(max(1, members.lower[worst] // 2), DELTA, key=other).upper[worst] > EPSILON
    assert found.points.bias.max() < 1e-12


def test_plans_without_test_labels_are_silent_about_errors(found):
    x, y, x_test, _ = VECTORS
    plain = planning.plan(x, y, x_test=x_test, **{**SETTINGS, "at": float(found.t)})
    assert plain.test is plain.baseline is plain.points.error is None
    assert plain.points.orbit_members.tolist() == found.points.orbit_members.tolist()
    assert "unknown" in plain.table()
    assert any("no labels for the test samples" in note for note in plain.notes)
    assert plain.figure("errors").axes[0].get_legend() is not None


def test_inexact_symmetries_are_told_plainly(approximate):
    warned = [note for note in approximate.notes if note.startswith("WARNING")]
    for words in ("interpolates", "does not respect", "deviates"):
        assert any(words in note for note in warned), words
    assert approximate.notes[: len(warned)] == tuple(warned)
    assert approximate.violation > 1e-3
    assert approximate.problem["method"] == "dense"
    points, delta = approximate.points, approximate.settings["delta"]
    assert np.isnan(points.orbit_members).tolist() == (points.bias >= delta).tolist()
    assert approximate.needed.unreachable == (points.bias >= delta).sum() > 0
    assert "no number is enough" in approximate.table()
    assert np.isnan(approximate.needed.orbit_worst).all()


def test_classes_are_told_with_accuracies_and_orbits(approximate):
    points, accuracy = approximate.points, approximate.accuracy
    assert approximate.problem["classes"] == ["dark", "light"]
    assert ((points.same_one >= 1) & (points.same_many <= 8)).all()
    assert points.same_one.mean() < points.same_many.mean()
    assert accuracy.infinite[0] == accuracy.over_time[list(approximate.times).index(approximate.t)]
    assert accuracy.one[0] <= accuracy.many[0] <= 1
    assert "same class, of 8" in approximate.table()
    # Three test samples, of which all or two are classified rightly: the error of such a test set is large.
    right = np.isclose(points.label, points.predicted)
    assert_close(accuracy.infinite, np.array([right.mean(), 0.0, np.std(right, ddof=1) / 3**0.5]), REDUCTION)
    assert accuracy.one[1] < 0.02
    assert [approximate.problem["classes"][label] for label in points.label] == IMAGES[3].tolist()


@pytest.fixture(scope="module")
def classes():
    """Three classes of vectors, by their length, which overlap; one of the test samples is a training sample."""
    rng = np.random.default_rng(4)
    labels = rng.integers(0, 3, 40)
    x = rng.normal(size=(40, 2))
    x *= ((1 + labels + 0.5 * rng.normal(size=40)) / np.linalg.norm(x, axis=1))[:, None]

    def plan(x_test, y_test, **changed):
        settings = {**SETTINGS, "times": [30.0], "at": 30.0, "likelihood_delta": 0.003, **changed}
        return planning.plan(x[:12], labels[:12], x_test=x_test, y_test=y_test, **settings)

    x_test = np.concatenate([x[12:], x[:1]])
    return plan(x_test, np.append(labels[12:], labels[0])), x, labels, functools.partial(plan, x_test)


def test_probabilities_are_those_of_bounds_and_metrics(classes):
    plan, x, labels, _ = classes
    train = augment(jnp.asarray(x[:12]), jnp.eye(3)[labels[:12]] - 1 / 3, reps.matrix(groups.SO2.finite(4)))
    kernel_fn = planning.named_network("mlp:relu:1", (2,)).kernel_fn
    ens = InfiniteEnsemble(kernel_fn, train, filters.gradient_flow(0.5), reduction="mean")
    held_out, truth = jnp.asarray(x[12:]), labels[12:]
    found, mean = plan.calibration, np.asarray(ens.mean(held_out, 30.0))[None]
    assert found.samples == 28  # without the training sample
    assert found.temperature == pytest.approx(metrics.fit_temperature(mean, truth, average="logits"), rel=1e-6)
    scale = 1 / found.temperature
    exact = metrics.negative_log_likelihood(scale * mean, truth).logits
    assert_close(found.likelihood[2], np.array([exact.value, 0, exact.error, 0]), REDUCTION)
    assert_close(np.array(found.noise), metrics.calibration_noise(scale * mean).logits.value, REDUCTION)
    diagram = np.stack(metrics.reliability(scale * mean, truth, average="logits"))  # with NaN for bins of one sample
    np.testing.assert_allclose(found.diagram_infinite, diagram, rtol=1e-6)


def drawn_members(x, labels, x_test, t, count):
    """Members at t by formulas in plain NumPy, and draws of their law: outputs [count, n, 3], and their mean."""
    turns = np.array([[[1, 0], [0, 1]], [[0, -1], [1, 0]], [[-1, 0], [0, -1]], [[0, 1], [-1, 0]]], float)
    X, Y = np.concatenate([x @ turn.T for turn in turns]), np.tile(np.eye(3)[labels] - 1 / 3, (4, 1))
    kernel_fn = planning.named_network("mlp:relu:1", (2,)).kernel_fn
    both = kernel_fn(jnp.asarray(np.concatenate([X, x_test])), None, ("nngp", "ntk"))
    K, Theta, N = np.asarray(both.nngp), np.asarray(both.ntk), len(X)
    values, vectors = np.linalg.eigh(Theta[:N, :N])
    phi = vectors @ np.diag((1 - np.exp(-0.5 * values * t / (3 * N))) / values) @ vectors.T
    mean = Theta[N:, :N] @ phi @ Y
    weights = np.concatenate([-Theta[N:, :N] @ phi, np.eye(len(x_test))], axis=1)
    noise = np.random.default_rng(11).multivariate_normal(np.zeros(len(x_test)), weights @ K @ weights.T, (count, 3))
    return mean + noise.swapaxes(1, 2), mean


def naive_scores(z, labels):
    """Accuracy, likelihood, Brier score and calibration error of one set of logits [n, 3], sample by sample."""
    right, likelihood, brier, bins = [], [], [], {}
    for row, label in zip(z, labels, strict=True):
        p = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
        right.append(float(p.argmax() == label))
        likelihood.append(-np.log(p[label]))
        brier.append(sum((p[k] - (k == label)) ** 2 for k in range(3)))
        bins.setdefault(min(int(np.ceil(15 * p.max())), 15), []).append((p.max(), right[-1]))
    error = sum(abs(sum(sure - hit for sure, hit in held)) for held in bins.values()) / len(z)
    return np.mean(right), np.mean(likelihood), np.mean(brier), error


def test_probabilities_are_those_of_ensembles_put_together(classes):
    """Ensembles of 7 members and single ones, drawn and scored in plain NumPy."""
    plan, x, labels, _ = classes
    found, held_out, truth, count = plan.calibration, x[12:], labels[12:], 4200
    z, mean = drawn_members(x[:12], labels[:12], held_out, 30.0, count)
    z, exact = z / found.temperature, naive_scores(mean / found.temperature, truth)
    expected = (found.accuracy, found.likelihood, found.brier, found.error)
    for row, size in ((0, 1), (1, 7)):
        ensembles = z[: 600 * size].reshape(600, size, *z.shape[1:]).mean(axis=1)
        scores = np.array([naive_scores(one, truth) for one in ensembles])
        for column, metric in enumerate(expected):
            value, error, _, scatter = metric[row]
            spread = scores[:, column].std(ddof=1)
            assert abs(scores[:, column].mean() - value) < 5 * np.hypot(error, spread / 600**0.5)
            assert abs(spread / scatter - 1) < 0.25  # 600 ensembles know it to 3 to 6 %
            assert_close(metric[2, 0], np.array(exact[column]), REDUCTION)
        excess = scores[:, 1] - exact[1]
        assert abs(excess.mean() - found.excess[row]) < 6 * excess.std(ddof=1) / 600**0.5
    enough, lower, upper = found.members.astype(int)
    assert lower <= enough <= upper
    for size, enough_of_them in ((upper, True), (max(1, lower // 2), False)):
        ensembles = z[: count // size * size].reshape(-1, size, *z.shape[1:]).mean(axis=1)
        excess = np.array([naive_scores(one, truth)[1] for one in ensembles]) - exact[1]
        error = 4 * excess.std(ddof=1) / len(excess) ** 0.5
        assert (excess.mean() - error <= 0.003) if enough_of_them else (excess.mean() + error > 0.003)


def test_probabilities_are_told(classes):
    plan = classes[0]
    text = " ".join(plan.table().split())
    for words in (
        "How good are the probabilities: softmax(f̂/T)",
        "How good the probabilities are",
        "1 of 29 test samples",
    ):
        assert words in text, words
    panel = plan.figure("reliability").axes[0]
    curves = {line.get_label(): line.get_xydata().T for line in panel.lines}
    np.testing.assert_array_equal(curves["infinite ensemble"], plan.calibration.diagram_infinite[:2])
    np.testing.assert_array_equal(curves["7 members"], plan.calibration.diagram_many[:2])
    assert len(plan.figure().axes) == 4


def test_without_samples_that_were_held_out_nothing_is_said_about_probabilities(classes):
    _, x, labels, plan_again = classes
    again = np.arange(29) % 12
    seen = plan_again.func(x[again], labels[again])
    assert seen.calibration is None
    assert seen.accuracy is not None
    assert any("all test samples are training samples too" in note for note in seen.notes)
    assert "How good are the probabilities: unknown" in " ".join(seen.table().split())


def test_temperatures_are_fitted_given_or_told_to_be_missing(classes):
    plan, _, _, plan_again = classes
    right = plan_again(plan.points.predicted)  # labels with which every sample is classified right
    assert right.accuracy.infinite[0] == 1
    assert any("counts as unknown" in note for note in right.notes)
    assert 0 < right.calibration.temperature < 1
    wrong = plan_again((plan.points.predicted + 1) % 3)
    assert wrong.calibration.temperature == 1
    assert any(note.startswith("WARNING") and "no better than chance" in note for note in wrong.notes)
    given = plan_again(plan.points.predicted, temperature=0.25)
    assert given.calibration.temperature == 0.25
    assert not any("temperature" in note for note in given.notes)


def test_plans_of_earlier_versions_know_nothing_about_probabilities(found, tmp_path):
    path = found.save(tmp_path / "plan.json")
    content = json.loads(path.read_text())
    del content["calibration"]
    path.write_text(json.dumps(content))
    assert planning.Plan.load(path).table() == found.table()


def test_standard_errors_are_those_of_the_test_set(found, ensemble):
    x_test, y_test = VECTORS[2:]
    mean, variance = (np.asarray(part(jnp.asarray(x_test), found.t)) for part in (ensemble.mean, ensemble.var))
    at = list(found.times).index(found.t)
    for members in (np.inf, 7, 1):
        each = (mean - y_test) ** 2 + variance / members
        assert_close(found.test.standard_error(members)[at], np.std(each, ddof=1) / 3**0.5, REDUCTION)
        assert_close(found.test.of(members)[at], each.mean(), REDUCTION)
    on_train = np.asarray(ensemble.mean(jnp.asarray(VECTORS[0]), found.times[0]))
    assert_close(found.train.infinite[0], np.mean((on_train - VECTORS[1]) ** 2), REDUCTION)
    assert np.isnan(found.train.standard_error()).all()


@pytest.mark.parametrize(
    ("t", "words"),
    [
        (10.0, "10 steps of full-batch gradient descent at a rate of 1;"),
        (1e3, "60 steps of full-batch gradient descent at a rate of 16.7;"),
        (0.0, "not at all, t = 0"),
        (np.inf, "to the end, t = ∞"),
    ],
)
def test_steps_times_rate_is_the_training_time(found, t, words):
    """Steps never lead beyond t, and they are no longer than half of the largest that is stable."""
    settings = {**found.settings, "learning_rate": 1.0, "at": t}
    zeros = planning.Errors(np.zeros(1), np.zeros(1))
    changed = {"times": np.array([t]), "train": zeros, "test": None, "accuracy": None}
    asked = dataclasses.replace(found, t=t, stable_rate=33.5, settings=settings, **changed)
    assert words in " ".join(asked.table().split())


def test_samples_that_the_group_leaves_as_they_are_do_not_hide_what_the_network_respects():
    """Blank images say nothing about a strided convolution that breaks the symmetry, wherever they stand."""
    rng = np.random.default_rng(0)
    x, y = rng.uniform(size=(9, 4, 4, 1)), rng.normal(size=9)
    x[:5] = 0
    net = stax.serial(stax.Conv(8, (3, 3), (2, 2)), stax.Relu(), stax.Flatten(), stax.Dense(1))
    settings = {"x_test": x[5:], "y_test": y[5:], "group": "C4", "action": "rot90", "times": [1, 10], "samples": 300}
    broken = planning.plan(x, y, arch=net, **settings)
    assert broken.problem["method"] == "dense"
    assert broken.violation > 1e-3
    kept = planning.plan(x, y, arch="cnn:relu:1", **settings)
    assert kept.problem["method"] == "reduced"
    blank = planning.plan(0 * x, y, arch="cnn:relu:1", **{**settings, "x_test": 0 * x[5:]}, dtype="float32")
    assert np.isfinite(blank.points.orbit_one).all()
    for plan, single in ((kept, False), (blank, True)):
        assert any(note.startswith("WARNING: computed in single precision") for note in plan.notes) is single


@pytest.mark.parametrize("name", ["found", "approximate"])
def test_plans_come_back_from_json(name, request, tmp_path):
    plan = request.getfixturevalue(name)
    path = plan.save(tmp_path / "plan.json")
    again = planning.Plan.load(path)
    assert again.table() == plan.table()
    assert again.save(tmp_path / "again.json").read_bytes() == path.read_bytes()
    for field in dataclasses.fields(plan.points):
        mine, theirs = getattr(plan.points, field.name), getattr(again.points, field.name)
        assert (mine is theirs is None) or np.array_equal(mine, theirs, equal_nan=True)
    content = json.loads(path.read_text())
    assert content["versions"]["jax"] == jax.__version__
    assert content["settings"]["group"] == plan.settings["group"]


@pytest.mark.parametrize("content", ["{}", "[]", "no", '{"format": 2}', '{"format": 1}', '{"format": 3}'])
def test_other_files_are_refused(content, tmp_path):
    (tmp_path / "plan.json").write_text(content)
    with pytest.raises(ValueError, match="must be a plan"):
        planning.Plan.load(tmp_path / "plan.json")


@pytest.mark.parametrize("name", ["found", "approximate"])
def test_the_report_is_one_page_that_loads_nothing(name, request, tmp_path):
    plan = request.getfixturevalue(name)
    text = plan.report(tmp_path / "plan.html").read_text(encoding="utf-8")
    page = Page(text)
    headings = re.findall(r"<h2>(.*?)</h2>", text)
    assert headings == [
        *(["Warnings"] if any(note.startswith("WARNING") for note in plan.notes) else []),
        "In short", "Errors against training time", "Members needed", "How invariant",
        *(["How good the probabilities are"] if plan.calibration else []), "Worst test samples",
        "Where this holds", "Settings and conventions", "Data, date and versions",
    ]  # fmt: skip
    assert sorted(page.ids) == sorted(heading.lower().replace(" ", "-") for heading in headings)
    pictures = [target for target in page.targets if target.startswith("data:image/png;base64,")]
    assert len(pictures) == (3 if plan.calibration is None else 4) + len(plan.pictures)
    assert {target for target in page.targets if not target.startswith("data:image/png;base64,")} == {
        f"#{name}" for name in page.ids
    }
    assert not re.search(r"https?:|//|@import|url\(|<script|<link", re.sub(r'"data:image[^"]*"', "", text))
    assert 'name="viewport"' in text
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    for note in plan.notes:
        assert note.removeprefix("WARNING: ")[1:] in page.text


def test_worst_images_are_shown_with_their_classes_and_where_the_plan_is_from_is_told(approximate, tmp_path):
    assert len(approximate.pictures) == len(approximate.points.worst()) == 3
    with Image.open(io.BytesIO(base64.b64decode(approximate.pictures[0]))) as picture:
        shown = np.asarray(picture)
    worst = IMAGES[2][approximate.points.worst(1)[0], ..., 0]
    np.testing.assert_allclose(shown / 255, (worst - IMAGES[2].min()) / np.ptp(IMAGES[2]), atol=0.003)
    named = dataclasses.replace(
        approximate, origin={**approximate.origin, "data": "mine.npz", "command": "ntk-equiv plan"}
    )
    text = named.report(tmp_path / "plan.html", figures=False).read_text(encoding="utf-8")
    for words in ("mine.npz", "ntk-equiv plan", approximate.origin["date"], "<td>light</td>", "were expected"):
        assert words in text, words
    assert text.index("<h2>Warnings</h2>") < text.index("<h2>In short</h2>")
    assert "Adam" in text


@pytest.mark.parametrize("image", [np.zeros((2, 3, 1)), np.full((200, 100, 3), 7.0), np.ones((4, 4, 5)) * -1e9])
def test_images_of_any_kind_have_a_picture(image):
    (data,) = planning.thumbnails(image[None])
    with Image.open(io.BytesIO(base64.b64decode(data))) as picture:
        assert max(picture.size) <= 64
        assert picture.mode == ("RGB" if image.shape[-1] == 3 else "L")


def test_names_in_the_data_are_not_taken_for_html(found, tmp_path):
    hostile = dataclasses.replace(found, problem={**found.problem, "classes": ["<script>alert(1)</script>", "b"]})
    text = hostile.report(tmp_path / "plan.html", figures=False).read_text(encoding="utf-8")
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert "data:image" not in text


def test_everything_is_written_into_one_folder_and_nothing_replaced(found, tmp_path):
    paths = found.write(tmp_path / "new" / "plan")
    assert [path.name for path in paths] == ["plan.html", "plan.json", "plan.txt", "plan.pdf", "plan.png"]
    assert all(path.stat().st_size for path in paths)
    before = [path.read_bytes() for path in paths[1:3]]
    with pytest.raises(ValueError, match="`out` must be a folder without a plan"):
        found.write(tmp_path / "new" / "plan")
    again = found.write(tmp_path / "new" / "plan", overwrite=True, figures=False)
    assert [path.read_bytes() for path in again[1:]] == before
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="`out` must be a folder that can be written to"):
        found.write(tmp_path / "file" / "plan")


def test_links_that_lead_nowhere_are_no_free_places(found, tmp_path):
    elsewhere = tmp_path / "elsewhere.json"
    (tmp_path / "plan").mkdir()
    (tmp_path / "plan" / "plan.json").symlink_to(elsewhere)
    with pytest.raises(ValueError, match=r"`out` must be a folder without a plan, got .* with plan\.json"):
        found.write(tmp_path / "plan", figures=False)
    found.write(tmp_path / "plan", figures=False, overwrite=True)
    assert not elsewhere.exists()
    assert planning.Plan.load(tmp_path / "plan" / "plan.json").t == found.t


def test_the_figure_shows_the_numbers_of_the_plan(found):
    errors, orbits, points = found.figure().axes
    curves = {line.get_label(): line for line in errors.lines}
    np.testing.assert_array_equal(curves["test samples, infinite"].get_ydata(), found.test.infinite)
    np.testing.assert_array_equal(curves["test samples, 7 members"].get_ydata(), found.test.of(7))
    np.testing.assert_array_equal(orbits.lines[0].get_ydata(), found.orbit.worst)
    np.testing.assert_array_equal(points.lines[0].get_xdata()[1:], np.sort(found.points.orbit_members))
    np.testing.assert_allclose(points.lines[0].get_ydata(), [0, 1 / 3, 2 / 3, 1])  # a single point is seen, too
    with pytest.raises(ValueError, match="`panel` must be one of 'errors', 'orbits', 'points'"):
        found.figure("pie")


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"group": "X"}, "`group` must be"),
        ({"action": "rot90"}, "`action` must be an action of cyclic"),
        ({"label_action": "matrix"}, "`label_action` must be an action of cyclic"),
        ({"label_action": "same"}, "`label_action` must be an action of cyclic"),
        ({"arch": "mlp"}, "`arch` must be"),
        ({"arch": 3}, "`arch` must be a network"),
        ({"times": "soon"}, "`times` must be"),
        ({"delta": 0.0}, "`delta` must be positive"),
        ({"delta": 1e300}, "`delta` must be positive, and at most 1e\\+150, got 1e\\+300"),
        ({"epsilon": 1.0}, "`epsilon` must be between 0 and 1"),
        ({"temperature": 0.0}, "`temperature` must be positive"),
        ({"likelihood_delta": -1.0}, "`likelihood_delta` must be positive"),
        ({"members": 0}, "`members` must be a positive integer"),
        ({"reduction": "max"}, "`reduction` must be one of"),
        ({"learning_rate": -1.0}, "`learning_rate` must be"),
        ({"dtype": "float16"}, "`dtype` must be one of"),
        ({"samples": 20}, "`samples` must be enough to see what happens with probability 0.1, got 20"),
        ({"minutes": 0}, "`minutes` must be a positive number, got 0"),
        ({"class_names": ["a"]}, "`class_names` must be left out for regression"),
        ({"at": -1.0}, "`at` must be a training time"),
        ({"at": float("nan")}, "`at` must be one finite"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_computed(wrong, complaint):
    x, y, x_test, y_test = VECTORS
    said = []
    with pytest.raises((ValueError, TypeError), match=complaint):
        planning.plan(x, y, x_test=x_test, y_test=y_test, **{**SETTINGS, **wrong}, progress=said.append)
    assert said == []


def test_constant_labels_need_a_delta():
    x, y, _, _ = VECTORS
    with pytest.raises(ValueError, match="`delta` must be given"):
        planning.plan(x, np.ones_like(y), **{**SETTINGS, "delta": None})


def test_settings_are_what_was_asked_by_the_names_of_the_arguments(found):
    arguments = set(inspect.signature(planning.plan).parameters)
    elsewhere = {"x", "y", "x_test", "y_test", "name", "class_names", "progress"}
    assert set(found.settings) == arguments - elsewhere
    assert {name: found.settings[name] for name in SETTINGS} == SETTINGS
    own = settings(arch=stax.serial(stax.Dense(1)), group=groups.cyclic(4), times=np.array([1.0, 2.0]))
    assert own == dataclasses.replace(own)
    plain = own.as_dict()
    assert (plain["arch"], plain["times"]) == ("a network of your own", [1.0, 2.0])
    assert json.loads(json.dumps(plain)) == plain
