"""Planning an ensemble for data of your own: how many members, how long to train, how large an error, on which inputs.

`plan` takes samples, labels, a symmetry and an architecture, fits the infinite ensemble and returns a `Plan`: expected
`Errors` over training time, the members `Needed`, how invariance grows with members (`OrbitCurve`), what is known about
each of the test `Points`, and for classes the `Accuracy`. A plan is printed (`table`), drawn (`figure`), written as one
HTML file (`report`) or as JSON (`save`, `load`), or all of it into one folder (`write`, with `checked_folder` to know
beforehand that this will do). `versions` are those of the software that made it.

Groups, actions, networks and times have names, as on the command line: `named_group`, `named_action`, `named_network`,
`named_times`. Objects from `groups`, `reps` and `stax` are taken as well.
"""

from ntk_equiv.planning._actions import named_action
from ntk_equiv.planning._architectures import named_network
from ntk_equiv.planning._compute import plan, versions
from ntk_equiv.planning._files import checked_folder
from ntk_equiv.planning._groups import named_group
from ntk_equiv.planning._plan import Plan
from ntk_equiv.planning._records import Accuracy, Errors, Needed, OrbitCurve, Points
from ntk_equiv.planning._times import named_times

__all__ = [
    "Accuracy",
    "Errors",
    "Needed",
    "OrbitCurve",
    "Plan",
    "Points",
    "checked_folder",
    "named_action",
    "named_group",
    "named_network",
    "named_times",
    "plan",
    "versions",
]
