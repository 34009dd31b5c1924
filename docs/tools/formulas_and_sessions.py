"""An extension of Python-Markdown for what our pages write in a way that GitHub also understands.

- Formulas in TeX, `$…$` within a line and a fence named `math` for a displayed formula, become MathML. Browsers can
  show this without loading anything.
- Fences named `python` that begin with a prompt are shown as sessions. Then output is not coloured like code, and the
  copy button leaves out prompts and output.
"""

import re
from typing import Any

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor
from markdown.preprocessors import Preprocessor

_FENCE = re.compile(r"^```math\n(.*?)\n```$", re.DOTALL | re.MULTILINE)
_INLINE = r"(?<![\\$\w])\$(?=\S)([^$]+?)(?<=\S)\$(?![$\w])"
_SESSION = re.compile(r"^```python\n(?=>>> )", re.MULTILINE)
# Before fenced code blocks (25), which would show the source. After inline code (190), which may contain dollars.
_BEFORE_FENCES, _AFTER_CODE = 30, 185


class _Fences(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        text = _SESSION.sub("```pycon\n", "\n".join(lines))
        return _FENCE.sub(self._formula, text).split("\n")

    def _formula(self, match: re.Match[str]) -> str:
        formula = '<div class="formula">' + convert(match[1], display="block") + "</div>"
        return f"\n{self.md.htmlStash.store(formula)}\n"


class _Inline(InlineProcessor):
    def handleMatch(self, match: re.Match[str], data: str) -> tuple[str, int, int]:
        return self.md.htmlStash.store(convert(match[1])), match.start(), match.end()


class FormulasAndSessions(Extension):
    """Formulas and Python sessions."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Add all of them to `md`."""
        md.preprocessors.register(_Fences(md), "formulas", _BEFORE_FENCES)
        md.inlinePatterns.register(_Inline(_INLINE, md), "formulas", _AFTER_CODE)


def makeExtension(**settings: Any) -> Extension:
    """Return the extension. Python-Markdown finds this function by its name."""
    return FormulasAndSessions(**settings)
