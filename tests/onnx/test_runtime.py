# SPDX-License-Identifier: Apache-2.0
"""Running sessions: arrays of every type in and out."""

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper

from anybit.onnx.runtime import make_session, run_session


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.bool_, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(), (2, 3), (0, 3)])
def test_runtime_results_are_arrays_of_their_own(dtype: Any, shape: tuple[int, ...]) -> None:
    """Not of the memory of the runtime, which holds on to more of it than one result takes."""
    kind = ir.DataType.from_numpy(np.dtype(dtype)).value
    nodes = [helper.make_node("Identity", ["x"], [name]) for name in "yz"]
    x, y, z = (helper.make_tensor_value_info(name, kind, shape) for name in "xyz")
    opsets = [helper.make_opsetid("", 16)]
    graph = helper.make_graph(nodes, "same", [x], [y, z])
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = make_session(ir.from_proto(proto))
    arguments = np.ones(shape, dtype)
    actual = run_session(session, {"x": arguments, "other": arguments}, ["y"])
    assert list(actual) == ["y"]
    assert actual["y"].dtype == arguments.dtype
    array = actual["y"]
    while isinstance(array.base, np.ndarray):
        array = array.base
    assert array.flags.owndata or isinstance(array.base, bytes)
    np.testing.assert_array_equal(actual["y"], arguments)
    assert run_session(session, {"x": arguments}, []) == {}
