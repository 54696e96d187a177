# SPDX-License-Identifier: Apache-2.0
"""The operator that runs the program of an integer region: not one of the pairs.

Its inputs are the four arrays of an encoded program, and then those of the program, all float32.
"""

import onnx_ir as ir

DOMAIN = "anybit"
NAME = "IntegerNetwork"
PROGRAM = ("words", "bytes", "integers", "floats")
"""What its first inputs hold."""


def is_integer_network(node: ir.Node) -> bool:
    return (node.domain, node.op_type) == (DOMAIN, NAME)
