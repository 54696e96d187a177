# SPDX-License-Identifier: Apache-2.0
"""The page of a report in a real browser: it sorts, opens layers, and obeys no name."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from browser import Browser, needs_browser
from float_models import attention, data_for

import anybit
from anybit.quantization import Verdict
from anybit.reporting import Report, page
from anybit.reporting.findings import with_findings

pytestmark = needs_browser
HOSTILE = (
    "</details><script>document.title='owned'</script><img src=x onerror=\"document.title='o'\">"
)
_LINES_OF_OPTIONS = """() => {
  const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) for (const part of walker.currentNode.data.matchAll(/--[a-z-]+/g)) {
    const range = document.createRange();
    range.setStart(walker.currentNode, part.index);
    range.setEnd(walker.currentNode, part.index + part[0].length);
    found.push([part[0], range.getClientRects().length]);
  }
  return found;
}"""
ROWS = "[...document.querySelector('table').tBodies[0].rows]"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    proto = attention()
    proto.graph.node[1].name = HOSTILE
    found = anybit.report(anybit.quantize(proto, data_for("attention", 8), weights="int4"))
    written = tmp_path_factory.mktemp("page") / "report.html"
    written.write_text(page(found))
    return written


def column(browser: Browser, heading: str) -> list[str]:
    """The cells of a column of the table."""
    at = browser.value(
        f"[...document.querySelectorAll('th')].findIndex(each => each.textContent === {heading!r})"
    )
    return list(browser.value(f"{ROWS}.map(row => row.cells[{at}].textContent)"))


def click(browser: Browser, heading: str) -> str:
    """Press a heading, and the order that it then says."""
    button = (
        "[...document.querySelectorAll('th button')].find("
        f"each => each.textContent === {heading!r})"
    )
    browser.value(f"{button}.click()")
    return str(browser.value(f"{button}.parentNode.getAttribute('aria-sort')"))


def test_headings_sort(browser: Browser, path: Path) -> None:
    browser.said.clear()
    browser.open(path)
    noise = [float(each.strip("% ")) for each in column(browser, "noise")]
    assert noise == sorted(noise, reverse=True)
    names = column(browser, "layer")
    assert click(browser, "layer") == "ascending"
    assert column(browser, "layer") == sorted(names) != names
    assert click(browser, "layer") == "descending"
    assert column(browser, "layer") == sorted(names, reverse=True)
    assert click(browser, "SQNR, dB") == "descending"
    figures = list(map(float, column(browser, "SQNR, dB")))
    assert figures == sorted(figures, reverse=True) != sorted(figures)
    assert click(browser, "SQNR, dB") == "ascending"
    assert list(map(float, column(browser, "SQNR, dB"))) == sorted(figures)
    assert browser.said == []


def test_cells_that_are_empty_stay_below(browser: Browser, path: Path) -> None:
    browser.open(path)
    for order in ("descending", "ascending"):
        assert click(browser, "bytes") == order
        cells = column(browser, "bytes")
        assert cells[-2:] == ["", ""]
        assert all(cells[:-2])


def test_keys_sort_and_open_a_layer(browser: Browser, path: Path) -> None:
    browser.open(path, width=375)
    browser.value("document.querySelector('th button').focus()")
    browser.press("Enter", 13)
    assert browser.value("document.querySelector('th').getAttribute('aria-sort')") == "ascending"
    assert browser.value("document.querySelectorAll('details[open]').length") == 0
    browser.value("document.querySelector('td a').focus()")
    name = browser.value("document.activeElement.textContent")
    browser.press("Enter", 13)
    opened = "document.querySelector('details[open]')"
    assert browser.value(f"{opened}.querySelector('summary').textContent").startswith(name)
    assert browser.value(f"{opened}.querySelectorAll('svg').length") >= 2
    assert browser.value(f"{opened}.getBoundingClientRect().top") < 900


def test_the_strip_leads_to_layers(browser: Browser, path: Path) -> None:
    browser.open(path)
    assert browser.value("document.querySelectorAll('svg.strip a').length") == 8
    browser.value("document.querySelector('svg.strip a').focus()")
    browser.press("Enter", 13)
    summary = browser.value("document.querySelector('details[open] summary').textContent")
    assert summary.startswith("...") or "script" in summary


def test_names_are_not_obeyed(browser: Browser, path: Path) -> None:
    browser.said.clear()
    browser.open(path)
    browser.value("document.querySelectorAll('details').forEach(each => { each.open = true })")
    assert "in few bits" in browser.value("document.title")
    assert browser.value("document.querySelectorAll('script').length") == 1
    assert browser.value("document.images.length") == 0
    assert browser.said == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 375, 1200])
def test_open_layers_fit(browser: Browser, path: Path, scheme: str, width: int) -> None:
    browser.open(path, width=width, scheme=scheme)
    browser.value("document.querySelectorAll('details').forEach(each => { each.open = true })")
    assert browser.value("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", range(300, 460, 20))
def test_options_of_commands_are_in_one_line(browser: Browser, tmp_path: Path, width: int) -> None:
    verdict = Verdict(3.0, 0.5, 3, seen=False)
    report = Report(
        "m", (), verdict=verdict, command="anybit quantize m -o q --data d --effort fast"
    )
    left = {"a/very/long/name": "its sizes are free; compile fixed ones (--shape)"}
    written = tmp_path / "report.html"
    written.write_text(page(with_findings(replace(report, left=left))))
    browser.open(written, width=width)
    lines = browser.value(f"({_LINES_OF_OPTIONS})()")
    said = {"--layer", "--budget", "--keep", "--data", "--effort", "--shape", "--fail-below"}
    assert {name for name, _ in lines} == said
    assert {count for _, count in lines} == {1}
