# SPDX-License-Identifier: Apache-2.0
"""Programs on the kernels of this machine."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from anybit import _native
from anybit.compiler.program.encoding import Encoded, encode
from anybit.compiler.program.program import Floats, Program

_Run = TypeVar("_Run", bound=Callable[..., dict[str, Any]])


class Network:
    """A verified program, ready to run; `reference.run` gives the same bits.

    The best kernels for this processor are chosen when it is made (`ANYBIT_ISA` rules). Several
    threads may run one network at the same time.

    Raises:
        ValueError: The program is damaged, or of another version than the library.
    """

    def __init__(self, program: Program | Encoded) -> None:
        encoded = encode(program) if isinstance(program, Program) else program
        arrays = (encoded.words, encoded.bytes, encoded.integers, encoded.floats)
        self._program = program
        self._native = _native.Network(*arrays)
        # Past this class: small networks take less time than a call in Python.
        self.run = self._native.run
        """The outputs for a list of float32 inputs, all with the same number of rows.

        Raises:
            ValueError: An input has another shape, or NaN that an instruction refuses.
        """

    @property
    def program(self) -> Program:
        """The program; only networks of records have one."""
        assert isinstance(self._program, Program), "encoded programs are not decoded"
        return self._program

    def named(self, output: str, otherwise: _Run) -> _Run:
        """Return a function from the only input to the only output, under that name.

        It calls `otherwise` for arguments that are not arrays, do not fit or are refused.
        """
        return cast(_Run, _native.Call(self._native, output, otherwise).run)

    def run_timed(self, inputs: Sequence[Floats]) -> tuple[list[Floats], list[float]]:
        """Return the outputs, and the seconds of each instruction in one thread."""
        return self._native.run_timed(list(inputs))

    def describe(self) -> dict[str, Any]:
        """Return the kernels and the memory.

        `stages` has one entry per instruction: its `kernel`, the coding of its `source` and
        `target`, its `bytes` of weights and tables, its `multiplications` per row. `rows_together`
        rows are computed at once, in `memory` bytes.
        """
        return self._native.describe()
