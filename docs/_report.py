# SPDX-License-Identifier: Apache-2.0
"""Figure of a histogram from the HTML report."""

import re
from pathlib import Path

from _svg import Palette, document

import anybit
from anybit.reporting.pictures import histogram

_MODEL = Path(__file__).resolve().parent.parent / "examples/digits_w4a4.onnx"
_LEFT, _TOP = 24, 40
_SIZE = _WIDTH, _HEIGHT = 688, 180


def _rules(colours: Palette) -> str:
    return (
        f".inside{{fill:{colours.grid}}}.bar{{fill:{colours.first}}}"
        f".axis,.grid{{stroke:{colours.ink};fill:none}}"
    )


def report_figure() -> str:
    """Draw the weights of the example's first layer, with their quantization grid."""
    layer = anybit.report(_MODEL).layers[0]
    (tensor,) = (tensor for tensor in layer.tensors if tensor.role == "weights")
    html = histogram(tensor)
    content = html[html.index(">") + 1 : html.index("</svg>")]
    left, unit, right = re.findall("<span>(.*?)</span>", html)
    title = f"Weights of {layer.name}: {tensor.kind}, {tensor.scales} scales"
    base = _HEIGHT - 14
    parts = [
        f'<text class="label" x="{_LEFT}" y="24">{title}</text>',
        f'<g transform="translate({_LEFT} {_TOP})">{content}</g>',
        f'<text x="{_LEFT}" y="{base}">{left}</text>',
        f'<text x="{_WIDTH // 2}" y="{base}" text-anchor="middle">{unit}</text>',
        f'<text x="{_WIDTH - _LEFT}" y="{base}" text-anchor="end">{right}</text>',
    ]
    description = "A histogram in logarithmic height, the range of the grid, and its values"
    return document(_SIZE, title, description, "", _rules, parts)
