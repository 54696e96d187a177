# SPDX-License-Identifier: Apache-2.0
"""Heads of attention: exporters split queries, keys and values along an axis before the rows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from anybit.compiler.operators import (
    get_varying_inputs,
    has_two_operands,
    is_quantizer,
    is_uniform,
    selects_along,
    split_quantizer,
)
from anybit.onnx.graph.constants import Array, is_constant, read_array
from anybit.onnx.graph.cut import extract_subgraph
from anybit.onnx.graph.editor import Editor, is_read, replace_value
from anybit.onnx.graph.op_traits import OpTrait, has_trait
from anybit.onnx.graph.require import require_graph
from anybit.onnx.graph.shapes import get_proven_sizes
from anybit.onnx.passes import InferShapes
from anybit.onnx.quantizers.nodes import is_quantize
from anybit.onnx.runtime import FAILURES, evaluate

_MOVES = ("Gather", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze")
_SELECTIONS = ("Gather", "Slice", "Split")
_MOST_NODES = 8
_MOST_ELEMENTS = 2**22
_MOST_NUMBERS = 2**24
"""float32 has all whole numbers up to this one."""
_LEFT_ALONE = (["Reshape", "Transpose"], ["Reshape", "Transpose", "Transpose"])


@dataclass(frozen=True, eq=False)
class _Heads:
    """Heads as a slice of the channels of tokens.

    Attributes:
        x: The tokens: rows x tokens x channels.
        first: The first channel.
        sizes: Tokens, heads and channels of a head.
        transposed: Whether the tokens are the last axis.
    """

    x: ir.Value
    first: int
    sizes: tuple[int, int, int]
    transposed: bool


def simplify_heads(model: ir.Model) -> None:
    """Let operands of products take slices of channels, then heads, in place.

    Their rows stay the first axis, which they need not be between the nodes of an exporter.
    Quantizers come before the heads.
    """
    editor = Editor(model)

    def simplify(node: ir.Node, place: int) -> bool:
        return _simplify_operand(node, place, model, editor)

    def hoist(node: ir.Node, place: int) -> bool:
        return _hoist_quantizer(node, place, editor)

    for change in (simplify, hoist):
        changed = [
            change(node, place)
            for node in list(model.graph)
            if has_two_operands(node)
            for place in range(len(node.inputs))
        ]
        if any(changed):
            InferShapes()(model)


def _simplify_operand(node: ir.Node, place: int, model: ir.Model, editor: Editor) -> bool:
    """Replace the moves before an operand by those of heads; return whether anything changed."""
    changed = _sink_quantizer(node.inputs[place], editor)
    chain = _find_chain(node.inputs[place])
    heads = None if chain is None else _trace(chain, model)
    if chain is None or heads is None:
        return changed
    _replace(chain[-1], heads, editor)
    _remove_unread(chain)
    return True


def _find_chain(value: ir.Value | None) -> list[ir.Node] | None:
    """Return the moves before an operand; None without any to simplify.

    Between these and the operand may be quantizers and functions with the same constants for all
    elements, such as the scaling of queries.
    """
    chain = _find_moves(_find_moved(value))
    operators = [node.op_type for node in chain]
    if not chain or len(chain) > _MOST_NODES or operators in _LEFT_ALONE:
        return None
    return None if len(chain[-1].outputs) > 1 else chain


def _find_moved(value: ir.Value | None) -> ir.Value | None:
    """Return the value before the quantizers and functions that an operand ends with."""
    while value is not None and (node := value.producer()) is not None:
        if is_quantizer(node):
            value, _ = split_quantizer(node)
        elif has_trait(node, OpTrait.ELEMENTWISE) and is_uniform(node):
            varying = get_varying_inputs(node)
            value = varying[0] if len(varying) == 1 else None
        else:
            break
    return value


def _find_moves(value: ir.Value | None) -> list[ir.Node]:
    """Return the data movements that a value ends with, the first one first."""
    chain: list[ir.Node] = []
    while value is not None and (node := value.producer()) is not None:
        others_vary = any(x is not None and not is_constant(x) for x in node.inputs[1:])
        if node.domain or node.op_type not in _MOVES or others_vary:
            break
        chain.insert(0, node)
        value = node.inputs[0]
    return chain


def _sink_quantizer(operand: ir.Value | None, editor: Editor) -> bool:
    """Let a quantizer between data movements follow them; return whether there was one.

    It has one scale, so that codes are the same.
    """
    moves = _find_moves(_find_moved(operand))
    value = moves[0].inputs[0] if moves else None
    node = None if value is None else value.producer()
    if node is None or not is_quantizer(node) or moves[-1].outputs[0].is_graph_output():
        return False
    x, quantizer = split_quantizer(node)
    before = _find_moves(x)
    is_selected = any(move.op_type in _SELECTIONS for move in before)
    has_parts = any(len(move.outputs) > 1 for move in moves)
    if not is_selected or has_parts or not all(map(is_uniform, quantizer)):
        return False
    y = moves[-1].outputs[0]
    result = x
    for copied in (*moves, *quantizer):
        like = copied.outputs[0] if copied in moves else y
        dtype = result.dtype if copied in moves else copied.outputs[0].dtype
        result = editor.insert_copy(
            moves[-1],
            copied,
            [result, *copied.inputs[1:]],
            like=like,
            dtype=dtype or ir.DataType.FLOAT,
        )
    replace_value(y, result)
    _remove_unread([*quantizer, *moves])
    return True


def _hoist_quantizer(node: ir.Node, place: int, editor: Editor) -> bool:
    """Let a quantizer between data movements and an operand precede them; return whether it does.

    The product then takes codes where they are, as a view. Functions with the same constants for
    all elements move with the quantizer.
    """
    operand = node.inputs[place]
    functions = _find_functions(operand)
    if operand is None or not functions or not is_quantizer(functions[-1][0]):
        return False
    moves = _find_moves(functions[0][1])
    selections = [i for i, move in enumerate(moves) if move.op_type in _SELECTIONS]
    moves = moves[selections[-1] + 1 :] if selections else moves
    source = moves[0].inputs[0] if moves else None
    nodes = [function for function, _ in functions]
    if source is None or not all(map(_has_one_reader, (*moves, *nodes))):
        return False
    constants = [value for function in nodes for value in function.inputs if value is not None]
    if any(is_constant(value) and _get_rank(value) > _get_rank(source) for value in constants):
        return False
    result = source
    for function, varying in functions:
        inputs = [result if value is varying else value for value in function.inputs]
        dtype = function.outputs[0].dtype or ir.DataType.FLOAT
        result = editor.insert_copy(moves[0], function, inputs, like=source, dtype=dtype)
    moves[0].replace_input_with(0, result)
    replace_value(operand, moves[-1].outputs[0])
    _remove_unread(nodes)
    return True


def _has_one_reader(node: ir.Node) -> bool:
    (value, *others) = node.outputs
    return not others and len(value.uses()) == 1 and not value.is_graph_output()


def _get_rank(value: ir.Value) -> int:
    return 0 if value.shape is None else len(value.shape)


def _find_functions(value: ir.Value | None) -> list[tuple[ir.Node, ir.Value]]:
    """Return the quantizers and functions that an operand ends with, and the input of each.

    The constants of all are the same for all elements. The first one comes first.
    """
    functions: list[tuple[ir.Node, ir.Value]] = []
    while value is not None and (node := value.producer()) is not None:
        varying = get_varying_inputs(node)
        of_quantizer = is_quantizer(node) or (functions and is_quantize(node))
        if not (of_quantizer or has_trait(node, OpTrait.ELEMENTWISE)):
            break
        if len(varying) != 1 or not is_uniform(node):
            break
        value = varying[0]
        functions.insert(0, (node, value))
    return functions


def _trace(chain: Sequence[ir.Node], model: ir.Model) -> _Heads | None:
    """Return the heads that a chain of moves splits off; None for other moves."""
    x, y = chain[0].inputs[0], chain[-1].outputs[0]
    whole = None if x is None else get_proven_sizes(x, model)
    if x is None or whole is None or len(whole) != 3 or x.dtype != ir.DataType.FLOAT:
        return None
    tokens, channels = whole[1:]
    if not tokens or not channels or tokens * channels > _MOST_ELEMENTS or y.is_graph_output():
        return None
    numbers = _follow(chain, model, (whole[0], tokens, channels))
    if numbers is None or numbers.ndim != 4:
        return None
    for transposed in (False, True):
        heads = numbers[0].swapaxes(1, 2) if transposed else numbers[0]
        sizes = heads.shape[1], heads.shape[0], heads.shape[2]
        first, width = int(heads[0, 0, 0]), sizes[1] * sizes[2]
        expected = first + np.arange(width).reshape(sizes[1], 1, sizes[2])
        expected = expected + channels * np.arange(tokens)[:, None]
        if first + width <= channels and np.array_equal(heads, expected):
            return _Heads(x, first, sizes, transposed)
    return None


def _follow(
    chain: Sequence[ir.Node], model: ir.Model, sizes: tuple[int | None, int, int]
) -> Array | None:
    """Return what moves make of the numbers of elements; None if rows mix, or are selected."""
    count = math.prod(sizes[1:])
    numbers, shapes = None, []
    fixed = sizes[0]
    for rows in (3, 2) if fixed is None or fixed * count > _MOST_NUMBERS else (fixed,):
        elements = np.arange(rows * count, dtype=np.float32).reshape(rows, *sizes[1:])
        inferred = _infer_sizes(chain, model, elements)
        if inferred is None or max(map(math.prod, inferred)) > rows * _MOST_ELEMENTS:
            return None
        numbers = _run(chain, model, elements)
        if numbers is None or not numbers.size or len(numbers) != rows:
            return None
        if not np.array_equal(numbers[1:], numbers[:-1] + count):
            return None
        shapes.append(inferred)
    if len(shapes) > 1 and _selects_rows(chain, *shapes):
        return None
    return numbers


def _selects_rows(
    chain: Sequence[ir.Node], sizes: Sequence[tuple[int, ...]], others: Sequence[tuple[int, ...]]
) -> bool:
    """Return whether a node selects along the axis of rows: whose size differs in two runs.

    Args:
        chain: The nodes.
        sizes: The sizes of their inputs and of their result in one run.
        others: The same with another number of rows.
    """
    for node, one, other in zip(chain, sizes, others, strict=False):
        axes = [axis for axis, (a, b) in enumerate(zip(one, other, strict=False)) if a != b]
        if len(one) != len(other) or len(axes) != 1 or selects_along(node, len(one), axes[0]):
            return True
    return False


def _infer_sizes(
    chain: Sequence[ir.Node], model: ir.Model, elements: Array
) -> list[tuple[int, ...]] | None:
    """Return the sizes of the inputs of moves and of their result; None if some are unknown."""
    x, values = chain[0].inputs[0], [node.inputs[0] for node in chain[1:]]
    results = [value for value in (*values, chain[-1].outputs[0]) if value is not None]
    piece = extract_subgraph(model, list(chain), results)
    feeds = _read_constants(chain)
    for value in piece.graph.inputs:
        array = elements if value.name == (x and x.name) else feeds[str(value.name)]
        value.type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
        value.shape = ir.Shape(array.shape)
        if array is not elements:
            value.const_value = ir.tensor(array)
            piece.graph.register_initializer(value)
    InferShapes()(piece)
    inferred = [elements.shape]
    for value in piece.graph.outputs:
        sizes = get_proven_sizes(value, piece)
        numbers = tuple(size for size in sizes or () if size is not None)
        if sizes is None or len(numbers) < len(sizes):
            return None
        inferred.append(numbers)
    return inferred


def _read_constants(chain: Sequence[ir.Node]) -> dict[str, Array]:
    return {
        str(value.name): read_array(value)
        for node in chain
        for value in node.inputs
        if value is not None and is_constant(value)
    }


def _run(chain: Sequence[ir.Node], model: ir.Model, elements: Array) -> Array | None:
    """Return what a chain of moves makes of numbers; None if it cannot be run."""
    x, y = chain[0].inputs[0], chain[-1].outputs[0]
    piece = extract_subgraph(model, list(chain), [y])
    for value in (value for moved in piece.graph for value in moved.outputs):
        value.shape = None
    try:
        (result,) = evaluate(
            piece, {**_read_constants(chain), str(x and x.name): elements}
        ).values()
    except FAILURES:
        return None
    return np.asarray(result.astype(np.int64))


def _replace(last: ir.Node, heads: _Heads, editor: Editor) -> None:
    """Compute the result of a chain from a slice of channels."""
    y, (tokens, count, width) = last.outputs[0], heads.sizes
    name, dtype = str(y.name), y.dtype or ir.DataType.FLOAT

    def insert(kind: str, inputs: list[ir.Value], *attributes: ir.Attr) -> ir.Value:
        result = editor.insert(last, kind, inputs, name, like=y, dtype=dtype, attributes=attributes)
        result.shape = None
        return result

    def constant(role: str, *numbers: int) -> ir.Value:
        return editor.add_constant(f"{name}_{role}", ir.tensor(np.array(numbers, np.int64)))

    bounds = [constant("first", heads.first), constant("last", heads.first + count * width)]
    part = insert("Slice", [heads.x, *bounds, constant("axes", 2)])
    split = insert("Reshape", [part, constant("sizes", 0, tokens, count, width)])
    order = (0, 2, 3, 1) if heads.transposed else (0, 2, 1, 3)
    replace_value(y, insert("Transpose", [split], ir.AttrInt64s("perm", order)))


def _remove_unread(chain: Sequence[ir.Node]) -> None:
    """Remove the nodes of a chain that nothing reads any more, the last one first."""
    for node in reversed(chain):
        if any(is_read(value) or value.is_graph_output() for value in node.outputs):
            return
        require_graph(node).remove(node, safe=True)
