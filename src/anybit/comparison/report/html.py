# SPDX-License-Identifier: Apache-2.0
"""The page of a comparison."""

from collections.abc import Iterator, Sequence

from anybit.comparison.report import wording
from anybit.comparison.report.pictures import draw_heat_map, draw_histogram
from anybit.comparison.results import Difference, TensorDifference
from anybit.inspection.page import (
    Block,
    Cell,
    Details,
    Facts,
    HtmlTable,
    Items,
    Page,
    Section,
    render,
)
from anybit.text import format_count


def render_page(difference: Difference) -> str:
    """Return the comparison as an HTML page that works offline."""
    sections = [
        *_make_first_section(difference),
        *_draw_charts(difference),
        *_make_tensor_sections(difference),
        Section(
            "Tensors without a counterpart",
            [
                *_list_unmatched("A", difference.unmatched_a),
                *_list_unmatched("B", difference.unmatched_b),
            ],
        ),
    ]
    return render(
        Page(
            "No differences" if difference.equal else "Differences",
            "anybit diff",
            wording.summarize(difference),
            failed=not difference.equal,
            blocks=[
                Facts({"A": difference.a, "B": difference.b}),
                Items(wording.make_remarks(difference)),
            ],
            sections=[section for section in sections if section.blocks],
        )
    )


def _make_first_section(difference: Difference) -> Iterator[Section]:
    if difference.first is not None:
        hints = [f"Hint: {hint}" for hint in difference.hints]
        samples = [wording.format_element(sample) for sample in difference.first.samples]
        blocks: list[Block] = [
            wording.describe_first_difference(difference),
            Items([*hints, *samples]),
        ]
        yield Section("The first difference", blocks)


def _draw_charts(difference: Difference) -> Iterator[Section]:
    """Yield charts of the most harmful tensor, and of the first if that is another one."""
    selected: dict[str, TensorDifference] = {}
    for title, tensor in (("Most harmful", difference.worst), ("First", difference.first)):
        if tensor is not None and tensor.same_shape and tensor.elements:
            if tensor in selected.values():
                continue
            selected[title] = tensor
    for title, tensor in selected.items():
        of = f", step of {tensor.step_quantizer}" if tensor.step is not None else ""
        origin = f"Made by {tensor.made_by}" if tensor.operator else "A stored constant"
        charts = [draw_histogram(tensor), draw_heat_map(tensor)]
        yield Section(f"{title} tensor: {tensor.name}", [f"{origin}{of}.", *charts])


def _make_tensor_sections(difference: Difference) -> Iterator[Section]:
    """Yield the most harmful tensors, and all of them."""
    worst = difference.ranked[: wording.MAX_ROWS]
    if len(worst) > 1:
        yield Section("The most harmful tensors", [_make_table(worst)])
    if difference.tensors:
        yield Section("All tensors", [_make_table(difference.tensors)])


def _make_table(tensors: Sequence[TensorDifference]) -> HtmlTable:
    rows = wording.make_rows(tensors, shapes=True)
    cells = [[Cell(cell) for cell in row.values()] for row in rows]
    return HtmlTable(list(rows[0]), cells, wording.NUMBERS, [tensor.outcome for tensor in tensors])


def _list_unmatched(side: str, names: tuple[str, ...]) -> Iterator[Details]:
    if names:
        yield Details(f"{format_count(len(names), 'tensor')} of {side}", "", [Items(names)])
