# SPDX-License-Identifier: Apache-2.0
"""Rewrites of a QuantizeLinear and its neighbours by ONNX Runtime's optimizer.

`REWRITES` is the table of rewrites that change values, or fail to load, in a supported version (see
`integer_kernels`). They apply to quantizers with one scale, from ORT_ENABLE_BASIC on, whatever the
other options. A node with an effect in between prevents them. Nodes without one do not: the
optimizer removes them first.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, IntEnum, auto

import numpy as np
import onnx_ir as ir

from anybit.onnx.graph.constants import is_constant, read_array
from anybit.onnx.graph.op_traits import (
    OpTrait,
    get_neutral_operand,
    has_trait,
    is_onnx_op,
    list_operators,
)
from anybit.onnx.operators.registry import find_operator
from anybit.onnx.quantizers.native_types import NativeType
from anybit.onnx.quantizers.nodes import is_dequantize, is_quantize
from anybit.ops.grids import Channels


class Neighbour(Enum):
    """A neighbour of a quantizer, possibly after the removal of nodes without effect."""

    RELU = auto()
    """Before it."""
    CLIP = auto()
    """Before it."""
    CLIP_OF_INPUT = auto()
    """Before it, and x of the Clip is an input of the graph."""
    QUANTIZER = auto()
    """Before it, or after it unless it is a node of this package."""


class Fence(IntEnum):
    """The positions of a node that prevents a rewrite."""

    NONE = 0
    INSIDE = 1
    """Before QuantizeLinear, or before DequantizeLinear."""
    BEFORE = 2
    """Before QuantizeLinear."""


@dataclass(frozen=True)
class FusionRewrite:
    """A rewrite of the optimizer, and the codes for which it changes values."""

    name: str
    neighbour: Neighbour
    harms: Callable[[NativeType, Channels], bool]
    fence: Fence


def _is_known_to_fusions(native: NativeType) -> bool:
    return native.format is None and native.bits >= 8


def _goes_below_zero(native: NativeType, channels: Channels) -> bool:
    """Return whether codes below the zero-point exist: a Relu is dropped without a check of it."""
    if _is_known_to_fusions(native):
        return False
    return native.format is not None or native.lowest < float(channels.zeropt.max())


def _has_no_bounds(native: NativeType, channels: Channels) -> bool:
    """Return whether the fusion fails because it does not know the lowest and highest value."""
    return not _is_known_to_fusions(native)


def _is_tiny(native: NativeType, channels: Channels) -> bool:
    """Return whether bounds are within 1.2e-7: they count as equal, but may be many steps apart."""
    return _is_known_to_fusions(native) and float(channels.scale.min()) < 2.0**-20


def _is_integer(native: NativeType, channels: Channels) -> bool:
    return _is_known_to_fusions(native)


REWRITES = (
    FusionRewrite("ReluQuantFusion", Neighbour.RELU, _goes_below_zero, Fence.BEFORE),
    FusionRewrite("ClipQuantFusion", Neighbour.CLIP, _has_no_bounds, Fence.BEFORE),
    FusionRewrite("ClipQuantFusion", Neighbour.CLIP, _is_tiny, Fence.BEFORE),
    # Up to 1.23, the input is removed together with the Clip, and the session cannot be fed.
    FusionRewrite("ClipQuantFusion", Neighbour.CLIP_OF_INPUT, _is_integer, Fence.BEFORE),
    # One of two quantizers of one type is dropped, regardless of their scales.
    FusionRewrite("DoubleQDQPairsRemover", Neighbour.QUANTIZER, _is_integer, Fence.INSIDE),
)


def choose_fence(neighbours: frozenset[Neighbour], native: NativeType, channels: Channels) -> Fence:
    """Return the fence that a quantizer to this type needs, so that no rewrite changes a value."""
    if channels.axis is not None:  # all of them require one scale
        return Fence.NONE
    harmful = (
        rewrite.fence
        for rewrite in REWRITES
        if rewrite.neighbour in neighbours and rewrite.harms(native, channels)
    )
    return max(harmful, default=Fence.NONE)


def find_neighbours(node: ir.Node) -> frozenset[Neighbour]:
    """Return the neighbours of a quantizer of an activation."""
    return frozenset(_iter_producers(node.inputs[0])) | frozenset(_iter_consumers(node.outputs[0]))


# Nodes that compute stay in all versions. Operators without traits are treated as if they had no
# effect.
_STAYING = OpTrait.SELECTION | OpTrait.MEAN | OpTrait.MATMUL
_COMPUTING = {
    *list_operators(OpTrait.RECURRENT),
    *("Einsum", "LayerNormalization", "LogSoftmax", "Resize", "Softmax"),
}
# A longer chain of nodes without effect gets all fences, to bound the search.
_FARTHEST = 1000


def _iter_producers(x: ir.Value | None) -> Iterator[Neighbour]:
    """Yield the neighbours that x may come from if nodes without effect are removed."""
    waiting, seen = [(x, False)], set()
    while waiting:
        value, clipped = waiting.pop()
        if value is None or (value, clipped) in seen or is_constant(value):
            continue
        seen.add((value, clipped))
        if len(seen) > _FARTHEST:
            yield from Neighbour
            return
        node = value.producer()
        if node is None:
            if clipped:
                yield Neighbour.CLIP_OF_INPUT
        elif find_operator(node) is not None or is_dequantize(node):
            yield Neighbour.QUANTIZER
        elif not _stays(node):
            if is_onnx_op(node, "Relu"):
                yield Neighbour.RELU
            clip = is_onnx_op(node, "Clip")
            if clip:
                yield Neighbour.CLIP
            sources = node.inputs[:1] if clip else [*node.inputs, *_get_branch_outputs(node, value)]
            waiting += [(source, clipped or clip) for source in sources]


def _iter_consumers(result: ir.Value) -> Iterator[Neighbour]:
    waiting, seen = [result], set()
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        if len(seen) > _FARTHEST:
            yield Neighbour.QUANTIZER
            return
        for reader, _ in value.uses():
            if is_quantize(reader):
                yield Neighbour.QUANTIZER
            elif find_operator(reader) is None and not _stays(reader):
                waiting += reader.outputs


def _get_branch_outputs(node: ir.Node, result: ir.Value) -> list[ir.Value]:
    """Return the outputs of the branches of an If, which may be inlined, for one of its outputs."""
    graphs = [
        attribute.value
        for attribute in node.attributes.values()
        if attribute.type == ir.AttributeType.GRAPH
    ]
    return [graph.outputs[result.index() or 0] for graph in graphs if node.op_type == "If"]


def does_nothing(node: ir.Node) -> bool:
    """Return whether the optimizer may drop a node, or move it to another place."""
    return not _stays(node)


def map_branch_results(nodes: Iterable[ir.Node]) -> dict[ir.Value, ir.Value]:
    """Return the result of an If for each output of its branches, which may be inlined."""
    return {
        output: result
        for node in nodes
        if is_onnx_op(node, "If")
        for attribute in node.attributes.values()
        if attribute.type == ir.AttributeType.GRAPH
        for output, result in zip(attribute.value.outputs, node.outputs, strict=False)
    }


def _stays(node: ir.Node) -> bool:
    neutral = get_neutral_operand(node)
    if not node.domain and (node.op_type in _COMPUTING or node.op_type == "Concat"):
        return node.op_type in _COMPUTING or len(node.inputs) > 1
    if not has_trait(node, OpTrait.ELEMENTWISE):
        return has_trait(node, _STAYING)
    if neutral is not None:
        constants = [value for value in node.inputs if value is not None and is_constant(value)]
        return not any(_is_all(value, neutral) for value in constants)
    if node.op_type in ("Max", "Min"):
        return len(node.inputs) > 1
    return not has_trait(node, OpTrait.MAY_BE_IDENTITY)


def _is_all(value: ir.Value, number: int) -> bool:
    array = read_array(value)
    # Check the first element first: weights may lie on disk.
    return array.size == 0 or (array.flat[0] == number and bool(np.all(array == number)))
