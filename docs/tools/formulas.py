"""A hook of mkdocs that turns TeX formulas into MathML when the site is built.

Formulas are written in a way that GitHub also understands: `$…$` within a line, and a fence named `math` for a
displayed formula. Browsers can show MathML without loading anything.
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
# Before fenced code blocks (25), which would show the source. After inline code (190), which may contain dollars.
_BEFORE_FENCES, _AFTER_CODE = 30, 185


class _Fences(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        return _FENCE.sub(self._formula, "\n".join(lines)).split("\n")

    def _formula(self, match: re.Match[str]) -> str:
        formula = '<div class="formula">' + convert(match[1], display="block") + "</div>"
        return f"\n{self.md.htmlStash.store(formula)}\n"


class _Inline(InlineProcessor):
    def handleMatch(self, match: re.Match[str], data: str) -> tuple[str, int, int]:
        return self.md.htmlStash.store(convert(match[1])), match.start(), match.end()


class Formulas(Extension):
    """Formulas for Python-Markdown."""

    def extendMarkdown(self, md: Markdown) -> None:
        """Add both kinds of formulas to `md`."""
        md.preprocessors.register(_Fences(md), "formulas", _BEFORE_FENCES)
        md.inlinePatterns.register(_Inline(_INLINE, md), "formulas", _AFTER_CODE)


def on_config(config: Any) -> Any:
    """Add formulas to the Markdown of all pages. mkdocs finds this function by its name."""
    config.markdown_extensions.append(Formulas())
    return config
