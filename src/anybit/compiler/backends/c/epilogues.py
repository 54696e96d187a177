# SPDX-License-Identifier: Apache-2.0
"""Epilogues of sums as statements of C."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anybit.compiler.backends.c.constants import Constant, Constants
from anybit.compiler.backends.c.literals import format_float, format_integer, format_offset
from anybit.compiler.backends.c.parameters import Parameter, mark
from anybit.compiler.backends.c.types import CType, StoredTensor, find_type, return_element
from anybit.compiler.partition.expressions import IntegerRange
from anybit.compiler.program import program as p
from anybit.compiler.program.reference import join_words, unpack_late
from anybit.errors import ModelError
from anybit.onnx.graph.constants import Array

_FEW_THRESHOLDS = 3


@dataclass(frozen=True)
class Epilogue:
    """The body of a function of a sum and its channel, or of two indices.

    Attributes:
        lines: Its statements; the last one returns.
        searched: The type of the thresholds that a binary search compares, if there is one.
        scaling: How sums of several channels become bytes together, if they can.
    """

    lines: tuple[str, ...]
    searched: CType | None = None
    scaling: "WideScaling | None" = None


@dataclass(frozen=True)
class WideScaling:
    """Expressions of a multiplication of 64 bits, whose upper 32 are shifted.

    Attributes:
        scales: The array of three words per channel: multiplier and term.
        shift: The shift of a channel.
        lowest, highest: The least element, and the largest index.
        late: Whether any of sixteen channels from one on has late steps, as an expression.
    """

    scales: str
    shift: str
    lowest: int
    highest: int
    late: str


@dataclass(frozen=True, eq=False)
class Sums:
    """The sums that an epilogue reads.

    Attributes:
        reach: The accumulators of the program, per channel.
        bias: The accumulator less the sum that C computes, per channel.
    """

    reach: IntegerRange
    bias: Array


@dataclass(frozen=True)
class CommonScaling:
    """A form of multiplications and shifts that layers can share.

    Attributes:
        channels: Numbers of the arrays of equal shifts: the channels of the widest layer.
        keys: Type of the keys of late steps.
        negative: Whether a multiplier of a layer is negative.
    """

    channels: int
    keys: CType
    negative: bool


def emit_epilogue(
    epilogue: p.Epilogue,
    sums: Sums,
    target: StoredTensor | None,
    name: str,
    constants: Constants,
    common: CommonScaling | None = None,
) -> Epilogue:
    """Emit an epilogue to elements of a target, or to float32 without one.

    Args:
        epilogue: The epilogue.
        sums: The sums that it reads.
        target: The tensor that it writes.
        name: Name of the layer.
        constants: The arrays of the file.
        common: A form for all multiplications and shifts; else each has the shortest.

    Raises:
        ModelError: It computes codes in floats.
    """
    match epilogue:
        case p.Arithmetic():
            return Epilogue(tuple(_emit_arithmetic(epilogue, sums, name, constants)))
        case p.Thresholds() if target:
            return _emit_thresholds(epilogue, sums, target, name, constants)
        case p.Scaled() if target:
            return _emit_scaled(epilogue, sums, target, name, constants, common)
        case p.Table() if target:
            return Epilogue(tuple(_emit_table(epilogue, sums, target, name, constants)))
        case p.Piecewise() if target:
            return _emit_pieces(epilogue, sums, target, name, constants)
    raise ModelError(
        f"{name}: its results rise and fall over too many sums for a table, and C code has no "
        "floats between layers; use ReLU or HardSigmoid in place of the function after the sum"
    )


def _emit_thresholds(
    epilogue: p.Thresholds, sums: Sums, target: StoredTensor, name: str, constants: Constants
) -> Epilogue:
    count = target.levels - 1
    if not count:
        return Epilogue(("(void)sum;", "(void)channel;", f"return {target.lowest};"))
    directions = epilogue.directions.astype(np.int64)
    ends = np.stack([sums.reach.lowest, sums.reach.highest]) * directions
    # A threshold that no sum reaches, or all do, may be as small as a type holds it.
    limits = ends.min(axis=0)[:, None], ends.max(axis=0)[:, None] + 1
    thresholds = np.clip(epilogue.thresholds.reshape(-1, count), *limits)
    thresholds = thresholds - (directions * sums.bias)[:, None]
    array = constants.add(f"{name}_thresholds", thresholds)
    lines = []
    if (directions < 0).any():
        signs = constants.add(f"{name}_directions", directions)
        lines.append(f"sum *= {signs.at('channel')};")
    place = format_offset(count, len(directions))
    if count > _FEW_THRESHOLDS:
        reached = array.count("sum", f"{array.symbol} + {place}", count)
        return Epilogue((*lines, return_element(target, reached)), array.ctype)
    reads = [array.at(f"{place} + {i}" if i else place) for i in range(count)]
    reached = " + ".join(f"(sum >= {read})" for read in reads)
    return Epilogue((*lines, return_element(target, f"({reached})" if count > 1 else reached)))


def _emit_scaled(
    epilogue: p.Scaled,
    sums: Sums,
    target: StoredTensor,
    name: str,
    constants: Constants,
    common: CommonScaling | None,
) -> Epilogue:
    multipliers = epilogue.multipliers.astype(np.int64)
    terms = [
        int(term) + int(factor) * int(bias)
        for term, factor, bias in zip(
            join_words(epilogue.terms), multipliers, sums.bias, strict=True
        )
    ]
    shifts = epilogue.right_shifts.astype(np.int64)
    wide = _find_width(multipliers, terms, sums)
    upper = "y"
    if wide is CType.INT32:
        shifts = np.minimum(shifts, 31)
    elif (raised := _raise_shifts(shifts, multipliers, terms)) is not None:
        shifts, multipliers, terms = raised
        upper = "upper"
    lines, multiplier, term, scales = _read_scales(multipliers, terms, name, constants)
    if not lines or upper == "y":
        common = None
    shift_of_channel = shift = _read_shift(shifts, name, constants, common)
    number = "sum" if wide is CType.INT32 else "(int64_t)sum"
    lines += [
        f"const {wide.value} y = {number} * {multiplier} + {term};",
        "if (y < 0) {",
        f"    return {target.lowest};",
        "}",
    ]
    if "READ" in shift:
        lines.append(f"const int shift = {shift};")
        shift = "shift"
    if upper != "y":
        lines.append("const int32_t upper = (int32_t)(y >> 32);")
    lines += [
        f"if ({upper} >> {shift} > {target.levels - 1}) {{",
        f"    return {target.highest};",
        "}",
    ]
    late = bool(common or epilogue.late.any())
    index = f"{upper} >> {shift}"
    if upper == "y" and wide is CType.INT64:
        index = f"(int32_t)({index})"
    lines.append(f"{'' if late else 'const '}int32_t index = {index};")
    searched = None
    if late:
        is_late, searched = _emit_late(epilogue, target, name, constants, common)
        magnitude = multiplier
        if common and common.negative:
            magnitude = "(multiplier < 0 ? 0u - (uint32_t)multiplier : (uint32_t)multiplier)"
        elif not common and np.any(multipliers < 0):
            magnitude = _read(constants, f"{name}_magnitudes", np.abs(multipliers))
        whole = "(int64_t)index" if wide is CType.INT64 else "index"
        near = f"y - ({whole} << {shift}) < {magnitude}"
        if upper != "y":
            near = f"(uint32_t)y < (uint32_t){magnitude} && upper == index << {shift}"
        lines += [
            f"if ({near}) {{",
            f"    const int32_t step = channel * (int32_t){target.levels} + index;",
            f"    index -= {is_late} && index > 0;",
            "}",
        ]
    scaling = None
    if scales and upper != "y" and target.ctype.size == 1 and target.step == 1:
        any_late = "0"
        if late:
            listed = _list_late(epilogue, target, name, constants, common)
            any_late = _has_late_of_block(listed, target.levels)
        scaling = WideScaling(
            scales.symbol, shift_of_channel, target.lowest, target.levels - 1, any_late
        )
    return Epilogue((*lines, return_element(target, "index")), searched, scaling)


def _read_shift(
    shifts: Array, name: str, constants: Constants, common: CommonScaling | None
) -> str:
    """Return the expression of a channel's shift; in the common form, it is that of an array."""
    if common and np.all(shifts == shifts[0]):
        equal = np.full(common.channels, shifts[0])
        return constants.add(f"all_{shifts[0]}_shifts", equal).at("channel")
    return _read(constants, f"{name}_shifts", shifts)


