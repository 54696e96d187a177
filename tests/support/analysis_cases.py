# SPDX-License-Identifier: Apache-2.0
"""One case per operator that the analysis has a rule for, and what is known of its result."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from small_models import model, node

SHAPE = (2, 4, 6, 6)
CHANNELS = np.float32([0.5, 0.25, 2, 1]).reshape(4, 1, 1)


def standard_node(kind: str, inputs: str, outputs: str = "y", **options: Any) -> onnx.NodeProto:
    """Create a standard node; "-" stands for a missing input."""
    made = node(kind, inputs, outputs, domain="", **options)
    made.input[:] = ["" if name == "-" else name for name in made.input]
    return made


@dataclass(frozen=True)
class Case:
    """A node that reads q (and p, of the same kind), and what is known behind 4 signed bits.

    `scale` is that of q, unless it varies; `codes` are those of y on its grid, None if it has none.
    """

    name: str
    nodes: tuple[onnx.NodeProto, ...]
    constants: Mapping[str, Any] = field(default_factory=dict)
    scale: float | None = 0.5
    codes: range | None = range(-8, 8)
    axis: int | None = -3
    sources: tuple[str, ...] = ()
    opset: int = 13

    def __str__(self) -> str:
        return self.name


def case(name: str, made: onnx.NodeProto, constants: Any = None, **expected: Any) -> Case:
    return Case(name, (made,), constants or {}, **expected)


INT = np.int64
BORDER = INT([0, 0, 1, 1] * 2)
MOVES = [
    case("Identity", standard_node("Identity", "q")),
    case("Dropout", standard_node("Dropout", "q")),
    case("Transpose", standard_node("Transpose", "q", perm=[2, 0, 3, 1]), axis=-1),
    case("Flatten", standard_node("Flatten", "q"), axis=-1),
    case("Reshape", standard_node("Reshape", "q to"), {"to": INT([2, 4, 36])}, axis=-2),
    case("Reshape to one axis", standard_node("Reshape", "q to"), {"to": INT([-1])}, axis=None),
    case("Unsqueeze", standard_node("Unsqueeze", "q at"), {"at": INT([2, 4])}, axis=-5),
    case(
        "Squeeze",
        standard_node("GlobalMaxPool", "q", "m"),
        axis=-2,
    ),
    case("Expand", standard_node("Expand", "q to"), {"to": INT([3, 1, 1, 1, 1])}),
    case("Tile", standard_node("Tile", "q by"), {"by": INT([1, 2, 1, 1])}, axis=None),
    case("DepthToSpace", standard_node("DepthToSpace", "q", blocksize=2), axis=None),
    case("SpaceToDepth", standard_node("SpaceToDepth", "q", blocksize=2), axis=None),
    case("Slice", standard_node("Slice", "q from to"), {"from": INT([0, 1]), "to": INT([9, 3])}),
    case(
        "Slice backwards",
        standard_node("Slice", "q from to at by"),
        {"from": INT([3]), "to": INT([-(2**40)]), "at": INT([-3]), "by": INT([-2])},
    ),
    case("Gather", standard_node("Gather", "q at", axis=1), {"at": INT([3, 0, 0])}),
    case("Gather one", standard_node("Gather", "q at", axis=2), {"at": np.asarray(1)}, axis=-2),
    case("Split", standard_node("Split", "q", "y z", axis=1)),
    case("Pad", standard_node("Pad", "q by"), {"by": BORDER}),
    case("Pad channels", standard_node("Pad", "q by"), {"by": INT([0, 1] + [0] * 6)}, axis=None),
    case(
        "Pad by reflection",
        standard_node("Pad", "q by", mode="reflect"),
        {"by": INT([0, 0, 1, 1] * 2)},
    ),
    case(
        "Resize",
        standard_node("Resize", "q - by", mode="nearest"),
        {"by": np.float32([1, 1, 2, 2])},
    ),
    case("Upsample", standard_node("Upsample", "q by"), {"by": np.float32([1, 1, 2, 2])}, opset=9),
    case("Concat", standard_node("Concat", "q p", axis=1)),
    case("Concat rows", standard_node("Concat", "q p", axis=0)),
    case("Where", standard_node("Where", "which q p"), {"which": np.arange(6) > 2}),
    case("MaxPool", standard_node("MaxPool", "q", kernel_shape=[3, 3], pads=[1] * 4)),
    case("GlobalMaxPool", standard_node("GlobalMaxPool", "q")),
    case("ReduceMax", standard_node("ReduceMax", "q", axes=[2], keepdims=0), axis=-2),
    case("ReduceMin", standard_node("ReduceMin", "q", axes=[1]), axis=None),
    case("Max", standard_node("Max", "q p")),
    case("Min", standard_node("Min", "q p")),
    case("Min of a constant", standard_node("Min", "q by"), {"by": 1.0}, codes=range(-8, 3)),
    case("Min that cuts nothing", standard_node("Min", "by q"), {"by": 3.5}),
    case("Max of a constant", standard_node("Max", "by q"), {"by": -1.0}, codes=range(-2, 8)),
]
ELEMENTWISE = [
    case("Relu", standard_node("Relu", "q"), codes=range(8)),
    case("LeakyRelu", standard_node("LeakyRelu", "q", alpha=0.5), scale=0.25, codes=range(-8, 15)),
    case("LeakyRelu 0.01", standard_node("LeakyRelu", "q"), codes=None, sources=("q",)),
    case("ThresholdedRelu", standard_node("ThresholdedRelu", "q", alpha=1.0), codes=range(8)),
    case("PRelu", standard_node("PRelu", "q by"), {"by": CHANNELS}, scale=None),
    case("Clip", standard_node("Clip", "q lo hi"), {"lo": -1.0, "hi": 2.0}, codes=range(-2, 5)),
    case("Clip above", standard_node("Clip", "q - hi"), {"hi": 2.0}, codes=range(-8, 5)),
    case(
        "Clip off the grid",
        standard_node("Clip", "q - hi"),
        {"hi": 1.3},
        codes=None,
        sources=("q",),
    ),
    case("Neg", standard_node("Neg", "q"), codes=range(-7, 9)),
    case("Abs", standard_node("Abs", "q"), codes=range(9)),
    case("Sign", standard_node("Sign", "q"), scale=1, codes=range(-1, 2), axis=None),
    case("Floor", standard_node("Floor", "q"), codes=range(-8, 7, 2)),
    case("Ceil", standard_node("Ceil", "q"), codes=range(-8, 9, 2)),
    case("Round", standard_node("Round", "q"), codes=range(-8, 9, 2)),
    case("Cast", standard_node("Cast", "q", to=onnx.TensorProto.FLOAT)),
    case(
        "Cast to int8", standard_node("Cast", "q", to=onnx.TensorProto.INT8), codes=range(-8, 7, 2)
    ),
    case("Add a constant", standard_node("Add", "q by"), {"by": 1.5}, codes=range(-8, 8)),
    case("Add off the grid", standard_node("Add", "q by"), {"by": 0.3}, codes=None, sources=("q",)),
    case("Add per channel", standard_node("Add", "q by"), {"by": CHANNELS * 2}, scale=None),
    case("Sub a constant", standard_node("Sub", "q by"), {"by": 1.5}, codes=range(-8, 8)),
    case("Sub from a constant", standard_node("Sub", "by q"), {"by": 1.0}, codes=range(-5, 11)),
    case("Mul by a constant", standard_node("Mul", "by q"), {"by": 3.0}, scale=1.5),
    case("Mul per channel", standard_node("Mul", "q by"), {"by": CHANNELS}, scale=None),
    case("Div by a constant", standard_node("Div", "q by"), {"by": 4.0}, scale=0.125),
    case(
        "Div by zero", standard_node("Div", "q by"), {"by": 0.0}, scale=None, codes=None, axis=None
    ),
    case("Add", standard_node("Add", "q p"), codes=range(-12, 11)),
    case("Sub", standard_node("Sub", "q p"), codes=range(-11, 12)),
    case("Mul", standard_node("Mul", "q p"), scale=0.25, codes=range(-28, 33), axis=-3),
    case("Sigmoid", standard_node("Sigmoid", "q"), codes=None, sources=("q",)),
    case("Tanh", standard_node("Tanh", "q"), codes=None, sources=("q",)),
    case("HardSigmoid", standard_node("HardSigmoid", "q"), codes=None, sources=("q",)),
    case("HardSwish", standard_node("HardSwish", "q"), codes=None, sources=("q",), opset=14),
    case("Elu", standard_node("Elu", "q"), codes=None, sources=("q",)),
    case("Selu", standard_node("Selu", "q"), codes=None, sources=("q",)),
    case("Celu", standard_node("Celu", "q", alpha=0.5), codes=None, sources=("q",)),
    case("Softplus", standard_node("Softplus", "q"), codes=None, sources=("q",)),
    case("Softsign", standard_node("Softsign", "q"), codes=None, sources=("q",)),
    case("Erf", standard_node("Erf", "q"), codes=None, sources=("q",)),
    case("Exp", standard_node("Exp", "q"), codes=None, sources=("q",)),
    case("Atan", standard_node("Atan", "q"), codes=None, sources=("q",)),
    case("Gelu", standard_node("Gelu", "q"), codes=None, sources=("q",), opset=20),
    case("Mish", standard_node("Mish", "q"), codes=None, sources=("q",), opset=18),
    case("Softmax", standard_node("Softmax", "q"), codes=None, axis=None),
    case(
        "BatchNormalization",
        standard_node("BatchNormalization", "q g b m v"),
        {name: np.float32([1, -2, 0.3, 0]) + 4 * (name == "v") for name in "gbmv"},
        codes=None,
        sources=("q",),
    ),
]
POOLS = [
    case(
        "AveragePool",
        standard_node("AveragePool", "q", kernel_shape=[2, 2]),
        scale=0.125,
        codes=range(-32, 29),
    ),
    case("AveragePool of 9", standard_node("AveragePool", "q", kernel_shape=[3, 3]), codes=None),
    case(
        "AveragePool at borders",
        standard_node("AveragePool", "q", kernel_shape=[2, 2], pads=[1] * 4),
        codes=None,
    ),
    case("GlobalAveragePool", standard_node("GlobalAveragePool", "q"), codes=None),
    case(
        "ReduceMean",
        standard_node("ReduceMean", "q", axes=[1]),
        scale=0.125,
        codes=range(-32, 29),
        axis=None,
    ),
    case("ReduceSum", standard_node("ReduceSum", "q at"), {"at": INT([3])}, codes=range(-48, 43)),
]
CASES = [*MOVES, *ELEMENTWISE, *POOLS]


def build_model(case: Case, scale: Any, zeropt: Any = 0, signed: int = 1) -> onnx.ModelProto:
    """x -> q with 4 bits, x -> p with 3, and the case behind."""
    constants = {"scale": scale, "zero": zeropt, "four": 4.0, "three": 3.0} | dict(case.constants)
    nodes = [
        node("Quant", "x scale zero four", "q", signed=signed, name="q"),
        node("Quant", "x scale zero three", "p", signed=signed, name="p"),
        *case.nodes,
    ]
    if case.name == "Squeeze":
        nodes.append(standard_node("Squeeze", "m at"))
        constants["at"] = INT([3])
    outputs = [name for made in nodes[2:] for name in made.output]
    proto = model(nodes, constants, inputs={"x": SHAPE}, outputs=outputs)
    for output in proto.graph.output:
        output.ClearField("type")
    proto.opset_import[0].version = case.opset
    return proto
