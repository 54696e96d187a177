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


def standard(kind: str, inputs: str, outputs: str = "y", **options: Any) -> onnx.NodeProto:
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
    case("Identity", standard("Identity", "q")),
    case("Dropout", standard("Dropout", "q")),
    case("Transpose", standard("Transpose", "q", perm=[2, 0, 3, 1]), axis=-1),
    case("Flatten", standard("Flatten", "q"), axis=-1),
    case("Reshape", standard("Reshape", "q to"), {"to": INT([2, 4, 36])}, axis=-2),
    case("Reshape to one axis", standard("Reshape", "q to"), {"to": INT([-1])}, axis=None),
    case("Unsqueeze", standard("Unsqueeze", "q at"), {"at": INT([2, 4])}, axis=-5),
    case(
        "Squeeze",
        standard("GlobalMaxPool", "q", "m"),
        axis=-2,
    ),
    case("Expand", standard("Expand", "q to"), {"to": INT([3, 1, 1, 1, 1])}),
    case("Tile", standard("Tile", "q by"), {"by": INT([1, 2, 1, 1])}, axis=None),
    case("DepthToSpace", standard("DepthToSpace", "q", blocksize=2), axis=None),
    case("SpaceToDepth", standard("SpaceToDepth", "q", blocksize=2), axis=None),
    case("Slice", standard("Slice", "q from to"), {"from": INT([0, 1]), "to": INT([9, 3])}),
    case(
        "Slice backwards",
        standard("Slice", "q from to at by"),
        {"from": INT([3]), "to": INT([-(2**40)]), "at": INT([-3]), "by": INT([-2])},
    ),
    case("Gather", standard("Gather", "q at", axis=1), {"at": INT([3, 0, 0])}),
    case("Gather one", standard("Gather", "q at", axis=2), {"at": np.asarray(1)}, axis=-2),
    case("Split", standard("Split", "q", "y z", axis=1)),
    case("Pad", standard("Pad", "q by"), {"by": BORDER}),
    case("Pad channels", standard("Pad", "q by"), {"by": INT([0, 1] + [0] * 6)}, axis=None),
    case(
        "Pad by reflection", standard("Pad", "q by", mode="reflect"), {"by": INT([0, 0, 1, 1] * 2)}
    ),
    case("Resize", standard("Resize", "q - by", mode="nearest"), {"by": np.float32([1, 1, 2, 2])}),
    case("Upsample", standard("Upsample", "q by"), {"by": np.float32([1, 1, 2, 2])}, opset=9),
    case("Concat", standard("Concat", "q p", axis=1)),
    case("Concat rows", standard("Concat", "q p", axis=0)),
    case("Where", standard("Where", "which q p"), {"which": np.arange(6) > 2}),
    case("MaxPool", standard("MaxPool", "q", kernel_shape=[3, 3], pads=[1] * 4)),
    case("GlobalMaxPool", standard("GlobalMaxPool", "q")),
    case("ReduceMax", standard("ReduceMax", "q", axes=[2], keepdims=0), axis=-2),
    case("ReduceMin", standard("ReduceMin", "q", axes=[1]), axis=None),
    case("Max", standard("Max", "q p")),
    case("Min", standard("Min", "q p")),
    case("Min of a constant", standard("Min", "q by"), {"by": 1.0}, codes=range(-8, 3)),
    case("Min that cuts nothing", standard("Min", "by q"), {"by": 3.5}),
    case("Max of a constant", standard("Max", "by q"), {"by": -1.0}, codes=range(-2, 8)),
]
ELEMENTWISE = [
    case("Relu", standard("Relu", "q"), codes=range(8)),
    case("LeakyRelu", standard("LeakyRelu", "q", alpha=0.5), scale=0.25, codes=range(-8, 15)),
    case("LeakyRelu 0.01", standard("LeakyRelu", "q"), codes=None, sources=("q",)),
    case("ThresholdedRelu", standard("ThresholdedRelu", "q", alpha=1.0), codes=range(8)),
    case("PRelu", standard("PRelu", "q by"), {"by": CHANNELS}, scale=None),
    case("Clip", standard("Clip", "q lo hi"), {"lo": -1.0, "hi": 2.0}, codes=range(-2, 5)),
    case("Clip above", standard("Clip", "q - hi"), {"hi": 2.0}, codes=range(-8, 5)),
    case("Clip off the grid", standard("Clip", "q - hi"), {"hi": 1.3}, codes=None, sources=("q",)),
    case("Neg", standard("Neg", "q"), codes=range(-7, 9)),
    case("Abs", standard("Abs", "q"), codes=range(9)),
    case("Sign", standard("Sign", "q"), scale=1, codes=range(-1, 2), axis=None),
    case("Floor", standard("Floor", "q"), codes=range(-8, 7, 2)),
    case("Ceil", standard("Ceil", "q"), codes=range(-8, 9, 2)),
    case("Round", standard("Round", "q"), codes=range(-8, 9, 2)),
    case("Cast", standard("Cast", "q", to=onnx.TensorProto.FLOAT)),
    case("Cast to int8", standard("Cast", "q", to=onnx.TensorProto.INT8), codes=range(-8, 7, 2)),
    case("Add a constant", standard("Add", "q by"), {"by": 1.5}, codes=range(-8, 8)),
    case("Add off the grid", standard("Add", "q by"), {"by": 0.3}, codes=None, sources=("q",)),
    case("Add per channel", standard("Add", "q by"), {"by": CHANNELS * 2}, scale=None),
    case("Sub a constant", standard("Sub", "q by"), {"by": 1.5}, codes=range(-8, 8)),
    case("Sub from a constant", standard("Sub", "by q"), {"by": 1.0}, codes=range(-5, 11)),
    case("Mul by a constant", standard("Mul", "by q"), {"by": 3.0}, scale=1.5),
    case("Mul per channel", standard("Mul", "q by"), {"by": CHANNELS}, scale=None),
    case("Div by a constant", standard("Div", "q by"), {"by": 4.0}, scale=0.125),
    case("Div by zero", standard("Div", "q by"), {"by": 0.0}, scale=None, codes=None, axis=None),
    case("Add", standard("Add", "q p"), codes=range(-12, 11)),
    case("Sub", standard("Sub", "q p"), codes=range(-11, 12)),
    case("Mul", standard("Mul", "q p"), scale=0.25, codes=range(-28, 33), axis=-3),
    case("Sigmoid", standard("Sigmoid", "q"), codes=None, sources=("q",)),
    case("Tanh", standard("Tanh", "q"), codes=None, sources=("q",)),
    case("HardSigmoid", standard("HardSigmoid", "q"), codes=None, sources=("q",)),
    case("HardSwish", standard("HardSwish", "q"), codes=None, sources=("q",), opset=14),
    case("Elu", standard("Elu", "q"), codes=None, sources=("q",)),
    case("Selu", standard("Selu", "q"), codes=None, sources=("q",)),
    case("Celu", standard("Celu", "q", alpha=0.5), codes=None, sources=("q",)),
    case("Softplus", standard("Softplus", "q"), codes=None, sources=("q",)),
    case("Softsign", standard("Softsign", "q"), codes=None, sources=("q",)),
    case("Erf", standard("Erf", "q"), codes=None, sources=("q",)),
    case("Exp", standard("Exp", "q"), codes=None, sources=("q",)),
    case("Atan", standard("Atan", "q"), codes=None, sources=("q",)),
    case("Gelu", standard("Gelu", "q"), codes=None, sources=("q",), opset=20),
    case("Mish", standard("Mish", "q"), codes=None, sources=("q",), opset=18),
    case("Softmax", standard("Softmax", "q"), codes=None, axis=None),
    case(
        "BatchNormalization",
        standard("BatchNormalization", "q g b m v"),
        {name: np.float32([1, -2, 0.3, 0]) + 4 * (name == "v") for name in "gbmv"},
        codes=None,
        sources=("q",),
    ),
]
POOLS = [
    case(
        "AveragePool",
        standard("AveragePool", "q", kernel_shape=[2, 2]),
        scale=0.125,
        codes=range(-32, 29),
    ),
    case("AveragePool of 9", standard("AveragePool", "q", kernel_shape=[3, 3]), codes=None),
    case(
        "AveragePool at borders",
        standard("AveragePool", "q", kernel_shape=[2, 2], pads=[1] * 4),
        codes=None,
    ),
    case("GlobalAveragePool", standard("GlobalAveragePool", "q"), codes=None),
    case(
        "ReduceMean",
        standard("ReduceMean", "q", axes=[1]),
        scale=0.125,
        codes=range(-32, 29),
        axis=None,
    ),
    case("ReduceSum", standard("ReduceSum", "q at"), {"at": INT([3])}, codes=range(-48, 43)),
]
CASES = [*MOVES, *ELEMENTWISE, *POOLS]


def built(case: Case, scale: Any, zeropt: Any = 0, signed: int = 1) -> onnx.ModelProto:
    """x -> q with 4 bits, x -> p with 3, and the case behind."""
    constants = {"scale": scale, "zero": zeropt, "four": 4.0, "three": 3.0} | dict(case.constants)
    nodes = [
        node("Quant", "x scale zero four", "q", signed=signed, name="q"),
        node("Quant", "x scale zero three", "p", signed=signed, name="p"),
        *case.nodes,
    ]
    if case.name == "Squeeze":
        nodes.append(standard("Squeeze", "m at"))
        constants["at"] = INT([3])
    outputs = [name for made in nodes[2:] for name in made.output]
    proto = model(nodes, constants, inputs={"x": SHAPE}, outputs=outputs)
    for output in proto.graph.output:
        output.ClearField("type")
    proto.opset_import[0].version = case.opset
    return proto
