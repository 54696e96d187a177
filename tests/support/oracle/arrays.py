# SPDX-License-Identifier: Apache-2.0
"""Arrays in, arrays out: checks of dtype, shape and width, then one call per distinct element."""

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from .ieee import BFLOAT16, BINARY16, BINARY32, BINARY64, Format

FORMATS = {
    np.dtype(np.float16): BINARY16,
    np.dtype(ml_dtypes.bfloat16): BFLOAT16,
    np.dtype(np.float32): BINARY32,
    np.dtype(np.float64): BINARY64,
}


class Parameter:
    """One operand that broadcasts to x: its distinct Python values and, per element, which one."""

    def __init__(self, name: str, value: Any, shape: tuple[int, ...], read: Callable[[Any], Any]):
        array = np.asarray(value)
        if array.dtype not in FORMATS and array.dtype.kind not in "iu":
            raise TypeError(f"{name} must hold real numbers, got dtype {array.dtype}")
        places = np.arange(array.size).reshape(array.shape)
        try:
            self.places = np.broadcast_to(places, shape).ravel().tolist()
        except ValueError as error:
            raise ValueError(f"{name} of shape {array.shape} must broadcast to {shape}") from error
        self.values = [read(element) for element in exact_elements(array)]


def exact_elements(array: np.ndarray) -> list:
    """Python ints and floats of the same values: every format here fits into binary64."""
    if array.dtype in FORMATS:
        with np.errstate(all="ignore"):
            array = array.astype(np.float64)
    return array.ravel().tolist()


def read_width(name: str, least: int | None) -> Callable[[Any], int]:
    requirement = "a finite integer" if least is None else f"an integer >= {least}"

    def read(value: float | int) -> int:
        if not float(value).is_integer() or (least is not None and value < least):
            raise ValueError(f"{name} must be {requirement}, got {value!r}")
        return int(value)

    return read


class Operand:
    """x itself: its elements, and the format T that every operation on them rounds to."""

    def __init__(self, x: Any):
        self.array = np.asarray(x)
        if self.array.dtype not in FORMATS:
            raise TypeError(
                f"x must be float32, float64, float16 or bfloat16, got {self.array.dtype}"
            )
        self.dtype = self.array.dtype
        self.shape = self.array.shape
        self.result_format = FORMATS[self.dtype]
        self.compute: Format = BINARY64 if self.result_format is BINARY64 else BINARY32

    def real(self, name: str, value: Any) -> Parameter:
        return Parameter(name, value, self.shape, self.compute.convert)

    def width(self, name: str, value: Any, least: int | None = 1) -> Parameter:
        return Parameter(name, value, self.shape, read_width(name, least))

    def map(self, element: Callable, parameters: Sequence[Parameter]) -> np.ndarray:
        """element(x, *parameters) for each element, rounded once from T to x's dtype."""
        results = map_distinct(element, self.array, parameters)
        if self.result_format is not self.compute:
            results = [self.result_format.convert(result) for result in results]
        with np.errstate(all="ignore"):
            return np.array(results, dtype=np.float64).astype(self.dtype).reshape(self.shape)


def map_distinct(element: Callable, x: np.ndarray, parameters: Sequence[Parameter]) -> list:
    """Evaluate once per distinct input. Bits tell inputs apart: 0.0 == -0.0, NaN != NaN."""
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64).ravel()
    answers: dict[tuple[int, ...], Any] = {}
    results = []
    columns = [wide.view(np.uint64).tolist(), *(parameter.places for parameter in parameters)]
    for value, key in zip(wide.tolist(), zip(*columns, strict=True), strict=True):
        if key not in answers:
            chosen = zip(parameters, key[1:], strict=True)
            answers[key] = element(value, *(item.values[place] for item, place in chosen))
        results.append(answers[key])
    return results
