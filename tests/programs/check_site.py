# SPDX-License-Identifier: Apache-2.0
"""Check the built documentation: its links, and what a browser has to say of its pages.

    python tests/programs/check_site.py build/site
    python tests/programs/check_site.py build/site --pictures FOLDER    what some pages look like

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
    """What a page refers to, and what can be referred to in it.

    Attributes:
        links: What one can go to.
        loaded: What a browser fetches in order to show the page.
        anchors: Names of places in it.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors = {""}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        told = {name: value or "" for name, value in attributes}
        self.anchors |= {told[name] for name in ("id", "name") if name in told}
        if "href" in told:
            (self.loaded if tag == "link" else self.links).append(told["href"])
        if "src" in told:
            self.loaded.append(told["src"])


def faults_of_links(folder: Path) -> Iterator[str]:
    """Return the faults of links and other references."""
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
    """Return the faults of pages opened as files in a browser; the root page redirects."""
    for path in sorted({*folder.rglob("*.html")} - {folder / "index.html"}):
        for width, scheme in LOOKS:
            browser.open(path, width=width, scheme=scheme)
            there = f"{path.relative_to(folder)}, {width} pixels, {scheme}"
            yield from (f"{there}: {said}" for said in browser.said)
            browser.said.clear()
            wanted = browser.value("document.documentElement.scrollWidth")
            if wanted > width:
                yield f"{there}: is {wanted} pixels wide"


def faults_of_search(browser: Browser, address: str) -> Iterator[str]:
    """Search the site as it is served, and return the faults."""
    browser.open(f"{address}/search.html?q=staircase+gradient", width=1440)
    until = time.monotonic() + SECONDS
    while not browser.value("document.querySelectorAll('#search-results li a').length"):
        if time.monotonic() > until:
            yield "the search finds nothing"
            break
        time.sleep(0.1)
    yield from (f"search: {said}" for said in browser.said)


def served(folder: Path) -> ThreadingHTTPServer:
    """Serve a folder on this machine, without a log."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def take_pictures(browser: Browser, folder: Path, out: Path) -> None:
    """Take pictures of the upper ends of some pages."""
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
            server = served(folder)
            faults += faults_of_search(browser, f"http://127.0.0.1:{server.server_port}")
            server.shutdown()
            if arguments.pictures:
                take_pictures(browser, folder, arguments.pictures)
    print(*faults, f"{len(faults)} faults", sep="\n")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
