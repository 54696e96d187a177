# SPDX-License-Identifier: Apache-2.0
"""What the standard operators do to the elements of their first input.

The one table that everything asks: tracing of codes, exact sums, summaries, constant folding. An
operator that is not in it does something that nobody here relies on.
"""

from enum import Enum, auto

import onnx_ir as ir


class Effect(Enum):
    """What an element of the result is.

    MOVE: an element of the first input, whichever the elements are, so that any function of single
    elements can be applied before or behind. SELECT: the largest of some elements, so that any
    increasing function can. RECTIFY: the element itself or 0. ELEMENTWISE: a function of one
    element per input, which are broadcast. AVERAGE and REDUCE: a mean, or another reduction.
    MULTIPLY: a sum of products with a second input.
    """

    MOVE = auto()
    SELECT = auto()
    RECTIFY = auto()
    ELEMENTWISE = auto()
    AVERAGE = auto()
    REDUCE = auto()
    MULTIPLY = auto()


_OPERATORS = {
    Effect.MOVE: """
        DepthToSpace Dropout Expand Flatten Gather Identity Reshape Slice SpaceToDepth Squeeze Tile
        Transpose Unsqueeze
    """,
    Effect.SELECT: "GlobalMaxPool MaxPool ReduceMax",
    Effect.RECTIFY: "Relu",
    Effect.ELEMENTWISE: """
        Abs Add And Atan Cast CastLike Ceil Celu Clip Div Elu Equal Erf Exp Floor Gelu Greater
        GreaterOrEqual HardSigmoid HardSwish LeakyRelu Less LessOrEqual Log Max Min Mish Mod Mul
        Neg Not Or PRelu Pow Reciprocal Round Selu Sigmoid Sign Softplus Softsign Sqrt Sub Swish
        Tanh ThresholdedRelu Where
    """,
    Effect.AVERAGE: "AveragePool GlobalAveragePool ReduceMean",
    Effect.REDUCE: "ReduceMin ReduceSum",
    Effect.MULTIPLY: "Conv ConvTranspose Gemm MatMul",
}
_EFFECTS = {name: effect for effect, names in _OPERATORS.items() for name in names.split()}

_FIRST_STATES = {"GRU": (5,), "LSTM": (5, 6), "RNN": (5,)}

# From this version on the runtime decides whether a Dropout drops anything, not an attribute.
_DROPOUT_OPSET = 7


def effect_of(node: ir.Node, opset: int = 0) -> Effect | None:
    """What the node does; None for operators that are not in the table, or not standard.

    A Dropout moves (nothing) only where the model's opset says that it drops nothing.
    """
    if node.domain != "" or (node.op_type == "Dropout" and not _drops_nothing(node, opset)):
        return None
    return _EFFECTS.get(node.op_type)


def is_identity(node: ir.Node, opset: int) -> bool:
    """Whether the first output is the first input: an Identity, or a Dropout that drops nothing."""
    return node.op_type in ("Identity", "Dropout") and effect_of(node, opset) is Effect.MOVE


def bias_input_of(node: ir.Node) -> int | None:
    """The input that is added to a sum of products; None if there is none."""
    adds = effect_of(node) is Effect.MULTIPLY and node.op_type != "MatMul"
    return 2 if adds else None


def zero_inputs_of(node: ir.Node) -> tuple[int, ...]:
    """The inputs that count as zeros where they are left out: a bias, the first states."""
    bias = bias_input_of(node)
    if bias is not None:
        return (bias,)
    return () if node.domain else _FIRST_STATES.get(node.op_type, ())


def _drops_nothing(node: ir.Node, opset: int) -> bool:
    # From opset 12 on the third input switches training on.
    training = len(node.inputs) > 2 and node.inputs[2] is not None
    return not training and opset >= _DROPOUT_OPSET
