"""A hook of mkdocs: code that is written with prompts is shown as a session of Python.

So what is printed is not coloured like code, and neither it nor the prompts are copied with the code.
"""

import re
from typing import Any

_SESSION = re.compile(r"^```python\n(?=>>> )", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page with the language of such fences named; mkdocs calls this by its name."""
    return _SESSION.sub("```pycon\n", markdown)
