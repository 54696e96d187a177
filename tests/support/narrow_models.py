# SPDX-License-Identifier: Apache-2.0
"""Models whose inputs and outputs have types that NumPy lacks."""

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from anybit.onnx import read
from anybit.onnx.passes import Normalize
from anybit.onnx.runtimes import _get_installed_version

DTYPES: dict[str, tuple[Any, int, tuple[int, int]]] = {
    "INT4": (ml_dtypes.int4, 21, (1, 20)),
    "UINT4": (ml_dtypes.uint4, 21, (1, 20)),
    "INT2": (ml_dtypes.int2, 25, (1, 26)),
    "UINT2": (ml_dtypes.uint2, 25, (1, 26)),
    "FLOAT8E4M3FN": (ml_dtypes.float8_e4m3fn, 19, (1, 17)),
    "FLOAT8E4M3FNUZ": (ml_dtypes.float8_e4m3fnuz, 19, (1, 17)),
    "FLOAT8E5M2": (ml_dtypes.float8_e5m2, 19, (1, 17)),
    "FLOAT8E5M2FNUZ": (ml_dtypes.float8_e5m2fnuz, 19, (1, 17)),
}
"""The dtype, the first opset, and the first ONNX Runtime that has it."""

every_type = pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=pytest.mark.skipif(
                _get_installed_version() < since, reason="not in this ONNX Runtime"
            ),
        )
        for name, (_, _, since) in DTYPES.items()
    ],
)
needs_int4 = pytest.mark.skipif(
    _get_installed_version() < (1, 20), reason="not in this ONNX Runtime"
)


def to_float(name: str) -> onnx.ModelProto:
    """Codes of a type times 0.5."""
    return _pair("DequantizeLinear", name, "FLOAT", name)


def to_codes(name: str) -> onnx.ModelProto:
    """Floats divided by 0.5, as codes of a type."""
    return _pair("QuantizeLinear", "FLOAT", name, name)


def _pair(kind: str, takes: str, gives: str, codes: str) -> onnx.ModelProto:
    opset = DTYPES[codes][1] if codes in DTYPES else 23
    tensors = [
        numpy_helper.from_array(np.float32(0.5), "s"),
        helper.make_tensor("z", getattr(TensorProto, codes), (), [0]),
    ]
    graph = helper.make_graph(
        [helper.make_node(kind, ["x", "s", "z"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", getattr(TensorProto, takes), ["n", 3])],
        [helper.make_tensor_value_info("y", getattr(TensorProto, gives), ["n", 3])],
        tensors,
    )
    model = read(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]))
    Normalize()(model)  # for the IR version of the type
    return ir.to_proto(model)


def all_values(name: str) -> np.ndarray[Any, Any]:
    """Return all finite values of a type in rows of three; their count is not a multiple of 8."""
    dtype = np.dtype(DTYPES[name][0])
    values = np.arange(2 ** ir.DataType[name].bitwidth, dtype=np.uint8).view(dtype)
    values = values[np.isfinite(values.astype(np.float32))]
    return np.concatenate([values, values[: -len(values) % 3]]).reshape(-1, 3)
