"""The table of cases that the laws are tested on: groups, and representations of them with data to act on.

Laws run over every row; a new group or representation is tested by adding it here.
"""

from ntk_equiv import groups

GROUPS = {
    "trivial": groups.trivial(),
    "C3": groups.cyclic(3),
    "C4": groups.cyclic(4),
    "klein": groups.klein(),
    "C2xC4": groups.product(groups.cyclic(2), groups.cyclic(4)),
    "D4": groups.dihedral(4),
    "Q8": groups.quaternion(),
    "S4": groups.symmetric(4),
    "A5": groups.alternating(5),
    "T": groups.polyhedral("T"),
    "O": groups.polyhedral("O"),
    "I": groups.polyhedral("I"),
    "Q8xC3": groups.product(groups.quaternion(), groups.cyclic(3)),
    "signed permutations": groups.from_matrices([[[0, 1], [1, 0]], [[-1, 0], [0, 1]]]),
}
NON_ABELIAN = [name for name, group in GROUPS.items() if not group.is_abelian]
