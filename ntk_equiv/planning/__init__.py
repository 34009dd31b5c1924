"""Planning an ensemble for data of your own: how many members, how long to train, how large an error, on which inputs.

`plan` takes samples, labels, a symmetry and an architecture, fits the infinite ensemble and returns a `Plan`: expected
`Errors` over training time, the members `Needed`, how invariance grows with members (`OrbitCurve`), what is known about
each of the test `Points`, for classes the `Accuracy` and the `Calibration` of probabilities, and for a network with a
given `Width` whether that is enough. A plan can be printed
(`table`), drawn (`figure`), written as one HTML file (`report`) or as JSON (`save`, `load`), or all of these into one
folder (`write`; `checked_folder` tells beforehand whether that will work). `versions` are those of the software that
made it.

Groups, actions, networks and times have names, as on the command line: `named_group`, `named_action`, `named_network`,
`named_times`. Objects from `groups`, `reps` and `stax` work as well.
"""

# Not for users but for the tests of this part, for the command line, and for `planned_runs`, which prepares data in the
# same way and whose report has the same form.
from ntk_equiv.planning._compute import choose_actions as choose_actions
from ntk_equiv.planning._compute import plan, versions
from ntk_equiv.planning._cost import Budget as Budget
from ntk_equiv.planning._cost import Clock as Clock
from ntk_equiv.planning._cost import Cost as Cost
from ntk_equiv.planning._cost import measure_cost as measure_cost
from ntk_equiv.planning._names import ACTIONS as ACTIONS
from ntk_equiv.planning._names import ACTIVATIONS as ACTIVATIONS
from ntk_equiv.planning._names import acts_on_images as acts_on_images
from ntk_equiv.planning._names import named_action, named_group, named_network, named_times
from ntk_equiv.planning._plan import (
    Accuracy,
    Calibration,
    Errors,
    Needed,
    OrbitCurve,
    Plan,
    Points,
    Width,
    checked_folder,
)
from ntk_equiv.planning._problem import Settings as Settings
from ntk_equiv.planning._problem import checksum_of_data as checksum_of_data
from ntk_equiv.planning._problem import plain_value as plain_value
from ntk_equiv.planning._problem import prepare_problem as prepare_problem
from ntk_equiv.planning._problem import prepare_samples as prepare_samples
from ntk_equiv.planning._report import page_html as page_html
from ntk_equiv.planning._report import thumbnails as thumbnails
from ntk_equiv.planning._text import Section as Section
from ntk_equiv.planning._text import format_members as format_members
from ntk_equiv.planning._text import format_number as format_number
from ntk_equiv.planning._text import format_with_error as format_with_error
from ntk_equiv.planning._text import sections_text as sections_text

__all__ = [
    "Accuracy",
    "Calibration",
    "Errors",
    "Needed",
    "OrbitCurve",
    "Plan",
    "Points",
    "Width",
    "checked_folder",
    "named_action",
    "named_group",
    "named_network",
    "named_times",
    "plan",
    "versions",
]
