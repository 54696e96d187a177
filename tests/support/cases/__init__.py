# SPDX-License-Identifier: Apache-2.0
"""Case tables: one module per operator, each with OPERATOR (its name) and CASES.

A case carries a literal answer where it tells a story, an error where the input must be refused,
and neither where the oracle computes the answer. `every_case()` walks all tables, `answer()` gives
the expected array, `assert_same_bits()` is the only comparison: no tolerance exists.
"""

import functools
import importlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from oracle_cache import cached_oracle

OPERATORS = (
    *("int_quant", "float_quant", "trunc", "trunc_v1", "bipolar_quant"),
    *("dynamic_quantize", "dynamic_dequantize", "block_quant"),
)
bfloat16 = np.dtype(ml_dtypes.bfloat16)
FLOAT_DTYPES = (np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16), bfloat16)
MODES = ("ROUND", "CEIL", "FLOOR", "UP", "DOWN", "HALF_UP", "HALF_DOWN")
nan, inf = float("nan"), float("inf")


@dataclass(frozen=True, eq=False)
class Case:
    """One call: operator(*inputs, **attributes) gives `expected`, or raises (type, regex)."""

    name: str
    inputs: tuple[Any, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    expected: np.ndarray | None = None
    raises: tuple[type[Exception], str] | None = None


def f32(values: Any) -> np.ndarray:
    return np.array(values, np.float32)


def checked(name: str, inputs: tuple, expected: Any, **attributes: Any) -> Case:
    """Return a case with a hand-checked answer; plain numbers take the dtype of x."""
    if not isinstance(expected, np.ndarray):
        expected = np.array(expected, inputs[0].dtype)
    return Case(name, inputs, attributes, expected=expected)


def computed(name: str, *inputs: Any, **attributes: Any) -> Case:
    """Return a case whose answer the oracle computes."""
    return Case(name, inputs, attributes)


def refused(name: str, inputs: tuple, error: type, pattern: str, **attributes: Any) -> Case:
    """Return a case of an error; the pattern requires the offending value, not a wording."""
    return Case(name, inputs, attributes, raises=(error, pattern))


@functools.cache
def expected_result(operator: str, case: Case) -> np.ndarray:
    """Return the literal answer or the oracle's, which is computed once for all back-ends."""
    if case.expected is not None:
        return case.expected
    return cached_oracle(operator, case.inputs, case.attributes)


def every_case() -> Iterator[tuple[str, Case]]:
    for operator in OPERATORS:
        for case in importlib.import_module(f"{__name__}.{operator}").CASES:
            yield operator, case


def cast(values: Iterable[float], dtype: Any) -> np.ndarray:
    """Round to dtype without warnings; overflow gives infinity."""
    with np.errstate(all="ignore"):
        return np.array(list(values), np.float64).astype(dtype)


@functools.cache
def telling_values(dtype: Any) -> np.ndarray:
    """Zeros, subnormals, ties and their neighbours, large odd integers, limits, NaN: both signs."""
    limits = ml_dtypes.finfo(dtype)
    subnormal, normal = float(limits.smallest_subnormal), float(limits.smallest_normal)
    edges = [0.0, subnormal, 3 * subnormal, normal - subnormal, normal, float(limits.max), inf]
    ties = cast([0.5, 1.5, 2.5, 3.5, 7.5, 127.5, 254.5, 255.5], dtype)
    upward = np.nextafter(ties, cast([inf], dtype)).astype(np.float64)
    downward = np.nextafter(ties, cast([0.0], dtype)).astype(np.float64)
    plain = [0.01, 0.1, 0.25, 0.3125, 1 / 3, 0.75, 1, 1.1, 1.6, 2, 3, 5, 6, 7, 8, 9, 127, 128, 300]
    large = [8388609, 12345679, 16777213, 2.0**24, 2.0**25, 2.0**31, 2.0**32, 2.0**63, 2.0**127]
    positive = [*edges, *ties.astype(np.float64), *upward, *downward, *plain, *large, 1e10, 1e30]
    return cast([*positive, *(-value for value in positive), nan], dtype)


def layouts(values: np.ndarray) -> dict[str, np.ndarray]:
    """Return data in every memory order that a caller may pass."""
    plane = values[:24].reshape(2, 3, 4)
    return {
        "strided": values[::3],
        "reversed": values[::-1],
        "fortran_order": np.asfortranarray(plane),
        "transposed": plane.transpose(2, 0, 1),
        "two_steps": values[:40].reshape(5, 8)[::2, ::-3],
        "zero_stride": np.broadcast_to(values[:4], (3, 4)),
        "zero_dimensional": values[9].reshape(()),
        "one_element": values[9:10],
        "empty": values[:0],
        "empty_plane": values[:0].reshape(0, 3),
    }


def shapes_within(shape: tuple[int, int, int]) -> dict[str, tuple[int, ...]]:
    """Return kinds of shapes that broadcast to `shape`: one value, per channel, per element."""
    first, second, third = shape
    return {
        "scalar": (),
        "one": (1,),
        "ones": (1, 1, 1),
        "axis_0": (first, 1, 1),
        "axis_1": (1, second, 1),
        "axis_2": (1, 1, third),
        "trailing_vector": (third,),
        "trailing_column": (second, 1),
        "trailing_plane": (second, third),
        "two_axes": (first, second, 1),
        "per_element": shape,
    }


def assert_same_bits(actual: Any, expected: np.ndarray, case: Case) -> None:
    """Equal dtype, shape and bits, the sign of zero included; any NaN equals any NaN."""
    assert isinstance(actual, np.ndarray), f"{case.name}: expected an array, got {actual!r}"
    got = f"{actual.dtype}{list(actual.shape)}"
    described = f"{expected.dtype}{list(expected.shape)}"
    assert got == described, f"{case.name}: got {got}, expected {described}"
    bits = np.dtype(f"u{expected.dtype.itemsize}")
    got_bits = np.ascontiguousarray(actual).view(bits).reshape(expected.shape)
    wanted_bits = np.ascontiguousarray(expected).view(bits).reshape(expected.shape)
    with np.errstate(all="ignore"):
        both_nan = (actual != actual) & (expected != expected)
    places = np.argwhere((got_bits != wanted_bits) & ~both_nan)
    if not len(places):
        return
    x = np.asarray(case.inputs[0])
    lines = [f"{case.name}: {len(places)} of {expected.size} elements differ"]
    for place in map(tuple, places[:5].tolist()):
        values = [
            f"{array[place]!r} ({int(word[place]):#0{2 + 2 * bits.itemsize}x})"
            for array, word in ((actual, got_bits), (expected, wanted_bits))
        ]
        lines.append(f"  at {place}: x = {x[place]!r}, got {values[0]}, expected {values[1]}")
    raise AssertionError("\n".join(lines))


def in_rows(dtype: Any, count: int) -> np.ndarray:
    """Repeat the telling values once per row, for one parameter value in every row."""
    return np.tile(telling_values(dtype), (count, 1))


def in_column(values: Iterable[float], dtype: Any = np.float64) -> np.ndarray:
    """Return one parameter value per row."""
    return cast(values, dtype).reshape(-1, 1)


def with_input(inputs: tuple, place: int, value: Any) -> tuple:
    return (*inputs[:place], value, *inputs[place + 1 :])


def refused_by_all(inputs: tuple, names: tuple[str, ...]) -> Iterator[Case]:
    """Yield calls that all elementwise operators refuse, from valid inputs with x of shape (2,)."""
    for dtype in ("int32", "int64", "bool", "complex64"):
        bad = with_input(inputs, 0, np.ones(2, dtype))
        yield refused(f"x_of_{dtype}", bad, TypeError, dtype)
    larger = {"other_length": (3,), "more_rows": (2, 2), "more_axes": (1, 2), "empty": (0,)}
    for place, name in enumerate(names, start=1):
        for fault, shape in larger.items():
            bad = with_input(inputs, place, np.ones(shape, np.float32))
            yield refused(f"{name}_{fault}", bad, ValueError, f"{name}|{shape[0]}")
        bad = with_input(inputs, place, np.ones(2, np.complex128))
        yield refused(f"{name}_of_complex128", bad, TypeError, "complex")
        bad = with_input(inputs, place, np.array(["1", "1"]))
        yield refused(f"{name}_of_text", bad, TypeError, f"{name}|str|U1")
    bad = with_input(with_input(inputs, 0, np.float32([2.0]).reshape(())), 1, np.ones(1))
    yield refused("one_element_enlarges_zero_dimensions", bad, ValueError, r"\(1,\)|\[1\]|scale")


def refused_widths(inputs: tuple, place: int, name: str, least: int | None = 1) -> Iterator[Case]:
    """Widths must be finite integers; in one bad element of an array as well as alone."""
    bad = {"fraction": (2.5, r"2\.5"), "nan": (nan, "(?i)nan"), "inf": (inf, "(?i)inf")}
    if least is not None:
        bad["negative"] = (-1, "-1")
        bad["too_small"] = (least - 1, f"(?<![0-9.]){least - 1}")
    for fault, (value, pattern) in bad.items():
        yield refused(f"{name}_{fault}", with_input(inputs, place, value), ValueError, pattern)
        array = f32([4, value])
        yield refused(
            f"{name}_{fault}_in_array", with_input(inputs, place, array), ValueError, pattern
        )


def refused_modes(inputs: tuple) -> Iterator[Case]:
    """Names that Brevitas exports but nobody defined here, and a typing error."""
    patterns = {mode: mode for mode in ("NEAREST", "DPU", "STOCHASTIC_ROUND", "HALF")}
    patterns["ROUND_TO_ZERO"] = "(?s)ROUND_TO_ZERO.*DOWN|DOWN.*ROUND_TO_ZERO"
    for mode, pattern in patterns.items():
        yield refused(f"mode_{mode}", inputs, ValueError, pattern, rounding_mode=mode)


def across_layouts(*parameters: Any, **attributes: Any) -> Iterator[Case]:
    """Yield every memory layout in every dtype, with parameters that broadcast to any shape."""
    for dtype in FLOAT_DTYPES:
        for layout, x in layouts(telling_values(dtype)).items():
            yield computed(f"{layout}_{dtype}", x, *parameters, **attributes)
