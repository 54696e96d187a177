# SPDX-License-Identifier: Apache-2.0
"""Properties of the standard ONNX operators: one table that every analysis and pass queries.

An operator without a trait may or may not have the property: nothing relies on it.
"""

from enum import Enum, Flag, auto
from typing import TypeGuard

import numpy as np
import onnx_ir as ir

from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import is_constant, read_array


class OpTrait(Flag):
    """Properties of a standard operator; most concern its first input."""

    NONE = 0
    DATA_MOVEMENT = auto()
    """Every output element is an element of the input, chosen without looking at the values."""
    RESHAPE = auto()
    """Data movement that keeps all elements in their order."""
    IDENTITY = auto()
    """The output is the input."""
    SELECTION = auto()
    """Every output element is a maximum of input elements."""
    RECTIFIER = auto()
    """Every output element is the input element or 0."""
    ELEMENTWISE = auto()
    """A function of one element per input; inputs are broadcast."""
    MEAN = auto()
    """A mean of input elements."""
    REDUCTION = auto()
    """A minimum or a sum of input elements."""
    SUM = auto()
    """A sum of input elements, possibly divided by their number."""
    MATMUL = auto()
    """A sum of products with the second input."""
    DENSE = auto()
    """A product of two matrices."""
    CONVOLUTION = auto()
    """A convolution, or its transpose."""
    RECURRENT = auto()
    """A recurrent layer."""
    SOFTMAX = auto()
    """A distribution along one axis."""
    NORMALIZATION = auto()
    """The magnitude of the output does not depend on the magnitude of the input."""
    CAST = auto()
    """A conversion to another dtype."""
    STEP = auto()
    """A step function: the output jumps by whole numbers."""
    NON_NEGATIVE = auto()
    """No output element is negative."""
    INCREASING = auto()
    """Non-decreasing in every input, in any IEEE arithmetic."""
    MAY_BE_IDENTITY = auto()
    """With certain other inputs or attributes, the output is one of the inputs."""
    KEEPS_CODES = auto()
    """The output has the codes of the data inputs; an added border is zero."""
    MAY_PAD = auto()
    """The attribute `pads` adds a border of zeros."""
    RESIZE = auto()
    """Interpolation to another size."""
    COMPUTED_SIZE = auto()
    """The size of the output may be a number that the file contains."""
    NOT_LARGER = auto()
    """The output has at most as many elements as the largest input."""
    REDUCES_AXES = auto()
    """A reduction over the axes of an attribute or the second input."""
    KEEPS_SINGLE_ELEMENT = auto()
    """A reduction that returns a single element unchanged."""
    BATCHED = auto()
    """Axis 0 holds samples, which are computed independently."""


