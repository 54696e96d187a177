# SPDX-License-Identifier: Apache-2.0
"""Rules of data movement, and the modules that quantizing does not import."""

import subprocess
import sys

from anybit.lowbit import moves
from anybit.onnx.graph.op_traits import OpTrait, operators_with


def test_rules_cover_the_operators_that_keep_codes() -> None:
    assert moves._RULES.keys() == operators_with(OpTrait.KEEPS_CODES)


def test_quantizing_loads_no_compiler() -> None:
    """What takes time to import, and only budgets and integer networks use."""
    asked = [sys.executable, "-c", "import anybit, sys; anybit.quantize; print(*sys.modules)"]
    known = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
    assert "anybit.quantization.driver" in known
    for seldom in ("anybit.compilation", "anybit.lowbit.moves", "anybit.quantization.budget"):
        assert seldom not in known
