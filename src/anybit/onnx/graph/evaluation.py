# SPDX-License-Identifier: Apache-2.0
"""Evaluate one node whose inputs are known, as a session would."""

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime  # type: ignore[import-untyped]

from anybit.errors import ModelError
from anybit.onnx.graph.constants import Array
from anybit.onnx.graph.names import described
from anybit.onnx.operators.registry import keywords_of, operator_of
from anybit.onnx.runtime import exact_session_options
from anybit.ops import Operator

Arrays: TypeAlias = Sequence[Array | None]
Shape: TypeAlias = tuple[int, ...]


def _largest(arrays: Arrays) -> int:
    return max((array.size for array in arrays if array is not None), default=0)


def _total(arrays: Arrays) -> int:
    return sum(array.size for array in arrays if array is not None)


def _broadcast(arrays: Arrays) -> int:
    return math.prod(np.broadcast_shapes(*(each.shape for each in arrays if each is not None)))


def _gathered(arrays: Arrays) -> int:
    data, indices = arrays[0], arrays[1]
    return 0 if data is None or indices is None else data.size * indices.size


def _filled(arrays: Arrays) -> int:
    return 0 if arrays[0] is None else math.prod(int(size) for size in arrays[0].ravel())


def _expanded(arrays: Arrays) -> int:
    shape = () if arrays[1] is None else tuple(int(size) for size in arrays[1].ravel())
    return _largest(arrays[:1]) * math.prod(shape)


# The standard operators that scales, bit-widths and weights are computed with, and a bound for
# the elements of their result, so that a small file cannot ask for a huge array.
_BOUNDS: dict[str, Callable[[Arrays], int]] = {
    "ConstantOfShape": _filled,
    "Expand": _expanded,
    "Gather": _gathered,
    "Concat": _total,
    "Shape": lambda arrays: 64,
    "Size": lambda arrays: 1,
}
_SAME_SIZE = """
    Cast CastLike Clip Flatten Identity Reshape Slice Squeeze Transpose Unsqueeze
    Abs Ceil Exp Floor Log Neg Reciprocal Relu Round Sign Sqrt
    ReduceMax ReduceMean ReduceMin ReduceSum
"""
_ELEMENTWISE = """
    Add And Div Equal Greater GreaterOrEqual Less LessOrEqual Max Min Mod Mul Not Or Pow Sub Where
"""
_BOUNDS |= dict.fromkeys(_SAME_SIZE.split(), _largest)
_BOUNDS |= dict.fromkeys(_ELEMENTWISE.split(), _broadcast)


def result_bound(node: ir.Node, arrays: Arrays) -> int | None:
    """At most so many elements has the result of a standard operator; None if it is not known."""
    bound = _BOUNDS.get(node.op_type) if not node.domain else None
    try:
        return bound(arrays) if bound is not None and len(node.outputs) == 1 else None
    except (ValueError, IndexError):  # invalid: the session will say so
        return None


def result_shape(node: ir.Node, shapes: Sequence[Shape | None]) -> Shape | None:
    """The shape of an elementwise result, our operators' included; None if it is not certain."""
    if operator_of(node) is not None:
        return shapes[0]
    if node.domain or node.op_type not in _ELEMENTWISE.split():
        return None
    known = [shape for shape in shapes if shape is not None]
    try:
        return np.broadcast_shapes(*known) if len(known) == len(shapes) else None
    except ValueError:  # invalid: the session will say so
        return None


def evaluate_operator(node: ir.Node, operator: Operator, arrays: Arrays) -> Array:
    """The result of one of our operators, from its own function. The node must be normalised.

    Raises:
        ModelError: What the function refuses, with the node's name.
    """
    try:
        return np.asarray(operator.function(*arrays, **keywords_of(node, operator)))
    except (TypeError, ValueError) as error:
        raise ModelError(f"{described(node)}: {error}") from error


def evaluate_standard(node: ir.Node, arrays: Arrays, opset: int, ir_version: int) -> Array | None:
    """The result of a standard operator, from ONNX Runtime's own kernel; None if it has none.

    The runtime is asked, and not NumPy, because Pow, Exp and Log differ in their last bit.
    """
    inputs = {f"x{index}": array for index, array in enumerate(arrays) if array is not None}
    proto = ir.to_proto(node)
    names = [f"x{index}" if f"x{index}" in inputs else "" for index in range(len(arrays))]
    del proto.input[:], proto.output[:]
    proto.input.extend(names)
    proto.output.append("y")
    proto.domain = ""
    graph = onnx.helper.make_graph([proto], "node", [], [onnx.ValueInfoProto(name="y")])
    try:
        for name, array in inputs.items():
            element = int(ir.DataType.from_numpy(array.dtype))
            graph.input.append(onnx.helper.make_tensor_value_info(name, element, array.shape))
        model = onnx.helper.make_model(
            graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=ir_version
        )
        options = exact_session_options()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, ["CPUExecutionProvider"], enable_fallback=0
        )
        result = session.run(None, inputs)[0]
    except Exception:  # whatever is wrong here, the session of the whole model will say better
        return None
    return result if isinstance(result, np.ndarray) else None
