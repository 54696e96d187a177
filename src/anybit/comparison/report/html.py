# SPDX-License-Identifier: Apache-2.0
"""The result as one page that needs nothing else."""

from collections.abc import Sequence
from html import escape

from anybit.comparison.report import wording
from anybit.comparison.report.pictures import heat_map, histogram
from anybit.comparison.results import Difference, TensorDifference
from anybit.text import counted, shown

_LIGHT = """
--paper:#ffffff;--ink:#1f2328;--faint:#59636e;--line:#d1d9e0;--bar:#0969da;--mark:#fff1e5;
--level0:#f0f2f5;--level1:#cfe3fb;--level2:#9cc7f5;--level3:#5aa0e8;--level4:#1f6fc4;--level5:#0a3d7a
"""
_DARK = """
--paper:#0d1117;--ink:#e6edf3;--faint:#9198a1;--line:#3d444d;--bar:#58a6ff;--mark:#3d2a17;
--level0:#1b2028;--level1:#12365c;--level2:#1a5490;--level3:#2f7fd0;--level4:#70b2f5;--level5:#d5eaff
"""
_STYLE = f"""
:root{{color-scheme:light dark;{_LIGHT}}}
@media(prefers-color-scheme:dark){{:root{{{_DARK}}}}}
body{{background:var(--paper);color:var(--ink);max-width:72rem;margin:2rem auto;padding:0 1rem;
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif}}
h1{{font-size:1.5rem}}h2{{font-size:1.15rem;margin-top:2rem}}
dl{{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1rem}}dt{{color:var(--faint)}}
dd{{margin:0;overflow-wrap:anywhere}}
.scroll{{overflow-x:auto}}
table{{border-collapse:collapse}}
th,td{{text-align:left;padding:.25rem .75rem .25rem 0;border-bottom:1px solid var(--line);
vertical-align:top;overflow-wrap:break-word;max-width:18rem}}
th{{color:var(--faint);font-weight:600;white-space:nowrap}}
.number{{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}}
svg{{display:block;width:100%;max-width:45rem;height:auto;margin:1rem 0}}
svg text{{font-size:12px;fill:var(--faint)}}
tr.different td{{background:var(--mark)}}tr.tolerated td{{color:var(--faint)}}
.bar{{fill:var(--bar)}}.axis{{stroke:var(--faint);fill:none}}
"""
_LEVELS = "".join(f".level{level}{{fill:var(--level{level})}}" for level in range(6))


def page(found: Difference) -> str:
    """A page for light and dark mode, without scripts. All names in it are escaped."""
    title = "No differences" if found.equal else "Differences"
    head = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">\n"
        f"<title>anybit diff: {title.lower()}</title>\n<style>{_STYLE}{_LEVELS}</style>\n</head>"
    )
    sides = "".join(
        f"<dt>{side}</dt><dd>{_text(name)}</dd>" for side, name in (("A", found.a), ("B", found.b))
    )
    body = [
        f"<h1>{title}</h1>",
        f"<dl>{sides}</dl>",
        f"<p>{_text(wording.summary(found))}</p>",
        _list([_text(remark) for remark in wording.remarks(found)]),
        *_first(found),
        *_pictures(found),
        *_tensors(found),
        *_unmatched("A", found.unmatched_a),
        *_unmatched("B", found.unmatched_b),
    ]
    return "\n".join([head, "<body>", *filter(None, body), "</body>", "</html>", ""])


def _first(found: Difference) -> list[str]:
    if found.first is None:
        return []
    return [
        "<h2>The first difference</h2>",
        f"<p>{_text(wording.first_difference(found))}</p>",
        _list([f"Hint: {_text(hint)}" for hint in found.hints]),
        _list([_text(wording.sample(each)) for each in found.first.samples]),
    ]


def _pictures(found: Difference) -> list[str]:
    """Of the most harmful tensor, and of the first if that is another one."""
    chosen: dict[str, TensorDifference] = {}
    for title, tensor in (("Most harmful", found.worst), ("First", found.first)):
        if tensor is not None and tensor.same_shape and tensor.elements:
            if tensor in chosen.values():
                continue
            chosen[title] = tensor
    parts = []
    for title, tensor in chosen.items():
        parts.append(f"<h2>{title} tensor: {_text(shown(tensor.name))}</h2>")
        of = f", step of {tensor.step_of}" if tensor.step is not None else ""
        origin = f"Made by {tensor.made_by}" if tensor.operator else "A stored constant"
        parts.append(f"<p>{_text(shown(origin + of))}.</p>")
        parts += [histogram(tensor), heat_map(tensor)]
    return parts


def _tensors(found: Difference) -> list[str]:
    """The most harmful tensors, and all of them."""
    worst = found.ranked[: wording.MOST_ROWS]
    parts = ["<h2>The most harmful tensors</h2>", _table(worst)] if len(worst) > 1 else []
    return [*parts, "<h2>All tensors</h2>", _table(found.tensors)] if found.tensors else []


def _table(tensors: Sequence[TensorDifference]) -> str:
    rows = wording.rows(tensors, shapes=True)
    headings = [(name, _class(name)) for name in rows[0]]
    head = "".join(f'<th scope="col"{kind}>{_text(name)}</th>' for name, kind in headings)
    lines = [f"<tr>{head}</tr>"]
    for row, tensor in zip(rows, tensors, strict=True):
        cells = "".join(f"<td{kind}>{_text(row[name])}</td>" for name, kind in headings)
        lines.append(f'<tr class="{tensor.verdict}">{cells}</tr>')
    table = "\n".join(lines)
    return f'<div class="scroll"><table>\n{table}\n</table></div>'


def _class(heading: str) -> str:
    return ' class="number"' if heading in wording.NUMBERS else ""


def _unmatched(side: str, names: tuple[str, ...]) -> list[str]:
    if not names:
        return []
    items = _list([_text(shown(name)) for name in names])
    heading = f"{counted(len(names), 'tensor')} of {side} without a counterpart"
    return [f"<details><summary>{heading}</summary>{items}</details>"]


def _list(items: list[str]) -> str:
    return f"<ul>{''.join(f'<li>{item}</li>' for item in items)}</ul>" if items else ""


def _text(text: str) -> str:
    return escape(text)
