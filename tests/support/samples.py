# SPDX-License-Identifier: Apache-2.0
"""Sample implementations in the operator specifications."""

import re

import numpy as np
import pytest
from places import DOCUMENTS, DOCUMENTS_VARIABLE


def samples(function: str) -> list[dict]:
    """Return the namespaces of the sample implementations that define `function`."""
    if DOCUMENTS is None:
        pytest.skip(f"no operator specifications: set {DOCUMENTS_VARIABLE} to their folder")
    namespaces = []
    for path in sorted(DOCUMENTS.glob("*.txt")):
        text = path.read_text(encoding="utf-8")
        blocks = re.findall(r"```python\n(.*?)(?:```|\Z)", text, re.DOTALL) or [
            text.rpartition("Sample Implementation")[2].partition("import numpy as np")[2]
        ]
        namespace: dict = {"np": np}
        if f"def {function}(" in text:
            for block in blocks:
                if "def " in block:  # example code calls undefined functions
                    exec(block.partition("\nx = np.random")[0], namespace)
            namespaces.append(namespace)
    assert namespaces, f"no specification defines {function}"
    return namespaces
