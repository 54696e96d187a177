# SPDX-License-Identifier: Apache-2.0
"""The playground's page in a browser, if it has been made."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from browser import Browser
from places import ROOT

PAGE = ROOT / "build/playground/index.html"
SECONDS = 60
needs_page = pytest.mark.skipif(
    not PAGE.exists(), reason="the page is missing: python tools/playground.py makes it"
)


@contextmanager
def open_page(*, width: int = 1200, scheme: str = "light") -> Iterator[Browser]:
    """Return a browser that shows the page."""
    with Browser() as browser:
        browser.open(PAGE, width=width, scheme=scheme)
        wait(browser)
        yield browser


def wait(browser: Browser, ready: str = "document.documentElement.dataset.ready") -> None:
    """Until something is true in the page: first of all, until it has started."""
    end = time.monotonic() + SECONDS
    while not browser.value(ready):
        assert browser.said == []
        assert time.monotonic() < end, f"not within {SECONDS} s: {ready}"