def _read_scales(
    multipliers: Array, terms: Sequence[int], name: str, constants: Constants
) -> tuple[list[str], str, str, Constant | None]:
    """Return statements, the expressions of a channel's multiplier and term, and their array.

    Terms of 64 bits that differ between channels lie beside the multipliers, as two words.
    """
    numbers = np.array(terms, np.int64)
    alike = np.all(multipliers == multipliers[0]) or np.all(numbers == numbers[0])
    if alike or find_type(int(numbers.min()), int(numbers.max())) is not CType.INT64:
        multiplier = _read(constants, f"{name}_multipliers", multipliers)
        return [], multiplier, _read(constants, f"{name}_terms", numbers), None
    words = np.stack([multipliers, numbers, numbers >> 32], 1).astype(np.int32)
    scales = constants.add(f"{name}_scales", words, CType.INT32)
    lines = [
        f"const int32_t *const scale = {scales.symbol} + channel * 3;",
        "const int32_t multiplier = READ_INT32(scale);",
        "const uint64_t high = (uint64_t)READ_INT32(scale + 2) << 32;",
        "const int64_t term = (int64_t)(high | (uint32_t)READ_INT32(scale + 1));",
    ]
    return lines, "multiplier", "term", scales


def _raise_shifts(
    shifts: Array, multipliers: Array, terms: Sequence[int]
) -> tuple[Array, Array, list[int]] | None:
    """Return shifts of the upper 32 of 64 bits, with larger multipliers and terms if they fit."""
    left = np.maximum(32 - shifts, 0)
    fits = np.all(np.abs(multipliers) < np.ldexp(1.0, 31 - left)) and all(
        abs(term) < 2 ** int(61 - by) for term, by in zip(terms, left, strict=True)
    )
    if not fits:
        return None
    raised = [term << int(by) for term, by in zip(terms, left, strict=True)]
    return shifts + left - 32, multipliers << left, raised


