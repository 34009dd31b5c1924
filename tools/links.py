"""Does every link of the built site lead somewhere, and does no page load anything from elsewhere?

    python tools/links.py site

mkdocs checks links between pages; this also reads what themes, hand-written HTML and docstrings put into them.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADED = {
    "img",
    "script",
    "iframe",
    "source",
    "video",
}  # tags that fetch what they name; of <link> only style sheets do


class _Page(HTMLParser):
    """The anchors of a page, where its links lead, and what it loads."""

    def __init__(self, path: Path):
        super().__init__()
        self.anchors, self.links, self.loaded = {""}, [], []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors |= {found[name] for name in ("id", "name") if found.get(name)}
        target = found.get("href") or found.get("src")
        if target is not None:
            loads = tag in _LOADED or (tag == "link" and found.get("rel") in {"stylesheet", "icon", "preload"})
            (self.loaded if loads else self.links).append(target)


def broken(site: Path) -> list[str]:
    """One line for each link that leads nowhere, and for each thing that is loaded from elsewhere."""
    pages = {path.resolve(): _Page(path) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        if path.name == "404.html":  # its addresses are those of the site when it is published
            continue
        name = path.relative_to(site.resolve())
        found += [f"{name} loads {target}" for target in page.loaded if urlsplit(target).netloc]
        for target in {*page.links, *page.loaded}:
            scheme, host, place, _, anchor = urlsplit(target)
            if scheme or host:
                continue
            goal = (path.parent / unquote(place)).resolve() if place else path
            goal = goal / "index.html" if goal.is_dir() else goal
            if not goal.exists():
                found.append(f"{name}: there is no {target}")
            elif anchor and goal in pages and unquote(anchor) not in pages[goal].anchors:
                found.append(f"{name}: there is no anchor {target}")
    return found


if __name__ == "__main__":
    complaints = broken(Path(sys.argv[1]))
    sys.exit("\n".join(complaints) or 0)
