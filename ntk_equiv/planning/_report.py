"""Sections as one HTML file that loads nothing from elsewhere: readable on a phone, in the dark, and in print.

Images among the samples are shown as small pictures, PNG in base64, made with the standard library alone.
"""

import base64
import io
import struct
import zlib
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import numpy as np

from ntk_equiv.planning._plan import Plan
from ntk_equiv.planning._text import Section, plan_sections

LARGEST_PICTURE = 64  # pixels along each side

STYLE = """
:root { color-scheme: light dark; --ink: #1c2126; --soft: #56606a; --paper: #ffffff; --line: #d8dde2; --card: #f4f6f8;
  --accent: #0072b2; --warn: #a33c00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ec; --soft: #a3adb7; --paper: #15191d; --line: #363d45;
  --card: #1e2429; --accent: #6cb8e6; --warn: #ff9d66; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 64rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .25rem; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; }
.about, caption { color: var(--soft); }
.about { margin: 0 0 1.5rem; }
nav a { display: inline-block; margin: 0 .9rem .2rem 0; color: var(--accent); }
dl { margin: 0; padding: .25rem 1rem; background: var(--card); border-left: 4px solid var(--accent);
  border-radius: 4px; }
dt { font-weight: 650; margin-top: .75rem; }
dd { margin: 0 0 .75rem; }
ul { padding-left: 1.2rem; }
.warnings { border-left: 4px solid var(--warn); border-radius: 4px; background: var(--card); padding: .1rem 1rem; }
.warnings h2 { color: var(--warn); margin-top: .75rem; }
figure { margin: 1rem 0; text-align: center; }
img { max-width: 100%; width: 34rem; height: auto; background: #fff; border-radius: 6px; padding: .4rem; }
.wide img.figure { width: 62rem; min-width: 44rem; max-width: none; }
img.small { width: 3rem; max-width: none; padding: 0; border-radius: 3px; image-rendering: pixelated; display: block; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; }
th, td { padding: .3rem .7rem .3rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line);
  overflow-wrap: normal; }
th { font-weight: 650; }
@media print { :root { color-scheme: light; --ink: #000; --paper: #fff; --card: #fff; --line: #999; --soft: #333; }
  body { max-width: none; font-size: 10pt; } nav { display: none; } .wide { overflow: visible; }
  figure, tr, li, dl { break-inside: avoid; } h2 { break-after: avoid; } img { width: 12cm; } }
"""
CAPTIONS = {
    "errors": "Expected mean squared errors over training time, on logarithmic axes.",
    "orbits": "Expected standard deviation of predictions over the orbit of a test sample, over the number of members.",
    "points": "The fraction of test samples for which so many members are enough.",
    "reliability": "Accuracy against confidence on held-out samples, with two standard errors of a test set. "
    "On the diagonal, probabilities are right on average.",
}


def plan_html(plan: Plan, /, *, figures: bool = True) -> str:
    """Return the page, with or without figures."""
    parts = plan_sections(plan)
    what = f"{plan.problem['points']} samples under {plan.problem['group']}, {plan.settings['arch']}"
    made = ", ".join(str(plan.origin[name]) for name in ("data", "date") if plan.origin.get(name))
    about = f"{made}: {what}" if made else what
    return page_html(
        "Plan of an ensemble",
        f"{about}. Predicted by theory; nothing was trained.",
        parts,
        subject=what,
        figure=plan.figure if figures else None,
        captions=CAPTIONS,
    )


def page_html(
    title: str,
    about: str,
    sections: Sequence[Section],
    /,
    *,
    subject: str,
    figure: Callable[[str], Any] | None,
    captions: dict[str, str],
) -> str:
    """Return a page.

    Args:
        title: its heading.
        about: the line below it.
        sections: what it consists of.
        subject: what it is about, for its name in the browser.
        figure: returns a panel of a matplotlib figure by its name; None for a page without figures.
        captions: what each panel shows.
    """
    links = "".join(f'<a href="#{_anchor(part)}">{escape(part.title)}</a>' for part in sections)
    body = "\n".join(_section_html(part, _figure_html(figure, part.panel, captions)) for part in sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(f"{title}: {subject}")}</title>
