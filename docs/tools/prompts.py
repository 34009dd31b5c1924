"""A hook of mkdocs that shows code with prompts as a Python session.

Then output is not coloured like code, and the copy button leaves out prompts and output.
"""

import re
from typing import Any

_SESSION = re.compile(r"^```python\n(?=>>> )", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Name the language of such fences. mkdocs finds this function by its name."""
    return _SESSION.sub("```pycon\n", markdown)
