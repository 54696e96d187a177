# SPDX-License-Identifier: Apache-2.0
"""The layers of a model as a network: what reads what, and bars beside each. SVG for a page."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Generic, TypeVar

from anybit.layers.layer import Layer
from anybit.pages import scrolled
from anybit.text import amount, shortened, shown

Each = TypeVar("Each", bound=Layer)
Drawn = TypeVar("Drawn", bound=Layer, contravariant=True)

STYLE = """
svg.network{max-width:none;margin:0}
.exact{fill:var(--level5)}.certified{fill:var(--level4)}.bounded{fill:var(--level3)}
.float{fill:var(--line)}.used{fill:var(--bar)}.any{fill:var(--level2)}.free{fill:var(--level0)}
.edge{stroke:var(--line);stroke-width:1.5;fill:none}svg text.name{fill:var(--ink)}
tr.total td{font-weight:600}tr:target td{background:var(--mark)}tr{scroll-margin-top:3rem}
"""
_ROW, _NAME_LENGTH, _NAME_WIDTH, _CLASS, _BITS = 26, 24, 184, 76, 62
_ARC, _MOST_ARCS, _MOST_LAYERS = 7, 8, 300


@dataclass(frozen=True)
class Bar:
    """A bar from the left, as a share of the whole width, in the colour of a class."""

    kind: str
    share: float


@dataclass(frozen=True)
class Lane(Generic[Drawn]):
    """A column of bars that lie on one another, or `below`, and a text with some room behind."""

    heading: str
    width: int
    bars: Callable[[Drawn], Sequence[Bar]]
    text: Callable[[Drawn], str]
    legend: str = ""
    below: bool = False
    room: int = 70


def accumulators() -> Lane[Layer]:
    """How much of 32 bits the accumulators take, for these weights and for any."""

    def bars(layer: Layer) -> Sequence[Bar]:
        bits = layer.accumulator_bits
        if not bits:
            return ()
        return (
            Bar("free", 1),
            Bar("any", min(1.0, (layer.accumulator_bits_any or 0) / 32)),
            Bar("used", min(1.0, bits / 32)),
        )

    legend = "Accumulators: blue for the weights that are there, pale for any of their types"
    text = "accumulator, of 32 bits"
    return Lane(text, 128, bars, lambda each: str(each.accumulator_bits or ""), legend)


def work(layers: Iterable[Layer]) -> Lane[Layer]:
    """Where the work is, by operations on bits."""
    most = max((each.bops or 0 for each in layers), default=0) or 1

    def bars(layer: Layer) -> Sequence[Bar]:
        return (Bar("bar", layer.bops / most),) if layer.bops else ()

    return Lane(
        "operations on bits", 110, bars, lambda each: amount(each.bops) if each.bops else ""
    )


def network(layers: Sequence[Each], lanes: Sequence[Lane[Each]]) -> str:
    """A line per layer, in order, with the edges between them at the left. All names are escaped.

    A name is a link to the row of the table below that has the anchor "layer0" and so on.
    """
    more = f" The first {_MOST_LAYERS} of {len(layers)}." if len(layers) > _MOST_LAYERS else ""
    layers = layers[:_MOST_LAYERS]
    arcs = list(_arcs(layers))
    gutter = 8 + _ARC * max((depth for _, _, depth in arcs), default=0)
    starts, x = [], gutter + 14 + _NAME_WIDTH + _CLASS + _BITS
    for lane in lanes:
        starts.append(x)
        x += lane.width + lane.room
    high = _ROW * (len(layers) + 1) + 4
    parts = ["<title>The layers, from the input to the output</title>"]
    parts += (_edge(gutter, *arc) for arc in arcs)
    headings = zip((lane.heading for lane in lanes), starts, strict=True)
    left = gutter + 14 + _NAME_WIDTH
    for heading, at in (("class", left), ("bits", left + _CLASS), *headings):
        parts.append(f'<text x="{at}" y="16">{heading}</text>')
    for number, layer in enumerate(layers):
        parts += _line(layer, number, gutter)
        for lane, at in zip(lanes, starts, strict=True):
            parts += _drawn(lane, layer, at, _top(number))
    size = f'viewBox="0 0 {x} {high}" style="width:{x}px"'
    start = f'<svg class="network" xmlns="http://www.w3.org/2000/svg" {size} role="group">'
    legend = "; ".join(lane.legend for lane in lanes if lane.legend)
    drawn = scrolled("\n".join([start, *parts, "</svg>"]), "The network")
    return f"<p>{escape(legend)}. Names lead to the table.{more}</p>\n{drawn}"


def _arcs(layers: Sequence[Layer]) -> Iterator[tuple[int, int, int]]:
    """Pairs of layers, and how far to the left the edge between them goes: 0 for neighbours."""
    places = {layer.name: place for place, layer in enumerate(layers)}
    ends: list[int] = []
    for place, layer in enumerate(layers):
        for source in sorted(
            (places[name] for name in layer.inputs if name in places), reverse=True
        ):
            if source == place - 1:
                yield source, place, 0
                continue
            free = next((lane for lane, end in enumerate(ends) if end <= source), len(ends))
            ends[free : free + 1] = [place]
            yield source, place, 1 + free % _MOST_ARCS


def _top(number: int) -> int:
    return _ROW * (number + 1)


def _edge(x: int, source: int, target: int, depth: int) -> str:
    start, end = (_top(each) + _ROW // 2 for each in (source, target))
    if depth == 0:
        return f'<path class="edge" d="M{x} {start}V{end}"/>'
    turns = f"H{x - _ARC * depth}q-5 0-5 5V{end - 5}q0 5 5 5H{x}"
    return f'<path class="edge" d="M{x} {start}{turns}"/>'


def _line(layer: Layer, number: int, gutter: int) -> Iterator[str]:
    name, y = shown(layer.name), _top(number) + 17
    short = shortened(layer.name, _NAME_LENGTH)
    about = f"{layer.operator}, {layer.kind}{': ' if layer.reason else ''}{layer.reason}"
    yield f'<circle class="{layer.kind}" cx="{gutter}" cy="{y - 4}" r="6"/>'
    yield (
        f'<a href="#layer{number}"><title>{escape(name)}: {escape(shown(about))}</title>'
        f'<text class="name" x="{gutter + 14}" y="{y}">{escape(short)}</text></a>'
    )
    left = gutter + 14 + _NAME_WIDTH
    yield f'<text x="{left}" y="{y}">{layer.kind}</text>'
    yield f'<text x="{left + _CLASS}" y="{y}">{layer.weight_bits} x {layer.input_bits}</text>'


def _drawn(lane: Lane[Each], layer: Each, x: int, y: int) -> Iterator[str]:
    bars, full = lane.bars(layer), 0.0
    high = (_ROW - 10) / (len(bars) or 1) if lane.below else _ROW - 12
    for number, bar in enumerate(bars):
        wide = max(1.5, bar.share * lane.width)
        top = y + (5 + number * high if lane.below else 6)
        full = max(full, wide)
        yield (
            f'<rect class="{bar.kind}" x="{x}" y="{top:.6g}" '
            f'width="{wide:.6g}" height="{high:.6g}"/>'
        )
    yield f'<text x="{x + full + 6:.6g}" y="{y + 17}">{escape(lane.text(layer))}</text>'
