"""Laws of every finite group in the table."""

import numpy as np
import pytest

from tests.cases import GROUPS, NON_ABELIAN

every_group = pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)


def test_the_table_of_cases_is_large_enough() -> None:
    assert len(GROUPS) >= 8
    assert len(NON_ABELIAN) >= 4


@every_group
def test_group_axioms(group) -> None:
    everything = np.arange(group.order)
    table, e = group.table, group.identity
    np.testing.assert_array_equal(table[e], everything)
    np.testing.assert_array_equal(table[:, e], everything)
    np.testing.assert_array_equal(table[everything, group.inverse], e)
    np.testing.assert_array_equal(table[group.inverse, everything], e)
    np.testing.assert_array_equal(table[table], table[:, table])  # (ab)c == a(bc), all triples


@every_group
def test_irreps_are_unitary_homomorphisms(group) -> None:
    for sigma in group.irreps():
        products = np.einsum("gij,hjk->ghik", sigma, sigma)
        np.testing.assert_allclose(products, sigma[group.table], atol=2e-14)
        np.testing.assert_allclose(sigma[group.inverse], sigma.conj().transpose(0, 2, 1), atol=2e-14)


@every_group
def test_schur_orthogonality_and_completeness(group) -> None:
    irreps = group.irreps()
    assert sum(sigma.shape[1] ** 2 for sigma in irreps) == group.order
    for i, sigma in enumerate(irreps):
        for j, tau in enumerate(irreps):
            overlaps = np.einsum("gab,gcd->abcd", sigma.conj(), tau) / group.order
            d = sigma.shape[1]
            expected = np.einsum("ac,bd->abcd", np.eye(d), np.eye(d)) / d if i == j else np.zeros_like(overlaps)
            np.testing.assert_allclose(overlaps, expected, atol=1e-14)


@every_group
def test_irreps_are_ordered_and_typed(group) -> None:
    irreps, kinds = group.irreps(), group.irrep_types()
    dimensions = [sigma.shape[1] for sigma in irreps]
    assert dimensions == sorted(dimensions)
    np.testing.assert_array_equal(irreps[0], 1)
    for i, (sigma, kind) in enumerate(zip(irreps, kinds, strict=True)):
        assert np.isrealobj(sigma) == (kind.indicator == 1)
        assert (kind.conjugate == i) == (kind.indicator != 0)
        if kind.indicator == 0:
            assert abs(kind.conjugate - i) == 1
            np.testing.assert_array_equal(irreps[kind.conjugate], sigma.conj())


@every_group
def test_frobenius_schur_count_of_involutions(group) -> None:
    involutions = sum(order <= 2 for order in group.element_orders)
    pairs = zip(group.irreps(), group.irrep_types(), strict=True)
    assert involutions == sum(kind.indicator * sigma.shape[1] for sigma, kind in pairs)


@every_group
def test_there_are_as_many_irreps_as_classes(group) -> None:
    classes = group.conjugacy_classes()
    assert sorted(g for members in classes for g in members) == list(range(group.order))
    assert group.characters().shape == (len(classes), len(classes))
    assert group.is_abelian == (len(classes) == group.order)


@every_group
def test_cyclic_subgroups_are_subgroups(group) -> None:
    for small in group.cyclic_subgroups():
        embedding = np.array(small.embedding)
        assert group.order % small.group.order == 0
        assert small.group.order in small.group.element_orders
        np.testing.assert_array_equal(embedding[small.group.table], group.table[np.ix_(embedding, embedding)])


@pytest.mark.parametrize("name", [name for name, group in GROUPS.items() if group.matrices is not None])
def test_matrices_multiply_as_the_table(name) -> None:
    group = GROUPS[name]
    products = np.einsum("gij,hjk->ghik", group.matrices, group.matrices)
    np.testing.assert_allclose(products, group.matrices[group.table], atol=1e-14)
