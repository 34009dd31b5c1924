"""Reading files the tests wrote themselves, whole and damaged."""

import gzip
import io
import json
import pickle
import struct
import sys
import tracemalloc
import zipfile

import numpy as np
import pytest
from PIL import Image

from ntk_equiv import _machine, datasets
from ntk_equiv.datasets import idx_bytes, npz_arrays, read_idx
from tests.datasets.stand_ins import binary_batch, checksums, python_batch, tar_of

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (4, 5, 6), np.uint8)
COLOURS = RNG.integers(0, 256, (3, 32, 32, 3), np.uint8)
CLASSES = np.array([3, 0, 9], np.uint8)


@pytest.mark.parametrize("array", [IMAGES, CLASSES, COLOURS, np.zeros((0, 2), np.uint8)], ids=lambda a: str(a.shape))
@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_idx_files_return_what_was_written(tmp_path, array, compress):
    path = tmp_path / "some-idx-ubyte"
    path.write_bytes(compress(idx_bytes(array)))
    assert np.array_equal(read_idx(path), array)
    assert read_idx(path).dtype == np.uint8


def test_the_header_is_that_of_mnist():
    header = idx_bytes(np.zeros((600, 28, 28), np.uint8))[:16]
    assert struct.unpack(">IIII", header) == (2051, 600, 28, 28)


GOOD = idx_bytes(IMAGES)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (GOOD[:-1], "of the 120 entries its header announces, got 119"),
        (GOOD + b"\x00", "got 121"),
        (GOOD[:10], "IDX file"),
        (b"", "begins with nothing"),
        (b"\x00\x00\x0d" + GOOD[3:], "begins with 00 00 0d 03"),
        (gzip.compress(GOOD)[:-9], "intact gzip file"),
        (gzip.compress(GOOD)[:40] + b"\xff" + gzip.compress(GOOD)[41:], "intact gzip file"),
    ],
    ids=["short", "long", "header only", "empty", "floats", "short gzip", "altered gzip"],
)
def test_damaged_idx_files_are_refused(tmp_path, content, complaint):
    path = tmp_path / "images"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=complaint) as error:
        read_idx(path)
    assert str(path) in str(error.value)
    assert "get it anew" in str(error.value)


def test_only_bytes_are_written():
    with pytest.raises(TypeError, match="of bytes"):
        idx_bytes(np.zeros(3))


def test_npz_files_return_what_was_written(tmp_path):
    labels = np.array([[1], [0], [2], [5]])
    np.savez_compressed(tmp_path / "a.npz", images=IMAGES, labels=labels)
    arrays = npz_arrays(tmp_path / "a.npz", ["images", "labels"])
    assert np.array_equal(arrays["images"], IMAGES)
    assert np.array_equal(arrays["labels"], labels)


def test_npz_files_that_lack_a_part_name_it(tmp_path):
    np.savez(tmp_path / "a.npz", test_images=IMAGES)
    with pytest.raises(ValueError, match="train_images and train_labels, got test_images only"):
        npz_arrays(tmp_path / "a.npz", ["train_images", "train_labels"])


@pytest.mark.parametrize("damage", [lambda b: b[:-30], lambda b: b[:200] + b"\xff\xff" + b[202:], lambda b: b"no zip"])
def test_damaged_npz_files_are_refused(tmp_path, damage):
    np.savez(tmp_path / "a.npz", images=IMAGES, labels=np.arange(4))
    (tmp_path / "a.npz").write_bytes(damage((tmp_path / "a.npz").read_bytes()))
    with pytest.raises(ValueError, match="truncated or altered"):
        npz_arrays(tmp_path / "a.npz", ["images", "labels"])


