# SPDX-License-Identifier: Apache-2.0
"""Nodes that ONNX Runtime 1.17 to 1.32 may compute in integers, with other values.

The tables follow the selectors of QuantizeLinear and DequantizeLinear in its optimizer (from
ORT_ENABLE_EXTENDED on), and the propagation of quantizers (from ORT_ENABLE_BASIC on). They are a
superset: further conditions of some versions (equal types, one scale, a single reader) are ignored.

`find_rewrites` proves which values stay. Data movement on codes of 8 and 16 bits keeps them. A
MatMul that is not followed by QuantizeLinear keeps them up to the order of sums, if no integer sum
overflows in any kernel (`saturation`). Everything else rounds again, saturates on some CPUs, or
does not load.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.graph.constants import is_constant
from anybit.onnx.graph.names import get_label
from anybit.onnx.graph.op_traits import OpTrait, is_onnx_op, list_operators
from anybit.onnx.qdq.fusions import (
    Fence,
    choose_fence,
    does_nothing,
    find_neighbours,
    map_branch_results,
)
from anybit.onnx.qdq.saturation import BYTES, get_code_type, is_exact_product
from anybit.onnx.quantizers.grids import Inexpressible
from anybit.onnx.quantizers.nodes import is_dequantize, is_quantize, read_scaling

_SIGNED, _UNSIGNED = ir.DataType.INT8, ir.DataType.UINT8
_SIXTEEN = {ir.DataType.INT16, ir.DataType.UINT16}
_WIDE = {*_SIXTEEN, ir.DataType.INT32}


class RewriteReason(Enum):
    """The effect of a rewrite that may change values."""

    ROUNDS = "rounds results differently"
    SATURATES = "may saturate sums of 8-bit products on CPUs with AVX2 or AVX-512 without VNNI"
    NARROW = "may use MatMulNBits, which rounds the other input to 8 bits"
    MERGED = "merges it with a node before it, which changes values"
    FAR = "may drop more nodes after it than are checked"
    UNSUPPORTED = "has no kernels for such codes in some versions, and does not load them"


@dataclass(frozen=True)
class Rewrite:
    """A node that the runtime may compute in integers.

    Attributes:
        node: The node.
        reason: The reason why values may differ; None if they are proven equal.
        pairs: The DequantizeLinear to fence, so that the node is computed as written. One input
            suffices: the optimizer requires all of them.
        quantizers: The QuantizeLinear to fence, so that they are not moved before the node.
    """

    node: ir.Node
    reason: RewriteReason | None
    pairs: tuple[ir.Node, ...] = ()
    quantizers: tuple[ir.Node, ...] = ()


# Rewritten if followed by a QuantizeLinear: QLinearConv, QLinearAdd, ... round in their own way.
# Float weights and biases of Conv, ConvTranspose and Gemm are quantized for that.
_CONVOLUTIONS = list_operators(OpTrait.CONVOLUTION)
_UNARY = {"AveragePool", "GlobalAveragePool", "LeakyRelu", "Resize", "Sigmoid", "Softmax"}
_OF_SEVERAL = {"Add", "Concat", "Mul", "Where"}
# Rewritten without one, too: MatMulIntegerToFloat, QGemm, MatMulNBits.
_PRODUCTS = list_operators(OpTrait.DENSE)
# Quantizers are moved across some of these, and dropped around others.
_MOVING = """
    ArgMax DepthToSpace Expand Flatten Gather GatherElements MaxPool ReduceMax ReduceMin Reshape
    Slice SpaceToDepth Split Squeeze Tile Transpose Unsqueeze
