# SPDX-License-Identifier: Apache-2.0
"""What was found, in words and in rows of text, for a terminal and for a page."""

import math
from collections.abc import Iterable

from anybit.comparison.measure import Sample
from anybit.comparison.results import Difference, Match, TensorDifference, Verdict
from anybit.text import counted, listed, shown, sizes

_STATES = {
    Verdict.EQUAL: "equal",
    Verdict.TOLERATED: "within the tolerance",
    Verdict.DIFFERENT: "different",
    None: "not compared",
}

NUMBERS = (
    "elements",
    "differ",
    "within",
    "largest",
    "relative",
    "SQNR dB",
    "adds",
    "ulps",
    "steps",
)
"""The columns of `rows` that hold numbers."""

START = "*"
"""The mark, in a column without a heading, of a pair that differs although all it is computed from
is equal."""

MOST_ROWS = 20
"""As many tensors are listed if nobody asks for all."""

# Beyond, a difference is not one of rounding, and the relative error says more.
_MOST_ULPS = 1000


def rows(tensors: Iterable[TensorDifference], *, shapes: bool) -> list[dict[str, str]]:
    """One row of texts per pair, by heading. Columns that are empty in all rows are left out.

    Without `shapes` only those that differ are given.
    """
    found = [_row(each, shapes) for each in tensors]
    used = {heading for row in found for heading, text in row.items() if text}
    return [{heading: row[heading] for heading in row if heading in used} for row in found]


def _row(tensor: TensorDifference, every_shape: bool) -> dict[str, str]:
    ours, theirs = sizes(tensor.shape), sizes(tensor.other_shape)
    same = ours if every_shape else ""
    return {
        "": START * tensor.starts,
        "tensor": shown(tensor.name),
        "made by": tensor.operator or "constant",
        "node": "" if tensor.node == tensor.name else shown(tensor.node),
        "in B": _other(tensor),
        "shape": same if ours == theirs else f"{ours} / {theirs}",
        "elements": str(tensor.elements),
        "differ": str(tensor.differing),
        "within": str(tensor.within) if tensor.within else "",
        "largest": number(tensor.largest),
        "relative": percent(tensor.relative) if tensor.largest else "",
        "SQNR dB": f"{tensor.sqnr:.1f}" if tensor.sqnr != math.inf else "",
        "adds": percent(tensor.harm) if tensor.harm else "",
        "ulps": number(tensor.ulps) if tensor.ulps is None or tensor.ulps <= _MOST_ULPS else "",
        "steps": number(tensor.steps),
        "step of": shown(tensor.step_of),
    }


def _other(tensor: TensorDifference) -> str:
    """The tensor of B, where that is not simply the one of the same name."""
    types = f" {tensor.other_dtype} / {tensor.dtype}" if tensor.dtype != tensor.other_dtype else ""
    if tensor.matched is Match.NAME:
        return types.strip()
    return f"{shown(tensor.other_name)} (by {tensor.matched}){types}"


def summary(found: Difference) -> str:
    """How many pairs there are of each kind."""
    kinds = {kind: sum(each.verdict is kind for each in found.tensors) for kind in Verdict}
    parts = [f"{kinds[Verdict.EQUAL]} equal"]
    if kinds[Verdict.TOLERATED]:
        parts.append(f"{kinds[Verdict.TOLERATED]} within the tolerance")
    parts.append(f"{kinds[Verdict.DIFFERENT]} different")
    starts = sum(each.starts for each in found.different)
    if starts:
        parts[-1] += f" ({starts} of them, marked {START}, made from equal tensors)"
    others = [f"{len(names)} of {side}" for side, names in _unmatched(found) if names]
    missing = f" Without a counterpart: {' and '.join(others)}." if others else ""
    positions = sum(each.matched is not Match.NAME for each in found.tensors)
    by = f" {positions} of them matched by position, not by name." if positions else ""
    return f"{counted(len(found.tensors), 'tensor')} compared: {', '.join(parts)}.{by}{missing}"


def remarks(found: Difference) -> list[str]:
    """What the reader must know besides: notes, tolerance, signs of zeros."""
    remarks = list(found.notes)
    allowed = [_steps(found.tolerated_steps)] if found.tolerated_steps else []
    allowed += [f"{found.atol:g}"] if found.atol else []
    if allowed:
        remarks.append(f"differences up to {' or '.join(allowed)} count as equal")
    signs = [each for each in found.tensors if each.zero_signs]
    if signs:
        names = listed([shown(each.name) for each in signs])
        remarks.append(f"0 and -0 count as equal; they meet in {names}")
    return remarks


def first_difference(found: Difference) -> str:
    """The first pair that differs, and the state of what it was made from."""
    first = found.first
    if first is None:
        return ""
    sentence = f"The first tensor that differs is {shown(first.name)}"
    if not first.operator:
        return f"{sentence}, a stored constant."
    states: dict[str, list[str]] = {}
    for each in found.inputs:
        states.setdefault(_STATES[each.verdict], []).append(shown(each.name))
    inputs = [f" Inputs {state}: {listed(names)}." for state, names in states.items()]
    return f"{sentence}, made by {shown(first.made_by)}.{''.join(inputs)}"


def sample(each: Sample) -> str:
    """An element on both sides."""
    apart = "" if each.steps is None else f", {_steps(each.steps)} apart"
    return f"{list(each.index)}: A {value(each.a)}, B {value(each.b)}{apart}"


def value(of: float) -> str:
    """A number with all the digits that tell float32 values apart."""
    return str(of) if isinstance(of, int) else f"{of:.9g}"


def percent(of: float) -> str:
    """A share in three digits."""
    return f"{100 * of:.3g} %" if math.isfinite(of) else str(of)


def number(of: float | None) -> str:
    """A figure in four digits; "" for None."""
    return "" if of is None else f"{of:.4g}"


def _steps(of: float) -> str:
    text = number(of)
    return f"{text} step{'' if text == '1' else 's'}"


def _unmatched(found: Difference) -> list[tuple[str, tuple[str, ...]]]:
    return [("A", found.unmatched_a), ("B", found.unmatched_b)]