<style>{STYLE}</style>
</head>
<body>
<h1>{escape(title)}</h1>
<p class="about">{escape(about)}</p>
<nav>{links}</nav>
<main>
{body}
</main>
</body>
</html>
"""


def _section_html(section: Section, figure: str) -> str:
    mark = ' class="warnings"' if section.title == "Warnings" else ""
    heading = f'<section id="{_anchor(section)}"{mark}>\n<h2>{escape(section.title)}</h2>'
    return f"{heading}\n{_lines_html(section)}\n{figure}\n{_table_html(section)}\n</section>"


def _lines_html(section: Section) -> str:
    """Return the lines as a list, or as questions and answers in the summary."""
    if section.title == "In short":
        pairs = [line.partition(": ") for line in section.lines]
        items = (f"<dt>{escape(question)}?</dt><dd>{escape(_capitalize(text))}</dd>" for question, _, text in pairs)
        return f"<dl>{''.join(items)}</dl>"
    items = (f"<li>{escape(_capitalize(line))}</li>\n" for line in section.lines)
    return f"<ul>{''.join(items)}</ul>" if section.lines else ""


def _capitalize(text: str) -> str:
    return text[:1].upper() + text[1:]  # str.capitalize would lower the rest


def _table_html(section: Section) -> str:
    if not section.rows:
        return ""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in ("", *section.header)[not section.pictures :])
    pictures = section.pictures or [""] * len(section.rows)
    rows = "\n".join(
        f"<tr>{_picture_html(data, row[0])}{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
        for data, row in zip(pictures, section.rows, strict=True)
    )
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>'


def _picture_html(data: str, name: str) -> str:
    alt = escape(f"test sample {name}")
    return f'<td><img class="small" alt="{alt}" src="data:image/png;base64,{data}"></td>' if data else ""


def _figure_html(figure: Callable[[str], Any] | None, panel: str | None, captions: dict[str, str]) -> str:
    if panel is None or figure is None:
        return ""
    buffer, drawn = io.BytesIO(), figure(panel)
    drawn.savefig(buffer, format="png", metadata={"Software": None})
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    width, height = drawn.get_size_inches()
    caption = escape(captions[panel])
    image = f'<img class="figure" alt="{caption}" src="data:image/png;base64,{data}">'
    # Several panels side by side keep their size, and scroll on a phone.
    image = f'<div class="wide">{image}</div>' if width > 2 * height else image
    return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"


def _anchor(section: Section) -> str:
    return section.title.lower().replace(" ", "-")


def thumbnails(images: np.ndarray, /) -> tuple[str, ...]:
    """Return a picture of each of the images [m, H, W, channels], as PNG in base64.

    Numbers between 0 and 1 are shown as they are; others are scaled from the smallest to the largest of all. Images
    with three channels are in colour. Of others the mean over channels is shown.

    Example:
        >>> import base64, numpy as np
        >>> from ntk_equiv.planning import thumbnails
        >>> base64.b64decode(thumbnails(np.zeros((1, 2, 2, 1)))[0])[1:4]
        b'PNG'
    """
    images = np.asarray(images, float)
    low, high = (0.0, 1.0) if images.min() >= 0 and images.max() <= 1 else (images.min(), images.max())
    step = -(-max(images.shape[1:3]) // LARGEST_PICTURE)
    small = images[:, ::step, ::step]
    small = small if small.shape[-1] == 3 else small.mean(axis=-1, keepdims=True)
    pixels = np.round(255 * (small - low) / ((high - low) or 1.0)).astype(np.uint8)
    return tuple(base64.b64encode(_png(image)).decode("ascii") for image in pixels)


def _png(pixels: np.ndarray) -> bytes:
    """Return a PNG file with an image of bytes [H, W, 1 or 3]."""
    height, width, channels = pixels.shape
    colour = {1: 0, 3: 2}[channels]  # codes of the format: grey, RGB
    # Every row begins with a byte that names its filter: 0, none.
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)
    parts = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0),
        b"IDAT": zlib.compress(rows.tobytes(), 9),
        b"IEND": b"",
    }
    chunks = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts.items()
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
