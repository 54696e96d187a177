# SPDX-License-Identifier: Apache-2.0
"""How many inputs and outputs operators take that are not ours."""

from functools import cache

import onnx
import onnx_ir as ir
from onnxruntime.capi import onnxruntime_pybind11_state  # type: ignore[import-untyped]


def wrong_count(node: ir.Node, opset: int) -> str:
    """What is wrong with the number of a node's inputs or outputs; "" if nothing is known to be."""
    schema = _schema(node, opset)
    if schema is None:
        return ""
    inputs = _count([value is not None for value in node.inputs])
    outputs = _count([bool(value.name) for value in node.outputs])
    for noun, count, least, most in (
        ("inputs", inputs, schema.min_input, schema.max_input),
        ("outputs", outputs, schema.min_output, schema.max_output),
    ):
        if not least <= count <= most:
            wanted = str(least) if least == most else f"{least} to {most}"
            wanted = f"at least {least}" if most > 2**16 else wanted
            return f"has {count} {noun}, must have {wanted}"
    return ""


def _count(present: list[bool]) -> int:
    """How many there are up to the last that is not left out."""
    return max((index + 1 for index, each in enumerate(present) if each), default=0)


def _schema(node: ir.Node, opset: int) -> onnx.defs.OpSchema | None:
    if node.domain == "com.microsoft":
        return _contributed().get(node.op_type)
    if node.domain != "" or not onnx.defs.has(node.op_type, opset):
        return None
    return onnx.defs.get_schema(node.op_type, opset)


@cache
def _contributed() -> dict[str, onnx.defs.OpSchema]:
    """The operators of ONNX Runtime's own domain, as far as it tells them."""
    told = getattr(onnxruntime_pybind11_state, "get_all_operator_schema", list)
    return {each.name: each for each in told() if each.domain == "com.microsoft"}
