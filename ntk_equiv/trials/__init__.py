"""Trials: a planned ensemble, trained on the data of the plan, and judged beside what the plan predicted.

`train` takes a plan with its data and returns a `Trial`: what all members predict on the orbits of test samples, and
how they were trained. A trial can be printed (`table`), drawn (`figure`), written as one HTML file (`report`), and
stored in a folder with its checkpoints (`save`, `load`). `named_module` returns the networks that the command line
knows by name.
"""

from ntk_equiv.trials._train import load_plan as load_plan
from ntk_equiv.trials._train import named_module, train
from ntk_equiv.trials._trial import Trial

__all__ = ["Trial", "named_module", "train"]
