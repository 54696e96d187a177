# SPDX-License-Identifier: Apache-2.0
"""Models as text: the syntax of `onnx.parser`, and lines of a program."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from small_models import DOMAIN, array, model, node

RANDOM = np.random.default_rng(0)
_QUANTIZERS = re.compile(r"(?<![.\w])((?:Int|Float|Bipolar)?Quant|Trunc)(?=\s*[<(])")


def parse(
    graph: str,
    constants: Mapping[str, Any] | None = None,
    *,
    opset: int = 17,
    version: int = 2,
) -> onnx.ModelProto:
    """Parse a graph `g (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }`.

    Quantizers need no domain. Constants are arrays as they are, and numbers as float32.
    """
    head = f'<ir_version: 8, opset_import: ["": {opset}, "{DOMAIN}": {version}]>'
    result = onnx.parser.parse_model(head + _QUANTIZERS.sub(rf"{DOMAIN}.\1", graph))
    result.graph.initializer.extend(
        numpy_helper.from_array(array(value), name) for name, value in (constants or {}).items()
    )
    return result


def parse_lines(
    text: str, constants: Mapping[str, Any], row: tuple[int, ...], **options: Any
) -> Any:
    """Parse a model of lines like `y = Conv(x, w) pads=[1,1,1,1]`, with x of any batch."""
    nodes = []
    for index, line in enumerate(filter(None, map(str.strip, text.splitlines()))):
        output, call = line.split(" = ", 1)
        kind, rest = call.split("(", 1)
        inputs, attributes = rest.split(")", 1)
        domain = {} if kind in ("Quant", "BipolarQuant", "Trunc") else {"domain": ""}
        parsed = eval(f"dict({','.join(attributes.split())})")
        nodes.append(
            node(kind, inputs.replace(",", " "), output, name=f"n{index}", **domain, **parsed)
        )
    opsets = {"": 17, "qonnx.custom_op.general": 2}
    return model(nodes, constants, inputs={"x": ["n", *row]}, opsets=opsets, **options)


def random_weights(*shape: int, levels: int = 7) -> np.ndarray:
    return RANDOM.integers(-levels, levels + 1, shape).astype(np.float32)


def random_rows(proto: onnx.ModelProto, count: int = 4) -> np.ndarray:
    sizes = [dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim[1:]]
    return (RANDOM.integers(-40, 41, (count, *sizes)) / 8).astype(np.float32)


QUANTIZED = {"s": 0.25, "z": 0, "b": 4, "b8": 8, "one": 1.0}
FOUR = "q = Quant(x, s, z, b)"
