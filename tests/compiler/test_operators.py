# SPDX-License-Identifier: Apache-2.0
"""Data movement operators have rules; quantize does not import them."""

import subprocess
import sys

from anybit.compiler.partition import data_movement
from anybit.onnx.graph.op_traits import OpTrait, list_operators


def test_data_movement_rules_cover_the_operators_that_keep_codes() -> None:
    assert data_movement._RULES.keys() == list_operators(OpTrait.KEEPS_CODES)


def test_quantize_does_not_import_partition() -> None:
    """Skip modules that take time to import."""
    requested = [sys.executable, "-c", "import anybit, sys; anybit.quantize; print(*sys.modules)"]
    names = subprocess.run(requested, capture_output=True, text=True, check=True).stdout.split()
    assert "anybit.ptq.pipeline" in names
    for seldom in ("anybit.compiler.pipeline", "anybit.compiler.partition.data_movement"):
        assert seldom not in names
