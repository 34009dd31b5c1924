"""Tiles on disk: what was written is read, what is damaged is noticed, and a killed process leaves only whole tiles."""

import errno
import json
import mmap
import os
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ntk_equiv import _tile_folder
from ntk_equiv._tile_folder import TileFolder, check_disk

ROOT = Path(__file__).parents[1]
IDENTITY = {"format": 1, "kernel": "5f3a", "data": "77c0", "tile": 4}
NAME = "tile-00000-00001"
NUMBERS = np.random.default_rng(0).normal(size=(30, 17))

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals, and files that are removed while they are mapped")

# What programs share that write in other processes. A tile's content follows from its number, so it can be checked.
WRITERS = """
import os, platform, signal, sys, time
from pathlib import Path
import numpy as np
from ntk_equiv._tile_folder import TileFolder
path, about = sys.argv[1], {"format": 1, "kernel": "5f3a", "data": "77c0", "tile": 4}

def tile(number):
    return {"ntk": np.arange(number, number + 62_500.0).reshape(250, 250), "sums": np.full(3, number, np.float32)}

def fork(task):
    process = os.fork()
    if process == 0:
        try:
            task()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    return process
"""


def run(program, path):
    """Run a program in a process that may fork and be killed, as the one of the tests may not."""
    command = [sys.executable, "-W", "ignore", "-c", WRITERS + program, str(path)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


def assert_right(arrays, number):
    """The arrays are those of the function `tile` above."""
    assert list(arrays) == ["ntk", "sums"]
    np.testing.assert_array_equal(arrays["ntk"], np.arange(number, number + 62_500.0).reshape(250, 250))
    np.testing.assert_array_equal(arrays["sums"], np.full(3, number, np.float32))


def fail_with(code):
    """A function to take the place of one of the system, where it fails."""

    def fail(*args):
        raise OSError(code, os.strerror(code))

    return fail


def unfinished(path):
    return sorted(file.name for file in path.iterdir() if file.name.startswith(".unfinished"))


@pytest.fixture
def folder(tmp_path):
    return TileFolder.open(tmp_path / "parent" / "gram", IDENTITY)


@pytest.fixture
def file(folder):
    """The file of a finished tile."""
    folder.write(NAME, {"0": NUMBERS, "sums": NUMBERS.sum(0)})
    return folder.path / f"{NAME}.tile"


@pytest.mark.parametrize(
    "array",
    [
        NUMBERS,
        NUMBERS.astype(np.float32),
        NUMBERS.astype(np.float16),
        NUMBERS.astype(">f8"),
        NUMBERS + 1j,
        (NUMBERS * 1j).astype(np.complex64),
        np.asfortranarray(NUMBERS),
        NUMBERS[::-3, ::2],
        np.arange(5),
        NUMBERS > 0,
        np.array(2.5),
        np.zeros((0, 3), np.float32),
        np.zeros((2, 0)),
        np.array([np.nan, -0.0, np.inf]),
    ],
    ids=lambda array: f"{array.dtype.str}{list(array.shape)}",
)
def test_arrays_come_back_to_the_bit(folder, array):
    folder.write(NAME, {"first": NUMBERS[0], "array": array, "last": NUMBERS[1]})
    arrays = folder.read(NAME)
    assert list(arrays) == ["first", "array", "last"]
    assert (arrays["array"].dtype, arrays["array"].shape) == (array.dtype, array.shape)
    assert arrays["array"].tobytes() == array.tobytes()
    np.testing.assert_array_equal(arrays["first"], NUMBERS[0])
    np.testing.assert_array_equal(arrays["last"], NUMBERS[1])


def test_tiles_may_hold_nothing_or_zero_size_arrays_alone(folder):
    folder.write("nothing", {})
    folder.write("empty", {"0": np.zeros((0, 2))})
    assert folder.read("nothing") == {}
    assert folder.read("empty")["0"].shape == (0, 2)
    assert folder.damaged == []


def test_arrays_are_mapped_aligned_and_read_only(folder):
    folder.write(NAME, {"0": NUMBERS, "1": np.array(1.5), "2": NUMBERS})
    for array in folder.read(NAME).values():
        assert isinstance(array.base, mmap.mmap)
        assert array.ctypes.data % 64 == 0
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0.0


def test_absent_tiles_are_none_and_finished_ones_have_names(folder):
    assert folder.read(NAME) is None
    assert folder.names() == set()
    folder.write(NAME, {"0": NUMBERS})
    folder.write("tile.2", {"0": NUMBERS})
    assert folder.names() == {NAME, "tile.2"}
    assert folder.damaged == []


def test_a_tile_that_is_replaced_stays_readable_where_it_is_mapped(folder, file):
    before = folder.read(NAME)["0"]
    TileFolder.open(folder.path, IDENTITY).write(NAME, {"0": NUMBERS + 1})
    np.testing.assert_array_equal(before, NUMBERS)
    np.testing.assert_array_equal(folder.read(NAME)["0"], NUMBERS + 1)


def flip(place):
    """Damage that flips one bit of the byte at `place`."""

    def damage(content):
        changed = bytearray(content)
        changed[place] ^= 1
        return bytes(changed)

    return damage


DAMAGES = {
    "empty file": lambda content: b"",
    "half a prefix": lambda content: content[:7],
    "half a header": lambda content: content[:40],
    "without data": lambda content: content[: -(NUMBERS.nbytes + 2 * 64)],
    "last byte missing": lambda content: content[:-1],
    "a byte too many": lambda content: content + b"\0",
    "magic": flip(0),
    "length of the header": flip(8),
    "checksum of the header": flip(12),
    "header": flip(30),
    "first array": flip(2000),
    "last array": flip(-100),
    "padding at the end": flip(-1),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_tile_is_removed_and_can_be_written_again(folder, file, damage):
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    assert file.read_bytes() != whole
    assert folder.read(NAME) is None
    assert folder.damaged == [NAME]
    assert folder.names() == set()
    folder.write(NAME, {"0": NUMBERS})
    np.testing.assert_array_equal(folder.read(NAME)["0"], NUMBERS)
    assert folder.damaged == [NAME]


def test_every_byte_of_a_tile_is_guarded(folder):
    folder.write(NAME, {"0": np.arange(3.0)})
    file = folder.path / f"{NAME}.tile"
    whole = file.read_bytes()
    for place in range(len(whole)):
        file.write_bytes(flip(place)(whole))
        assert folder.read(NAME) is None, place
    file.write_bytes(whole)
    np.testing.assert_array_equal(folder.read(NAME)["0"], np.arange(3.0))


def test_a_tile_under_the_name_of_another_is_damaged(folder, file):
    file.rename(folder.path / "other.tile")
    assert folder.read("other") is None
    assert folder.damaged == ["other"]


def test_checksums_are_compared_once_for_each_file(folder, file, monkeypatch):
    compared = []
    checksum_from = _tile_folder._checksum_from
    monkeypatch.setattr(_tile_folder, "_checksum_from", lambda *args: compared.append(1) or checksum_from(*args))
    for _ in range(3):
        folder.read(NAME)
    assert len(compared) == 1
    TileFolder.open(folder.path, IDENTITY).write(NAME, {"0": NUMBERS})
    folder.read(NAME)
    assert len(compared) == 2


def test_a_tile_that_is_damaged_after_it_was_read_is_noticed(folder, file):
    assert folder.read(NAME) is not None
    file.write_bytes(flip(2000)(file.read_bytes()))
    os.utime(file, (0, 0))  # clocks of file systems are coarse
    assert folder.read(NAME) is None


def test_a_tile_that_is_cut_off_unnoticed_by_the_clock_is_damaged(folder, file):
    assert folder.read(NAME) is not None
    status = file.stat()
    os.truncate(file, 2000)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert folder.read(NAME) is None
    assert folder.damaged == [NAME]


def test_no_memory_is_taken_for_a_header_of_damaged_length(folder, file):
    content = file.read_bytes()
    file.write_bytes(content[:8] + b"\xff" * 4 + content[12:])
    tracemalloc.start()
    try:
        assert folder.read(NAME) is None
        assert tracemalloc.get_traced_memory()[1] < 1e6
    finally:
        tracemalloc.stop()


def test_a_relative_path_stays_where_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = TileFolder.open("gram", IDENTITY)
    monkeypatch.chdir("/")
    folder.write(NAME, {"0": NUMBERS})
    assert (tmp_path / "gram" / f"{NAME}.tile").exists()


def test_a_folder_is_opened_again_with_the_same_identity(folder, file):
    about = {"tile": 4, "format": 1, "kernel": "5f3a", "data": "77c0"}
    np.testing.assert_array_equal(TileFolder.open(str(folder.path), about).read(NAME)["0"], NUMBERS)
    assert json.loads((folder.path / "about.json").read_text()) == IDENTITY


def test_identities_are_compared_as_json(tmp_path):
    about = {"shape": (2, 3), "rate": float("nan"), "nested": {"b": 1, "a": None}}
    TileFolder.open(tmp_path / "gram", about)
    TileFolder.open(tmp_path / "gram", {**about, "nested": {"a": None, "b": 1}})
    with pytest.raises(ValueError, match="nested = "):
        TileFolder.open(tmp_path / "gram", {**about, "nested": {"a": None, "b": True}})
    with pytest.raises(TypeError, match=r"`about` must be entries that JSON can hold.*float32"):
        TileFolder.open(tmp_path / "other", {"scale": np.float32(1)})
    assert not (tmp_path / "other").exists()


def test_a_folder_of_other_tiles_is_refused_entry_by_entry(folder, file):
    about = {"format": 1, "kernel": "0000", "tile": 8, "version": "0.1.0"}
    with pytest.raises(ValueError, match="`store` must be a folder of tiles of the same matrix") as caught:
        TileFolder.open(folder.path, about, argument="store")
    message = str(caught.value)
    assert 'kernel = "5f3a" where "0000" was expected' in message
    assert 'data = "77c0" where nothing was expected' in message
    assert "tile = 4 where 8 was expected" in message
    assert 'version = nothing where "0.1.0" was expected' in message
    assert "format" not in message.replace(str(folder.path), "")
    assert "Name another folder, or remove this one" in message
    assert caught.value.argument == "store"
    assert folder.read(NAME) is not None


@pytest.mark.parametrize("text", ["", '{"format": 1', "[1, 2]", b"\xff\xfe"])
def test_an_unreadable_description_is_refused(folder, file, text):
    (folder.path / "about.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=r"with about\.json, got .* cannot be read: .*remove the folder"):
        TileFolder.open(folder.path, IDENTITY)
    assert file.exists()


def test_a_folder_with_other_files_is_refused(tmp_path):
    for number in range(4):
        (tmp_path / f"notes-{number}.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"notes-0\.txt, notes-1\.txt, notes-2\.txt and more\. Name another"):
        TileFolder.open(tmp_path, IDENTITY)
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize("below", ["", "gram"])
def test_a_file_in_place_of_a_folder_is_refused(tmp_path, below):
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(NotADirectoryError, match=r"`path` must be a folder, got .* is a file"):
        TileFolder.open(tmp_path / "notes" / below, IDENTITY)
    assert (tmp_path / "notes").read_text() == "mine"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "a\\b", "../a", ".hidden", "a\n", "a\0", "x" * 201])
def test_bad_names_are_refused(folder, name):
    with pytest.raises(ValueError, match="`name` must be up to 200 letters"):
        folder.write(name, {"0": NUMBERS})
    with pytest.raises(ValueError, match="`name` must be up to 200 letters"):
        folder.read(name)
    assert [file.name for file in folder.path.iterdir()] == ["about.json"]


@pytest.mark.parametrize("dtype", [object, "U3", "M8[s]", [("a", "f4")], "bfloat16", "float8_e5m2"])
def test_arrays_of_other_things_than_numbers_are_refused(folder, dtype):
    array = np.zeros(2, getattr(ml_dtypes, dtype, dtype) if isinstance(dtype, str) else dtype)
    with pytest.raises(TypeError, match=r"`arrays` must be numbers of NumPy's own dtypes, got .* in 'sums'"):
        folder.write(NAME, {"0": NUMBERS, "sums": array})
    assert folder.names() == set()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_keeps_finished_tiles(folder, file, monkeypatch, code):
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail_with(code))
        with pytest.raises(OSError, match=r"on a disk with room for the tile second of \d\.\d+ kB") as caught:
            folder.write("second", {"0": NUMBERS})
    assert f"({os.strerror(code)}). 1 finished tiles are kept. Make room, and the same call" in str(caught.value)
    assert caught.value.argument == "path"
    assert sorted(os.listdir(folder.path)) == ["about.json", file.name]
    folder.write("second", {"0": NUMBERS})
    np.testing.assert_array_equal(folder.read("second")["0"], NUMBERS)


def test_other_errors_are_passed_on_and_leave_nothing(folder, file, monkeypatch):
    monkeypatch.setattr(os, "fsync", fail_with(errno.EIO))
    with pytest.raises(OSError, match=r"^\[Errno \d+\] Input/output error$"):
        folder.write("second", {"0": NUMBERS})
    assert sorted(os.listdir(folder.path)) == ["about.json", file.name]


def test_a_real_limit_stops_a_tile_halfway(tmp_path):
    """The system itself cuts the file off in the middle of the tile."""
    program = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (2**18, resource.RLIM_INFINITY))
