# SPDX-License-Identifier: Apache-2.0
"""Picture of one layer from floats to packed bits: a small model, compiled."""

import itertools
from collections.abc import Iterable, Iterator
from xml.sax.saxutils import escape

import numpy as np
from _svg import Palette, document
from onnx import ModelProto, numpy_helper, parser

import anybit
from anybit.compiler.program.program import Product, Quantize, Thresholds

_MODEL = """
<ir_version: 8, opset_import: ["": 13, "qonnx.custom_op.general": 1]>
graph (float[N, 8] x) => (float[N, 4] y)
<float half = {0.5}, float one = {1}, float none = {0}, float two = {2},
 float[4] gain = {0.15, 0.25, -0.2, 0.1}, float[4] shift = {0.4, -0.1, 0.9, 0.7},
 float[4] mean = {0.5, 0, 0.25, -1}, float[4] var = {1, 1, 1, 1}>
{
  xq = qonnx.custom_op.general.IntQuant<signed=0>(x, half, none, two)
  wq = qonnx.custom_op.general.BipolarQuant(w, one)
  sum = MatMul(xq, wq)
  normal = BatchNormalization(sum, gain, shift, mean, var)
  rectified = Relu(normal)
  y = qonnx.custom_op.general.IntQuant<signed=0>(rectified, half, none, two)
}
"""
_X = np.float32([0.31, 1.62, -0.4, 0.94, 1.1, 0.07, 2.3, 0.55])
_WEIGHTS = np.array(
    [list(map(int, row)) for row in ("11010110", "01011001", "10100101", "01101101")]
)
_BOXES = ("x", "IntQuant", "MatMul", "BatchNormalization", "Relu", "IntQuant", "y")

_SIZE = _WIDTH, _HEIGHT = 860, 672
_LEFT, _CELL, _BIT, _LINE = 262, 54, 18, 30
_STYLE = """\
.title{font-weight:600}
.value,.tail{text-anchor:middle}
path{fill:none;stroke-width:1.25}
.tick{stroke-width:2}
"""


def _rules(colours: Palette) -> str:
    return (
        f".title,.value{{fill:{colours.ink}}}path{{stroke:{colours.axis}}}"
        f".box,.zero{{fill:{colours.paper};stroke:{colours.axis}}}"
        f".one{{fill:{colours.first};stroke:{colours.first}}}.tick{{stroke:{colours.first}}}"
        f"circle,text.tail{{fill:{colours.second}}}path.tail{{stroke:{colours.second}}}"
    )


def journey_figure() -> str:
    """Return the picture of one row in one layer of four channels."""
    compiled = anybit.compile(_model())
    quantize, product, _ = compiled.report.programs[0].instructions
    assert isinstance(quantize, Quantize)
    assert isinstance(product, Product)
    assert isinstance(product.epilogue, Thresholds)
    codes = np.searchsorted(quantize.thresholds, _X, side="right")
    packed = np.unpackbits(product.weights, bitorder="little").reshape(4, 8)
    sums = (2 * packed.astype(int) - 1) @ codes
    thresholds = product.epilogue.thresholds.reshape(4, 3)
    results = (product.epilogue.directions[:, None] * sums[:, None] >= thresholds).sum(axis=1)
    np.testing.assert_array_equal(results * np.float32(0.5), compiled.run(_X[None])["y"][0])
    edges = ", ".join(f"{edge:.3g}" for edge in quantize.thresholds)
    steps = [
        (60, ("x", "8 of float32: 256 bits"), _cells(f"{x:g}" for x in _X)),
        (64, ("1. Codes", f"how many of {edges}", "are reached"), _cells(codes)),
        (62, ("packed", "two bits each, as two planes"), _planes(codes)),
        (
            142,
            (
                "2. Sums",
                "set bits that meet set bits of",
                "the weights (set: 1, else -1)",
                "are counted: exact",
            ),
            _sums(codes, packed, sums),
        ),
        (
            146,
            (
                "3. Thresholds",
                "of BatchNormalization, Relu and",
                "IntQuant together, found by",
                "evaluating them on every sum",
            ),
            _lines(sums, product.epilogue.directions, thresholds, results),
        ),
        (56, ("4. Codes", "of four channels"), _cells(results)),
        (48, ("packed", "input of the next layer"), _planes(results)),
    ]
    parts, y = [*_graph()], 108
    for high, words, drawn in steps:
        for line, text in enumerate(words):
            parts.append(_text(20, y + 16 * line, text, "title" if line == 0 else ""))
        parts += [f'<g transform="translate({_LEFT} {y - 17})">', *drawn, "</g>"]
        y += high
    about = "Floats become codes, packed bits, sums, codes by thresholds, and packed bits again"
    return document(_SIZE, "The journey of one layer", about, _STYLE, _rules, parts)


