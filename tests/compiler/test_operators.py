# SPDX-License-Identifier: Apache-2.0
"""Data movement operators have rules; quantize does not import them."""

import subprocess
import sys

import onnx_ir as ir
import pytest

from anybit.compiler.operators import is_data_movement
from anybit.compiler.partition import data_movement


@pytest.mark.parametrize("operator", ["Reshape", "Gather", "MaxPool", "Concat", "Transpose", "Add"])
def test_data_movement_operators_have_rules(operator: str) -> None:
    assert is_data_movement(ir.Node("", operator, [])) == (operator in data_movement._RULES)
    assert not is_data_movement(ir.Node("others", operator, []))


def test_data_movement_rules_are_for_its_operators() -> None:
    assert all(is_data_movement(ir.Node("", operator, [])) for operator in data_movement._RULES)


def test_quantize_does_not_import_partition() -> None:
    """Skip modules that take time to import."""
    requested = [sys.executable, "-c", "import anybit, sys; anybit.quantize; print(*sys.modules)"]
    names = subprocess.run(requested, capture_output=True, text=True, check=True).stdout.split()
    assert "anybit.quantization.driver" in names
    for seldom in (
        "anybit.compiler.pipeline",
        "anybit.compiler.partition.data_movement",
        "anybit.quantization.budget",
    ):
        assert seldom not in names
