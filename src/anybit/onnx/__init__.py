# SPDX-License-Identifier: Apache-2.0
"""ONNX files and graphs: reading, passes, analysis, and running with ONNX Runtime.

Nothing here names an operator: the passes loop over `anybit.ops.OPERATORS`. Public names are loaded
when they are first used.
"""

from typing import Any

from anybit._lazy import load_public_name as _load
from anybit.onnx._public import PUBLIC

__all__ = sorted(PUBLIC)


def __getattr__(name: str) -> Any:
    value = _load(__name__, PUBLIC, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
