# SPDX-License-Identifier: Apache-2.0
"""The pages of analyze, compile, diff and quantize in a real browser: widths, schemes, keys."""

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
COMMANDS = {
    "analyze": ["analyze", MODEL, "--input", DATA],
    "compile": ["compile", MODEL, "-o", "fast.onnx", "--time"],
    "quantize": ["quantize", FLOATS, "-o", "q.onnx", "--data", DATA],
    "diff": ["diff", MODEL, "--with", "anybit,compiled", "--input", DATA],
    "analyze, long names": ["analyze", "long.onnx"],
    "compile, long names": ["compile", "long.onnx", "-o", "fast.onnx"],
    "quantize, long names": ["quantize", "long_floats.onnx", "-o", "q.onnx", "--keep", "*sum_2"],
    "diff, long names": ["diff", "long.onnx", "long_floats.onnx", "--input", DATA],
}


def with_long_names(model: str) -> onnx.ModelProto:
    """The model with names that offer no place for a line to break."""
    proto = onnx.load(model)
    free = {value.name for value in [*proto.graph.input, *proto.graph.output]}
    free |= {value.name for value in proto.graph.initializer}
    for node in proto.graph.node:
        node.name = "of_a_block_of_the_encoder_" * 6 + node.name
        for names in (node.input, node.output):
            names[:] = [each if each in free else "of_a_block_" * 12 + each for each in names]
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
        for name, command in COMMANDS.items():
            made[name] = folder / f"{name}.html"
            result = CliRunner().invoke(app, [*command, "--report", f"{name}.html"])
            assert result.exit_code == int(name == "diff, long names"), result.output
    return made


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [375, 768, 1200])
def test_a_page_fits(
    browser: Browser, pages: dict[str, Path], name: str, scheme: str, width: int
) -> None:
    """What is wider than the window scrolls for itself; the paper is that of the scheme."""
    browser.said.clear()
    browser.open(pages[name], width=width, scheme=scheme)
    assert browser.value("document.documentElement.scrollWidth") <= width
    paper = browser.value("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", paper))) > 384) == (scheme == "light")
    assert browser.said == []


@pytest.mark.parametrize("name", ["analyze", "compile"])
def test_texts_of_the_network_lie_apart(
    browser: Browser, pages: dict[str, Path], name: str
) -> None:
    """No two texts overlap, and all are within the picture."""
    browser.open(pages[name])
    boxes = browser.value(
        "[...document.querySelectorAll('svg.network text')]"
        ".map(each => each.getBoundingClientRect())"
        ".map(({left, right, top, bottom}) => [left, right, top, bottom])"
    )
    right = browser.value("document.querySelector('svg.network').getBoundingClientRect().right")
    assert len(boxes) > 12
    assert all(box[1] <= right for box in boxes)
    for index, (left, end, top, bottom) in enumerate(boxes):
        for other in boxes[:index]:
            apart = end <= other[0] or other[1] <= left or bottom <= other[2] or other[3] <= top
            assert apart, (boxes[index], other)


def test_keys_lead_from_a_layer_to_its_row(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["compile"], width=375)
    browser.press("Tab", 9)
    assert browser.value("document.activeElement.className") == "scroll"
    browser.press("Tab", 9)
    assert browser.value("document.activeElement.textContent").endswith("sum_1")
    browser.press("Enter", 13)
    assert browser.value("document.querySelector(':target').innerText").startswith("sum_1")


def test_times_stand_beside_those_of_the_float_graph(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["compile"])
    text = browser.value("document.querySelector('svg.network').textContent")
    assert len(re.findall(r"\d [um]?s / [\d.]+ [um]?s", text)) == 3
    assert "x as fast" in browser.value("document.body.innerText")