def announcing(shape: tuple[int, ...]) -> bytes:
    """The start of an array in NumPy's own format, that of so many floating-point numbers."""
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(content, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return content.getvalue()


def read_cifar10(folder):
    """The test part of CIFAR10 as bytes, with its labels."""
    data = datasets.cifar10("test", folder, colour=True, size=None)
    return np.round(255 * np.asarray(data.x)).astype(np.uint8), np.asarray(data.y)


@pytest.fixture
def standing_in(monkeypatch, tmp_path):
    """Three images stand in for the test part of CIFAR10, and nothing else is known."""
    monkeypatch.setitem(datasets.CHECKSUMS, "CIFAR10", {"test": checksums(COLOURS, CLASSES)})
    monkeypatch.setitem(datasets.SYSTEM_FOLDERS, "Debian", tmp_path / "system")
    monkeypatch.delenv("NTK_EQUIV_DATA", raising=False)


def peak_of(call) -> int:
    """The most memory that was in use during a call that is refused."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"that fits into .* of free memory, got .* once unpacked"):
            call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_what_unpacks_to_more_than_the_free_memory_is_refused_unread(tmp_path, monkeypatch):
    monkeypatch.setattr(_machine, "free_memory", lambda: 1e6)
    large = np.zeros((4000, 1000), np.uint8)
    np.savez_compressed(tmp_path / "a.npz", images=large, labels=np.arange(4))
    (tmp_path / "a.gz").write_bytes(gzip.compress(idx_bytes(large)))
    (tmp_path / "cifar-10-python.tar.gz").write_bytes(tar_of(test_batch=large.tobytes()))
    assert (tmp_path / "a.npz").stat().st_size < 1e5
    assert peak_of(lambda: npz_arrays(tmp_path / "a.npz", ["images"])) < 1e6
    assert peak_of(lambda: read_idx(tmp_path / "a.gz")) < 1e6
    assert peak_of(lambda: read_cifar10(tmp_path)) < 1e6
    assert list(npz_arrays(tmp_path / "a.npz", ["labels"])) == ["labels"]  # the others are not asked for


def test_arrays_of_another_length_than_their_header_says_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", announcing((10**6, 10**6)) + bytes(80))
    with pytest.raises(ValueError, match="x is not as long as its header says"):
        npz_arrays(tmp_path / "a.npz", ["x"])


def test_objects_in_npz_files_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", images=np.array([{}], dtype=object), labels=np.arange(1))
    with pytest.raises(ValueError, match="truncated or altered"):
        npz_arrays(tmp_path / "a.npz", ["images", "labels"])


@pytest.mark.parametrize(("name", "written"), [("test_batch.bin", binary_batch), ("test_batch", python_batch)])
def test_batches_of_cifar10_return_what_was_written(standing_in, tmp_path, name, written):
    path = tmp_path / name
    path.write_bytes(written(COLOURS, CLASSES))
    images, labels = read_cifar10(tmp_path)
    assert np.array_equal(images, COLOURS)
    assert np.array_equal(labels, CLASSES)
    for damaged in (path.read_bytes()[:-1], path.read_bytes()[:3000], b""):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="truncated or altered"):
            read_cifar10(tmp_path)


def test_a_python_batch_by_todays_pickle_is_read_too(standing_in, tmp_path):
    pixels = COLOURS.transpose(0, 3, 1, 2).tobytes()
    content = {"batch_label": "testing", "labels": CLASSES.tolist(), "data": pixels, "filenames": ["a", "b", "c"]}
    (tmp_path / "test_batch").write_bytes(pickle.dumps(content))
    assert np.array_equal(read_cifar10(tmp_path)[0], COLOURS)


def test_a_pickle_is_never_executed(standing_in, tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    (tmp_path / "test_batch").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ValueError, match="Python batch of CIFAR10"):
        read_cifar10(tmp_path)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("archive", "member", "written"),
    [
        ("cifar-10-binary.tar.gz", "test_batch.bin", binary_batch),
        ("cifar-10-python.tar.gz", "test_batch", python_batch),
    ],
)
def test_batches_are_read_from_archives_without_unpacking(standing_in, tmp_path, archive, member, written):
    path = tmp_path / archive
    path.write_bytes(tar_of(**{member: written(COLOURS, CLASSES)}))
    assert np.array_equal(read_cifar10(tmp_path)[0], COLOURS)
    assert list(tmp_path.iterdir()) == [path]
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ValueError, match="intact tar file"):
        read_cifar10(tmp_path)
    path.write_bytes(tar_of(other=b""))
    with pytest.raises(ValueError, match=f"an archive with {member}"):
        read_cifar10(tmp_path)


def test_batches_of_cifar10_are_read_from_pictures(standing_in, tmp_path):
    picture, labels = tmp_path / "test_batch.png", tmp_path / "test_lables.json"
    Image.fromarray(COLOURS.reshape(3, 1024, 3)).save(picture)
    labels.write_text(json.dumps(CLASSES.tolist()))
    assert np.array_equal(read_cifar10(tmp_path)[0], COLOURS)
    labels.write_text("[3, 0")
    with pytest.raises(ValueError, match="as JSON"):
        read_cifar10(tmp_path)
    labels.write_text(json.dumps(CLASSES.tolist()))
    picture.write_bytes(picture.read_bytes()[:4000])
    with pytest.raises(ValueError, match="an intact picture"):
        read_cifar10(tmp_path)


def test_without_pillow_pictures_are_refused_with_the_way_to_get_it(tmp_path, monkeypatch):
    (tmp_path / "class").mkdir()
    (tmp_path / "class" / "1.png").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ModuleNotFoundError, match="pip install pillow"):
        datasets.image_folder(tmp_path)
