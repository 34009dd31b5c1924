"""Data: the problems and image sets on which the paper's claims are tried.

Each set is a `LabelledSet`: samples, labels and how the symmetry acts on both, in the order of the arguments of
`augment`.

Made from a random key: `ising`, spins on a lattice with their local energies (`local_energies`, `total_energy`, and
`ising_std`, their exact standard deviations); `cross_product`, pairs of vectors; `noise_images`, which have no labels.
The first two come as a training, a test and an out-of-distribution set.

Read from files: `fashion_mnist`, `mnist`, `cifar10`, `pathmnist`, `nct_crc_he`, with the names of their classes in
`CLASS_NAMES`. Nothing is downloaded. Files are looked for in the folder `data_dir`, in the folders of the environment
variable `NTK_EQUIV_DATA`, and in /usr/share/datasets, where Debian's dataset-fashion-mnist puts them. Files are
compared with known checksums, and refused if they are truncated or altered. If data are missing, the error says how to
get them. Your own files are read by `read_idx` (written by `idx_bytes`), `npz_arrays` and `image_folder`,
whose order `image_files` lists.
"""

from ntk_equiv.datasets._cross_product import cross_product
from ntk_equiv.datasets._file_formats import idx_bytes, npz_arrays, read_idx

# Not for users but for tests, which put their own small sets in the place of the real ones.
from ntk_equiv.datasets._image_sets import CHECKSUMS as CHECKSUMS
from ntk_equiv.datasets._image_sets import CLASS_NAMES, cifar10, fashion_mnist, mnist, nct_crc_he, pathmnist
from ntk_equiv.datasets._image_sets import FILE_CHECKSUMS as FILE_CHECKSUMS
from ntk_equiv.datasets._image_sets import PICTURE_COUNTS as PICTURE_COUNTS
from ntk_equiv.datasets._image_sets import SYSTEM_FOLDERS as SYSTEM_FOLDERS
from ntk_equiv.datasets._images import image_files, image_folder, noise_images
from ntk_equiv.datasets._ising import IsingData, IsingStd, ising, ising_std, local_energies, total_energy
from ntk_equiv.datasets._labelled_set import LabelledSet, Splits

__all__ = [
    "CLASS_NAMES",
    "IsingData",
    "IsingStd",
    "LabelledSet",
    "Splits",
    "cifar10",
    "cross_product",
    "fashion_mnist",
    "idx_bytes",
    "image_files",
    "image_folder",
    "ising",
    "ising_std",
    "local_energies",
    "mnist",
    "nct_crc_he",
    "noise_images",
    "npz_arrays",
    "pathmnist",
    "read_idx",
    "total_energy",
]
