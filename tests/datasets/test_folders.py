"""Folders of pictures, and the record that all sets come as."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from ntk_equiv import datasets, groups, reps
from ntk_equiv.datasets import LabelledSet
from tests.tolerances import ROUNDING, assert_close

RNG = np.random.default_rng(3)
PICTURES = {f"{name}/{i}.png": RNG.integers(0, 256, (8, 8, 3), np.uint8) for name in ("TUM", "ADI") for i in range(3)}


@pytest.fixture
def folder(tmp_path):
    for name, picture in PICTURES.items():
        path = tmp_path / "NCT-CRC-HE-100K" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(path)
    (path.parent / "notes.txt").write_text("not a picture")
    return tmp_path / "NCT-CRC-HE-100K"


def test_pictures_are_read_in_alphabetical_order(folder):
    data = datasets.image_folder(folder)
    assert_close(data.x, np.stack([PICTURES[name] for name in sorted(PICTURES)]) / 255, ROUNDING)
    assert data.y.tolist() == [0, 0, 0, 1, 1, 1]


def test_some_pictures_are_drawn_with_their_labels(folder, key):
    whole, data = datasets.image_folder(folder), datasets.image_folder(folder, count=5, key=key)
    where = [int(np.flatnonzero((np.asarray(whole.x) == x).all(axis=(1, 2, 3)))[0]) for x in np.asarray(data.x)]
    assert len(set(where)) == 5
    assert where != sorted(where)
    assert np.array_equal(np.asarray(whole.y)[where], data.y)


def test_pictures_of_different_sizes_need_one(folder):
    Image.fromarray(np.full((9, 7, 3), 51, np.uint8)).save(folder / "ADI" / "other.png")
    with pytest.raises(ValueError, match=r"`size` must be given .* \(9, 7, 3\) in ADI/other.png"):
        datasets.image_folder(folder)
    data = datasets.image_folder(folder, size=4)
    assert data.x.shape == (7, 4, 4, 3)
    assert_close(data.x[3], np.full((4, 4, 3), 0.2), ROUNDING)


def test_a_damaged_picture_is_named(folder):
    path = folder / "TUM" / "1.png"
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(ValueError, match=str(path)):
        datasets.image_folder(folder)


def test_missing_pictures_and_settings_are_refused(folder, key):
    with pytest.raises(FileNotFoundError, match="no such folder"):
        datasets.image_folder(folder / "typo")
    with pytest.raises(FileNotFoundError, match="got images outside of such folders"):
        datasets.image_folder(folder / "ADI")
    (folder / "ADI" / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="no images there"):
        datasets.image_folder(folder / "ADI" / "empty")
    with pytest.raises(ValueError, match="`count` must be at most 6"):
        datasets.image_folder(folder, count=7, key=key)
    with pytest.raises(ValueError, match="`key` must be given with count"):
        datasets.image_folder(folder, count=2)


def test_the_histology_folder_must_be_complete(folder, key, monkeypatch):
    monkeypatch.setitem(datasets.PICTURE_COUNTS, "NCT-CRC-HE-100K", {"ADI": 3, "TUM": 3})
    data = datasets.nct_crc_he(folder.parent, key=key, count=4, size=6, group=groups.cyclic(12))
    assert data.x.shape == (4, 6, 6, 3)
    (folder / "TUM" / "2.png").unlink()
    with pytest.raises(ValueError, match="TUM` must be 3 pictures, got 2"):
        datasets.nct_crc_he(folder.parent, key=key, count=4)


def test_the_missing_histology_folder_is_named(tmp_path, key, monkeypatch):
    monkeypatch.setitem(datasets.SYSTEM_FOLDERS, "Debian", tmp_path)
    monkeypatch.delenv("NTK_EQUIV_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match=r"NCT-CRC-HE-100K.zip of https://zenodo.org"):
        datasets.nct_crc_he(tmp_path, key=key)


def test_a_set_splits_into_two_without_common_samples(key):
    rep = reps.trivial(groups.cyclic(2))
    data = LabelledSet(jnp.arange(10.0)[:, None], jnp.arange(10), rep, rep)
    first, second = data.split(key, 7)
    assert (first.n, second.n) == (7, 3)
    assert sorted([*first.y.tolist(), *second.y.tolist()]) == list(range(10))
    assert all(np.array_equal(part.x[:, 0], part.y) for part in (first, second))
    assert first.y.tolist() != data.split(jax.random.key(5), 7)[0].y.tolist()
    for count in (0, 10):
        with pytest.raises(ValueError, match="`count` must be"):
            data.split(key, count)
