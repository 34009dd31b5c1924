"""How far given arrays are from being all irreps of a group, computed from the definitions alone."""

import numpy as np

from ntk_equiv.groups import FiniteGroup


def error_of_irreps(group: FiniteGroup, irreps: list[np.ndarray]) -> float:
    """The largest violation of σ(g)σ(h) = σ(gh), or of the orthonormality of the functions √(d/N)·σ_ab on the group.

    It is infinite if there are not N of these functions, so that some irreps are missing.
    """
    products = max(np.abs(np.einsum("gij,hjk->ghik", sigma, sigma) - sigma[group.table]).max() for sigma in irreps)
    scaled = [np.sqrt(sigma.shape[1] / group.order) * sigma.reshape(group.order, -1) for sigma in irreps]
    basis = np.concatenate(scaled, axis=1)
    if basis.shape[1] != group.order:
        return np.inf
    return float(max(products, np.abs(basis.conj().T @ basis - np.eye(group.order)).max()))
