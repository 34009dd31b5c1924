"""Data: the problems and image sets on which the paper's claims are tried.

Each set is a `LabelledSet`: points, labels and how the symmetry acts on both, in the order that `augment(*data)` takes.

Made from a random key: `ising`, spins on a lattice with their local energies (`local_energies`, `total_energy`, and
`ising_std`, their exact standard deviations); `cross_product`, pairs of vectors; `noise_images`, which have no labels.
The first two come as a training, a test and an out-of-distribution set.

Read from files: `fashion_mnist`, `mnist`, `cifar10`, `pathmnist`, `nct_crc_he`, with the names of their classes in
`CLASS_NAMES`. Nothing is downloaded. Files are looked for in the folder `data_dir`, in those of the environment
variable `NTK_EQUIV_DATA`, and in /usr/share/datasets, where Debian's dataset-fashion-mnist puts them. What is found is
compared with known checksums, and refused if truncated or altered; what is not found is named, with a way to get it.
Your own files are read by `read_idx` (written by `idx_bytes`), `npz_arrays` and `image_folder`.
"""

from ntk_equiv.datasets._containers import npz_arrays
from ntk_equiv.datasets._cross_product import cross_product
from ntk_equiv.datasets._folders import image_folder, nct_crc_he
from ntk_equiv.datasets._idx import idx_bytes, read_idx
from ntk_equiv.datasets._image_sets import CLASS_NAMES, cifar10, fashion_mnist, mnist, pathmnist
from ntk_equiv.datasets._ising import IsingData, IsingStd, ising, ising_std, local_energies, total_energy
from ntk_equiv.datasets._pixels import noise_images
from ntk_equiv.datasets._records import LabelledSet, Splits

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
