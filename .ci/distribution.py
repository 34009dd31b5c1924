"""Do wheel and sdist contain what they should? Called by `make dist` with the folder they are in.

The wheel holds every tracked file of the package and nothing else; the sdist holds every tracked file outside
`.ci` and `.github`.
"""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path


def tracked(*places: str) -> set[str]:
    listing = subprocess.run(["git", "ls-files", *places], capture_output=True, text=True, check=True)
    return set(listing.stdout.splitlines())


def in_wheel(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as wheel:
        return {name for name in wheel.namelist() if ".dist-info/" not in name}


def in_sdist(path: Path) -> set[str]:
    with tarfile.open(path) as sdist:
        files = {member.name.split("/", 1)[1] for member in sdist.getmembers() if member.isfile()}
    return files - {"PKG-INFO"}


def main(folder: Path) -> None:
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    package = tracked("ntk_equiv")
    everything = {name for name in tracked() if not name.startswith((".ci/", ".github/"))}
    assert "ntk_equiv/py.typed" in package
    wrong = []
    for file, found, expected in ((wheel, in_wheel(wheel), package), (sdist, in_sdist(sdist), everything)):
        wrong += [f"{file.name} lacks {name}" for name in sorted(expected - found)]
        wrong += [f"{file.name} has {name}, which is not tracked" for name in sorted(found - expected)]
    sys.exit("\n".join(wrong) or None)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
