# SPDX-License-Identifier: Apache-2.0
"""Operators on codes (QLinearConv, QGemm, QLinearAdd, ...) as float nodes, and back.

Codes less their zero-points are float32 integers, those of a DequantizeLinear with scale 1. The
nodes in place of an operator repeat the operations of ONNX Runtime's kernel; a QuantizeLinear
returns the codes. Operators that no region computes are put back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from anybit.compiler.prepare.removed_constants import RemovedInputs
from anybit.errors import ModelError
from anybit.onnx.graph.constants import Array, is_constant, read_array
from anybit.onnx.graph.names import SOURCE_NAME_KEY
from anybit.onnx.graph.op_traits import OpTrait, has_trait
from anybit.onnx.graph.require import require_graph, require_input, require_producer
from anybit.onnx.passes import InferShapes
from anybit.onnx.qdq.codes.emitter import (
    CodeRead,
    CodeScaling,
    Emitted,
    Emitter,
    FileCodes,
    FloatCopies,
)
from anybit.onnx.qdq.codes.moves import find_zeropts, get_moved
from anybit.onnx.qdq.codes.table import find_emitter, is_liftable
from anybit.onnx.qdq.integer_layers import iter_code_weights
from anybit.onnx.qdq.qlinear import is_integer_operator
from anybit.onnx.quantizers.grids import Inexpressible
from anybit.onnx.quantizers.nodes import is_dequantize

_FLOAT = ir.DataType.FLOAT
_PARAMETERS = 2


@dataclass(frozen=True, eq=False)
class LiftedOperator:
    """An operator on codes, and the float nodes in its place.

    Attributes:
        node: The operator, which is no longer in the graph.
        inputs: Its inputs.
        output: The name of its output.
        reads: Its inputs of codes.
        chain: The float nodes from these to the result, in topological order.
        scaling: Scale and zero-point of the QuantizeLinear at its end; None if it returns floats.
        error: Bound on the rounding of its float32 sums, per output channel; None if these have
            the operator's codes.
        weights: The number of its weights; float nodes may have more.
    """

    node: ir.Node
    inputs: RemovedInputs
    output: str
    reads: tuple[CodeRead, ...]
    chain: tuple[ir.Node, ...]
    scaling: CodeScaling | None
    error: Array | None
    weights: int

    @property
    def core(self) -> ir.Node:
        """The node that computes the sums of a product; the first one of other operators."""
        return _find_core(self.chain)


def _find_core(chain: Sequence[ir.Node]) -> ir.Node:
    return next((node for node in chain if has_trait(node, OpTrait.MATMUL)), chain[0])


@dataclass(frozen=True, eq=False)
class Border:
    """A QuantizeLinear that turns the floats of a region into codes again."""

    node: ir.Node
    scaling: CodeScaling


@dataclass(frozen=True, eq=False)
class LiftedOperators:
    """The operators on codes of a model.

    Attributes:
        operators: Those with float nodes in their place.
        kept: Why others stay, by the names of their outputs.
        borders: The nodes that return codes to other nodes or the user.
        integers: Tensors of codes of the file by the names of their floats, code - zero-point.
    """

    operators: tuple[LiftedOperator, ...] = ()
    kept: Mapping[str, str] = field(default_factory=dict)
    borders: tuple[Border, ...] = ()
    integers: Mapping[str, FileCodes] = field(default_factory=dict)

    def find_by_output(self) -> dict[str, LiftedOperator]:
        """Return the operators by the names of the sums, or of other first float results."""
        return {str(at.core.outputs[0].name): at for at in self.operators}

    def explain(self, output: str, reason: str) -> str:
        """Return the reason why an operator stays as it is, after another reason."""
        own = self.kept.get(output)
        return reason if own is None else f"{reason}: {own}"


def lift_code_operators(model: ir.Model) -> LiftedOperators:
    """Replace operators on codes by float nodes that compute the same codes, in place.

    Data movement of their codes becomes that of floats.
    """
    nodes = list(filter(is_liftable, model.graph))
    if nodes:
        InferShapes()(model)
    zeropts = find_zeropts(model) if nodes else {}
    copies, lifted, kept = FloatCopies(model), list[LiftedOperator](), dict[str, str]()
    for node in list(model.graph) if nodes else []:
        emit = find_emitter(node, zeropts)
        if emit is None:
            continue
        emitter = Emitter(node, model, copies, InferShapes())
        try:
            with np.errstate(all="ignore"):  # quotients of scales may overflow, as in the runtime
                emitted = emit(emitter)
        except (Inexpressible, ModelError) as error:
            kept[emitter.name] = str(error)
            continue
        lifted.append(_replace(emitter, emitted, copies))
    borders: tuple[Border, ...] = ()
    integers = copies.list_integers()
    if lifted:
        RemoveUnusedNodesPass()(model)
        borders = tuple(filter(None, (_add_border(at, copies) for at in lifted)))
        model.graph.sort()
        InferShapes()(model)
    return LiftedOperators(tuple(lifted), kept, borders, integers)


def _add_border(at: LiftedOperator, copies: FloatCopies) -> Border | None:
    """Let readers of codes, and the user, read those of the floats of a region.

    Return None if only DequantizeLinear nodes read them.
    """
    last = at.chain[-1]
    codes = last.outputs[0]
    readers = [(node, place) for node, place in codes.uses() if not is_dequantize(node)]
    graph = last.graph
    if at.scaling is None or graph is None or not (readers or codes.is_graph_output()):
        return None
    floats = copies.convert("DequantizeLinear", codes, at.scaling, last)
    outer = copies.convert("QuantizeLinear", floats, at.scaling, last, f"{codes.name}_border")
    outer.type, outer.shape, inner = codes.type, codes.shape, outer.name
    for node, place in readers:
        node.replace_input_with(place, outer)
    for place, value in enumerate(graph.outputs):
        if value is codes:
            graph.outputs[place] = outer
    codes.name, outer.name = None, codes.name
    codes.name = inner
    return Border(require_producer(outer), at.scaling)


def _replace(emitter: Emitter, emitted: Emitted, copies: FloatCopies) -> LiftedOperator:
    node, result = emitter.node, emitted.result
    inputs, name = RemovedInputs.of(node), emitter.name
    weights = sum(elements for _, elements in iter_code_weights(node))
    core = _find_core(emitter.chain)
    if is_integer_operator(node):
        core.outputs[0].metadata_props[SOURCE_NAME_KEY] = name
    moves = bool(get_moved(node)) or node.op_type == "QLinearConcat"
    if emitted.scaling is None and node.op_type != "QGemm":
        for cast, _ in node.outputs[0].uses():
            copies.editor.replace(cast, result, shared=True)
        require_graph(node).remove(node, safe=True)
    else:
        copies.editor.replace(node, result)
    if moves and emitted.scaling is not None:  # its floats are codes less the zero-point
        copies.record(result, emitted.scaling, emitter.chain[-2].outputs[0])
    core.name = node.name or core.name
    return LiftedOperator(
        node,
        inputs,
        name,
        tuple(emitter.reads),
        tuple(emitter.chain),
        emitted.scaling,
        emitted.error,
        weights,
    )


def restore_code_operators(model: ir.Model, lifted: LiftedOperators) -> None:
    """Put the operators back that no region computes, in place.

    Nodes are found by the names of their outputs: the model may be a copy.
    """
    restorer = _Restorer(model)
    restored = [restorer.restore(at) for at in lifted.operators]
    joined = [restorer.join(border) for border in lifted.borders]
    if any(restored) or any(joined):
        RemoveUnusedNodesPass()(model)
        model.graph.sort()


class _Restorer:
    """Insertion of operators on codes in place of their float nodes."""

    def __init__(self, model: ir.Model) -> None:
        self._model, self._copies = model, FloatCopies(model)
        self._nodes = {value.name: node for node in model.graph for value in node.outputs}
        self._values = {value.name: value for node in model.graph for value in node.outputs}
        self._values |= {value.name: value for value in model.graph.inputs}

    def restore(self, at: LiftedOperator) -> bool:
        """Restore an operator if no region has its nodes; return whether none does.

        A region may begin with the last one, a quantizer.
        """
        every = [self._nodes.get(node.outputs[0].name) for node in at.chain]
        chain = [node for node in every if node is not None]
        least = len(every) - (at.scaling is not None)
        if len(chain) < least or chain != every[: len(chain)]:
            return False
        last, codes = chain[-1], dict[int, ir.Value]()
        for read in at.reads:
            floats = require_input(chain[read.reader], read.reader_place)
            value = self._find_codes(floats, read.scaling)
            if value is None and not is_integer_operator(at.node):
                return False  # data movement of floats is as fast
            codes[read.place] = value or self._copies.convert(
                "QuantizeLinear", floats, read.scaling, last
            )
        inputs = at.inputs.add_back(self._model, self._copies.editor)
        others = [value and self._values.get(value.name, value) for value in inputs]
        result = self._insert(at, [codes.get(n, value) for n, value in enumerate(others)], last)
        if at.scaling is not None and len(chain) < len(every):
            result = self._copies.convert("DequantizeLinear", result, at.scaling, last)
        elif at.scaling is not None:
            self._read_codes(chain, result, at.scaling)
        self._copies.editor.replace(last, result)
        return True

    def _read_codes(self, chain: list[ir.Node], codes: ir.Value, scaling: CodeScaling) -> None:
        """Let readers of the floats before the last node, a quantizer, read the codes."""
        *_, before, last = chain
        readers = [use for use in before.outputs[0].uses() if use[0] is not last]
        if readers:
            floats = self._copies.convert("DequantizeLinear", codes, scaling, last)
            for reader, place in readers:
                reader.replace_input_with(place, floats)

    def join(self, border: Border) -> bool:
        """Remove a border whose floats are dequantized codes; return whether they are."""
        node = self._nodes.get(border.node.outputs[0].name)
        codes = None if node is None else self._find_codes(require_input(node), border.scaling)
        if node is None or codes is None:
            return False
        self._copies.editor.replace(node, codes, shared=codes.is_graph_output())
        return True

    def _insert(
        self, at: LiftedOperator, inputs: list[ir.Value | None], before: ir.Node
    ) -> ir.Value:
        """Insert an operator; return its codes, or floats."""
        insert = partial(self._copies.editor.insert_copy, before, at.node, inputs)
        like = before.outputs[0]
        if at.scaling is not None:
            return insert(like=like, dtype=at.scaling.dtype)
        if at.node.op_type == "QGemm":
            return insert(like=like, dtype=_FLOAT)
        sums = insert(like=like, dtype=ir.DataType.INT32)
        to = [ir.AttrInt64("to", _FLOAT)]
        name = f"{at.output}_cast"
        return self._copies.editor.insert(
            before, "Cast", [sums], name, like=like, dtype=_FLOAT, attributes=to
        )

    def _find_codes(self, floats: ir.Value, scaling: CodeScaling) -> ir.Value | None:
        """Return the codes that a DequantizeLinear reads to return floats; None without one."""
        node = floats.producer()
        if not is_dequantize(node) or node is None or len(node.inputs) != _PARAMETERS + 1:
            return None
        scale, zeropt = (require_input(node, place) for place in (1, 2))
        if not is_constant(scale) or not is_constant(zeropt):
            return None
        arrays, own = (read_array(scale), read_array(zeropt)), (scaling.scale, scaling.zeropt)
        same = [np.array_equal(a, b) for a, b in zip(arrays, own, strict=True)]
        return node.inputs[0] if all(same) and zeropt.dtype == scaling.dtype else None