folder = TileFolder.open(path, about)
folder.write("small", {"0": np.arange(9.0)})
try:
    folder.write("large", tile(0))
except OSError as error:
    assert "room for the tile large of 500 kB" in str(error) and "1 finished tiles are kept" in str(error), error
    print(*sorted(os.listdir(path)))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
folder.write("large", tile(0))
"""
    assert run(program, tmp_path / "gram") == ["about.json", "small.tile"]
    folder = TileFolder.open(tmp_path / "gram", IDENTITY)
    np.testing.assert_array_equal(folder.read("small")["0"], np.arange(9.0))
    assert_right(folder.read("large"), 0)


def test_a_killed_process_leaves_whole_tiles_alone(tmp_path):
    """One process after another is killed at a random moment, and the last one while its file is unfinished."""
    program = """
import random
TileFolder.open(path, about)

def write_on(first):
    folder = TileFolder(Path(path))  # not opened, which would remove what the one before left
    for number in range(first, first + 1000):
        folder.write(f"tile-{number:05d}", tile(number))

for first in range(0, 12_000, 1000):
    process = fork(lambda: write_on(first))
    while not os.path.exists(f"{path}/tile-{first:05d}.tile"):
        time.sleep(0.001)
    time.sleep(random.uniform(0.0, 0.03))
    os.kill(process, signal.SIGKILL)
    assert os.waitpid(process, 0)[1] == signal.SIGKILL
