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


def with_error(value: Any, error: Any, /) -> str:
    """A number with its standard error, both to the digits that the error allows; the number alone if there is none.

    >>> with_error(0.8881234, 0.0317), with_error(0.5, float("nan")), with_error(12345.6, 230.0)
    ('0.888 ± 0.032', '0.5', '1.23e+04 ± 2.3e+02')
    """
    value, error = float(value), float(error)
    if not math.isfinite(value) or not error > 0:
        return number(value)
    digits = 1 - math.floor(math.log10(error))
    if not 0 <= digits <= 5:
        return f"{number(value)} ± {error:.2g}"
    return f"{value:.{digits}f} ± {error:.{digits}f}"


def percent(value: Any, error: Any, /) -> str:
    """A fraction with its standard error, in percent.

    >>> percent(0.8881, 0.0317), percent(1.0, 0.0)
    ('88.8 ± 3.2 %', '100 %')
    """
    return f"{with_error(100 * float(value), 100 * float(error))} %"
