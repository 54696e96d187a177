# SPDX-License-Identifier: Apache-2.0
"""What mixes of widths cost, over what comes out of them: a picture for a page."""

import math
from collections.abc import Callable, Iterator, Sequence
from html import escape
from itertools import pairwise, product
from typing import TypeAlias

from anybit.pages import scrolled
from anybit.quantization import Mix
from anybit.text import amount, shortened, sized

STYLE = """
svg.front{width:640px;max-width:none}svg.front text{font-size:13px}
svg.front path.line{stroke:var(--bar);fill:none;stroke-width:1.5}
svg.front .same{fill:var(--paper);stroke:var(--ink);stroke-width:1.5}
svg.front .chosen{fill:var(--bad)}svg.front text.chosen{font-weight:600}
"""
_WIDE, _HIGH, _LEFT, _TOP, _BASE = 640, 320, 84, 16, 46
_MOST_POINTS = 300
_LETTER, _LINE, _DOT, _PEN = 7.2, 14.0, 6.0, 2.0
# By how many lines a name may stand above or below its point.
_BESIDE = (0.0, 0.75, 1.1)
_Place: TypeAlias = tuple[float, float]
# Left, top, right and bottom.
_Box: TypeAlias = tuple[float, float, float, float]


def front(points: Sequence[Mix]) -> str:
    """Pictures of bytes and of operations on bits over signal over noise, as far as they differ.

    Mixes are a line, formats that all layers have in common are rings with their names, and the
    mix that was chosen is a dot.
    """
    known = [each for each in points if math.isfinite(each.sqnr)]
    costs: dict[str, Callable[[Mix], int]] = {
        "bytes of constants": lambda each: each.bytes,
        "operations on bits": lambda each: each.bops,
    }
    parts = []
    for label, cost in costs.items():
        placed = [(each, cost(each)) for each in known]
        if len({value for _, value in placed}) > 1:
            parts.append(_plot(placed, label, sized if label.startswith("bytes") else amount))
    return "\n".join(parts)


def _plot(placed: Sequence[tuple[Mix, int]], label: str, words: Callable[[int], str]) -> str:
    costs = [value for _, value in placed]
    noises = [each.sqnr for each, _ in placed]
    left, right = min(noises), max(max(noises), min(noises) + 1)
    low, high = min(costs), max(costs)

    def at(sqnr: float, cost: float) -> _Place:
        x = _LEFT + (_WIDE - _LEFT - 90) * (sqnr - left) / (right - left)
        return x, _TOP + (_HIGH - _TOP - _BASE) * (high - cost) / (high - low)

    mixes = sorted(
        (at(each.sqnr, value), each) for each, value in placed if not (each.name or each.chosen)
    )
    corners = [place for place, _ in mixes[:: 1 + len(mixes) // _MOST_POINTS]]
    line = "L".join(f"{x:.0f} {y:.0f}" for x, y in corners)
    about = f"up: {label}{'; the dot: what was chosen' if any(m.chosen for m, _ in placed) else ''}"
    parts = [*_axes(left, right, (low, high), words, about)]
    parts.append(f'<path class="line" d="M{line}"/>' if line else "")
    passed = list(_along(corners))
    marked = [pair for pair in placed if pair[0].name or pair[0].chosen]
    places = [at(each.sqnr, value) for each, value in marked]
    taken = [(x - _DOT, y - _DOT, x + _DOT, y + _DOT) for x, y in places]
    for (each, value), place in sorted(
        zip(marked, places, strict=True), key=lambda pair: not pair[0][0].chosen
    ):
        others = [other for other in places if other != place]
        parts += _marked(each, place, f"{words(value)}", taken, passed, others)
    start = f'<svg class="front" viewBox="0 0 {_WIDE} {_HIGH}" role="img" aria-label="{label}">'
    return scrolled(f"{start}{''.join(parts)}</svg>", label)


def _axes(
    left: float, right: float, costs: tuple[int, int], words: Callable[[int], str], about: str
) -> Iterator[str]:
    base = _HIGH - _BASE
    yield f'<path class="axis" d="M{_LEFT - 8} {_TOP}V{base + 8}H{_WIDE - 80}"/>'
    for x, value, anchor in ((_LEFT, left, "start"), (_WIDE - 90, right, "end")):
        yield f'<text x="{x}" y="{base + 24}" text-anchor="{anchor}">{value:.1f} dB</text>'
    middle = (_LEFT + _WIDE - 90) // 2
    yield f'<text x="{middle}" y="{base + 24}" text-anchor="middle">output SQNR</text>'
    for y, cost in ((_TOP + 6, costs[1]), (base, costs[0])):
        yield f'<text x="{_LEFT - 12}" y="{y}" text-anchor="end">{escape(words(cost))}</text>'
    yield f'<text x="{_LEFT}" y="{_HIGH - 6}">{about}</text>'


def _along(corners: Sequence[_Place]) -> Iterator[_Box]:
    """Small boxes that cover a line."""
    for (x, y), (to_x, to_y) in pairwise(corners):
        count = 1 + int(max(abs(to_x - x), abs(to_y - y)) / _PEN)
        for step in range(count + 1):
            at_x, at_y = (a + (b - a) * step / count for a, b in ((x, to_x), (y, to_y)))
            yield at_x - _PEN, at_y - _PEN, at_x + _PEN, at_y + _PEN


def _marked(
    point: Mix,
    place: _Place,
    cost: str,
    taken: list[_Box],
    passed: Sequence[_Box],
    others: Sequence[_Place],
) -> Iterator[str]:
    """A point, and its name where there is room for it, beside the line if that can be.

    A name that would stand further off, or nearer to another point, is left out, but for that of
    the chosen one, which may be near to others.
    """
    x, y = place
    kind = "chosen" if point.chosen else "same"
    text = shortened(point.name) or "chosen"
    said = f"{shortened(point.name) or 'mix'}: {point.sqnr:.1f} dB, {cost}"
    yield (
        f'<circle class="{kind}" cx="{x:.0f}" cy="{y:.0f}" r="5"><title>{escape(said)}</title>'
        "</circle>"
    )
    text = text if len(text) <= 24 else f"{text[:21]}..."
    wide = _LETTER * len(text)
    rivals = [others, others, ()] if point.chosen else [others, others]
    tried = zip(([*taken, *passed], taken, taken), rivals, strict=False)
    for (full, near), (left, middle) in product(tried, _around(x, y, wide)):
        box = left, middle - _LINE / 2, left + wide, middle + _LINE / 2
        inside = box[0] > _LEFT and box[2] < _WIDE and box[1] > 0 and box[3] < _HIGH - _BASE
        own = _distance(place, box)
        is_nearest = all(_distance(other, box) > own + _DOT / 2 for other in near)
        if inside and is_nearest and not any(_overlap(box, other) for other in full):
            taken.append(box)
            yield (
                f'<text class="{kind}-name" x="{left:.0f}" y="{middle + 4:.0f}">{escape(text)}'
                "</text>"
            )
            return


def _around(x: float, y: float, wide: float) -> Iterator[_Place]:
    """Where a name may stand beside a point: its left end and its middle; the best first.

    Lines rise to the right, so that there is more room to the right and below, and to the left and
    above.
    """
    for off in _BESIDE:
        aside = 9 if off < 1 else -_DOT
        yield x + aside, y + off * _LINE
        yield x - aside - wide, y - off * _LINE


def _distance(place: _Place, box: _Box) -> float:
    x, y = place
    return math.hypot(min(max(x, box[0]), box[2]) - x, min(max(y, box[1]), box[3]) - y)


def _overlap(one: _Box, other: _Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
