"""Augmented data: every training point together with its images under the group.

From n points x_i with labels y_i, and elements g of a group,

    x_(g,i) = ρ_X(g) x_i,     y_(g,i) = ρ_Y(g) y_i,     index (g, i) ↦ g · n + i.

Acting with g on the whole set only permutes it, ρ_X(g) x_(h,i) = x_(gh,i). In code and in the paper's symbols

    train.permutation(g)          π_g,   x[π_g] = ρ_X(g) x
    train.permutation_matrix(g)   Π(g) = 1[π_g],   Π(g) Y = ρ_Y(g) Y,   so that Π(g)Π(h) = Π(hg)

`augment` makes such an `AugmentedSet`; nothing is transformed before `train.x` or `train.y` is asked for.
`augment_batches` goes through the same points in random order, a batch at a time.
"""

from ntk_equiv.orbits._augmented_set import AugmentedSet, augment
from ntk_equiv.orbits._batches import augment_batches

# For the parts above this one, not for users.
from ntk_equiv.orbits._batches import draw_elements as draw_elements
from ntk_equiv.orbits._batches import move_each as move_each
from ntk_equiv.orbits._given import samples_and_labels as samples_and_labels
from ntk_equiv.orbits._given import why_no_subgroup as why_no_subgroup
from ntk_equiv.orbits._given import with_channel_axis as with_channel_axis

__all__ = ["AugmentedSet", "augment", "augment_batches"]
