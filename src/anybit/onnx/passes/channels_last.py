# SPDX-License-Identifier: Apache-2.0
"""Convolutions, pooling and normalization with channels last."""

from collections.abc import Callable, Sequence

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.layout import (
    CHANNELS_LAST,
    CHANNELS_LAST_OPERATORS,
    get_channels_first_order,
    get_channels_last_order,
    get_layout_inputs,
    has_provisional_name,
    insert_transpose,
    make_transpose,
    reorder_shape,
    set_provisional_name,
    swap_names,
)
from anybit.onnx.graph.names import make_name_generator
from anybit.onnx.graph.require import require_graph, require_input, require_shape
from anybit.onnx.passes.move_transposes import is_elementwise

_RANKS = (3, 4)


class ChannelsLast(InPlacePass):
    """Conversion of Conv, MaxPool and BatchNormalization to channels last.

    The operators of `qonnx.custom_op.channels_last` replace those of images, between Transposes
    that `MoveTransposes` cancels. All attributes are written out, as that domain requires. A model
    input that reaches such an operator through elementwise nodes gets channels last. Operators of
    other ranks, with further outputs or unknown shapes stay.

    `StandardLayout` is the inverse.
    """

    def call(self, model: ir.Model) -> PassResult:
        unique = make_name_generator(model)
        nodes = [node for node in model.graph.all_nodes() if _can_change(node)]
        before: set[ir.Node] = set()
        for node in nodes:
            _write_out(node)
            before.update(_change(node, unique))
        if nodes:
            model.graph.opset_imports[CHANNELS_LAST] = model.graph.opset_imports.get("", 1)
            for value in model.graph.inputs:
                _change_input(value, model.graph, before, unique)
        return PassResult(model, bool(nodes))


def _can_change(node: ir.Node) -> bool:
    if node.domain != "" or node.op_type not in CHANNELS_LAST_OPERATORS or len(node.outputs) != 1:
        return False
    x = node.inputs[0]
    if x is None or x.shape is None or len(x.shape) not in _RANKS or x.dtype != ir.DataType.FLOAT:
        return False
    if node.op_type == "BatchNormalization":
        return not get_attribute(node, "training_mode", 0)
    dilated = any(step != 1 for step in get_attribute(node, "dilations", ()))
    if dilated and get_attribute(node, "auto_pad", "NOTSET").startswith("SAME"):
        return False  # not computed by runtimes
    is_fixed = _get_kernel_shape(node) is not None and all(
        isinstance(size, int) for size in x.shape[2:]
    )
    return is_fixed and not get_attribute(node, "storage_order", 0)


def _get_kernel_shape(node: ir.Node) -> Sequence[int] | None:
    kernel = get_attribute(node, "kernel_shape", ())
    if kernel or node.op_type != "Conv":
        return kernel or None
    weight = node.inputs[1]
    if weight is None or weight.shape is None or not weight.shape.is_static():
        return None
    return weight.shape.numpy()[2:]


def _write_out(node: ir.Node) -> None:
    attributes = node.attributes
    if node.op_type == "BatchNormalization":
        attributes.add(ir.AttrFloat32("epsilon", get_attribute(node, "epsilon", 1e-5)))
        attributes.add(ir.AttrFloat32("momentum", get_attribute(node, "momentum", 0.9)))
        return
    kernel = _get_kernel_shape(node) or ()
    ones = [1] * len(kernel)
    strides = get_attribute(node, "strides", ()) or ones
    dilations = get_attribute(node, "dilations", ()) or ones
    pads = get_attribute(node, "pads", ()) or [0, 0] * len(kernel)
    mode = get_attribute(node, "auto_pad", "NOTSET")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        sizes = [int(size) for size in require_shape(require_input(node))[2:]]  # type: ignore[arg-type]
        pads = _compute_same_pads(sizes, kernel, strides, upper=mode == "SAME_UPPER")
    attributes.pop("auto_pad", None)
    attributes.pop("storage_order", None)
    written = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads}
    for name, numbers in written.items():
        attributes.add(ir.AttrInt64s(name, numbers))
    if node.op_type == "Conv":
        attributes.add(ir.AttrInt64("group", get_attribute(node, "group", 1)))


def _compute_same_pads(
    sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], *, upper: bool
) -> list[int]:
    """Return the padding before and after each axis, for output sizes of ceil(size / stride)."""
    begins, ends = [], []
    for size, width, stride in zip(sizes, kernel, strides, strict=True):
        steps = -(-size // stride) - 1
        total = max(0, steps * stride + width - size)
        less, more = total // 2, total - total // 2
        begins.append(less if upper else more)
        ends.append(more if upper else less)
    return [*begins, *ends]


def _change(node: ir.Node, unique: Callable[[str], str]) -> list[ir.Node]:
    """Put Transposes around a node; return those before it."""
    graph, result, name = require_graph(node), node.outputs[0], node.name or node.op_type
    rank, transposes = len(require_shape(require_input(node))), []
    for index in get_layout_inputs(node):
        value = require_input(node, index)
        before = make_transpose(
            value, get_channels_last_order(rank), unique(f"{value.name}_channels_last")
        )
        if has_provisional_name(value):
            set_provisional_name(before.outputs[0], before.name or name)
        graph.insert_before(node, before)
        node.replace_input_with(index, before.outputs[0])
        transposes.append(before)
    last = insert_transpose(node, get_channels_first_order(rank), unique(f"{name}_channels_first"))
    last.name = unique(f"{result.name}_channels_last")
    if has_provisional_name(result):
        set_provisional_name(last, last.name)
    swap_names(result, last)
    node.domain = CHANNELS_LAST
    return transposes


def _change_input(
    value: ir.Value, graph: ir.Graph, transposes: set[ir.Node], unique: Callable[[str], str]
) -> None:
    """Give an input channels last, if an operator with channels last reads its elements."""
    rank = len(value.shape) if value.shape is not None else 0
    if rank not in _RANKS or not _reaches(value, transposes):
        return
    readers = list(value.uses())
    before = make_transpose(
        value, get_channels_first_order(rank), unique(f"{value.name}_channels_first")
    )
    before.outputs[0].shape = value.shape
    value.shape = reorder_shape(value.shape, get_channels_last_order(rank))
    for reader, index in readers:
        reader.replace_input_with(index, before.outputs[0])
    first = next(iter(graph), None)
    if first is None:
        graph.append(before)
    else:
        graph.insert_before(first, before)


def _reaches(value: ir.Value, transposes: set[ir.Node]) -> bool:
    """Return whether at most elementwise nodes lie between a value and one of the Transposes."""
    seen, waiting = set(), [value]
    while waiting:
        for reader, _ in waiting.pop().uses():
            if reader in transposes:
                return True
            if reader not in seen and is_elementwise(reader):
                seen.add(reader)
                waiting += reader.outputs
    return False
