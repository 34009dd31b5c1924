"""Planned runs: the ensemble of a plan, trained on the data of the plan, and reported beside what the plan predicted.

`planning.plan` says what to expect. `train` trains that ensemble and returns a `PlannedRun`: what all members predict
on the orbits of test samples, how they were trained, and the plan. `report` writes plan and measurement side by side as
one HTML page. On the command line these are `ntk-equiv plan`, `ntk-equiv train` and `ntk-equiv report`.

A run can be printed (`table`), drawn (`figure`), stored in a folder with its checkpoints (`save`, `load`), and asked
about new samples (`predict`). `named_module` returns the networks that the command line knows by name.
"""

# Not for users but for tests: the numbers that the report shows.
from ntk_equiv.planned_runs._comparison import compare as compare
from ntk_equiv.planned_runs._module import named_module
from ntk_equiv.planned_runs._run import PlannedRun
from ntk_equiv.planned_runs._train import load_plan as load_plan
from ntk_equiv.planned_runs._train import report, train

__all__ = ["PlannedRun", "named_module", "report", "train"]
