# SPDX-License-Identifier: Apache-2.0
"""Pictures of a report, as SVG to stand in a page.

They are drawn here because each is a few rectangles: plotting libraries that work in one file
without a network weigh megabytes. Colours are classes of the page, which has a light and a dark
mode. A histogram is one path, so that hundreds of layers fit.
"""

import math
from collections.abc import Iterable, Sequence
from html import escape

from anybit.reporting.facts import Histogram, ReportedLayer, Tensor
from anybit.text import amount, percent, shortened

STYLE = """
svg.strip{max-width:none}svg.strip a:focus rect,svg.strip a:hover rect{stroke:var(--ink)}
svg.strip rect{stroke:var(--paper);stroke-width:.5}
.b0{fill:var(--level1)}.b1{fill:var(--level2)}.b2{fill:var(--level3)}.b3{fill:var(--level4)}
.b4{fill:var(--level5)}.b5{fill:var(--line)}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1rem;padding:0;list-style:none;color:var(--faint)}
.legend svg{display:inline;width:.8rem;margin:0 .3rem 0 0}
.inside{fill:var(--mark)}.grid{stroke:var(--ink);stroke-width:1;fill:none;opacity:.6}
.ends{display:flex;justify-content:space-between;max-width:45rem;color:var(--faint);
font-size:.8rem}
.bars{list-style:none;padding:0;max-width:45rem}
.bars li{display:flex;align-items:center;gap:.5rem;padding:.1rem 0}
.bars span{width:40%;flex-shrink:0;overflow-wrap:anywhere}.bars b{white-space:nowrap}
.bars i{background:var(--bar);height:.9rem}
"""
_WIDE, _HIGH, _TALL = 640, 90, 102
_WIDEST_GRID = 3.0
_BITS = ((2, "up to 2"), (4, "3 or 4"), (6, "5 or 6"), (8, "7 or 8"), (16, "9 to 16"))
_MOST_BARS, _MOST_PARTS = 20, 500