def _model() -> ModelProto:
    model = parser.parse_model(_MODEL)
    weights = (2 * _WEIGHTS.T - 1).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weights, "w"))
    return model


def _text(x: float, y: float, text: object, kind: str = "") -> str:
    words = escape(str(text)).replace("-", "\N{MINUS SIGN}")
    return (
        f'<text{f" class={chr(34)}{kind}{chr(34)}" * bool(kind)} x="{x:g}" y="{y:g}">{words}</text>'
    )


def _graph() -> Iterator[str]:
    """Return the nodes in a row; the epilogue is marked below."""
    x, begins = 20.0, []
    for index, name in enumerate(_BOXES):
        wide = 7.6 * len(name) + 20
        begins.append((x, x + wide))
        yield f'<rect class="box" x="{x:g}" y="14" width="{wide:g}" height="26" rx="6"/>'
        yield _text(x + wide / 2, 31, name, "value")
        if index < len(_BOXES) - 1:
            yield f'<path d="M{x + wide:g} 27h26"/>'
        x += wide + 26
    start, end = begins[3][0], begins[5][1]
    yield f'<path class="tail" d="M{start:g} 46v6H{end:g}v-6"/>'
    yield _text((start + end) / 2, 67, "the epilogue: per channel a function of one number", "tail")


def _cells(values: Iterable[object]) -> Iterator[str]:
    for index, value in enumerate(values):
        x = index * _CELL
        yield f'<rect class="box" x="{x}" width="{_CELL - 6}" height="26" rx="3"/>'
        yield _text(x + _CELL / 2 - 3, 17, value, "value")


def _bits(bits: Iterable[int], x: int, y: int) -> Iterator[str]:
    for index, bit in enumerate(bits):
        kind = "one" if bit else "zero"
        at = f'x="{x + index * _BIT}" y="{y}" width="{_BIT - 4}" height="{_BIT - 4}"'
        yield f'<rect class="{kind}" {at} rx="2"/>'


def _planes(codes: np.ndarray) -> Iterator[str]:
    for plane in range(2):
        yield from _bits(codes >> plane & 1, 0, plane * _BIT)
        yield _text(len(codes) * _BIT + 8, plane * _BIT + 12, f"plane of {2**plane}")


def _sums(codes: np.ndarray, weights: np.ndarray, sums: np.ndarray) -> Iterator[str]:
    for channel, row in enumerate(weights):
        y, terms, total = channel * _LINE, [], 0
        for plane in range(2):
            bits = codes >> plane & 1
            met, there = int((bits & row).sum()), int(bits.sum())
            terms.append(
                f"{2**plane} \N{MULTIPLICATION SIGN} (2 \N{MULTIPLICATION SIGN} {met} - {there})"
            )
            total += 2**plane * (2 * met - there)
        assert total == sums[channel]
        yield from _bits(row, 0, y)
        yield _text(8 * _BIT + 12, y + 12, " + ".join(terms))
        yield _text(8 * _BIT + 250, y + 12, f"= {total}", "value")


def _lines(
    sums: np.ndarray, directions: np.ndarray, thresholds: np.ndarray, results: np.ndarray
) -> Iterator[str]:
    """Draw all reachable sums, the thresholds between codes, and the sum of this row."""
    middle, unit = 240, 9.5
    for channel, (total, direction, steps) in enumerate(
        zip(sums, directions, thresholds, strict=True)
    ):
        y = channel * _LINE + 8
        yield f'<path d="M{middle - 24 * unit:g} {y}H{middle + 24 * unit:g}"/>'
        ticks = [middle + direction * (step - 0.5) * unit for step in steps]
        ends = [middle - direction * 24 * unit, *ticks, middle + direction * 24 * unit]
        for at in ticks:
            yield f'<path class="tick" d="M{at:g} {y - 7}v14"/>'
        for code, (left, right) in enumerate(itertools.pairwise(ends)):
            yield _text((left + right) / 2, y - 6, code, "value")
        yield f'<circle cx="{middle + total * unit:g}" cy="{y}" r="4"/>'
        yield _text(middle + 24 * unit + 12, y + 4, f"{total} gives {results[channel]}")
