# SPDX-License-Identifier: Apache-2.0
"""Attributes of operators, in calls and in files."""

import operator as python
from dataclasses import dataclass
from typing import Any

from anybit.ops.rounding import RoundingMode


@dataclass(frozen=True)
class Attribute:
    """One ONNX attribute. Its default determines the kind: a flag, an integer or a name.

    `onnx_name` differs from `name` if the Python name would mislead in a model file; `aliases` are
    spellings in files.
    """

    name: str
    default: bool | int | str
    onnx_name: str
    aliases: tuple[str, ...] = ()

    @property
    def is_mode(self) -> bool:
        """Return whether the attribute names a rounding mode."""
        return self.default in RoundingMode.__members__

    def parse(self, value: Any) -> bool | int | str:
        """Return the value of a call in the type of the default; the operator checks it.

        A flag is a bool, an integer or a scalar of an array library, such as `np.float32(1)`. A
        name is a string, or an object with a name: a dtype, a type, a member of an enumeration.

        Raises:
            TypeError: The value has another type.
        """
        if isinstance(self.default, bool):
            if not isinstance(value, int) and not hasattr(value, "dtype"):
                raise TypeError(f"{self.name} must be a bool, got {value!r}")
            return bool(value)
        if isinstance(self.default, int):
            return python.index(value)
        return self._get_name(value)

    def _get_name(self, value: Any) -> str:
        if isinstance(value, str):
            return str(getattr(value, "value", value))  # the text of an enumeration's member
        if type(value).__name__.lower().endswith("dtype"):  # torch dtypes have no name of their own
            return str(value).rpartition(".")[2]
        for spelled in (getattr(value, "__name__", None), getattr(value, "name", None)):
            if isinstance(spelled, str):
                return spelled
        raise TypeError(f"{self.name} must be a string, got {value!r}")

    def encode(self, value: bool | int | str) -> int | str:
        """Return the value as files store it: a flag is 0 or 1."""
        return str(value) if isinstance(value, str) else int(value)

    def decode(self, stored: Any, spelled: str = "") -> bool | int | str:
        """Return the value of a file under that name, with modes in canonical form.

        Raises:
            TypeError: The value has another type.
            ValueError: A flag is neither 0 nor 1, or a mode is unknown.
        """
        name = spelled or self.onnx_name
        if isinstance(self.default, str):
            if not isinstance(stored, str):
                raise TypeError(f"{name} must be a string, got {stored!r}")
            return RoundingMode.parse(stored).value if self.is_mode else stored
        if isinstance(self.default, bool) and stored not in (0, 1):
            raise ValueError(f"{name} must be 0 or 1, got {stored!r}")
        if not isinstance(stored, int):
            raise TypeError(f"{name} must be an integer, got {stored!r}")
        return type(self.default)(stored)
