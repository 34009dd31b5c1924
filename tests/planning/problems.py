"""Two tiny problems, whose shapes are shared so that programs are compiled once."""

import dataclasses
import inspect

import numpy as np

from ntk_equiv import planning

_RNG = np.random.default_rng(0)

_points = _RNG.normal(size=(11, 2))
_norms = np.linalg.norm(_points, axis=1) ** 2 - 2
# x, y, x_test, y_test: a function of the length of vectors in the plane.
VECTORS = (_points[:8], _norms[:8], _points[8:], _norms[8:])
SETTINGS = {
    "group": "C4",
    "action": "matrix",
    "arch": "mlp:relu:1",
    "times": ["1", "10", "100", "inf"],
    "learning_rate": 0.5,
    "members": 7,
    "delta": 0.02,
    "epsilon": 0.1,
    "samples": 2000,
}

_light = np.arange(8) % 2
_images = _RNG.uniform(size=(8, 4, 4, 1)) + _light[:, None, None, None]
_names = np.array(["dark", "light"])[_light]
# The same for images, whose classes are names.
IMAGES = (_images[:5], _names[:5], _images[5:], _names[5:])


def settings(**changed):
    """The settings of `plan` with its defaults, checked."""
    defaults = {name: each.default for name, each in inspect.signature(planning.plan).parameters.items()}
    fields = [field.name for field in dataclasses.fields(planning.Settings)]
    given = {**defaults, "group": "C4", "action": "matrix", **changed}
    return planning.Settings.from_arguments(**{name: given[name] for name in fields})
