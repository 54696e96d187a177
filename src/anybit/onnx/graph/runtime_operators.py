# SPDX-License-Identifier: Apache-2.0
"""Operators of ONNX Runtime in terms of ONNX, as far as inference of types and shapes needs it.

ONNX has no schemas of that domain: its inference stops there. The definitions have the types and
shapes of the operators, not their values.
"""

import onnx
from onnx import helper, parser

_DOMAIN, _OWN_DOMAIN = "com.microsoft", "anybit.shapes"
_HEADER = f'<domain: "{_OWN_DOMAIN}", opset_import: ["": 21]>'
_ADDENDS = "A, A_scale, A_zero_point, B, B_scale, B_zero_point, Y_scale, Y_zero_point"
_SUM = f"""({_ADDENDS}) => (Y)
    {{ a = CastLike (A, A_scale) b = CastLike (B, A_scale) y = Add (a, b) Y = CastLike (y, A) }}
"""
_SAME = "(X, X_scale, X_zero_point, Y_scale, Y_zero_point) => (Y) { Y = Identity (X) }"
_BODIES = {
    "DynamicQuantizeMatMul": """
        (A, B, b_scale, b_zero_point, bias) => (Y)
        { b = CastLike (B, A) Y = MatMul (A, b) }
    """,
    "MatMulIntegerToFloat": """
        (A, B, a_scale, b_scale, a_zero_point, b_zero_point, bias) => (Y)
        { a = CastLike (A, a_scale) b = CastLike (B, a_scale) Y = MatMul (a, b) }
    """,
    "QGemm": """
        <transA, transB>
        (A, a_scale, a_zero_point, B, b_scale, b_zero_point, C, y_scale, y_zero_point) => (Y)
        {
            a = CastLike (A, a_scale)
            b = CastLike (B, a_scale)
            y = Gemm <transA: int = @transA, transB: int = @transB> (a, b)
            Y = CastLike (y, y_zero_point)
        }
    """,
    "QLinearAdd": _SUM,
    "QLinearAveragePool": """
        <auto_pad, ceil_mode, count_include_pad, kernel_shape, pads, strides>
        (X, x_scale, x_zero_point, y_scale, y_zero_point) => (Y)
        {
            x = CastLike (X, x_scale)
            y = AveragePool <
                auto_pad: string = @auto_pad, ceil_mode: int = @ceil_mode,
                count_include_pad: int = @count_include_pad,
                kernel_shape: ints = @kernel_shape, pads: ints = @pads, strides: ints = @strides
            > (x)
            Y = CastLike (y, X)
        }
    """,
    "QLinearGlobalAveragePool": """
        (X, x_scale, x_zero_point, y_scale, y_zero_point) => (Y)
        { x = CastLike (X, x_scale) y = GlobalAveragePool (x) Y = CastLike (y, X) }
    """,
    "QLinearLeakyRelu": _SAME,
    "QLinearMul": _SUM,
    "QLinearSigmoid": _SAME,
    "QLinearSoftmax": _SAME,
    "QLinearWhere": """
        (C, X, x_scale, x_zero_point, Y, y_scale, y_zero_point, z_scale, z_zero_point) => (Z)
        { Z = Where (C, X, Y) }
    """,
}


def define_runtime_operators(message: onnx.ModelProto) -> None:
    """Replace operators of ONNX Runtime in a message that only inference reads, in place.

    Most become functions. A MatMulNBits becomes a MatMul with a new input of the graph.
    """
    present = {(function.domain, function.name) for function in message.functions}
    graph, used = message.graph, set()
    types = {value.name: value.type.tensor_type.elem_type for value in graph.input}
    types |= {tensor.name: tensor.data_type for tensor in graph.initializer}
    for index, node in enumerate(graph.node):
        if node.domain != _DOMAIN or (node.domain, node.op_type) in present:
            continue
        if node.op_type == "MatMulNBits":
            _replace_packed(graph, node, f"anybit packed weight {index}", types)
        elif _is_defined(node):
            used.add(node.op_type)
            node.domain = _OWN_DOMAIN
    if used:
        message.opset_import.append(helper.make_opsetid(_OWN_DOMAIN, 1))
    for name in sorted(used):
        message.functions.append(parser.parse_function(f"{_HEADER} {name} {_BODIES[name]}"))


def _is_defined(node: onnx.NodeProto) -> bool:
    """Return whether a definition has the types and shapes of a node."""
    if node.op_type == "QGemm":
        return len(node.input) == 9 and bool(node.input[8])
    return node.op_type in _BODIES and not any(
        attribute.name == "channels_last" and attribute.i for attribute in node.attribute
    )


def _replace_packed(
    graph: onnx.GraphProto, node: onnx.NodeProto, name: str, types: dict[str, int]
) -> None:
    sizes = {item.name: item.i for item in node.attribute if item.name in ("K", "N")}
    dtype = types.get(node.input[2]) if len(node.input) > 2 else None
    if dtype and len(sizes) == 2 and min(sizes.values()) > 0:
        shape = [sizes["K"], sizes["N"]]
        graph.input.append(helper.make_tensor_value_info(name, dtype, shape))
        node.domain, node.op_type = "", "MatMul"
        node.input[:] = [node.input[0], name]
        del node.attribute[:]