def _emit_late(
    epilogue: p.Scaled,
    target: StoredTensor,
    name: str,
    constants: Constants,
    common: CommonScaling | None,
) -> tuple[str, CType | None]:
    """Emit whether the step of an index is late, by a list or a bit per step, whichever is smaller.

    Return the type of the list, too.
    """
    listed = _list_late(epilogue, target, name, constants, common)
    if listed is None:
        return constants.add(f"{name}_late", epilogue.late, CType.UINT8).bit("step"), None
    keys, count = listed
    return keys.has("step", count), keys.ctype


def _list_late(
    epilogue: p.Scaled,
    target: StoredTensor,
    name: str,
    constants: Constants,
    common: CommonScaling | None,
) -> tuple[Constant, Parameter] | None:
    """Return the list of late steps and its length; None if a bit per step is smaller."""
    late = unpack_late(epilogue, target.levels) if epilogue.late.size else np.zeros(0)
    keys = np.flatnonzero(late)
    ctype = common.keys if common else find_type(0, int(keys.max()))
    if keys.size and keys.size * ctype.size >= epilogue.late.size:
        return None
    stored = constants.add(f"{name}_late", keys, ctype) if keys.size else None
    return stored or Constant("0", ctype, "late"), Parameter(keys.size, "late_count")


def _has_late_of_block(listed: tuple[Constant, Parameter] | None, levels: int) -> str:
    """Return the expression of whether any of sixteen channels has late steps."""
    if listed is None:
        return "1"
    keys, count = listed
    ends = ("first", "(first + 16)")
    counts = (keys.count(f"{end} * (int32_t){levels} - 1", keys.symbol, count) for end in ends)
    return " != ".join(counts)


def _find_width(multipliers: Array, terms: Sequence[int], sums: Sums) -> CType:
    """Return the type of a multiplication that no sum overflows."""
    largest = 0
    for factor, term, low, high, bias in zip(
        multipliers, terms, sums.reach.lowest, sums.reach.highest, sums.bias, strict=True
    ):
        products = (abs(int(factor) * (int(end) - int(bias))) for end in (low, high))
        most = max(products)
        largest = max(largest, most, most + abs(term), abs(term))
    return CType.INT32 if largest < 2**31 else CType.INT64


