"""What is made of the data of a user, and what is refused."""

import numpy as np
import pytest

from ntk_equiv import planning
from tests.planning.problems import settings

X = np.arange(20.0).reshape(10, 2)
Y = np.arange(10.0)


def problem(x=X, y=Y, x_test=None, y_test=None, *, images=False, class_names=None, **changed):
    return planning.prepare_problem(x, y, x_test, y_test, settings(**changed), images=images, class_names=class_names)


def test_without_test_samples_some_are_held_out_and_it_is_said():
    found = problem()
    assert found.x.shape == (8, 2)
    assert found.x_test.tolist() == X[found.index].tolist()
    assert found.y_test.tolist() == Y[found.index].tolist()
    assert sorted([*found.y, *found.y_test]) == Y.tolist()
    assert any("2 of 10 samples" in note for note in found.notes)


def test_given_test_samples_are_used_as_they_are():
    found = problem(x_test=X[:3] + 100, y_test=Y[:3])
    assert found.x.tolist() == X.tolist()
    assert found.x_test.tolist() == (X[:3] + 100).tolist()
    assert found.index.tolist() == [0, 1, 2]
    assert found.notes == ()


def test_more_samples_than_asked_for_are_left_out_and_it_is_said():
    found = problem(x_test=X, y_test=Y, max_points=4, max_test_points=3, seed=7)
    assert found.x.shape == (4, 2)
    assert found.y_test.tolist() == Y[found.index].tolist()
    assert len(set(found.index.tolist())) == 3
    assert [note[:12] for note in found.notes] == ["Only 4 of 10", "Only 3 of 10"]


def test_a_single_sample_is_tested_on_itself():
    found = problem(X[:1], Y[:1])
    assert found.x_test.tolist() == found.x.tolist()
    assert "only one sample" in found.notes[0]


@pytest.mark.parametrize("y", [np.array([3, 7] * 5), np.array(["cat", "dog"] * 5), np.array([[3], [7]] * 5)])
def test_whole_numbers_and_text_are_classes(y):
    found = problem(y=y, x_test=X[:1], y_test=y[1:2])
    assert found.classes == tuple(map(str, np.unique(y)))
    assert found.y[:2].tolist() == [[0.5, -0.5], [-0.5, 0.5]]
    assert found.y_test.tolist() == [[-0.5, 0.5]]
    assert "2 classes" in found.notes[0]
    assert found.missing_class_notes() == []


def test_classes_that_only_test_samples_have_are_told():
    found = problem(y=np.array(["cat", "dog"] * 5), x_test=X[:2], y_test=np.array(["dog", "emu"]))
    assert found.classes == ("cat", "dog", "emu")
    assert found.missing_class_notes() == ["WARNING: these classes have no training sample: emu."]


def test_classes_that_are_numbers_may_have_names():
    found = problem(y=np.array([3, 1] * 5), class_names=["ant", "bee", "cat", "dog"])
    assert found.classes == ("bee", "dog")


def test_fewer_samples_are_drawn_from_those_there_are_and_it_is_said():
    whole = problem(y=np.array(["cat", "dog"] * 5), x_test=X[:4], y_test=np.array(["cat"] * 4))
    assert whole.draw_fewer(3, 2, 0, "").notes[-1].startswith("Only 3 of 10 training and 2 of 4 test samples are used")
    few = whole.draw_fewer(1, 2, 0, "because.")
    assert few.sizes == (1, 2)
    assert few.x.tolist()[0] in X.tolist()
    assert few.x_test.tolist() == X[few.index].tolist()
    start = "WARNING: only 1 of 10 training and 2 of 4 test samples are used, drawn at random: because. With more"
    assert few.notes[-1].startswith(start)
    assert len(few.missing_class_notes()) == 1


def test_whole_numbers_are_quantities_if_that_is_said():
    found = problem(y=np.arange(10), labels="regression")
    assert found.classes is None
    assert sorted([*found.y, *found.y_test]) == Y.tolist()


def test_images_get_their_channel_and_bytes_are_scaled():
    found = problem(np.full((10, 3, 3), 255, np.uint8), images=True)
    assert found.x.shape == (8, 3, 3, 1)
    assert (found.x == 1).all()
    assert any("divided by 255" in note for note in found.notes)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"x": np.where(X == 3, np.nan, X)}, r"`x` must be finite numbers, got 1 that is not, first at \(1, 1\)"),
        ({"y": np.where(Y > 7, np.inf, Y)}, r"`y` must be finite numbers, got 2 that are not"),
        ({"x": X.astype(complex)}, "`x` must be an array of numbers"),
        ({"x": X.astype(object)}, "`x` must be an array of numbers"),
        ({"x": X[:0], "y": Y[:0]}, "`x` must be not empty"),
        ({"x": Y}, r"`x` must be of shape \[n, ...\]"),
        ({"y": Y[:4]}, "`y` must be labels of 10 samples"),
        ({"y": np.zeros((10, 2, 2))}, "`y` must be labels of 10 samples"),
        ({"y": np.zeros((10, 2), int)}, r"`y` must be classes of shape \[n\]"),
        ({"y": np.zeros(10, int)}, "`y` must be 2 classes or more, got only 0"),
        ({"y": np.full(10, "cat")}, "`y` must be 2 classes or more, got only cat"),
        ({"x": np.zeros((200, 2)), "y": np.arange(200)}, "`y` must be 2 to 100 classes, got 200"),
        ({"y": np.array(["a", "b"] * 5), "labels": "regression"}, "`labels` must be classes"),
        ({"labels": "both"}, "`labels` must be one of"),
        ({"y_test": Y}, "`x_test` must be given with y_test"),
        ({"x_test": X[:, :1]}, "`x_test` must be of shape"),
        ({"x": X.astype(np.uint8), "x_test": X}, "`x_test` must be of dtype uint8, as x"),
        ({"seed": -1}, "`seed` must be 0 or more"),
        ({"x_test": X, "y_test": Y[:3]}, "`y_test` must be labels of 10 samples"),
        ({"x_test": X, "y_test": np.arange(10)}, "`y_test` must be labels like those in y"),
        ({"y": np.arange(10), "x_test": X, "y_test": np.array(list("abababab01"))}, "`y_test` must be labels like"),
        ({"class_names": ["a"]}, "`class_names` must be left out for regression"),
        ({"y": np.array([0, 2] * 5), "class_names": ["a", "b"]}, "`class_names` must be a name for each"),
        ({"y": np.array(["a", "b"] * 5), "class_names": ["a", "b"]}, "`class_names` must be a name for each"),
        ({"holdout": 1.5}, "`holdout` must be between 0 and 1"),
        ({"max_points": 0}, "`max_points` must be a positive integer"),
    ],
)
def test_data_that_cannot_be_used_are_refused(given, complaint):
    with pytest.raises((ValueError, TypeError), match=complaint):
        problem(**given)
