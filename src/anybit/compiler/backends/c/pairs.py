# SPDX-License-Identifier: Apache-2.0
"""Sums and products of two tensors as statements of C."""

from anybit.compiler.backends.c.constants import Constants
from anybit.compiler.backends.c.epilogues import Epilogue
from anybit.compiler.backends.c.expressions import minus, plus
from anybit.compiler.backends.c.literals import cast, format_integer
from anybit.compiler.backends.c.types import CType, StoredTensor, return_element
from anybit.compiler.backends.integer_pairs import IntegerPair


def emit_pair(pair: IntegerPair, target: StoredTensor, name: str, constants: Constants) -> Epilogue:
    """Emit the body of a function of the indices `int32_t first` and `int32_t second`."""
    if pair.table.size:
        elements = target.lowest + target.step * pair.table.astype(int)
        table = constants.add(f"{name}_elements", elements, target.ctype)
        return Epilogue((f"return {table.at(f'(first * {pair.levels[1]} + second)')};",))
    index = f"y >> {pair.right_shift}" if pair.right_shift else "y"
    if pair.bits != 32:
        index = cast("int32_t", index)
    lines = [
        _emit_sum(pair),
        "if (y < 0) {",
        f"    {return_element(target, str(pair.lowest))}",
        "}",
        f"{'const ' if pair.near < 0 else ''}int32_t index = {index};",
        f"if (index > {pair.highest}) {{",
        f"    {return_element(target, str(pair.highest))}",
        "}",
    ]
    if pair.lowest:
        lines += [
            f"if (index < {pair.lowest}) {{",
            f"    {return_element(target, str(pair.lowest))}",
            "}",
        ]
    searched = None
    if pair.near >= 0:
        correction, searched = _emit_correction(pair, name, constants)
        lines += correction
    return Epilogue((*lines, return_element(target, "index")), searched)


def _emit_sum(pair: IntegerPair) -> str:
    ctype, number = (CType.INT32, "") if pair.bits == 32 else (CType.INT64, "(int64_t)")
    multipliers = [format_integer(multiplier) for multiplier in pair.multipliers]
    if len(multipliers) == 1:
        factors = (
            f"({minus(name, zero)})" if zero else name
            for name, zero in zip(("first", "second"), pair.zeros, strict=True)
        )
        y = f"{number}{' * '.join(factors)} * {multipliers[0]}"
    else:
        y = f"{number}first * {multipliers[0]} + {number}second * {multipliers[1]}"
    return f"const {ctype.value} y = {plus(y, pair.term)};"


def _emit_correction(
    pair: IntegerPair, name: str, constants: Constants
) -> tuple[list[str], CType | None]:
    """Emit the correction of indices next to a step; return the type of a list it searches, too."""
    terms, searched = [], None
    if pair.late_parity is not None:
        terms.append("(index & 1)" if pair.late_parity else "(~index & 1)")
    elif pair.late.size:
        late = constants.add(f"{name}_late", pair.late, CType.UINT8)
        terms.append(late.bit("index"))
    if pair.has_bitmap:
        bits = constants.add(f"{name}_exceptions", pair.bitmap, CType.UINT8)
        terms.append(bits.bit(f"first * {pair.levels[1]} + second"))
    elif pair.exceptions.size:
        keys = constants.add(f"{name}_exceptions", pair.exceptions)
        searched = keys.ctype
        terms.append(keys.has("first * 256 + second", pair.exceptions.size))
    correction = " ^ ".join(terms)
    low_bits = f"(y & {format_integer(2**pair.right_shift - 1)})"
    lines = [
        f"if ({low_bits} <= {format_integer(pair.near)}) {{",
        f"    index -= {correction};",
        "}",
    ]
    return lines, searched