os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
assert os.waitpid(fork(lambda: write_on(90_000)), 0)[1] == signal.SIGKILL
"""
    run(program, tmp_path)
    assert unfinished(tmp_path)
    folder = TileFolder.open(tmp_path, IDENTITY)
    assert unfinished(tmp_path) == []
    names = folder.names()
    assert len(names) >= 12
    for name in names:
        assert_right(folder.read(name), int(name.removeprefix("tile-")))
    assert folder.damaged == []
    assert "tile-90000" not in names


def test_unfinished_files_of_a_living_process_stay(tmp_path):
    program = """
folder, fsync = TileFolder.open(path, about), os.fsync
os.fsync = lambda descriptor: (fsync(descriptor), os.kill(os.getpid(), signal.SIGSTOP))
process = fork(lambda: folder.write("tile-00007", tile(7)))
os.waitpid(process, os.WUNTRACED)
TileFolder.open(path, about)
print(sum(name.startswith(".unfinished") for name in os.listdir(path)), len(folder.names()))
os.kill(process, signal.SIGCONT)
print(os.waitpid(process, 0)[1])
"""
    assert run(program, tmp_path) == ["1", "0", "0"]
    assert_right(TileFolder.open(tmp_path, IDENTITY).read("tile-00007"), 7)
    assert unfinished(tmp_path) == []


def test_unfinished_files_of_other_computers_stay_for_a_day(tmp_path):
    program = """
