"""The known image sets, by checksum.

Arrays are checked rather than files, because the same images come in many kinds of files: the sha256 is that of the
images, or labels, in IDX form, see `_idx`. For MNIST and FashionMNIST this is that of the decompressed original files.
Where only a checksum of a whole file is published, the file is checked.
"""

import hashlib
from pathlib import Path

from ntk_equiv.datasets._containers import Arrays
from ntk_equiv.datasets._idx import checksum, damaged

ARRAYS = {
    "FashionMNIST": {
        "train": (
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        ),
        "test": (
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
    },
    "MNIST": {
        "train": (
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        ),
        "test": (
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        ),
    },
    "CIFAR10": {
        "train": (
            "51c15db370c309e9aa60cf71f835f2ba0f430ea3653f7512d833c9a8e90e0d65",
            "1a4c5fb4e1cab2caa8eee134c093de84d620899e907756e71736fb7b0d4ab554",
        ),
        "test": (
            "fc19aa23c64482c6def2138377986c67b6b3a50f8e8c4c6a759b296dc751fa64",
            "987e01129ceec0098f1e9d9404cff9fa82ad3d15383a61e8ec60ff20ffe6db40",
        ),
    },
}

FILES = {
    "pathmnist.npz": ("md5", "a8b06965200029087d5bd730944a56c1"),  # as published by MedMNIST, which gives no other
    "pathmnist_test_partial.npz": ("sha256", "c322f40c2c00fe56adb2f9e688717896661afb888192ca503d9235b3d2356687"),
}

# The images of each class in NCT-CRC-HE-100K, whose files have no published checksums of their own.
COUNTS = {
    "NCT-CRC-HE-100K": {
        "ADI": 10407,
        "BACK": 10566,
        "DEB": 11512,
        "LYM": 11557,
        "MUC": 8896,
        "MUS": 13536,
        "NORM": 8763,
        "STR": 10446,
        "TUM": 14317,
    }
}


def known_as(arrays: Arrays) -> tuple[str, str] | None:
    """Which set and which part of it these images and labels are, exactly; None for any others."""
    found = tuple(map(checksum, arrays))
    places = ((name, part, sums) for name, parts in ARRAYS.items() for part, sums in parts.items())
    return next(((name, part) for name, part, sums in places if sums == found), None)


def check_file(path: Path) -> Path:
    """The file, if it is the one its name promises."""
    kind, expected = FILES[path.name]
    with path.open("rb") as content:
        found = hashlib.file_digest(content, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()
    if found != expected:
        raise damaged(path, f"the file with {kind} {expected}", f"one with {found}")
    return path


def altered(paths: list[Path], name: str, part: str, arrays: Arrays) -> Exception:
    """The refusal of files that hold something else than they should; names the one that is wrong."""
    expected, found = ARRAYS[name][part], tuple(map(checksum, arrays))
    wrong = next(i for i in (0, 1) if expected[i] != found[i])
    what = ("images", "labels")[wrong]
    path = paths[wrong] if len(paths) == 2 else paths[0].parent if len(paths) > 2 else paths[0]
    got = f"{what} of shape {arrays[wrong].shape} with sha256 {found[wrong]}"
    return damaged(path, f"the {what} of {name} ({part}) with sha256 {expected[wrong]}", got)
