# SPDX-License-Identifier: Apache-2.0
"""Which elements a node takes: found by letting it move the numbers of the elements."""

import math
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from anybit.lowbit.places import Place
from anybit.lowbit.uncovered import Uncovered
from anybit.onnx.graph.attributes import attribute_of
from anybit.onnx.graph.constants import Array, array_of, is_constant
from anybit.onnx.graph.cut import cut
from anybit.onnx.graph.op_traits import OpTrait, has_trait
from anybit.onnx.graph.shapes import sizes_that_follow
from anybit.onnx.passes import InferShapes
from anybit.onnx.runtime import FAILURES, evaluate

# Index arrays of larger tensors are not made.
_MOST_ELEMENTS = 2**22


def numbers_moved(
    model: ir.Model, node: ir.Node, x: ir.Value, sizes: tuple[int, ...]
) -> dict[str, Array]:
    """What the node makes of the numbers 1, 2, ... of the elements of a row; 0 is filled in.

    Raises:
        Uncovered: It computes new elements, or too many, or takes some from other rows.
    """
    if any(
        value is not None and value is not x and not is_constant(value) for value in node.inputs
    ):
        raise Uncovered(f"{node.op_type} reads sizes that are not constant")
    if has_trait(node, OpTrait.RESIZE) and attribute_of(node, "mode", "nearest") != "nearest":
        raise Uncovered(f"{node.op_type} computes new elements")
    count = math.prod(sizes)
    if count > _MOST_ELEMENTS:
        raise Uncovered("it has too many elements")
    piece = cut(model, [node], list(node.outputs))
    numbers = np.arange(1, 2 * count + 1, dtype=np.float32).reshape(2, *sizes)
    feeds = {
        str(value.name): numbers if value is x else array_of(value)
        for value in node.inputs
        if value is not None
    }
    _check_sizes(cut(model, [node], list(node.outputs)), feeds, x)
    for value in (value for each in piece.graph for value in each.outputs):
        value.shape = None
    try:
        results = evaluate(piece, feeds)
    except FAILURES as error:
        raise Uncovered(f"{node.op_type} cannot be followed: {error}") from error
    for result in results.values():
        shifted = np.where(result[:1] == 0, 0, result[:1] + count)
        if len(result) != 2 or not np.array_equal(result[1:], shifted):
            raise Uncovered(f"{node.op_type} moves elements from row to row")
    return {name: result[0].astype(np.int64) - 1 for name, result in results.items()}


def _check_sizes(piece: ir.Model, feeds: Mapping[str, Array], x: ir.Value) -> None:
    """That what a piece makes of x is not too large. The piece is spent.

    Raises:
        Uncovered: It is, or nothing says how large it is.
    """
    for value in piece.graph.inputs:
        array = feeds[str(value.name)]
        value.type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
        value.shape = ir.Shape(array.shape)
        if value.name != x.name:
            value.const_value = ir.tensor(array)
            piece.graph.register_initializer(value)
    InferShapes()(piece)
    for y in piece.graph.outputs:
        sizes = sizes_that_follow(y, piece)
        if sizes is None or None in sizes:
            raise Uncovered("its sizes are not known before it runs")
        if math.prod(size for size in sizes if size is not None) > 2 * _MOST_ELEMENTS:
            raise Uncovered("its result has too many elements")


def separated(numbers: Array, source: Place, target: Place) -> dict[str, Array]:
    """Numbers of elements as rows, columns and channels that each follow from one of the three.

    Raises:
        Uncovered: They do not.
    """
    if target.channels_first:
        numbers = numbers.reshape(target.channels, target.height, target.width).transpose(1, 2, 0)
    numbers = numbers.reshape(target.height, target.width, target.channels)
    if source.channels_first:
        channel, place = np.divmod(numbers, source.height * source.width)
        row, column = np.divmod(place, source.width)
    else:
        place, channel = np.divmod(numbers, source.channels)
        row, column = np.divmod(place, source.width)
    missing = numbers < 0
    lines = []
    for axis, index in enumerate((row, column, channel)):
        others = tuple(other for other in range(3) if other != axis)
        filled = np.where(missing, -1, index).max(axis=others)
        lines.append(np.asarray(filled, np.int32))
    rows, columns, channels = lines
    whole = np.ix_(rows, columns, channels)
    empty = (whole[0] < 0) | (whole[1] < 0) | (whole[2] < 0)
    fits = all(
        np.array_equal(np.where(missing, 0, index), np.where(empty, 0, line))
        for index, line in zip((row, column, channel), np.broadcast_arrays(*whole), strict=True)
    )
    if not fits or not np.array_equal(missing, empty):
        raise Uncovered("it moves elements otherwise than by rows, columns and channels")
    return {"rows": rows, "columns": columns, "channels": channels}