def strip(layers: Sequence[ReportedLayer], anchors: dict[str, str]) -> str:
    """The network from left to right: a layer is as wide as its multiplications are many.

    Those of unknown sizes count as many as they have weights. Of very many, neighbours are drawn
    as one.
    """
    step = -(-len(layers) // _MOST_PARTS)
    groups = [layers[start : start + step] for start in range(0, len(layers), step)]
    work = [sum(each.layer.macs or each.layer.parameters or 1 for each in one) for one in groups]
    # However small a layer is, it can be seen, and hit.
    least = sum(work) / (16 * len(work))
    total, x, parts = sum(max(each, least) for each in work), 0.0, []
    for group, part in zip(groups, work, strict=True):
        wide = 1000 * max(part, least) / total
        level = _level(max(each.bits for each in group))
        box = f'class="b{level}" x="{x:.2f}" width="{wide:.2f}" height="44"'
        drawn = f"<rect {box}><title>{escape(_about(group))}</title></rect>"
        anchor = anchors.get(group[0].name)
        parts.append(drawn if anchor is None else f'<a href="#{anchor}">{drawn}</a>')
        x += wide
    start = '<svg class="strip" viewBox="0 0 1000 44" preserveAspectRatio="none" role="group"'
    labelled = 'aria-label="The network" style="height:44px">'
    used = sorted({_level(each.bits) for each in layers})
    return f"{start} {labelled}{''.join(parts)}</svg>\n{_legend(used)}"


def _about(layers: Sequence[ReportedLayer]) -> str:
    first = layers[0].layer
    if len(layers) > 1:
        return f"{len(layers)} layers from {shortened(first.name)}"
    bits = f"{first.weight_bits} x {first.input_bits} bits"
    return f"{shortened(first.name)}: {bits}, {amount(first.macs)} MACs"


def _level(bits: int) -> int:
    return next((place for place, (most, _) in enumerate(_BITS) if bits <= most), len(_BITS))


def _legend(levels: Iterable[int]) -> str:
    words = [*(f"{text} bits" for _, text in _BITS), "floats"]
    items = (
        f'<li><svg viewBox="0 0 10 10"><rect class="b{each}" width="10" height="10"/></svg>'
        f"{words[each]}</li>"
        for each in levels
    )
    return f'<ul class="legend">{"".join(items)}</ul>'


def noise(ranked: Sequence[ReportedLayer], anchors: dict[str, str]) -> str:
    """A bar for each of the layers with the most noise, and one for all others."""
    bars = [(each.name, each.noise) for each in ranked if each.noise is not None]
    rest = bars[_MOST_BARS:]
    most = max((share for _, share in bars), default=0.0)
    shown = [(_linked(name, anchors), share) for name, share in bars[:_MOST_BARS]]
    if rest:
        shown.append((f"{len(rest)} others", sum(share for _, share in rest)))
    items = (
        f'<li><span>{name}</span><i style="width:{35 * min(1.0, share / (most or 1)):.1f}%"></i>'
        f"<b>{escape(percent(share))}</b></li>"
        for name, share in shown
    )
    return f'<ul class="bars">{"".join(items)}</ul>' if bars else ""


def _linked(name: str, anchors: dict[str, str]) -> str:
    text = escape(shortened(name))
    return f'<a href="#{anchors[name]}">{text}</a>' if name in anchors else text


def histogram(tensor: Tensor) -> str:
    """What was seen of a tensor, in logarithmic height, and the grid that it is rounded to."""
    seen = tensor.histogram
    if seen is None:
        return ""
    left, right = _window(seen, tensor.lowest, tensor.highest)
    unit = _WIDE / (right - left)

    def at(value: float) -> float:
        return min(max((value - left) * unit, 0.0), float(_WIDE))

    start, end = at(tensor.lowest), at(tensor.highest)
    parts = [
        f'<rect class="inside" x="{start:.0f}" width="{max(1.0, end - start):.0f}" '
        f'height="{_HIGH}"/>',
        _bars(seen, at(seen.lowest), at(seen.highest)),
        f'<path class="axis" d="M0 {_HIGH}H{_WIDE}"/>',
    ]
    ticks = "".join(f"M{at(value):.0f} {_HIGH}v10" for value in tensor.values)
    parts.append(f'<path class="grid" d="{ticks or _ends(start, end)}"/>')
    words = "steps of its channel" if tensor.in_steps else "values"
    ends = f"<span>{left:.4g}</span><span>{words}</span><span>{right:.4g}</span>"
    size = f'viewBox="0 0 {_WIDE} {_TALL}"'
    drawn = f'<svg {size} role="img" aria-label="Histogram">{"".join(parts)}</svg>'
    return f'{drawn}<p class="ends">{ends}</p>'


def _window(seen: Histogram, lowest: float, highest: float) -> tuple[float, float]:
    """Both ranges, as long as that of the grid does not hide what was seen."""
    room = _WIDEST_GRID * (seen.highest - seen.lowest) or abs(seen.highest) or 1.0
    left = min(seen.lowest, max(lowest, seen.lowest - room))
    right = max(seen.highest, min(highest, seen.highest + room))
    return (left, right) if left < right else (left - 1, right + 1)


def _bars(seen: Histogram, start: float, end: float) -> str:
    wide = max(end - start, 2.0) / len(seen.counts)
    path = _outline(seen.counts)
    return (
        f'<path class="bar" transform="translate({start:.1f} 0) scale({wide:.4f} 1)" d="{path}"/>'
    )


def _outline(counts: Sequence[int]) -> str:
    """Columns of one unit, as logarithms."""
    most = math.log1p(max(counts)) or 1.0
    heights = (round((_HIGH - 4) * math.log1p(each) / most) for each in counts)
    return f"M0 {_HIGH}{''.join(f'V{_HIGH - each}h1' for each in heights)}V{_HIGH}z"


def _ends(start: float, end: float) -> str:
    return f"M{start:.0f} {_HIGH + 10}V{_HIGH}H{end:.0f}V{_HIGH + 10}"


def reach(tensor: Tensor) -> str:
    """The largest magnitude of each channel, or of neighbours together."""
    if len(tensor.reach) < 2:
        return ""
    most = max(tensor.reach) or 1.0
    heights = (round(40 * each / most) for each in tensor.reach)
    path = f"M0 44{''.join(f'V{44 - each}h1' for each in heights)}V44z"
    count = len(tensor.reach)
    return (
        f'<svg viewBox="0 0 {count} 44" preserveAspectRatio="none" style="height:44px" role="img" '
        f'aria-label="Reach per channel"><path class="bar" d="{path}"/></svg>'
    )
