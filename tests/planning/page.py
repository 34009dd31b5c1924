"""Reads a report as a browser would."""

from html.parser import HTMLParser


class Page(HTMLParser):
    """The tags of a page, which must be closed in order, and where it points to."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.targets, self.text = [], [], [], ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        if tag not in {"meta", "img"}:
            self.open.append(tag)
        self.ids += [value for name, value in attrs if name == "id"]
        self.targets += [value for name, value in attrs if name in {"href", "src", "srcset", "action", "data"}]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
