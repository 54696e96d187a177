# SPDX-License-Identifier: Apache-2.0
"""A program on the kernels of this machine."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from anybit import _native
from anybit.compiler.program.encoding import Encoded, encode
from anybit.compiler.program.program import Program

Floats = npt.NDArray[np.float32]
_Run = TypeVar("_Run", bound=Callable[..., dict[str, Any]])


class Network:
    """A program, verified, planned and ready to run; `reference.run` gives the same bits.

    The best kernels for this processor are chosen when it is made (`ANYBIT_ISA` rules). Several
    threads may run one network at the same time.

    Raises:
        ValueError: The program is damaged, or of a version that this library does not know.
    """

    def __init__(self, program: Program | Encoded) -> None:
        encoded = encode(program) if isinstance(program, Program) else program
        arrays = (encoded.words, encoded.bytes, encoded.integers, encoded.floats)
        self._native = _native.Network(*arrays)
        # Past this class: small networks take less time than a call in Python.
        self.run = self._native.run
        """The outputs for a list of inputs of float32, each with the same number of rows.

        Raises:
            ValueError: An input has another shape, or NaN that an instruction refuses.
        """

    def named(self, output: str, otherwise: _Run) -> _Run:
        """A function of the only input, which gives the only output by that name.

        `otherwise` is called for what is not an array, does not fit or is refused, and has its say.
        """
        return cast(_Run, _native.Call(self._native, output, otherwise).run)

    def run_timed(self, inputs: Sequence[Floats]) -> tuple[list[Floats], list[float]]:
        """The outputs, and the seconds that each instruction took in one thread."""
        return self._native.run_timed(list(inputs))

    def describe(self) -> dict[str, Any]:
        """What was chosen.

        `stages` has one entry per instruction: its `kernel`, the coding of its `source` and
        `target`, its `bytes` of weights and tables, its `multiplications` per row. `rows_together`
        rows are worked on at once, in `memory` bytes.
        """
        return self._native.describe()