"""
_MOVED = set(_MOVING.split())
# Data movement on these codes loads and keeps values in every version. On x86, pairs of int8 become
# uint8; pairs that were moved after a Reshape then have codes of two types.
_FOUR = {ir.DataType.INT4, ir.DataType.UINT4}
_MOVABLE_BEFORE = {_SIGNED, _UNSIGNED, *_SIXTEEN, *_FOUR}
_MOVABLE_BEHIND = {_UNSIGNED, *_WIDE, *_FOUR}
# These have no kernels for 4 bits.
_COMPARING = {"ArgMax", "MaxPool", "ReduceMax", "ReduceMin"}
# Nodes that may become the bias of a preceding product or convolution.
_MERGED = {"Add", "BatchNormalization", "Div", "Mul", "Sub"}


def find_rewrites(model: ir.Model) -> tuple[Rewrite, ...]:
    """Return the nodes of a model that the runtime may rewrite, in the order of the graph."""
    return _Search(model).find_rewrites()


def _needs_fence(quantize: ir.Node) -> bool:
    """Return whether a rewrite of `fusions` changes the values of a QuantizeLinear."""
    try:
        scaling = read_scaling(quantize)
    except (Inexpressible, ModelError):
        return False
    needed = choose_fence(find_neighbours(quantize), scaling.type, scaling.layout)
    readers = [reader.op_type for reader, _ in quantize.outputs[0].uses()]
    return needed > (Fence.INSIDE if "Clip" in readers else Fence.NONE)


def can_fence(node: ir.Node) -> bool:
    """Return whether a quantizer can be fenced by a Min: the bound and its type must be known.

    The Min follows a DequantizeLinear, or precedes a QuantizeLinear.
    """
    value = node.inputs[0] if is_quantize(node) else node.outputs[0]
    try:
        if is_quantize(node):
            read_scaling(node)
        else:
            read_scaling(node, get_code_type(node), blocks=True)
    except (Inexpressible, ModelError):
        return False
    return value is not None and value.dtype in (None, ir.DataType.FLOAT)


class _Search:
    """The DequantizeLinear nodes before each value, and the rewrites that follow."""

    def __init__(self, model: ir.Model) -> None:
        self._nodes = list(model.graph.all_nodes())
        self._reach = Reach(self._nodes)
        self._folded = _find_folded(self._nodes)
        self._floats = _find_folded(node for node in self._nodes if not is_dequantize(node))
        self._sources: dict[ir.Value, set[ir.Node]] = {}
        self._far: set[ir.Node] = set()
        for node in filter(_is_complete, self._nodes):
            try:
                reached = self._reach.find_values(node.outputs)
            except TooFarError:
                self._far.add(node)
                reached = {}
            for value in reached:
                self._sources.setdefault(value, set()).add(node)

    def find_rewrites(self) -> tuple[Rewrite, ...]:
        candidates = (self._find_rewrite(node) for node in self._nodes)
        return tuple(rewrite for rewrite in candidates if rewrite is not None)

    def _find_rewrite(self, node: ir.Node) -> Rewrite | None:
        kind = node.op_type
        if is_quantize(node):
            return (
                Rewrite(node, RewriteReason.MERGED, quantizers=(node,))
                if _needs_fence(node)
                else None
            )
        if node in self._far:
            return Rewrite(node, RewriteReason.FAR, (node,))
        if node.domain:
            return None
        if kind in _PRODUCTS:
            return self._find_product_rewrite(node)
        if kind in _CONVOLUTIONS or kind in _UNARY:
            dequantizers = self._find_dequantizers(node, 0)
            if not dequantizers or not self._is_quantized(node):
                return None
            if kind in _UNARY and all(
                get_code_type(dequantizer) in _SIXTEEN for dequantizer in dequantizers
            ):
                return None
            return Rewrite(node, RewriteReason.ROUNDS, dequantizers)
        if kind in _OF_SEVERAL:
            return self._find_variadic_rewrite(node)
        return self._find_move_rewrite(node) if kind in _MOVED else None

    def _find_variadic_rewrite(self, node: ir.Node) -> Rewrite | None:
        """Return the rewrite of an operator whose inputs must all be dequantized."""
        indices = range(node.op_type == "Where", len(node.inputs))
        groups = [self._find_dequantizers(node, index) for index in indices]
        if node.op_type == "Where":  # a constant branch is quantized, too
            groups = [group for group in groups if group]
        if not groups or not all(groups) or not self._is_quantized(node):
            return None
        types = {get_code_type(dequantizer) for group in groups for dequantizer in group}
        if types <= _SIXTEEN:
            return None
        # Activations before constants, which are larger.
        group = min(groups, key=lambda group: all(map(self._holds_constant, group)))
        return Rewrite(node, RewriteReason.ROUNDS, group)

    def _find_move_rewrite(self, node: ir.Node) -> Rewrite | None:
        """Return the rewrite of data movement: codes of some types have no kernels."""
        lacking = _FOUR if node.op_type in _COMPARING else set()
        before = [
            dequantizer
            for dequantizer in self._find_dequantizers(node, 0)
            if get_code_type(dequantizer) not in _MOVABLE_BEHIND - lacking
            and _has_one_scale(dequantizer)
        ]
        try:
            readers = self._find_readers(node)
        except TooFarError:
            readers = []
        following = [
            quantizer
            for quantizer in filter(is_quantize, readers)
            if get_code_type(quantizer) not in _MOVABLE_BEFORE - lacking
            and _has_one_scale(quantizer)
        ]
        if not before and not following:
            return None
        return Rewrite(node, RewriteReason.UNSUPPORTED, tuple(before), tuple(following))

    def _find_product_rewrite(self, node: ir.Node) -> Rewrite | None:
        left, right = self._find_dequantizers(node, 0), self._find_dequantizers(node, 1)
        gemm = node.op_type == "Gemm"
        if not right:
            quantized = left and (gemm or self._may_become_gemm(node)) and self._is_quantized(node)
            return Rewrite(node, RewriteReason.ROUNDS, left) if quantized else None
        if all(get_code_type(dequantizer) in _WIDE for dequantizer in right):
            return None
        if self._is_quantized(node):
            return Rewrite(node, RewriteReason.ROUNDS, right)
        if not left:
            constant = any(map(self._holds_constant, right))
            return Rewrite(node, RewriteReason.NARROW, right) if constant else None
        if gemm:
            return Rewrite(node, RewriteReason.ROUNDS, right)
        # Pairs of int8 become MatMulNBits, unless they became uint8 first.
        unsigned = all(get_code_type(dequantizer) == _UNSIGNED for dequantizer in left)
        if unsigned and len(left) == len(right) == 1 and is_exact_product(node, left[0], right[0]):
            return Rewrite(node, None)
        if all(get_code_type(dequantizer) in BYTES for dequantizer in (*left, *right)):
            return Rewrite(node, RewriteReason.SATURATES, right)
        constant = any(map(self._holds_constant, right))
        return Rewrite(node, RewriteReason.NARROW if constant else RewriteReason.UNSUPPORTED, right)

    def _may_become_gemm(self, node: ir.Node) -> bool:
        """Return whether a MatMul has a float weight, and a bias or batch normalization after it.

        Both become a Gemm, whose weight and bias are quantized.
        """
        weight = node.inputs[1] if len(node.inputs) > 1 else None
        if weight is None or not (is_constant(weight) or weight in self._floats):
            return False
        try:
            return any(map(self._is_addition, self._find_readers(node)))
        except TooFarError:
            return True

    def _find_dequantizers(self, node: ir.Node, index: int) -> tuple[ir.Node, ...]:
        value = node.inputs[index] if index < len(node.inputs) else None
        dequantizers = self._sources.get(value, set()) if value is not None else set()
        return tuple(sorted(dequantizers, key=get_label))

    def _is_quantized(self, node: ir.Node) -> bool:
        """Return whether the output of a node is quantized, or added to a dequantized constant.

        The constant becomes the bias of a product; its scale is ignored.
        """
        try:
            readers = self._find_readers(node)
        except TooFarError:
            return True
        merged = (value for reader in readers if _can_join(reader) for value in reader.inputs)
        biases = (value for value in merged if value is not None and value in self._sources)
        return any(map(is_quantize, readers)) or any(map(self._is_bias, biases))

    def _find_readers(self, node: ir.Node) -> list[ir.Node]:
        """Return quantizers and `_MERGED` nodes after a node, and after those merged into it."""
        readers: dict[ir.Node, None] = {}
        waiting = [node]
        while waiting:
            groups = [self._reach.find_readers(value) for value in waiting.pop().outputs]
            following = {reader: None for group in groups for reader in group}
            new = [reader for reader in following if reader not in readers]
            readers.update(dict.fromkeys(new))
            if node.op_type in _CONVOLUTIONS | _PRODUCTS:
                waiting += filter(self._is_addition, new)
        return list(readers)

    def _is_addition(self, node: ir.Node) -> bool:
        """Return whether all inputs except one are constants, dequantized or not."""
        biases = (value is None or self._is_bias(value) for value in node.inputs)
        return _can_join(node) and list(biases).count(False) == 1

    def _holds_constant(self, dequantize: ir.Node) -> bool:
        """Return whether a DequantizeLinear reads a constant after constant folding."""
        codes = dequantize.inputs[0]
        return codes is None or is_constant(codes) or codes in self._folded

    def _is_bias(self, value: ir.Value) -> bool:
        sources = self._sources.get(value, ())
        return is_constant(value) or (bool(sources) and all(map(self._holds_constant, sources)))


def _find_folded(nodes: Iterable[ir.Node]) -> set[ir.Value]:
    """Return the values that nodes, in the order of the graph, compute from constants only."""
    folded: set[ir.Value] = set()
    for node in nodes:
        if all(value is None or is_constant(value) or value in folded for value in node.inputs):
            folded.update(node.outputs)
    return folded


def _can_join(node: ir.Node) -> bool:
    """Return whether a node may become the bias of a preceding product or convolution."""
    return is_onnx_op(node, *_MERGED)


def _is_complete(node: ir.Node) -> bool:
    """Return whether a node is a DequantizeLinear with its required inputs."""
    return is_dequantize(node) and len(node.inputs) > 1 and len(node.outputs) == 1


def _has_one_scale(node: ir.Node) -> bool:
    """Return whether a quantizer may be moved: those with several scales are not."""
    if len(node.inputs) < 2:
        return False
    scale = node.inputs[1]
    return scale is None or scale.shape is None or scale.shape.rank() == 0 or scale.shape == (1,)


_SELECTING = _COMPARING - {"ArgMax"}
_FARTHEST = 1000


class TooFarError(Exception):
    """More nodes follow a value than the search allows."""


class Reach:
    """The nodes of a model, and the values that reach them.

    Quantizers are moved across data movement, or dropped around it; nodes without effect are
    dropped.
    """

    def __init__(self, nodes: Iterable[ir.Node]) -> None:
        self._results = map_branch_results(nodes)
        self._readers: dict[ir.Value, dict[ir.Node, None] | None] = {}
        """The readers that `find_readers` returns; None where there are too many."""

    def find_values(self, values: Iterable[ir.Value]) -> dict[ir.Value, None]:
        """Return the values that may merge with any of `values`.

        Raises:
            TooFarError: There are more of them than the search allows.
        """
        reached = dict.fromkeys(values)
        waiting = list(reached)
        while waiting:
            new = [v for v in self._list_following(waiting.pop()) if v not in reached]
            reached.update(dict.fromkeys(new))
            waiting += new
            if len(reached) > _FARTHEST:
                raise TooFarError
        return reached

    def find_readers(self, value: ir.Value) -> dict[ir.Node, None]:
        """Return the quantizers and `_MERGED` nodes that read a value, or one it may merge with.

        Each value is visited once, however many are asked for.

        Raises:
            TooFarError: There are more of them than the search allows.
        """
        waiting: list[tuple[ir.Value, list[ir.Value] | None]] = [(value, None)]
        while waiting:
            current, following = waiting.pop()
            if following is not None:
                self._readers[current] = self._join_readers(current, following)
            elif current not in self._readers:
                self._readers[current] = {}
                following = self._list_following(current)
                waiting.append((current, following))
                waiting += ((after, None) for after in following if after not in self._readers)
        readers = self._readers[value]
        if readers is None:
            raise TooFarError
        return readers

    def _join_readers(
        self, value: ir.Value, following: list[ir.Value]
    ) -> dict[ir.Node, None] | None:
        """Return the readers of a value and of the values that follow it."""
        readers = [reader for reader, _ in value.uses()]
        own = dict.fromkeys(node for node in readers if is_quantize(node) or _can_join(node))
        groups = [own] if own else []
        for after in following:
            group = self._readers[after]
            if group is None:
                return None
            if group:
                groups.append(group)
        if len(groups) == 1:
            return groups[0]  # shared, so that a long chain takes little memory
        joined = {node: None for group in groups for node in group}
        return joined if len(joined) <= _FARTHEST else None

    def _list_following(self, value: ir.Value) -> list[ir.Value]:
        """Return the values that merge with a value if one node, or one If, is dropped."""
        following = [self._results[value]] if value in self._results else []
        for reader in dict.fromkeys(reader for reader, _ in value.uses()):
            if _passes(reader):
                following += reader.outputs
        return following


def _passes(node: ir.Node) -> bool:
    """Return whether quantizers may be moved across a node, or the node may be dropped."""
    if node.domain or is_quantize(node) or is_dequantize(node):
        return False
    return node.op_type in _SELECTING or does_nothing(node)
