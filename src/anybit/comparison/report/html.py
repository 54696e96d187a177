# SPDX-License-Identifier: Apache-2.0
"""The HTML report of a comparison: one self-contained file."""

from collections.abc import Sequence
from html import escape

from anybit.comparison.report import wording
from anybit.comparison.report.pictures import heat_map, histogram
from anybit.comparison.results import Difference, TensorDifference
from anybit.pages import document, table
from anybit.text import counted, shown

_STYLE = "tr.different td{background:var(--mark)}tr.tolerated td{color:var(--faint)}\n"
_LEVELS = "".join(f".level{level}{{fill:var(--level{level})}}" for level in range(6))


def page(difference: Difference) -> str:
    """Return the report, for light and dark mode, without scripts. All names are escaped."""
    title = "No differences" if difference.equal else "Differences"
    sides = "".join(
        f"<dt>{side}</dt><dd>{_text(name)}</dd>"
        for side, name in (("A", difference.a), ("B", difference.b))
    )
    body = [
        f"<h1>{title}</h1>",
        f"<dl>{sides}</dl>",
        f"<p>{_text(wording.summary(difference))}</p>",
        _list([_text(remark) for remark in wording.remarks(difference)]),
        *_first(difference),
        *_pictures(difference),
        *_tensors(difference),
        *_unmatched("A", difference.unmatched_a),
        *_unmatched("B", difference.unmatched_b),
    ]
    return document(f"anybit diff: {title.lower()}", body, _STYLE + _LEVELS)


def _first(difference: Difference) -> list[str]:
    if difference.first is None:
        return []
    return [
        "<h2>The first difference</h2>",
        f"<p>{_text(wording.first_difference(difference))}</p>",
        _list([f"Hint: {_text(hint)}" for hint in difference.hints]),
        _list([_text(wording.element(sample)) for sample in difference.first.samples]),
    ]


def _pictures(difference: Difference) -> list[str]:
    """Draw the most harmful tensor, and the first if that is another one."""
    selected: dict[str, TensorDifference] = {}
    for title, tensor in (("Most harmful", difference.worst), ("First", difference.first)):
        if tensor is not None and tensor.same_shape and tensor.elements:
            if tensor in selected.values():
                continue
            selected[title] = tensor
    parts = []
    for title, tensor in selected.items():
        parts.append(f"<h2>{title} tensor: {_text(shown(tensor.name))}</h2>")
        of = f", step of {tensor.step_of}" if tensor.step is not None else ""
        origin = f"Made by {tensor.made_by}" if tensor.operator else "A stored constant"
        parts.append(f"<p>{_text(shown(origin + of))}.</p>")
        parts += [histogram(tensor), heat_map(tensor)]
    return parts


def _tensors(difference: Difference) -> list[str]:
    """Return tables of the most harmful tensors, and of all tensors."""
    worst = difference.ranked[: wording.MAX_ROWS]
    parts = ["<h2>The most harmful tensors</h2>", _table(worst)] if len(worst) > 1 else []
    return (
        [*parts, "<h2>All tensors</h2>", _table(difference.tensors)] if difference.tensors else []
    )


def _table(tensors: Sequence[TensorDifference]) -> str:
    rows = wording.rows(tensors, shapes=True)
    return table(rows, wording.NUMBERS, [tensor.outcome for tensor in tensors])


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
