# SPDX-License-Identifier: Apache-2.0
"""Sentences and table rows of a comparison, for the terminal and the HTML report."""

import math
from collections import Counter
from collections.abc import Iterable

from anybit.comparison.measure import ElementDifference
from anybit.comparison.results import Difference, Match, Outcome, TensorDifference
from anybit.text import escape_name, format_count, format_shape, join_names

_OUTCOMES = {
    Outcome.EQUAL: "equal",
    Outcome.TOLERATED: "within the tolerance",
    Outcome.DIFFERENT: "different",
    None: "not compared",
}

NUMBERS = (
    "elements",
    "differ",
    "tolerated",
    "largest",
    "relative",
    "SQNR dB",
    "added noise",
    "ulps",
    "steps",
)
"""The columns of `rows` that hold numbers."""

START = "*"
"""Marks a pair that differs although all inputs of its node are equal, in an unnamed column."""

MAX_ROWS = 20
"""The number of tensors in the default list."""

# Above this, the difference is not a rounding error, and the relative error tells more.
_MAX_ULPS = 1000


def make_rows(tensors: Iterable[TensorDifference], *, shapes: bool) -> list[dict[str, str]]:
    """Return a row of texts per pair, by heading, without columns that are empty in all rows.

    Without `shapes` only shapes that differ are in the rows.
    """
    all_rows = [_make_row(tensor, shapes) for tensor in tensors]
    used = {heading for row in all_rows for heading, text in row.items() if text}
    return [{heading: row[heading] for heading in row if heading in used} for row in all_rows]


def _make_row(tensor: TensorDifference, every_shape: bool) -> dict[str, str]:
    shape_a, shape_b = format_shape(tensor.shape), format_shape(tensor.other_shape)
    same_shape = shape_a if every_shape else ""
    return {
        "": START * tensor.is_origin,
        "tensor": escape_name(tensor.name),
        "operator": tensor.operator or "constant",
        "node": "" if tensor.node == tensor.name else escape_name(tensor.node),
        "in B": _describe_counterpart(tensor),
        "shape": same_shape if shape_a == shape_b else f"{shape_a} / {shape_b}",
        "elements": str(tensor.elements),
        "differ": str(tensor.differing),
        "tolerated": str(tensor.tolerated) if tensor.tolerated else "",
        "largest": number(tensor.largest),
        "relative": format_share(tensor.relative) if tensor.largest else "",
        "SQNR dB": f"{tensor.sqnr:.1f}" if tensor.sqnr != math.inf else "",
        "added noise": format_share(tensor.added_noise) if tensor.added_noise else "",
        "ulps": number(tensor.ulps) if tensor.ulps is None or tensor.ulps <= _MAX_ULPS else "",
        "steps": number(tensor.steps),
        "quantizer": escape_name(tensor.step_quantizer),
    }


def _describe_counterpart(tensor: TensorDifference) -> str:
    """Return the tensor of B, if its name or type differs."""
    types = f" {tensor.other_dtype} / {tensor.dtype}" if tensor.dtype != tensor.other_dtype else ""
    if tensor.matched is Match.NAME:
        return types.strip()
    return f"{escape_name(tensor.other_name)} (by {tensor.matched}){types}"


def summarize(difference: Difference) -> str:
    """Return a sentence with the number of pairs per outcome."""
    counts = Counter(tensor.outcome for tensor in difference.tensors)
    parts = [f"{counts[Outcome.EQUAL]} equal"]
    if counts[Outcome.TOLERATED]:
        parts.append(f"{counts[Outcome.TOLERATED]} within the tolerance")
    parts.append(f"{counts[Outcome.DIFFERENT]} different")
    origins = sum(tensor.is_origin for tensor in difference.different)
    if origins:
        parts[-1] += f" ({origins} with equal inputs, marked {START})"
    others = [f"{len(names)} of {side}" for side, names in _collect_unmatched(difference) if names]
    missing = f" Without a counterpart: {' and '.join(others)}." if others else ""
    positions = sum(tensor.matched is not Match.NAME for tensor in difference.tensors)
    by = f" {positions} of them matched by position, not by name." if positions else ""
    count = format_count(len(difference.tensors), "tensor")
    return f"{count} compared: {', '.join(parts)}.{by}{missing}"


def make_remarks(difference: Difference) -> list[str]:
    """Return remarks on the comparison: notes, tolerance, signs of zeros."""
    remarks = list(difference.notes)
    allowed = [_format_steps(difference.tolerated_steps)] if difference.tolerated_steps else []
    allowed += [f"{difference.atol:g}"] if difference.atol else []
    if allowed:
        remarks.append(f"differences up to {' or '.join(allowed)} count as equal")
    signs = [tensor for tensor in difference.tensors if tensor.zero_signs]
    if signs:
        names = join_names([escape_name(tensor.name) for tensor in signs])
        remarks.append(f"0 and -0 count as equal; their signs differ in {names}")
    return remarks


def describe_first_difference(difference: Difference) -> str:
    """Return a sentence with the first pair that differs, and the outcomes of its inputs."""
    first = difference.first
    if first is None:
        return ""
    sentence = f"The first tensor that differs is {escape_name(first.name)}"
    if not first.operator:
        return f"{sentence}, a stored constant."
    outcomes: dict[str, list[str]] = {}
    for node_input in difference.inputs:
        outcomes.setdefault(_OUTCOMES[node_input.outcome], []).append(escape_name(node_input.name))
    inputs = [f" Inputs {outcome}: {join_names(names)}." for outcome, names in outcomes.items()]
    return f"{sentence}, computed by {escape_name(first.made_by)}.{''.join(inputs)}"


def format_element(sample: ElementDifference) -> str:
    """Return the values of an element on both sides."""
    apart = "" if sample.steps is None else f", {_format_steps(sample.steps)} apart"
    return f"{list(sample.index)}: A {format_value(sample.a)}, B {format_value(sample.b)}{apart}"


def format_value(number: float) -> str:
    """Return a number in enough digits to tell float32 values apart."""
    return str(number) if isinstance(number, int) else f"{number:.9g}"


def format_share(share: float) -> str:
    """Return a share in percent, in three digits."""
    return f"{100 * share:.3g} %" if math.isfinite(share) else str(share)


def number(figure: float | None) -> str:
    """Return a number in four digits; "" for None."""
    return "" if figure is None else f"{figure:.4g}"


def _format_steps(count: float) -> str:
    text = number(count)
    return f"{text} step{'' if text == '1' else 's'}"


def _collect_unmatched(difference: Difference) -> list[tuple[str, tuple[str, ...]]]:
    return [("A", difference.unmatched_a), ("B", difference.unmatched_b)]
