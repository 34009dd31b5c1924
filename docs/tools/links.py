"""Does every link of the built site have a target, and do pages load files only from the site itself?

    python docs/tools/links.py site

Zensical checks links between pages. This script also checks links from themes, hand-written HTML and docstrings.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Tags that load a file. Of <link> only style sheets and the like do.
_LOADED = {"img", "script", "iframe", "source", "video"}


class _Page(HTMLParser):
    """The anchors of a page, the targets of its links, and the files that it loads."""

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
    """Return one line for each link without a target, and for each file that is loaded from another site."""
    pages = {path.resolve(): _Page(path) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        if path.name == "404.html":  # its links are relative to the published site
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
