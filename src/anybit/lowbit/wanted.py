# SPDX-License-Identifier: Apache-2.0
"""Which codes the tensors of a region have, before any of them is planned.

Moving elements keeps their codes, so that values between which elements only move have the same:
the smallest range that holds those of all. Where zeros are added at a border, they are among them.
"""

import math
from collections.abc import Iterator

import onnx_ir as ir

from anybit.lowbit.groups import Groups
from anybit.lowbit.parts import Codes
from anybit.lowbit.program import MOST_LEVELS
from anybit.onnx.analysis.abstract_values import AbstractValue
from anybit.onnx.analysis.analysis import Analysis
from anybit.onnx.graph.attributes import attribute_of
from anybit.onnx.graph.constants import is_constant
from anybit.onnx.graph.op_traits import OpTrait, has_trait


def wanted_codes(model: ir.Model, analysis: Analysis) -> dict[ir.Value, Codes]:
    """The codes of each value that can be a tensor of codes."""
    own = {}
    for value, carrier in analysis.values.items():
        codes = None if is_constant(value) else _codes(carrier)
        if codes is not None:
            own[value] = codes
    groups: Groups[ir.Value] = Groups()
    for node in model.graph:
        if has_trait(node, OpTrait.KEEPS_CODES):
            values = [v for v in (*node.inputs, *node.outputs) if v is not None and v in own]
            for value in values[1:]:
                if own[value].scale == own[values[0]].scale:
                    groups.join(values[0], value)
    padded = {groups.root(x) for x in _padded(model)}
    members: dict[ir.Value, list[ir.Value]] = {}
    for value in own:
        members.setdefault(groups.root(value), []).append(value)
    found = {}
    for root, values in members.items():
        codes = _merged([own[value] for value in values], zero=root in padded)
        for value in values:
            chosen = codes or _merged([own[value]], zero=root in padded) or own[value]
            found[value] = chosen
    return found


def why_none(value: ir.Value, analysis: Analysis) -> str:
    """Why a value is not a tensor of codes."""
    carrier = analysis.values.get(value)
    codes = None if carrier is None else carrier.codes
    what = f"its input {value.name!r}"
    if codes is None:
        said = f"say what it holds with --input-range {value.name}=..."
        return f"{what} is not quantized: {said if value.is_graph_input() else 'quantize it'}"
    if not codes.integral:
        return f"{what} has a zero-point that is not an integer: quantize it with one that is"
    if codes.scale.min() != codes.scale.max():
        return f"{what} has a scale per channel: quantize it with one for all"
    if codes.scale.flat[0] == 0:
        return f"{what} has the scale 0"
    return f"{what} has codes of more than 8 bits: quantize it to fewer"


def _codes(carrier: AbstractValue) -> Codes | None:
    """The codes less the zero-point; None if they are not integers of one scale, or too many."""
    codes = carrier.codes
    if codes is None or not codes.integral:
        return None
    if codes.scale.min() != codes.scale.max() or codes.scale.flat[0] == 0:
        return None
    # All codes of the type where that is known: a tail is compared with the graph on more
    # accumulators than there can be.
    lowest, highest = (int(pick) for pick in (codes.centered[0].min(), codes.centered[1].max()))
    same = codes.zeropt.min() == codes.zeropt.max()
    step = codes.step if same and codes.members is None else 1
    if isinstance(codes.allowed, range) and same:
        zeropt = int(codes.zeropt.flat[0])
        lowest, highest = codes.allowed[0] - zeropt, codes.allowed[-1] - zeropt
        step = codes.allowed.step
    levels = (highest - lowest) // step + 1
    if levels > MOST_LEVELS:
        return None
    return Codes(float(codes.scale.flat[0]), lowest, step, levels)


def _merged(all_codes: list[Codes], *, zero: bool) -> Codes | None:
    """The smallest range that holds all, and 0 where that is needed; None if it is too long."""
    lowest = min(codes.lowest for codes in all_codes)
    highest = max(codes.highest for codes in all_codes)
    first = lowest
    steps = [codes.step for codes in all_codes if codes.levels > 1]
    steps += [codes.lowest - first for codes in all_codes]
    if zero:
        lowest, highest = min(lowest, 0), max(highest, 0)
        steps += [first - lowest, -lowest]
    step = math.gcd(*steps) or 1
    levels = (highest - lowest) // step + 1
    if levels > MOST_LEVELS:
        return None
    return Codes(all_codes[0].scale, lowest, step, levels)


def _padded(model: ir.Model) -> Iterator[ir.Value]:
    """What convolutions, means and Pads read with zeros at the borders."""
    for node in model.graph:
        x = node.inputs[0] if node.inputs else None
        if node.domain or x is None:
            continue
        if node.op_type == "Pad":
            yield x
        elif has_trait(node, OpTrait.MAY_PAD):
            automatic = attribute_of(node, "auto_pad", "NOTSET").startswith("SAME")
            if automatic or any(attribute_of(node, "pads", ())):
                yield x
