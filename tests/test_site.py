# SPDX-License-Identifier: Apache-2.0
"""What is asked of the built documentation is found where it fails."""

from pathlib import Path

import check_site
import pytest
from browser import Browser, needs_browser


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ('<p id="there"><a href="#there">x</a> <a href="b.html#far">x</a>', None),
        ('<a href="https://example.com/a?b#c">x</a>', None),
        ('<a href="c.html">x</a>', "a.html: c.html leads nowhere"),
        ('<a href="b.html#near">x</a>', "a.html: b.html#near has no such anchor"),
        (
            '<a href="http://example.com">x</a>',
            "a.html: http://example.com is not a link to a page",
        ),
        (
            '<script src="https://example.com/a.js"></script>',
            "a.html loads https://example.com/a.js",
        ),
        ('<img src="a.png">', "a.html: a.png leads nowhere"),
    ],
)
def test_links(body: str, fault: str | None, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(body, encoding="utf-8")
    (tmp_path / "b.html").write_text("<h1 id=far>b</h1>", encoding="utf-8")
    assert list(check_site.faults_of_links(tmp_path)) == ([fault] if fault else [])


@needs_browser
def test_pages(tmp_path: Path) -> None:
    (tmp_path / "wide.html").write_text("<div style='width:900px'>x", encoding="utf-8")
    (tmp_path / "wrong.html").write_text("<script>missing()</script>", encoding="utf-8")
    with Browser() as browser:
        faults = list(check_site.faults_of_pages(browser, tmp_path))
    assert len([each for each in faults if "wide.html" in each and "pixels wide" in each]) == 2
    assert len([each for each in faults if "wrong.html" in each and "missing" in each]) == 4