_OPERATORS = {
    OpTrait.DATA_MOVEMENT: """
        DepthToSpace Dropout Expand Flatten Gather Identity Reshape Slice SpaceToDepth Squeeze Tile
        Transpose Unsqueeze
    """,
    OpTrait.RESHAPE: "Flatten Reshape Squeeze Unsqueeze",
    OpTrait.IDENTITY: "Dropout Identity",
    OpTrait.SELECTION: "GlobalMaxPool MaxPool ReduceMax",
    OpTrait.RECTIFIER: "Relu",
    OpTrait.ELEMENTWISE: """
        Abs Add And Atan Cast CastLike Ceil Celu Clip Div Elu Equal Erf Exp Floor Gelu Greater
        GreaterOrEqual HardSigmoid HardSwish LeakyRelu Less LessOrEqual Log Max Min Mish Mod Mul
        Neg Not Or PRelu Pow Reciprocal Round Selu Sigmoid Sign Softplus Softsign Sqrt Sub Swish
        Tanh ThresholdedRelu Where
    """,
    OpTrait.MEAN: "AveragePool GlobalAveragePool ReduceMean",
    OpTrait.REDUCTION: "ReduceMin ReduceSum",
    OpTrait.SUM: "AveragePool GlobalAveragePool ReduceMean ReduceSum",
    OpTrait.MATMUL: "Conv ConvTranspose Gemm MatMul",
    OpTrait.DENSE: "Gemm MatMul",
    OpTrait.CONVOLUTION: "Conv ConvTranspose",
    OpTrait.RECURRENT: "GRU LSTM RNN",
    OpTrait.SOFTMAX: "Hardmax LogSoftmax Softmax",
    OpTrait.NORMALIZATION: """
        GroupNormalization InstanceNormalization LayerNormalization LogSoftmax LpNormalization
        MeanVarianceNormalization RMSNormalization Softmax
    """,
    OpTrait.CAST: "Cast CastLike",
    OpTrait.STEP: "Ceil Floor Mod Round Sign",
    OpTrait.NON_NEGATIVE: """
        HardSigmoid ReduceL1 ReduceL2 ReduceSumSquare Sigmoid Softmax Softplus
    """,
    OpTrait.INCREASING: "Add Ceil Clip Dropout Floor Identity Max Min Relu Round Sign",
    OpTrait.MAY_BE_IDENTITY: "Add And Cast CastLike Clip Div Max Min Mul Or Pow Sub Where",
    OpTrait.KEEPS_CODES: """
        Concat DepthToSpace Expand Flatten Gather GlobalMaxPool MaxPool Pad ReduceMax Reshape
        Resize Slice SpaceToDepth Split Squeeze Tile Transpose Unsqueeze Upsample
    """,
    OpTrait.MAY_PAD: "AveragePool Conv",
    OpTrait.RESIZE: "Resize Upsample",
    OpTrait.COMPUTED_SIZE: "ConstantOfShape Expand Pad Range Resize Tile Upsample",
    OpTrait.NOT_LARGER: """
        Flatten Identity ReduceMax ReduceMean ReduceMin ReduceSum Reshape Slice Squeeze Transpose
        Unsqueeze
    """,
    OpTrait.REDUCES_AXES: """
        ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd
        ReduceSum ReduceSumSquare
    """,
    OpTrait.KEEPS_SINGLE_ELEMENT: "ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum",
    OpTrait.BATCHED: """
        AveragePool BatchNormalization Conv ConvTranspose DepthToSpace GlobalAveragePool
        GlobalLpPool GlobalMaxPool GroupNormalization InstanceNormalization LRN LpPool MaxPool
        SpaceToDepth
    """,
}

_NEUTRAL_OPERANDS = {"Add": 0, "Sub": 0, "Mul": 1, "Div": 1, "Pow": 1}

_INITIAL_STATES = {"GRU": (5,), "LSTM": (5, 6), "RNN": (5,)}

# From this version on, the runtime decides whether Dropout drops elements; before, an attribute.
_DROPOUT_OPSET = 7


def _list_traits() -> dict[str, OpTrait]:
    traits: dict[str, OpTrait] = {}
    for trait, names in _OPERATORS.items():
        for name in names.split():
            traits[name] = traits.get(name, OpTrait.NONE) | trait
    return traits


_TRAITS = _list_traits()


class Monotonicity(Enum):
    """The direction of a function of one input while the other inputs are constant.

    INCREASING and DECREASING include constant parts. MONOTONE: one of the two in every channel.
    NONE: not monotonic, or not proven to be.
    """

    INCREASING = auto()
    DECREASING = auto()
    MONOTONE = auto()
    NONE = auto()


# A cast to integers wraps around or saturates beyond their range; one to booleans is 0 at 0 only.
_ROUNDED_TYPES = frozenset({ir.DataType.FLOAT16, ir.DataType.FLOAT, ir.DataType.DOUBLE})


def list_operators(traits: OpTrait) -> frozenset[str]:
    """Return the names of the standard operators that have any of the traits."""
    return frozenset(name for name, of_name in _TRAITS.items() if of_name & traits)


