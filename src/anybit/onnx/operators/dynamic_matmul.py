# SPDX-License-Identifier: Apache-2.0
"""The operator that quantizes two tensors by computed scales and multiplies their codes.

It has no reference pair. Compiled models have it in place of a MatMul of two such tensors, whose
sizes may all be dynamic.
"""

import onnx_ir as ir
from onnx.defs import OpSchema

from anybit.onnx.operators.integer_network import DOMAIN

NAME = "DynamicMatMul"
OPERANDS = ("first", "second")
_INTEGERS = {
    "lowest": "Lowest code",
    "highest": "Highest code",
    "asymmetric": "Whether there is a zero-point",
    "whole": "Whether the tensor has one scale, and not one per row or column,",
}
_FLOATS = {
    "steps": "Divisor of the largest magnitude or width",
    "least": "Smallest magnitude or width",
    "most": "Largest scale",
}


def is_dynamic_matmul(node: ir.Node) -> bool:
    return (node.domain, node.op_type) == (DOMAIN, NAME)


def make_dynamic_matmul_schema() -> OpSchema:
    """Return the schema for the checker of onnx; shapes stay as declared."""
    kinds = (_INTEGERS, OpSchema.AttrType.INT), (_FLOATS, OpSchema.AttrType.FLOAT)
    attributes = [
        OpSchema.Attribute(f"{operand}_{name}", kind, f"{text} of the {operand} input.")
        for operand in OPERANDS
        for names, kind in kinds
        for name, text in names.items()
    ]
    transposed = OpSchema.Attribute(
        "transposed", OpSchema.AttrType.INT, "Whether the second matrices are columns x depth."
    )
    moved = [
        OpSchema.Attribute(
            f"{name}_axes",
            OpSchema.AttrType.STRING,
            f"Order of the axes of the {name}, as of a Transpose, with a digit for each; the last "
            "axis stays. The order of the array by default.",
            required=False,
        )
        for name in (*OPERANDS, "result")
    ]
    factor = OpSchema.Attribute(
        "factor",
        OpSchema.AttrType.FLOAT,
        "A number that multiplies the product, 1 by default.",
        required=False,
    )
    floats = "tensor(float)"
    return OpSchema(
        NAME,
        DOMAIN,
        1,
        "Quantizes both inputs by scales that follow from them, and multiplies the codes.",
        inputs=[OpSchema.FormalParameter(name, floats, f"The {name} factor.") for name in OPERANDS],
        outputs=[OpSchema.FormalParameter("result", floats, "The product.")],
        attributes=[*attributes, transposed, factor, *moved],
    )
