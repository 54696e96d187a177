# SPDX-License-Identifier: Apache-2.0
"""Exact and fast quantized networks: operators of any bit width on arrays, and whole models.

    y = anybit.int_quant(x, 0.25, 0, 4)
    model = anybit.load("model.onnx")
    result = anybit.quantize("float.onnx", "data.npz")

Names are loaded when they are first used: onnx and onnxruntime take a second to import. Import
the packages for other frameworks by name: `anybit.torch`, `anybit.jax`, `anybit.onnxruntime`.
"""

from typing import Any

from anybit._lazy import load_public_name as _load
from anybit._public import PUBLIC

__all__ = sorted(PUBLIC)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("anybit")
    else:
        value = _load(__name__, PUBLIC, name)
    globals()[name] = value  # found directly from now on
    return value


def __dir__() -> list[str]:
    return __all__