def get_traits(node: ir.Node, opset: int = 0) -> OpTrait:
    """Return the traits of a node; none for an operator that is not standard or not in the table.

    A Dropout has traits only if the model's opset tells that it drops nothing.
    """
    if node.domain != "" or (node.op_type == "Dropout" and not _is_inactive_dropout(node, opset)):
        return OpTrait.NONE
    return _TRAITS.get(node.op_type, OpTrait.NONE)


def is_onnx_op(node: ir.Node | None, *names: str) -> TypeGuard[ir.Node]:
    """Return whether a node is one of these operators of the domain ai.onnx."""
    return node is not None and not node.domain and node.op_type in names


def has_trait(node: ir.Node, traits: OpTrait, opset: int = 0) -> bool:
    """Return whether a node has any of the traits."""
    return bool(get_traits(node, opset) & traits)


def is_identity(node: ir.Node, opset: int) -> bool:
    """Return whether the first output is the first input: Identity, or Dropout in inference."""
    return has_trait(node, OpTrait.IDENTITY, opset)


def get_neutral_operand(node: ir.Node) -> int | None:
    """Return the number that makes an elementwise operator return its other input, if any."""
    return None if node.domain else _NEUTRAL_OPERANDS.get(node.op_type)


def get_bias_index(node: ir.Node) -> int | None:
    """Return the index of the bias of a MatMul-like operator; None if it takes none."""
    has_bias = has_trait(node, OpTrait.MATMUL) and node.op_type != "MatMul"
    return 2 if has_bias else None


def get_zero_inputs(node: ir.Node) -> tuple[int, ...]:
    """Return the indices of the inputs that default to zeros: a bias, the initial states."""
    bias = get_bias_index(node)
    if bias is not None:
        return (bias,)
    return () if node.domain else _INITIAL_STATES.get(node.op_type, ())


def get_monotonicity(node: ir.Node, x: ir.Value) -> Monotonicity:
    """Return the monotonicity of a standard operator in its only input that is not constant.

    It holds as computed, in any IEEE arithmetic: the operations are monotonic and rounding keeps
    the order. Functions that runtimes approximate are left out.
    """
    is_first = bool(node.inputs) and node.inputs[0] is x
    match node.op_type:
        case "Neg":
            return Monotonicity.DECREASING
        case "Sub":
            return Monotonicity.INCREASING if is_first else Monotonicity.DECREASING
        case "Mul":
            return _classify_by_sign(node.inputs[1 if is_first else 0])
        case "Div":
            return _classify_by_sign(node.inputs[1]) if is_first else Monotonicity.NONE
        case "BatchNormalization":
            return _classify_by_sign(node.inputs[1])
        case "Cast":
            is_rounding = get_attribute(node, "to", 0) in _ROUNDED_TYPES
            return Monotonicity.INCREASING if is_rounding else Monotonicity.NONE
        case "LeakyRelu":
            is_increasing = get_attribute(node, "alpha", 0.01) >= 0
            return Monotonicity.INCREASING if is_increasing else Monotonicity.NONE
        case "HardSigmoid":
            is_increasing = get_attribute(node, "alpha", 0.2) >= 0
            return Monotonicity.INCREASING if is_increasing else Monotonicity.DECREASING
    is_increasing = bool(_TRAITS.get(node.op_type, OpTrait.NONE) & OpTrait.INCREASING)
    return Monotonicity.INCREASING if is_increasing else Monotonicity.NONE


def _classify_by_sign(value: ir.Value | None) -> Monotonicity:
    """Return the monotonicity of a product with, or a quotient by, a constant."""
    if value is None or not is_constant(value):
        return Monotonicity.NONE
    factors = read_array(value)
    if bool(np.all(factors >= 0)):
        return Monotonicity.INCREASING
    return Monotonicity.DECREASING if bool(np.all(factors <= 0)) else Monotonicity.MONOTONE


def _is_inactive_dropout(node: ir.Node, opset: int) -> bool:
    # From opset 12 on, the third input enables training.
    is_training = len(node.inputs) > 2 and node.inputs[2] is not None
    return not is_training and opset >= _DROPOUT_OPSET
