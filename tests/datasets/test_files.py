"""Reading files the tests wrote themselves, whole and damaged."""

import gzip
import hashlib
import io
import json
import pickle
import struct
import sys
import tarfile
import tracemalloc
import zipfile

import numpy as np
import pytest
from PIL import Image

from ntk_equiv import datasets
from ntk_equiv.datasets import _containers, _idx, idx_bytes, read_idx

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (4, 5, 6), np.uint8)
COLOURS = RNG.integers(0, 256, (3, 32, 32, 3), np.uint8)
CLASSES = np.array([3, 0, 9], np.uint8)


def binary_batch(images: np.ndarray, labels: np.ndarray) -> bytes:
    return b"".join(bytes([y]) + x.transpose(2, 0, 1).tobytes() for x, y in zip(images, labels, strict=True))


def python_batch(images: np.ndarray, labels: np.ndarray) -> bytes:
    """A pickle as Python 2 wrote CIFAR10's: protocol 2, an array of NumPy by its state, strings of bytes."""
    pixels = images.transpose(0, 3, 1, 2).tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x01(K\x01M\x00\x0cT" + struct.pack("<i", len(pixels)) + pixels + b"t"
    )
    numbers = b"".join(b"K" + bytes([y]) for y in labels)
    return b"\x80\x02}q\x02(U\x04data" + array + b"U\x06labels]q\x03(" + numbers + b"eU\x0bbatch_labelU\x07batch 1u."