def _emit_table(
    epilogue: p.Table, sums: Sums, target: StoredTensor, name: str, constants: Constants
) -> list[str]:
    entries = epilogue.entries.astype(np.int64).reshape(epilogue.first.size, -1)
    elements = constants.add(
        f"{name}_elements", target.lowest + target.step * entries, target.ctype
    )
    first = _read(constants, f"{name}_first", epilogue.first.astype(np.int64) - sums.bias)
    place = f"channel * (int32_t){entries.shape[1]} + (sum - {first})"
    return [f"return {elements.at(f'({place})')};"]


def _emit_pieces(
    epilogue: p.Piecewise, sums: Sums, target: StoredTensor, name: str, constants: Constants
) -> Epilogue:
    entries = epilogue.entries.astype(np.int64).reshape(len(sums.bias), -1)
    elements = constants.add(
        f"{name}_elements", target.lowest + target.step * entries, target.ctype
    )
    count = entries.shape[1] - 1
    if not count:
        return Epilogue(("(void)sum;", f"return {elements.at('channel')};"))
    limits = sums.reach.lowest[:, None], sums.reach.highest[:, None] + 1
    starts = np.clip(epilogue.starts.reshape(-1, count).astype(np.int64), *limits)
    array = constants.add(f"{name}_starts", starts - sums.bias[:, None])
    start = f"{array.symbol} + {format_offset(count, len(starts))}"
    reached = array.count("sum", start, count)
    place = f"channel * (int32_t){count + 1} + {reached}"
    return Epilogue((f"return {elements.at(f'({place})')};",), array.ctype)


def _emit_arithmetic(
    epilogue: p.Arithmetic, sums: Sums, name: str, constants: Constants
) -> list[str]:
    """Emit the steps of a float result; stores to memory keep a compiler from contracting them."""
    lines = []
    if sums.bias.any():
        lines.append(f"sum += {_read(constants, f'{name}_bias', sums.bias)};")
    scale = _read_floats(constants, f"{name}_scales", epilogue.scales)
    lines.append(f"volatile float y = (float)sum * {scale};")
    is_read = any(step.operation in _KEPT for step in epilogue.steps)
    if is_read:
        lines.append("float kept = 0.0f;")
    for number, step in enumerate(epilogue.steps):
        operand = ""
        if step.operation == p.Operation.KEEP and not is_read:
            continue
        if step.operation not in _KEPT and step.operation != p.Operation.KEEP:
            operand = _read_floats(constants, f"{name}_step{number}", step.operands)
        lines.append(_emit_step(p.Operation(step.operation), operand))
    return [*lines, "return y;"]


_KEPT = (p.Operation.ADD_KEPT, p.Operation.MULTIPLY_KEPT)
_SYMBOLS = {
    p.Operation.ADD: "y = y + {c};",
    p.Operation.SUBTRACT: "y = y - {c};",
    p.Operation.SUBTRACT_FROM: "y = {c} - y;",
    p.Operation.MULTIPLY: "y = y * {c};",
    p.Operation.DIVIDE: "y = y / {c};",
    p.Operation.MAXIMUM: "y = larger(y, {c});",
    p.Operation.MINIMUM: "y = smaller(y, {c});",
    p.Operation.KEEP: "kept = y;",
    p.Operation.ADD_KEPT: "y = y + kept;",
    p.Operation.MULTIPLY_KEPT: "y = y * kept;",
}


def _emit_step(operation: p.Operation, operand: str) -> str:
    return _SYMBOLS[operation].format(c=operand)


def _read_floats(constants: Constants, name: str, numbers: Array) -> str:
    if np.all(numbers.view(np.int32) == numbers.view(np.int32)[0]):
        return format_float(float(numbers[0]))
    return constants.add(name, numbers, CType.FLOAT).at("channel")


def _read(constants: Constants, name: str, numbers: Array) -> str:
    """Return the expression of a channel's number: a literal if all are equal."""
    if np.all(numbers == numbers[0]):
        part = name.rpartition("_")[2].removesuffix("s")
        return mark(part, "", format_integer(int(numbers[0])))
    return constants.add(name, numbers).at("channel")
