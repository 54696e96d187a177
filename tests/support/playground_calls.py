# SPDX-License-Identifier: Apache-2.0
"""Calls of operators in the playground's page, with results as NumPy arrays."""

import base64
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import ml_dtypes
import numpy as np
from browser import Browser
from cases import Case

Call = tuple[str, Case]
Result = np.ndarray | str
_ROWS = 400  # that travel together

_APPLY = """
(rows) => {
  const bytesOf = (text) => Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
  const textOf = (bytes) => btoa(Array.from(bytes, (each) => String.fromCharCode(each)).join(""));
  return rows.map(([operator, inputs, attributes]) => {
    const given = inputs.map((each) => each && { ...each, bytes: bytesOf(each.bytes) });
    try {
      const { type, shape, bytes } = playground.operators.apply(operator, given, attributes);
      return { type, shape, bytes: textOf(bytes) };
    } catch (error) {
      if (error instanceof playground.Refused) return error.message;
      throw error;
    }
  });
}
"""


def can_be_called(call: Call) -> bool:
    """Return whether a page can make the call: its inputs are numbers of a supported type."""
    _, case = call
    return all(value is None or np.asarray(value).dtype.kind in "fiubV" for value in case.inputs)


def run_calls(browser: Browser, calls: Sequence[Call]) -> Iterator[Result]:
    """Return the result of every call, or its error message."""
    rows = iter(calls)
    while some := list(islice(rows, _ROWS)):
        rows_as_json = json.dumps([_encode_call(*call) for call in some])
        for result in browser.value(f"({_APPLY})({rows_as_json})"):
            yield result if isinstance(result, str) else _decode_array(result)


def _encode_call(operator: str, case: Case) -> list[Any]:
    inputs = [_input(place, value) for place, value in enumerate(case.inputs)]
    missing = [None] * (_inputs(operator) - len(inputs))
    return [
        operator,
        inputs + missing,
        {key: _plain(value) for key, value in case.attributes.items()},
    ]


def _inputs(operator: str) -> int:
    import anybit.ops

    return next(
        len(declared.inputs) for declared in anybit.ops.OPERATORS if declared.name == operator
    )


def _plain(value: Any) -> bool | int | str:
    return value if isinstance(value, bool | int) else getattr(value, "name", str(value))


def _input(place: int, value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    array = np.asarray(value)
    literal = place > 0 and not isinstance(value, np.ndarray | np.generic)
    return {
        "type": array.dtype.name,
        "shape": list(array.shape),
        "bytes": base64.b64encode(array.tobytes()).decode(),
        "literal": literal,
    }


def _decode_array(result: dict[str, Any]) -> np.ndarray:
    dtype = np.dtype(getattr(ml_dtypes, result["type"], result["type"]))
    return np.frombuffer(base64.b64decode(result["bytes"]), dtype).reshape(result["shape"])