def tar_of(**members: bytes) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(f"folder/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return content.getvalue()


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


def test_the_checksum_of_an_array_is_that_of_its_file():
    turned = COLOURS.transpose(0, 2, 1, 3)  # not in the order of memory
    assert _idx.checksum(turned) == hashlib.sha256(idx_bytes(turned)).hexdigest() != _idx.checksum(COLOURS)


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
    np.savez_compressed(tmp_path / "a.npz", images=IMAGES, labels=np.array([[1], [0], [2], [5]]))
    images, labels = _containers.read_npz(tmp_path / "a.npz", "images", "labels")
    assert np.array_equal(images, IMAGES)
    assert labels.dtype == np.uint8
    assert labels.tolist() == [1, 0, 2, 5]


def test_npz_files_that_lack_a_part_name_it(tmp_path):
    np.savez(tmp_path / "a.npz", test_images=IMAGES)
    with pytest.raises(ValueError, match="train_images and train_labels, got test_images only"):
        _containers.read_npz(tmp_path / "a.npz", "train_images", "train_labels")


@pytest.mark.parametrize("damage", [lambda b: b[:-30], lambda b: b[:200] + b"\xff\xff" + b[202:], lambda b: b"no zip"])
def test_damaged_npz_files_are_refused(tmp_path, damage):
    np.savez(tmp_path / "a.npz", images=IMAGES, labels=np.arange(4))
    (tmp_path / "a.npz").write_bytes(damage((tmp_path / "a.npz").read_bytes()))
    with pytest.raises(ValueError, match="truncated or altered"):
        _containers.read_npz(tmp_path / "a.npz", "images", "labels")


def announcing(shape: tuple[int, ...]) -> bytes:
    """The start of an array in NumPy's own format, that of so many floating-point numbers."""
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(content, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return content.getvalue()


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
    monkeypatch.setattr(_idx, "free_memory", lambda: 1e6)
    large = np.zeros((4000, 1000), np.uint8)
    np.savez_compressed(tmp_path / "a.npz", images=large, labels=np.arange(4))
    (tmp_path / "a.gz").write_bytes(gzip.compress(idx_bytes(large)))
    (tmp_path / "a.tar.gz").write_bytes(tar_of(batch=large.tobytes()))
    assert (tmp_path / "a.npz").stat().st_size < 1e5
    assert peak_of(lambda: datasets.npz_arrays(tmp_path / "a.npz", ["images"])) < 1e6
    assert peak_of(lambda: read_idx(tmp_path / "a.gz")) < 1e6
    assert peak_of(lambda: _containers.read_cifar_archive(tmp_path / "a.tar.gz", "batch")) < 1e6
    assert list(datasets.npz_arrays(tmp_path / "a.npz", ["labels"])) == ["labels"]  # the others are not asked for


def test_arrays_of_another_length_than_their_header_says_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", announcing((10**6, 10**6)) + bytes(80))
    with pytest.raises(ValueError, match="x is not as long as its header says"):
        datasets.npz_arrays(tmp_path / "a.npz", ["x"])


def test_objects_in_npz_files_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", images=np.array([{}], dtype=object), labels=np.arange(1))
    with pytest.raises(ValueError, match="truncated or altered"):
        _containers.read_npz(tmp_path / "a.npz", "images", "labels")


@pytest.mark.parametrize(
    ("read", "written"),
    [(_containers.read_cifar_binary, binary_batch), (_containers.read_cifar_python, python_batch)],
)
def test_batches_of_cifar10_return_what_was_written(tmp_path, read, written):
    paths = [tmp_path / "first", tmp_path / "second"]
    paths[0].write_bytes(written(COLOURS[:2], CLASSES[:2]))
    paths[1].write_bytes(written(COLOURS[2:], CLASSES[2:]))
    images, labels = read(*paths)
    assert np.array_equal(images, COLOURS)
    assert np.array_equal(labels, CLASSES)
    for damaged in (paths[0].read_bytes()[:-1], paths[0].read_bytes()[:3000], b""):
        paths[0].write_bytes(damaged)
        with pytest.raises(ValueError, match="truncated or altered"):
            read(*paths)


def test_a_python_batch_by_todays_pickle_is_read_too(tmp_path):
    pixels = COLOURS.transpose(0, 3, 1, 2).tobytes()
    content = {"batch_label": "testing", "labels": CLASSES.tolist(), "data": pixels, "filenames": ["a", "b", "c"]}
    (tmp_path / "test_batch").write_bytes(pickle.dumps(content))
    images, labels = _containers.read_cifar_python(tmp_path / "test_batch")
    assert np.array_equal(images, COLOURS)
    assert np.array_equal(labels, CLASSES)


def test_a_pickle_is_never_executed(tmp_path):
    class Trap:
        def __reduce__(self):
            return (open, (str(tmp_path / "sprung"), "w"))

    (tmp_path / "test_batch").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ValueError, match="Python batch of CIFAR10"):
        _containers.read_cifar_python(tmp_path / "test_batch")
    assert not (tmp_path / "sprung").exists()


def test_batches_are_read_from_archives_without_unpacking(tmp_path):
    path = tmp_path / "batches.tar.gz"
    path.write_bytes(tar_of(**{"a.bin": binary_batch(COLOURS, CLASSES), "b": python_batch(COLOURS, CLASSES)}))
    for name in ("a.bin", "b"):
        images, labels = _containers.read_cifar_archive(path, name)
        assert np.array_equal(images, COLOURS)
        assert np.array_equal(labels, CLASSES)
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(ValueError, match="an archive with c"):
        _containers.read_cifar_archive(path, "c")
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ValueError, match="intact tar file"):
        _containers.read_cifar_archive(path, "b")


def test_batches_of_cifar10_are_read_from_pictures(tmp_path):
    Image.fromarray(COLOURS.reshape(3, 1024, 3)).save(tmp_path / "batch.png")
    (tmp_path / "labels.json").write_text(json.dumps(CLASSES.tolist()))
    images, labels = _containers.read_cifar_pictures(tmp_path / "batch.png", tmp_path / "labels.json")
    assert np.array_equal(images, COLOURS)
    assert np.array_equal(labels, CLASSES)
    (tmp_path / "labels.json").write_text("[3, 0")
    with pytest.raises(ValueError, match="as JSON"):
        _containers.read_cifar_pictures(tmp_path / "batch.png", tmp_path / "labels.json")
    (tmp_path / "batch.png").write_bytes((tmp_path / "batch.png").read_bytes()[:4000])
    with pytest.raises(ValueError, match="an intact picture"):
        _containers.read_picture(tmp_path / "batch.png")


def test_without_pillow_pictures_are_refused_with_the_way_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ModuleNotFoundError, match="pip install pillow"):
        _containers.read_picture(tmp_path / "batch.png")
