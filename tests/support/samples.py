# SPDX-License-Identifier: Apache-2.0
"""The sample code of the operator documents."""

import re

import numpy as np
import pytest
from places import SEEDS


def samples(function: str) -> list[dict]:
    """The namespaces of the operator documents' own sample code that define `function`."""
    if not SEEDS.is_dir():
        pytest.skip("the operator documents are missing: no ../shared/seeds")
    found = []
    for path in sorted(SEEDS.glob("*.txt")):
        text = path.read_text(encoding="utf-8")
        blocks = re.findall(r"```python\n(.*?)(?:```|\Z)", text, re.DOTALL) or [
            text.rpartition("Sample Implementation")[2].partition("import numpy as np")[2]
        ]
        namespace: dict = {"np": np}
        if f"def {function}(" in text:
            for block in blocks:
                if "def " in block:  # example code calls functions that nobody defines
                    exec(block.partition("\nx = np.random")[0], namespace)
            found.append(namespace)
    assert found, f"no document defines {function}"
    return found
