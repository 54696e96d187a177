# SPDX-License-Identifier: Apache-2.0
"""Overview picture: inputs, conversions, and where the results run."""

from collections.abc import Iterator

from _svg import Palette, document

_SIZE = _WIDTH, _HEIGHT = 640, 356
_EDGE, _GAP, _BOX = 16, 16, (192, 60)
_TOP, _MIDDLE, _BOTTOM = 16, 148, 280

# What somebody has, and the commands that lead on from it.
_SOURCES = (
    ("A float model", "an ONNX file, some data", "quantize"),
    ("You train", "PyTorch, JAX", "train, export"),
    ("A quantized model", "QONNX, QDQ", "check, clean"),
)
# What it can become, and the commands that lead there.
_TARGETS = (
    ("Standard ONNX", "QDQ, for any runtime", "convert"),
    ("Integers", "1 to 8 bits, with a proof", "compile"),
    ("The same bits", "NumPy, PyTorch, JAX, C++", "run, diff"),
)
_STYLE = """\
text{font-size:13px;text-anchor:middle}
.title{font-size:15px;font-weight:600}
path{fill:none;stroke-width:1.5}
"""


def _rules(colours: Palette) -> str:
    return (
        f".title{{fill:{colours.ink}}}path{{stroke:{colours.axis}}}"
        f".box{{fill:{colours.paper};stroke:{colours.axis}}}"
        f".few{{fill:{colours.paper};stroke:{colours.first};stroke-width:2}}"
        f".command{{fill:{colours.second};font-weight:600}}"
    )


def overview_figure() -> str:
    """Three sources, one model in few bits, three targets."""
    parts = list(
        _box(
            _EDGE,
            _MIDDLE,
            _WIDTH - 2 * _EDGE,
            "few",
            "A network in few bits",
            "weights and activations of any width, each value defined to the last bit",
        )
    )
    for place, (source, target) in enumerate(zip(_SOURCES, _TARGETS, strict=True)):
        left = _EDGE + place * (_BOX[0] + _GAP)
        parts += _box(left, _TOP, _BOX[0], "box", *source[:2])
        parts += _arrow(left, _TOP + _BOX[1], _MIDDLE, source[2])
        parts += _arrow(left, _MIDDLE + _BOX[1], _BOTTOM, target[2])
        parts += _box(left, _BOTTOM, _BOX[0], "box", *target[:2])
    about = "; ".join(f"{title}: {command}" for title, _, command in _SOURCES + _TARGETS)
    return document(_SIZE, "From what you have to few bits, and on", about, _STYLE, _rules, parts)


def _box(left: int, top: int, width: int, kind: str, title: str, words: str) -> Iterator[str]:
    middle = left + width // 2
    yield f'<rect class="{kind}" x="{left}" y="{top}" width="{width}" height="{_BOX[1]}" rx="6"/>'
    yield f'<text class="title" x="{middle}" y="{top + 26}">{title}</text>'
    yield f'<text x="{middle}" y="{top + 46}">{words}</text>'


def _arrow(left: int, top: int, bottom: int, command: str) -> Iterator[str]:
    """Draw an arrow from one box down to the next, with the command in its middle."""
    x, y = left + _BOX[0] // 2, (top + bottom) // 2
    yield f'<path d="M{x} {top}V{y - 14}M{x} {y + 10}V{bottom}M{x - 5} {bottom - 7}l5 7l5 -7"/>'
    yield f'<text class="command" x="{x}" y="{y + 3}">{command}</text>'
