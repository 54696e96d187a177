# SPDX-License-Identifier: Apache-2.0
"""Another batch size, or a dynamic one, along the first axis of inputs and outputs."""

import math
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.errors import ModelError
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import Array, is_constant, make_constant, read_array
from anybit.onnx.graph.editor import drop_if_unread
from anybit.onnx.graph.names import NameGenerator, describe, make_name_generator
from anybit.onnx.graph.op_traits import OpTrait, has_trait, is_onnx_op
from anybit.onnx.graph.require import require_graph, require_input, require_shape
from anybit.onnx.graph.rows import mixes_rows
from anybit.onnx.graph.walk import iter_nodes
from anybit.onnx.passes.fold_constants import FoldConstants
from anybit.onnx.passes.infer_shapes import InferShapes

BatchSize: TypeAlias = int | ir.SymbolicDim
DeclaredShapes: TypeAlias = dict[ir.Value, ir.Shape | None]


class ChangeBatch(InPlacePass):
    """Change of the batch size of all inputs and outputs.

    The batch is the first axis of the first input, and of all inputs and outputs of that size.
    Reshapes whose constant target fixes the batch copy it from their input instead. Shapes are
    inferred anew to check that every output has the new size. The model is normalized.

    Raises:
        ModelError: No input has a first axis; a Reshape mixes rows; an output does not have the new
            size according to shape inference.
    """

    def __init__(self, batch: int | str) -> None:
        """Store the batch size: a number >= 1, or "dynamic" for a dynamic size named "batch"."""
        if batch != "dynamic" and (not isinstance(batch, int) or batch < 1):
            raise ModelError(f'batch must be an integer >= 1 or "dynamic", got {batch!r}')
        self._batch = batch

    def call(self, model: ir.Model) -> PassResult:
        declared = {value: value.shape for value in model.graph.outputs}
        InferShapes()(model)
        old = _find_batch(model)
        if old == self._batch or (self._batch == "dynamic" and not isinstance(old, int)):
            return PassResult(model, False)
        if isinstance(old, int):
            declared = {}
            old = _free_batch(model, old, self._batch)
        if isinstance(self._batch, int):
            _fix(model, old, self._batch, declared)
        return PassResult(model, True)


def _fix(model: ir.Model, dynamic: BatchSize, rows: int, declared: DeclaredShapes) -> None:
    """Declare a fixed number of rows for dynamic sizes: the computation stays the same."""
    shapes = {value: _replace_rows(value.shape, dynamic, rows) for value in _iter_values(model)}
    shapes |= {value: _replace_rows(shape, dynamic, rows) for value, shape in declared.items()}
    _forget_shapes(model)
    for value in model.graph.inputs:
        if _get_rows(value) == dynamic:
            _set_rows(value, rows)
    InferShapes()(model)
    FoldConstants(operators=False)(model)
    InferShapes()(model)
    for value in _iter_values(model):
        if value.shape is None:
            value.shape = shapes.get(value)
    for value in model.graph.outputs:
        shape = shapes.get(value)
        if shape is not None and len(shape):
            _check_agrees(value, shape[0], rows)
    for node in _find_reshapes(model):
        _check_elements(node, rows)


def _replace_rows(shape: ir.Shape | None, dynamic: BatchSize, rows: int) -> ir.Shape | None:
    if shape is None:
        return None
    return ir.Shape([rows if size == dynamic else size for size in shape])


def _check_agrees(value: ir.Value, declared: BatchSize, rows: int) -> None:
    actual = _get_rows(value)
    if isinstance(actual, int) and isinstance(declared, int) and actual != declared:
        raise ModelError(
            f"with batch {rows} the output {value.name!r} has {actual} rows, where the model "
            f"declares {declared}; export the model with that batch"
        )


def _check_elements(node: ir.Node, rows: int) -> None:
    x, target = node.inputs[0], node.inputs[1]
    if x is None or x.shape is None or not x.shape.is_static():
        return
    if target is None or not is_constant(target):
        return
    input_sizes, sizes = x.shape.numpy(), read_array(target).tolist()
    if not get_attribute(node, "allowzero", 0):
        sizes = [
            input_sizes[axis] if size == 0 and axis < len(input_sizes) else size
            for axis, size in enumerate(sizes)
        ]
    count = math.prod(size for size in sizes if size != -1)
    elements = math.prod(input_sizes)
    if elements != count if -1 not in sizes else count and elements % count:
        raise ModelError(
            f"{describe(node)} reshapes to {read_array(target).tolist()}, which {elements} "
            f"elements, with batch {rows}, do not fill; export the model with that batch"
        )


def _free_batch(model: ir.Model, old: int, requested: int | str) -> ir.SymbolicDim:
    """Make the batch dynamic, and return its name. Errors report the requested size."""
    before = _fold_copy(model)
    rows = {value.name: _get_rows(value) for value in _iter_values(before)}
    results = {value.name: value.shape for value in _iter_values(before)}
    targets = _read_targets(before)
    outputs = [value for value in model.graph.outputs if rows.get(value.name) in (old, None)]
    # A unique dynamic size marks the batch axes in every inferred shape.
    dynamic = ir.SymbolicDim(_choose_name(model))
    _forget_shapes(model)
    for value in model.graph.inputs:
        if _get_rows(value) == old:
            _set_rows(value, dynamic)
    FoldConstants(operators=False)(model)
    InferShapes()(model)
    unique = make_name_generator(model)
    while sum(
        _make_target_dynamic(node, dynamic, old, results.get(node.outputs[0].name), targets, unique)
        for node in _find_reshapes(model)
    ):
        _forget_shapes(model)
        InferShapes()(model)
    opset = model.graph.opset_imports.get("", 1)
    for node in iter_nodes(model.graph):
        _make_states_dynamic(node, dynamic)
        if mixes_rows(node, dynamic, opset):
            raise ModelError(
                f"{describe(node)} computes with all rows together, so that another batch gives "
                "each row another result; export the model with that batch"
            )
    for value in outputs:
        _check_follows(value, dynamic, requested)
    return dynamic