folder = TileFolder.open(path, about)
platform.node = lambda: "far-away.example"
os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(fork(lambda: folder.write("tile-00007", tile(7))), 0)
"""
    run(program, tmp_path)
    (name,) = unfinished(tmp_path)
    TileFolder.open(tmp_path, IDENTITY)
    assert unfinished(tmp_path) == [name]
    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(tmp_path / name, (two_days_ago, two_days_ago))
    TileFolder.open(tmp_path, IDENTITY)
    assert unfinished(tmp_path) == []


def test_processes_share_a_folder(tmp_path):
    """Three processes make the folder, and each reads and writes all tiles, in another order."""
    program = """
def work(seed):
    folder = TileFolder.open(path, about)
    for number in np.random.default_rng(seed).permutation(12).tolist():
        folder.write(f"tile-{number:05d}", tile(number))
        for name in folder.names():
            assert folder.read(name)["sums"][0] == int(name[-5:]), name
    assert not folder.damaged, folder.damaged

processes = [fork(lambda seed=seed: work(seed)) for seed in range(3)]
print(*(os.waitpid(process, 0)[1] for process in processes))
"""
    assert run(program, tmp_path / "gram") == ["0", "0", "0"]
    folder = TileFolder.open(tmp_path / "gram", IDENTITY)
    assert folder.names() == {f"tile-{number:05d}" for number in range(12)}
    for number in range(12):
        assert_right(folder.read(f"tile-{number:05d}"), number)


def test_of_two_identities_the_first_one_stays(tmp_path, monkeypatch):
    """Another process makes the folder just before this one would."""
    publish = _tile_folder._publish_unless_there

    def be_late(unfinished, file):
        monkeypatch.setattr(_tile_folder, "_publish_unless_there", publish)
        TileFolder.open(tmp_path, IDENTITY)
        publish(unfinished, file)

    monkeypatch.setattr(_tile_folder, "_publish_unless_there", be_late)
    with pytest.raises(ValueError, match="tile = 4 where 5 was expected"):
        TileFolder.open(tmp_path, {**IDENTITY, "tile": 5})
    assert os.listdir(tmp_path) == ["about.json"]


def test_drives_without_hard_links_will_do(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", fail_with(errno.EOPNOTSUPP))
    TileFolder.open(tmp_path, IDENTITY).write(NAME, {"0": NUMBERS})
    assert sorted(os.listdir(tmp_path)) == ["about.json", f"{NAME}.tile"]


def test_tiles_have_the_permissions_of_other_files(folder, file):
    """Those who share a folder read each other's tiles, unlike files of `tempfile`."""
    (folder.path.parent / "ordinary").write_text("")
    assert file.stat().st_mode == (folder.path.parent / "ordinary").stat().st_mode


def test_what_does_not_fit_on_the_disk_is_refused(tmp_path):
    place = tmp_path / "not" / "there" / "yet"
    check_disk(place, 1, "folder", what="a matrix", fix="Take fewer samples.")
    with pytest.raises(ValueError, match=r"a matrix of 1\.15 EB where .* are free\. Take fewer") as caught:
        check_disk(place, 2**60, "folder", what="a matrix", fix="Take fewer samples.")
    assert caught.value.argument == "folder"
    assert not place.parent.exists()


def test_the_disk_that_counts_is_that_of_the_nearest_folder(tmp_path, monkeypatch):
    asked = []
    disk_usage = _tile_folder.shutil.disk_usage
    monkeypatch.setattr(_tile_folder.shutil, "disk_usage", lambda path: asked.append(path) or disk_usage(path))
    monkeypatch.chdir(tmp_path)
    check_disk("a/b", 1, "folder", what="a matrix", fix="")
    check_disk(tmp_path, 1, "folder", what="a matrix", fix="")
    assert asked == [tmp_path, tmp_path]
