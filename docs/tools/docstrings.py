"""An extension of griffe, which reads docstrings for the reference: it expects "Examples", but we write "Example"."""

import re
from typing import Any

import griffe


class Example(griffe.Extension):
    """Makes the example of a docstring a section, which is shown as code."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename the section of `obj`. griffe calls this for every object it reads."""
        if obj.docstring:
            obj.docstring.value = re.sub(r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE)
