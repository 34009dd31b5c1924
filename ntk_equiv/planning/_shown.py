"""Numbers as they are shown to people."""

import math
from typing import Any


def number(value: Any, /) -> str:
    """A number to three digits; ∞, and a dash for what is not one.

    >>> number(1234.5), number(float("inf")), number(float("nan"))
    ('1.23e+03', '∞', '–')
    """
    value = float(value)
    if math.isnan(value):
        return "–"
    return ("∞" if value > 0 else "−∞") if math.isinf(value) else f"{value:.3g}"


def of_members(count: int, /) -> str:
    """An ensemble by its size.

    >>> of_members(1), of_members(10)
    ('1 member', '10 members')
    """
    return f"{count} member{'s' * (count != 1)}"


def whole(value: Any, /) -> str:
    """A number of members; "none" where no number is enough.

    >>> whole(12345.0), whole(float("nan"))
    ('12 345', 'none')
    """
    return "none" if math.isnan(float(value)) else f"{int(value):,}".replace(",", " ")
