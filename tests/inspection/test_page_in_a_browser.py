# SPDX-License-Identifier: Apache-2.0
"""Pages of inspect, compile, quantize and diff in a browser: widths, schemes, keys, sorting."""

import re
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from browser import Browser, needs_browser
from places import ROOT
from typer.testing import CliRunner

pytestmark = needs_browser

MODEL, DATA = str(ROOT / "examples/digits_w4a4.onnx"), str(ROOT / "examples/digits.npz")
FLOATS = str(ROOT / "examples/digits_float.onnx")
HOSTILE = (
    "</details><script>document.title='owned'</script><img src=x onerror=\"document.title='o'\">"
)
COMMANDS = {
    "inspect": ["inspect", MODEL, "--data", DATA, "-o"],
    "compile": ["compile", MODEL, "-o", "fast.onnx", "--time", "--report"],
    "quantize": ["quantize", "evil.onnx", "-o", "q.onnx", "--data", DATA, "--budget", "30dB"],
    "failed": ["quantize", FLOATS, "-o", "q.onnx", "--data", DATA, "--fail-below", "99dB"],
    "diff": ["diff", MODEL, "--with", "anybit,compiled", "--input", DATA, "--report"],
    "inspect, long names": ["inspect", "long.onnx", "-o"],
    "compile, long names": ["compile", "long.onnx", "-o", "fast.onnx", "--report"],
    "quantize, long names": ["quantize", "long_floats.onnx", "-o", "q.onnx", "--keep", "*sum_2"],
    "diff, long names": ["diff", "long.onnx", "long_floats.onnx", "--input", DATA, "--report"],
}
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
_TABLE = "[...document.querySelectorAll('table')].find(each => each.querySelector('button'))"
_OPEN = "document.querySelectorAll('details').forEach(each => { each.open = true })"


def with_long_names(model: str) -> onnx.ModelProto:
    """Return the model with names that offer no place for a line to break."""
    proto = onnx.load(model)
    free = {value.name for value in [*proto.graph.input, *proto.graph.output]}
    free |= {value.name for value in proto.graph.initializer}
    for node in proto.graph.node:
        node.name = "of_a_block_of_the_encoder_" * 6 + node.name
        for names in (node.input, node.output):
            names[:] = [cell if cell in free else "of_a_block_" * 12 + cell for cell in names]
    return proto


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    from anybit.cli._commands import app

    folder = tmp_path_factory.mktemp("pages")
    made = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        onnx.save(with_long_names(MODEL), "long.onnx")
        onnx.save(with_long_names(FLOATS), "long_floats.onnx")
        evil = onnx.load(FLOATS)
        next(cell for cell in evil.graph.node if cell.op_type == "Gemm").name = HOSTILE
        onnx.save(evil, "evil.onnx")
        for name, command in COMMANDS.items():
            made[name] = folder / f"{name}.html"
            option = [] if command[-1] in ("-o", "--report") else ["--report"]
            result = CliRunner().invoke(app, [*command, *option, f"{name}.html"])
            failed = name in ("diff, long names", "failed")
            assert result.exit_code == int(failed), result.output
    return made


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 768, 1200])
def test_page_fits_its_window(
    browser: Browser, pages: dict[str, Path], name: str, scheme: str, width: int
) -> None:
    """Check that wide parts scroll by themselves, and that the scheme sets the background."""
    browser.said.clear()
    browser.open(pages[name], width=width, scheme=scheme)
    browser.value(_OPEN)
    assert browser.value("document.documentElement.scrollWidth") <= width
    paper = browser.value("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", paper))) > 384) == (scheme == "light")
    assert browser.said == []


def column(browser: Browser, heading: str) -> list[str]:
    """Return the cells of a column of the layer table, without the totals."""
    at = browser.value(
        f"[...{_TABLE}.querySelectorAll('th')].findIndex(each => each.textContent === {heading!r})"
    )
    rows = f"[...{_TABLE}.tBodies[0].rows].filter(row => row.className !== 'total')"
    return list(browser.value(f"{rows}.map(row => row.cells[{at}].textContent)"))


def click(browser: Browser, heading: str) -> str:
    """Press a heading, and return the order that it then has."""
    button = (
        f"[...{_TABLE}.querySelectorAll('th button')].find("
        f"each => each.textContent === {heading!r})"
    )
    browser.value(f"{button}.click()")
    return str(browser.value(f"{button}.parentNode.getAttribute('aria-sort')"))


def test_headings_sort_the_layers(browser: Browser, pages: dict[str, Path]) -> None:
    browser.said.clear()
    browser.open(pages["quantize"])
    noise = [float(cell.strip("% ")) for cell in column(browser, "noise")]
    assert noise == sorted(noise, reverse=True)
    names = column(browser, "layer")
    assert click(browser, "layer") == "ascending"
    assert column(browser, "layer") == sorted(names)
    assert click(browser, "layer") == "descending"
    assert column(browser, "layer") == sorted(names, reverse=True)
    assert click(browser, "SQNR, dB") == "descending"
    figures = list(map(float, column(browser, "SQNR, dB")))
    assert figures == sorted(figures, reverse=True) != sorted(figures)
    assert click(browser, "SQNR, dB") == "ascending"
    assert list(map(float, column(browser, "SQNR, dB"))) == sorted(figures)
    assert browser.said == []


def test_empty_cells_and_totals_stay_last(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["inspect"])
    for order in ("descending", "ascending"):
        assert click(browser, "codes out") == order
        cells = column(browser, "codes out")
        assert cells[-1] == ""
        assert all(cells[:-1])
        assert browser.value(f"{_TABLE}.tBodies[0].lastElementChild.className") == "total"


@pytest.mark.parametrize("name", ["inspect", "compile", "quantize"])
def test_keys_open_a_layer(browser: Browser, pages: dict[str, Path], name: str) -> None:
    browser.open(pages[name], width=375)
    assert browser.value("document.querySelectorAll('details[open]').length") == 0
    for link in ("td a", ".strip a"):
        browser.value(f"document.querySelector('{link}').focus()")
        browser.press("Enter", 13)
        opened = "document.querySelector(location.hash)"
        assert browser.value(f"{opened}.open")
        assert browser.value(f"{opened}.getBoundingClientRect().top") < 900
    assert browser.value("document.querySelectorAll('.strip a').length") == 3


def test_names_are_not_executed(browser: Browser, pages: dict[str, Path]) -> None:
    browser.said.clear()
    browser.open(pages["quantize"])
    browser.value(_OPEN)
    assert browser.value("document.title") == "anybit quantize: evil.onnx"
    assert "<script>document.title" in browser.value("document.body.textContent")
    assert browser.value("document.querySelectorAll('script').length") == 1
    assert browser.value("document.images.length") == 0
    assert browser.said == []


@pytest.mark.parametrize("width", range(300, 460, 40))
def test_options_of_commands_do_not_break(
    browser: Browser, pages: dict[str, Path], width: int
) -> None:
    browser.open(pages["failed"], width=width)
    lines = browser.value(f"({_LINES_OF_OPTIONS})()")
    assert {"--layer", "--budget", "--keep", "--data", "--fail-below"} <= {
        name for name, _ in lines
    }
    assert {count for _, count in lines} == {1}
