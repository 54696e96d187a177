# SPDX-License-Identifier: Apache-2.0
"""Check the built documentation: its links, and its pages in a browser.

    python tests/programs/check_site.py build/site
    python tests/programs/check_site.py build/site --pictures FOLDER    save screenshots

Links within the site lead to pages and anchors that are there, others are well-formed, and nothing
is loaded from elsewhere. In Chromium, on a wide and a narrow screen, light and dark, no page has an
error or is wider than the screen, and the search finds something.
"""

import argparse
import base64
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "support"))

from browser import BROWSER, Browser

LOOKS = [(width, scheme) for width in (1440, 390) for scheme in ("light", "dark")]
SHOWN = (
    "docs/index",
    "docs/operators/int_quant",
    "docs/performance",
    "docs/tutorial",
    "docs/api/anybit",
    "search",
)
SECONDS = 20


class Page(HTMLParser):
    """Links, resources and anchors of a page.

    Attributes:
        links: Targets of links.
        loaded: Resources that a browser fetches to show the page.
        anchors: Names of link targets in the page.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors = {""}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if "href" in values:
            (self.loaded if tag == "link" else self.links).append(values["href"])
        if "src" in values:
            self.loaded.append(values["src"])


def faults_of_links(folder: Path) -> Iterator[str]:
    """Yield the faults of links and resources."""
    pages = {path.resolve(): Page(path) for path in folder.rglob("*.html")}
    for path, page in pages.items():
        name = path.relative_to(folder)
        for link in page.links + page.loaded:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.loaded and parts.scheme != "data":
                    yield f"{name} loads {link}"
                elif parts.scheme not in ("https", "data", "mailto") or " " in link:
                    yield f"{name}: {link} is not a link to a page"
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file():
                yield f"{name}: {link} leads nowhere"
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{name}: {link} has no such anchor"


def faults_of_pages(browser: Browser, folder: Path) -> Iterator[str]:
    """Yield errors and overflows of pages opened as files, except the redirect at the root."""
    for path in sorted({*folder.rglob("*.html")} - {folder / "index.html"}):
        for width, scheme in LOOKS:
            browser.open(path, width=width, scheme=scheme)
            there = f"{path.relative_to(folder)}, {width} pixels, {scheme}"
            yield from (f"{there}: {message}" for message in browser.said)
            browser.said.clear()
            page_width = browser.value("document.documentElement.scrollWidth")
            if page_width > width:
                yield f"{there}: is {page_width} pixels wide"


def faults_of_search(browser: Browser, address: str) -> Iterator[str]:
    """Yield the faults of a search on the served site."""
    browser.open(f"{address}/search.html?q=calibration+samples", width=1440)
    until = time.monotonic() + SECONDS
    while not browser.value("document.querySelectorAll('#search-results li a').length"):
        if time.monotonic() > until:
            yield "the search finds nothing"
            break
        time.sleep(0.1)
    yield from (f"search: {message}" for message in browser.said)


def start_server(folder: Path) -> ThreadingHTTPServer:
    """Start a silent local server for a folder."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def take_pictures(browser: Browser, folder: Path, out: Path) -> None:
    """Save screenshots of the tops of some pages."""
    out.mkdir(parents=True, exist_ok=True)
    for page in SHOWN:
        for width, scheme in LOOKS:
            browser.open(folder / f"{page}.html", width=width, scheme=scheme)
            name = f"{page.replace('/', '_')}_{width}_{scheme}.png"
            (out / name).write_bytes(base64.b64decode(browser.picture()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pictures", type=Path, metavar="FOLDER")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    if not (folder / "index.html").exists():
        sys.exit(f"{folder} has no index.html: build the site first")
    faults = list(faults_of_links(folder))
    if BROWSER is None:
        print("no Chromium is installed: links only")
    else:
        with Browser() as browser:
            faults += faults_of_pages(browser, folder)
            server = start_server(folder)
            faults += faults_of_search(browser, f"http://127.0.0.1:{server.server_port}")
            server.shutdown()
            if arguments.pictures:
                take_pictures(browser, folder, arguments.pictures)
    print(*faults, f"{len(faults)} faults", sep="\n")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
