# SPDX-License-Identifier: Apache-2.0
"""Attributes of operators: how a call spells them, and how a file stores them."""

import operator as python
from dataclasses import dataclass
from typing import Any

from anybit.ops.rounding import RoundingMode


@dataclass(frozen=True)
class Attribute:
    """One ONNX attribute. Its default says what it is: a flag, an integer or a name.

    `onnx_name` differs from `name` where the Python word would mislead in a model file;
    `aliases` are spellings found in files.
    """

    name: str
    default: bool | int | str
    onnx_name: str
    aliases: tuple[str, ...] = ()

    @property
    def is_mode(self) -> bool:
        """Whether it names one of the rounding modes."""
        return self.default in RoundingMode.__members__

    def read(self, value: Any) -> bool | int | str:
        """What a call says, in the type of the default; the operator checks the value itself.

        A flag is a bool, an integer or a scalar of an array library, such as `np.float32(1)`. A
        name is a string, or an object that has one: a dtype, a type, a member of an enumeration.

        Raises:
            TypeError: It is none of that.
        """
        if isinstance(self.default, bool):
            if not isinstance(value, int) and not hasattr(value, "dtype"):
                raise TypeError(f"{self.name} must be a bool, got {value!r}")
            return bool(value)
        if isinstance(self.default, int):
            return python.index(value)
        return self._name_in(value)

    def _name_in(self, value: Any) -> str:
        if isinstance(value, str):
            return str(getattr(value, "value", value))  # the text of an enumeration's member
        if type(value).__name__.lower().endswith("dtype"):  # one of torch has no name of its own
            return str(value).rpartition(".")[2]
        for spelled in (getattr(value, "__name__", None), getattr(value, "name", None)):
            if isinstance(spelled, str):
                return spelled
        raise TypeError(f"{self.name} must be a string, got {value!r}")

    def stored(self, value: bool | int | str) -> int | str:
        """As files have it: a flag is 0 or 1."""
        return str(value) if isinstance(value, str) else int(value)

    def restored(self, stored: Any, spelled: str = "") -> bool | int | str:
        """What a file says under that name, modes by their usual name.

        Raises:
            TypeError: It is of another type.
            ValueError: A flag that is neither 0 nor 1, a mode that there is not.
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
