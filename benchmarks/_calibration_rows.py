# SPDX-License-Identifier: Apache-2.0
"""Calibration data for the quantization tools of ONNX Runtime, which are slow to import."""

import numpy as np
from onnxruntime.quantization import CalibrationDataReader


class CalibrationRows(CalibrationDataReader):
    """Rows of the input x, one at a time."""

    def __init__(self, x: np.ndarray) -> None:
        self._rows = iter(x)

    def get_next(self) -> dict[str, np.ndarray] | None:
        """Return the next row."""
        row = next(self._rows, None)
        return None if row is None else {"x": row[None]}
