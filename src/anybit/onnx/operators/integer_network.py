# SPDX-License-Identifier: Apache-2.0
"""The operator that runs the program of an integer region; it has no reference pair.

Its inputs are the four arrays of an encoded program, then those of the program, all float32.
"""

import onnx_ir as ir
from onnx.defs import OpSchema

DOMAIN = "anybit"
NAME = "IntegerNetwork"
PROGRAM = ("words", "bytes", "integers", "floats")
"""The contents of its first inputs."""


def is_integer_network(node: ir.Node) -> bool:
    return (node.domain, node.op_type) == (DOMAIN, NAME)


def make_integer_network_schema() -> OpSchema:
    """Return the schema for the checker of onnx; shapes stay as declared."""
    types = {"words": "int64", "bytes": "uint8", "integers": "int32", "floats": "float"}
    parts = [
        OpSchema.FormalParameter(part, f"tensor({types[part]})", f"Its {part}.") for part in PROGRAM
    ]
    return OpSchema(
        NAME,
        DOMAIN,
        1,
        "Runs the program of an integer region. What it computes stands in anybit.compiler.",
        inputs=[*parts, _make_variadic("inputs")],
        outputs=[_make_variadic("outputs")],
    )


def _make_variadic(name: str) -> OpSchema.FormalParameter:
    variadic = OpSchema.FormalParameterOption.Variadic
    return OpSchema.FormalParameter(
        name, "tensor(float)", f"Its {name}.", param_option=variadic, is_homogeneous=True
    )
