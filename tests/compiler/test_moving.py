# SPDX-License-Identifier: Apache-2.0
"""What is said to move elements has a rule, and what is asked of all does not bring rules along."""

import subprocess
import sys

import onnx_ir as ir
import pytest

from anybit.compiler.operators import is_data_movement
from anybit.compiler.partition import data_movement


@pytest.mark.parametrize("operator", ["Reshape", "Gather", "MaxPool", "Concat", "Transpose", "Add"])
def test_what_moves_has_a_rule(operator: str) -> None:
    assert is_data_movement(ir.Node("", operator, [])) == (operator in data_movement._RULES)
    assert not is_data_movement(ir.Node("others", operator, []))


def test_all_rules_are_of_what_moves() -> None:
    assert all(is_data_movement(ir.Node("", operator, [])) for operator in data_movement._RULES)


def test_quantizing_loads_no_compiler() -> None:
    """What takes time to import, and only budgets and integer networks use."""
    asked = [sys.executable, "-c", "import anybit, sys; anybit.quantize; print(*sys.modules)"]
    known = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
    assert "anybit.quantization.driver" in known
    for seldom in (
        "anybit.compiler.pipeline",
        "anybit.compiler.partition.data_movement",
        "anybit.quantization.budget",
    ):
        assert seldom not in known
