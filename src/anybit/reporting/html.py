# SPDX-License-Identifier: Apache-2.0
"""A report as one page that needs nothing else."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape
from itertools import groupby

from anybit.layers.html import classes, reasons
from anybit.pages import document, scrolled, table, worded
from anybit.reporting import wording
from anybit.reporting.facts import Report, ReportedLayer, Sample, Tensor
from anybit.reporting.fronts import STYLE as FRONTS
from anybit.reporting.fronts import front
from anybit.reporting.pictures import STYLE as PICTURES
from anybit.reporting.pictures import histogram, noise, reach, strip
from anybit.text import counted, percent, shortened, shown

_STYLE = """
.verdict{font-size:1.15rem;font-weight:600;border-left:.3rem solid var(--bar);padding-left:.8rem}
.verdict.bad{border-color:var(--bad)}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(9.5rem,1fr));gap:.6rem}
.tiles div{border:1px solid var(--line);border-radius:.4rem;padding:.5rem .8rem}
.tiles span{display:block;color:var(--faint);font-size:.85rem}
.tiles s{color:var(--faint);text-decoration:none}.tiles b{font-size:1.15rem}
code{overflow-wrap:anywhere}th button{all:unset;cursor:pointer;white-space:nowrap}
th button:focus-visible{outline:2px solid var(--bar)}
th[aria-sort=ascending] button::after{content:" \\2191"}
th[aria-sort=descending] button::after{content:" \\2193"}
details{border-bottom:1px solid var(--line);padding:.2rem 0}summary{cursor:pointer}
summary span{color:var(--faint)}a{color:var(--bar)}h3{font-size:1rem;margin:.8rem 0 0}
details p{margin:.2rem 0}details svg{margin:.3rem 0}
:root{--bad:#cf222e}@media(prefers-color-scheme:dark){:root{--bad:#ff7b72}}
"""
_FRONT = (
    "<p>The line is the best mix for each amount of noise; a ring is one format for all layers, "
    "and the dot is this model.</p>"
)
# A click on a heading sorts by it, another one the other way round; what is empty stays below.
_SCRIPT = """
for (const button of document.querySelectorAll("th button")) button.onclick = () => {
  const head = button.parentNode, table = head.closest("table"), body = table.tBodies[0];
  const at = head.cellIndex, number = head.className === "number";
  const orders = number ? ["descending", "ascending"] : ["ascending", "descending"];
  const order = orders[head.getAttribute("aria-sort") === orders[0] ? 1 : 0];
  const sign = order === "ascending" ? 1 : -1;
  const key = row => number ? row.cells[at].dataset.v : row.cells[at].textContent;
  const compare = (a, b) => number ? a - b : a < b ? -1 : a > b ? 1 : 0;
  const rows = [...body.rows].map(row => [key(row), row]);
  const full = rows.filter(each => each[0]), rest = rows.filter(each => !each[0]);
  full.sort((a, b) => sign * compare(a[0], b[0]));
  for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", order);
  body.append(...[...full, ...rest].map(each => each[1]));
};
const open = () => {
  const found = document.getElementById(location.hash.slice(1));
  const details = found && found.closest("details");
  if (details) { details.open = true; details.scrollIntoView(); }
};
addEventListener("hashchange", open);
open();
"""
_MOST_ROWS, _MOST_REASONS = 1000, 50
# Pages open at once whatever the model: as many layers as there is room for, beside their rows.
_ROOM, _ROW = 1_900_000, 700


def page(report: Report) -> str:
    """A page for light and dark mode, phones and keyboards. All names in it are escaped."""
    details, anchors = _details(report.ranked)
    title = f"{shown(report.name[-200:])} in few bits"
    body = [f"<h1>{escape(title)}</h1>", *_first_screen(report)]
    mixes = front(report.front)
    if mixes:
        body += ["<h2>What other widths would cost</h2>", _FRONT, mixes]
    if report.layers:
        body += ["<h2>The network</h2>", _network_note(), strip(report.layers, anchors)]
        bars = noise(report.ranked, anchors)
        if bars:
            body += ["<h2>Where the noise comes from</h2>", _noise_note(report), bars]
        body += ["<h2>All layers</h2>", *classes(each.layer for each in report.layers)]
        body.append(_table(report.ranked, anchors))
    body += _left(report)
    body += _worst(report.worst, bool(report.front))
    if details:
        body += ["<h2>Layer by layer</h2>", _detail_note(report, len(details)), *details]
    return document(f"anybit report: {title}", body, PICTURES + FRONTS + _STYLE, _SCRIPT)


def _first_screen(report: Report) -> Iterator[str]:
    bad = report.verdict is not None and not report.verdict.passed
    yield f'<p class="verdict{" bad" if bad else ""}">{worded(wording.sentence(report))}</p>'
    yield f'<div class="tiles">{"".join(map(_tile, wording.tiles(report)))}</div>'
    if report.command:
        yield f"<p>Made by <code>{worded(shown(report.command))}</code></p>"
    if report.ran is not None:
        ran = report.ran
        yield (
            f"<p>Activations were seen on {ran.seen} of {counted(ran.samples, 'sample')}; the hash "
            f"of all is <code>sha256:{ran.digest}</code></p>"
        )
    if report.findings:
        yield "<h2>Findings</h2>"
        items = (
            f"<li>{escape(each.text)} <em>{worded(each.remedy)}</em></li>"
            for each in report.findings
        )
        yield f"<ul>{''.join(items)}</ul>"


def _tile(tile: wording.Tile) -> str:
    before = f"<s>{_figure(tile.before)}\u00a0\u2192</s> " if tile.before else ""
    return f"<div><span>{escape(tile.label)}</span>{before}<b>{_figure(tile.after)}</b></div>"


def _figure(text: str) -> str:
    """A number stays in one line with its unit."""
    return escape(text).replace(" ", "\u00a0")


def _network_note() -> str:
    return (
        "<p>From the input to the output: a layer is as wide as its multiplications are many, and "
        "its colour is the bits of its weights.</p>"
    )


def _noise_note(report: Report) -> str:
    known = all(each.output_sqnr is not None for each in report.layers)
    of = "the outputs of the model" if known else "each layer's own output"
    return (
        f"<p>Noise over signal of {of}, all other layers being float: the share of each in the sum "
        "over all of them.</p>"
    )


def _table(layers: Sequence[ReportedLayer], anchors: dict[str, str]) -> str:
    """The worst first. Headings sort, and names lead to what is said of the layer."""
    rows = [(wording.row(each), wording.keys(each), each) for each in layers[:_MOST_ROWS]]
    known = {name for row, _, _ in rows for name, cell in row.items() if cell}
    columns = [name for name in wording.COLUMNS if name in known]
    kinds = {name: ' class="number"' if name in wording.NUMBERS else "" for name in columns}
    head = "".join(
        f'<th scope="col"{kinds[name]}><button>{escape(name)}</button></th>' for name in columns
    )
    lines = []
    for row, keys, layer in rows:
        cells = []
        for name in columns:
            key = keys.get(name)
            value = "" if key is None else f' data-v="{key:.6g}"'
            text = escape(row[name])
            if name == "layer" and layer.name in anchors:
                text = f'<a href="#{anchors[layer.name]}">{text}</a>'
            cells.append(f"<td{kinds[name]}{value}>{text}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    body = "\n".join(lines)
    more = len(layers) - len(rows)
    rest = f"<p>{counted(more, 'more layer')} are in the JSON.</p>" if more > 0 else ""
    inside = f"<table><thead><tr>{head}</tr></thead>\n<tbody>{body}</tbody></table>"
    return scrolled(inside, "All layers") + rest


def _left(report: Report) -> Iterator[str]:
    """What stays float, and why."""
    items = [f"{shortened(name)}: {shown(why[:300])}" for name, why in report.left.items()]
    if items:
        more = len(items) - _MOST_REASONS
        lines = "".join(f"<li>{worded(each)}</li>" for each in items[:_MOST_REASONS])
        yield "<h2>What stays float, and why</h2>"
        yield f"<ul>{lines}{f'<li>and {more} more</li>' if more > 0 else ''}</ul>"
    short = [replace(each.layer, name=shortened(each.name)) for each in report.layers]
    yield from reasons(short)


def _worst(samples: Sequence[Sample], by_budget: bool) -> Iterator[str]:
    if not samples:
        return
    rows = [
        {
            "sample": str(each.number),
            "file": shortened(each.name),
            "SQNR": wording.decibels(each.sqnr),
            "largest": {None: "", True: "the same", False: "another"}[each.agrees],
        }
        for each in samples
    ]
    columns = [name for name in rows[0] if any(row[name] for row in rows)]
    yield "<h2>The worst samples</h2>"
    said = "which say which mix of widths is taken" if by_budget else "which no choice has seen"
    yield f"<p>Of those that were held back, {said}.</p>"
    yield table([{name: row[name] for name in columns} for row in rows], ("sample", "SQNR"))


def _tried(layer: ReportedLayer) -> Iterator[str]:
    """The candidates for the range of each tensor, the best first."""
    for tensor, group in groupby(layer.tried, key=lambda each: each.tensor):
        whole, *others = group
        if not others:
            continue
        said = (
            f"{each.lowest:.4g} to {each.highest:.4g}{' scaled' if each.smoothed else ''}"
            f"{' (all)' if each is whole else ''} {wording.decibels(wording.of_noise(each.error))}"
            for each in sorted([whole, *others], key=lambda each: each.error)
        )
        name = shortened(tensor)
        yield f"<p>Ranges tried for {escape(name)}: {escape(', '.join(said))}</p>"


def _detail_note(report: Report, count: int) -> str:
    note = (
        "The worst first. Histograms are logarithmic in height; the range of the grid is "
        "shaded, and its values stand below where they are few."
    )
    more = len(report.layers) - count
    note += f" There is no room here for {counted(more, 'further layer')}." if more else ""
    return f"<p>{note}</p>"


def _details(layers: Sequence[ReportedLayer]) -> tuple[list[str], dict[str, str]]:
    """As many layers as there is room for, and where each of them stands."""
    parts: list[str] = []
    anchors: dict[str, str] = {}
    room = _ROOM - _ROW * min(len(layers), _MOST_ROWS)
    for layer in layers:
        anchor = f"layer{len(parts)}"
        part = _detail(layer, anchor)
        room -= len(part)
        if room < 0:
            break
        parts.append(part)
        anchors.setdefault(layer.name, anchor)
    return parts, anchors


def _detail(layer: ReportedLayer, anchor: str) -> str:
    row = wording.row(layer)
    said = [row["operator"], f"{row['bits']} bits", wording.decibels(layer.sqnr)]
    about = ", ".join(each for each in said if each)
    inside = [f'<div id="{anchor}">']
    if layer.smoothed:
        inside.append("<p>Channels of its activations are scaled against its weights.</p>")
    inside += _tried(layer)
    inside += [part for tensor in layer.tensors for part in _tensor(tensor)]
    if not layer.tensors:
        inside.append("<p>No quantizer of a known grid is before it.</p>")
    name = escape(shortened(layer.name))
    summary = f"<summary>{name} <span>{escape(about)}</span></summary>"
    return f"<details>{summary}{''.join(inside)}</div></details>"


def _tensor(tensor: Tensor) -> Iterator[str]:
    yield f"<h3>{tensor.role.capitalize()}: {escape(shortened(tensor.name))}</h3>"
    ends = f"{tensor.lowest:.6g} to {tensor.highest:.6g}"
    unit = " steps" if tensor.in_steps else ""
    said = [f"{tensor.kind}, {ends}{unit}, {counted(tensor.scales, 'scale')}"]
    if tensor.clipped is not None:
        said.append(f"{percent(tensor.clipped)} cut off")
    if tensor.sqnr is not None:
        said.append(f"{tensor.sqnr:.1f} dB by itself")
    yield f"<p>{escape('; '.join(said))}</p>"
    yield histogram(tensor)
    channels = reach(tensor)
    if channels:
        share = "" if tensor.alone is None else f", {_alone(*tensor.alone)}"
        yield f"<p>Reach of {tensor.channels} channels{share}</p>{channels}"


def _alone(channel: int, share: float) -> str:
    return f"most that of number {channel}, {percent(share)} of it alone"