def _find_batch(model: ir.Model) -> BatchSize:
    for value in model.graph.inputs:
        rows = _get_rows(value)
        if rows is None:
            raise ModelError(
                f"input {value.name!r} has no first axis that could be the batch; "
                "declare the shapes of the inputs"
            )
        return rows
    raise ModelError("the model has no input, and so no batch")


def _get_rows(value: ir.Value) -> BatchSize | None:
    return value.shape[0] if value.shape is not None and len(value.shape) else None


def _set_rows(value: ir.Value, rows: BatchSize) -> None:
    value.shape = ir.Shape([rows, *list(require_shape(value))[1:]])


def _iter_values(model: ir.Model) -> Iterator[ir.Value]:
    yield from model.graph.inputs
    for node in iter_nodes(model.graph):
        yield from node.outputs


def _forget_shapes(model: ir.Model) -> None:
    for node in iter_nodes(model.graph):
        for value in node.outputs:
            value.shape = None


def _choose_name(model: ir.Model) -> str:
    sizes = [
        size for value in _iter_values(model) if value.shape is not None for size in value.shape
    ]
    used = {size.value for size in sizes if isinstance(size, ir.SymbolicDim)}
    return NameGenerator(used)("batch")


def _find_reshapes(model: ir.Model) -> list[ir.Node]:
    return [
        node
        for node in iter_nodes(model.graph)
        if is_onnx_op(node, "Reshape") and len(node.inputs) == 2
    ]


def _fold_copy(model: ir.Model) -> ir.Model:
    """Return the model with all constants and shapes folded for the current batch size."""
    folded = model.clone()
    FoldConstants(operators=False)(folded)
    InferShapes()(folded)
    return folded


def _read_targets(model: ir.Model) -> dict[str | None, Array]:
    """Return the constant target of each Reshape, by its output."""
    return {
        node.outputs[0].name: read_array(node.inputs[1]).astype(np.int64)
        for node in _find_reshapes(model)
        if node.inputs[1] is not None and is_constant(node.inputs[1])
    }


def _make_states_dynamic(node: ir.Node, batch: ir.SymbolicDim) -> None:
    """Remove zero initial states that a recurrent layer stores for a fixed batch."""
    if not has_trait(node, OpTrait.RECURRENT):
        return
    x = node.inputs[0]
    if x is None or x.shape is None or batch not in list(x.shape):
        return
    for index, value in enumerate(node.inputs[4:7], 4):  # lengths, and two states
        if value is None or not is_constant(value):
            continue
        if index == 4 or read_array(value).any():
            raise ModelError(
                f"{describe(node)} reads {value.name!r}, which is stored for the rows of one "
                "batch; export the model with that batch"
            )
        node.replace_input_with(index, None)
        drop_if_unread(value)


def _make_target_dynamic(
    node: ir.Node,
    batch: ir.SymbolicDim,
    old: int,
    result: ir.Shape | None,
    targets: dict[str | None, Array],
    unique: NameGenerator,
) -> bool:
    """Make the batch dynamic in the target of a Reshape; return whether it was fixed.

    A target of 0 copies the size of the input. It is equivalent to the number if the batch is the
    same axis of input and output, with the same number of elements before it.
    """
    x, sizes = node.inputs[0], targets.get(node.outputs[0].name)
    if x is None or x.shape is None or sizes is None or batch not in list(x.shape):
        return False
    axis = list(x.shape).index(batch)
    free_of_zeros = not get_attribute(node, "allowzero", 0) or (sizes != 0).all()
    if not free_of_zeros or not _keeps_axis(x.shape, result, axis, old):
        raise ModelError(
            f"{describe(node)} reshapes to {sizes.tolist()}, which fixes the batch together with "
            "other axes; export the model with another batch size"
        )
    del targets[node.outputs[0].name]
    node.attributes.pop("allowzero", None)
    _give_target(node, np.concatenate([sizes[:axis], [0], sizes[axis + 1 :]]), unique)
    return True


def _keeps_axis(x: ir.Shape, result: ir.Shape | None, axis: int, old: int) -> bool:
    if result is None or len(result) <= axis or result[axis] != old:
        return False
    before = ir.Shape(x[:axis]), ir.Shape(result[:axis])
    if not all(shape.is_static() for shape in before):
        return False
    return math.prod(before[0].numpy()) == math.prod(before[1].numpy())


def _give_target(node: ir.Node, sizes: Array, unique: NameGenerator) -> None:
    """Give a Reshape a target of its own: others may read the old one."""
    graph, old = require_graph(node), require_input(node, 1)
    name = unique(f"{old.name}_batch")
    value = make_constant(name, ir.tensor(sizes, name=name))
    graph.register_initializer(value)
    node.replace_input_with(1, value)
    drop_if_unread(old)


def _check_follows(value: ir.Value, batch: ir.SymbolicDim, requested: int | str) -> None:
    if _get_rows(value) != batch:
        shape = "unknown" if value.shape is None else str(value.shape)
        raise ModelError(
            f"with batch {requested} the output {value.name!r} has the shape {shape}, which does "
            "not follow the batch in shape inference; export the model with that batch"
        )
