# SPDX-License-Identifier: Apache-2.0
"""The tags of an HTML page."""

from html.parser import HTMLParser


class Tags(HTMLParser):
    """The tags of a page; opened tags must be closed in order, and nothing may load or run."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        assert self._open == []
        assert self.names.count("script") == self.names.count("style") == 1
        assert {"img", "link", "iframe"}.isdisjoint(self.names)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        for name, value in attrs:
            assert name != "src"
            assert not name.startswith("on")
            assert name != "href" or (value or "").startswith("#")
        if tag != "meta":
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
