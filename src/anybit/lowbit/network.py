# SPDX-License-Identifier: Apache-2.0
"""A program on the kernels of this machine."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from anybit._native import _core
from anybit.lowbit.encoding import Encoded, encode
from anybit.lowbit.program import Program

Floats = npt.NDArray[np.float32]


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
        self._native = _core.Network(*arrays)
        # Past this class: small networks take less time than a call in Python.
        self.run = self._native.run
        """The outputs for a list of inputs of float32, each with the same number of rows.

        Raises:
            ValueError: An input has another shape, or NaN that an instruction refuses.
        """
        self.run_array = self._native.run_array
        """The only output for the only input, which is an array and not a list.

        Raises:
            TypeError: It is no array of floats, or there is more than one of either.
            ValueError: As for `run`.
        """

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
