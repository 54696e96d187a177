# SPDX-License-Identifier: Apache-2.0
"""Checks of the claims of a model file, before anything is allocated or read."""

import math
import os.path
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import onnx
import onnx_ir as ir

from anybit.errors import ModelError

# 4 TiB of float32: more than any target machine holds, and below any overflow.
_MOST_ELEMENTS = 2**40

# Runtimes replace calls of local functions by their bodies.
_MOST_NODES = 2**15

_DATA_TYPES = frozenset(dtype.value for dtype in ir.DataType if dtype is not ir.DataType.UNDEFINED)

DYNAMIC_SIZE = -1
"""A dynamic size, as some exporters write it; runtimes and the checker accept it."""

_SINGULAR = {"FLOAT": "f", "INT": "i", "STRING": "s", "TENSOR": "t", "GRAPH": "g"}
_SINGULAR |= {"SPARSE_TENSOR": "sparse_tensor", "TYPE_PROTO": "tp"}
_ATTRIBUTE_FIELDS = {
    number: _SINGULAR.get(name, name.lower())
    for name, number in onnx.AttributeProto.AttributeType.items()
    if number
}
"""The field of an attribute that holds the value of each type."""


def check_shapes(proto: onnx.ModelProto, where: str) -> None:
    """Refuse declared shapes that no memory can hold, or inputs without elements.

    -1 is a dynamic size.
    """
    for graph in _iter_graphs(proto):
        initialized = {tensor.name for tensor in graph.initializer}
        inputs = {value.name for value in graph.input} - initialized
        for value in (*graph.input, *graph.output, *graph.value_info):
            dims = [
                dim.dim_value
                for dim in value.type.tensor_type.shape.dim
                if dim.HasField("dim_value") and dim.dim_value != DYNAMIC_SIZE
            ]
            subject = f"{where}: {value.name!r} is declared with shape {_format_shape(dims)}"
            if any(dim < 0 for dim in dims) or math.prod(dims) > _MOST_ELEMENTS:
                raise ModelError(f"{subject}, which no machine can hold")
            if 0 in dims and value.name in inputs:
                raise ModelError(f"{subject}: an input without elements; export it with real sizes")


def check_names(proto: onnx.ModelProto, where: str) -> None:
    """Refuse names that are not UTF-8: protobuf returns damaged ones as bytes."""
    for function in proto.functions:
        names: list[object] = [function.name, function.domain, *function.input, *function.output]
        _check_text([*names, *(opset.domain for opset in function.opset_import)], where)
        _check_nodes(function.node, where)
    _check_text([opset.domain for opset in proto.opset_import], where)
    entries = [entry for tensor in _iter_tensors(proto) for entry in tensor.external_data]
    _check_text([text for entry in entries for text in (entry.key, entry.value)], where)
    for graph in _iter_graphs(proto):
        values = (*graph.input, *graph.output, *graph.value_info)
        names = [value.name for value in (*values, *graph.initializer)]
        dims = [dim for value in values for dim in value.type.tensor_type.shape.dim]
        _check_text([*names, *(dim.dim_param for dim in dims)], where)
        _check_nodes(graph.node, where)


def _check_nodes(nodes: Iterable[onnx.NodeProto], where: str) -> None:
    for node in nodes:
        attributes = [attribute.name for attribute in node.attribute]
        names = [node.name, node.op_type, node.domain, node.overload, *attributes]
        _check_text([*names, *node.input, *node.output], where)


def _check_text(names: Iterable[object], where: str) -> None:
    for name in names:
        if not isinstance(name, str):
            raise ModelError(f"{where} holds the name {name!r}, which is not UTF-8; it is damaged")


def check_attributes(proto: onnx.ModelProto, where: str) -> None:
    """Refuse attributes without a value, or with a value that no caller can pass."""
    for graph in _iter_graphs(proto):
        for attribute in _iter_attributes(graph.node):
            subject = f"{where}: attribute {attribute.name!r}"
            if attribute.ref_attr_name and graph is proto.graph:
                raise ModelError(f"{subject} is a parameter, which only local functions have")
            _check_attribute(attribute, subject)
    for function in proto.functions:
        for attribute in (*function.attribute_proto, *_iter_attributes(function.node)):
            _check_attribute(attribute, f"{where}: attribute {attribute.name!r}")


def _check_attribute(attribute: onnx.AttributeProto, subject: str) -> None:
    field = _ATTRIBUTE_FIELDS.get(attribute.type)
    if field is None:
        raise ModelError(f"{subject} has no known type")
    if attribute.ref_attr_name:
        if field in ("g", "graphs"):
            raise ModelError(f"{subject} is a graph that a function is called with; inline it")
    elif attribute.DESCRIPTOR.fields_by_name[field].has_presence and not attribute.HasField(field):
        raise ModelError(f"{subject} has no value")


def _iter_attributes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.AttributeProto]:
    return (attribute for node in nodes for attribute in node.attribute)


def check_versions(proto: onnx.ModelProto, where: str) -> None:
    """Refuse opset versions out of range: schemas are looked up with them."""
    for imports in (proto.opset_import, *(function.opset_import for function in proto.functions)):
        for opset in imports:
            if not 0 <= opset.version < 2**31:
                raise ModelError(
                    f"{where} imports {opset.domain!r} version {opset.version}; "
                    "export the model again"
                )


def check_functions(proto: onnx.ModelProto, where: str) -> None:
    """Refuse recursive local functions, and those that expand to too many nodes."""
    calls = {
        (function.domain, function.name, function.overload): _list_calls(function.node)
        for function in proto.functions
    }
    called = {key: set(callees) & calls.keys() for key, callees in calls.items()}
    sizes: dict[tuple[str, str, str], int] = {}
    try:
        for key in TopologicalSorter(called).static_order():
            sizes[key] = sum(sizes.get(callee, 1) for callee in calls[key])
    except CycleError:
        raise ModelError(f"{where}: the graph of local functions has a cycle") from None
    nodes = _list_calls(proto.graph.node)
    expanded = sum(sizes.get(callee, 1) for callee in nodes)
    if max(expanded, len(nodes)) > _MOST_NODES:
        calls_functions = len(nodes) <= _MOST_NODES
        count = (
            f"its local functions expand to {expanded} nodes"
            if calls_functions
            else f"it has {len(nodes)} nodes"
        )
        raise ModelError(f"{where}: {count}, more than the {_MOST_NODES} that are taken")


def _list_calls(nodes: Iterable[onnx.NodeProto]) -> list[tuple[str, str, str]]:
    """Return the operator of each node, also of nodes in inner graphs."""
    return [(node.domain, node.op_type, node.overload) for node in _iter_nodes(nodes)]


def check_tensors(proto: onnx.ModelProto, folder: Path | None, where: str) -> None:
    """Refuse tensors whose data are missing, misplaced or of another size than their shape."""
    for tensor in _iter_tensors(proto):
        subject = f"{where}: tensor {tensor.name!r}"
        elements = math.prod(tensor.dims)
        if any(dim < 0 for dim in tensor.dims) or elements > _MOST_ELEMENTS:
            raise ModelError(
                f"{subject} has shape {_format_shape(tensor.dims)}, which no machine can hold"
            )
        size = _count_bytes(tensor, elements, subject)
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            _check_external(tensor, size, folder, subject)
        elif tensor.HasField("raw_data"):
            if size is not None and len(tensor.raw_data) != size:
                raise ModelError(
                    f"{subject} of shape {_format_shape(tensor.dims)} needs {size} bytes "
                    f"but holds {len(tensor.raw_data)}"
                )
        elif elements > 4 * tensor.ByteSize():  # no encoding has more than four elements a byte
            raise ModelError(
                f"{subject} of shape {_format_shape(tensor.dims)} holds too few values"
            )


def _count_bytes(tensor: onnx.TensorProto, elements: int, subject: str) -> int | None:
    if tensor.data_type not in _DATA_TYPES:
        raise ModelError(f"{subject} has the unknown data type {tensor.data_type}")
    dtype = ir.DataType(tensor.data_type)
    if dtype == ir.DataType.STRING:
        return None
    return -(-elements * dtype.bitwidth // 8)


def _check_external(
    tensor: onnx.TensorProto, size: int | None, folder: Path | None, subject: str
) -> None:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise ModelError(f"{subject} is stored in {location!r}; load the model by its path")
    is_relative = bool(location) and "\0" not in location and not Path(location).is_absolute()
    path = (folder / location).resolve() if is_relative else folder
    if not is_relative or not path.is_relative_to(folder):
        raise ModelError(
            f"{subject} is stored in {location!r}, outside the model's folder; "
            "external data must lie beside the model"
        )
    try:
        offset = int(entries.get("offset") or 0)
        length = int(entries.get("length") or 0)
    except ValueError:
        raise ModelError(f"{subject} has no valid offset and length") from None
    if not os.path.isfile(path):  # Path's own raises for names that are too long
        raise ModelError(
            f"{subject} is stored in {location!r}, which is missing from {folder}; "
            "copy that file beside the model"
        )
    if size is None or min(offset, length) < 0 or (length and length != size):
        raise ModelError(
            f"{subject} of shape {_format_shape(tensor.dims)} needs {size} bytes, "
            f"but its entry gives length {length} at offset {offset}"
        )
    if offset + size > path.stat().st_size:
        raise ModelError(
            f"{subject} needs {size} bytes at offset {offset} of {location!r}, "
            f"which has {path.stat().st_size}; the file is cut short"
        )


def _iter_graphs(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """Yield the main graph, and all graphs inside it and inside local functions."""
    waiting = [proto.graph]
    for function in proto.functions:
        waiting.extend(_iter_subgraphs(function.node))
    while waiting:
        graph = waiting.pop()
        yield graph
        waiting.extend(_iter_subgraphs(graph.node))


def _iter_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    waiting = [nodes]
    while waiting:
        for node in waiting.pop():
            yield node
            waiting.extend(graph.node for graph in _iter_subgraphs([node]))


def _iter_subgraphs(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.GraphProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield attribute.g
            yield from attribute.graphs


def _iter_tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    graphs = list(_iter_graphs(proto))
    bodies = [graph.node for graph in graphs] + [function.node for function in proto.functions]
    for graph in graphs:
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)
    for nodes in bodies:
        for node in nodes:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield attribute.t
                yield from attribute.tensors


def _format_shape(dims: Iterable[int]) -> str:
    """Return a short text for a shape, however many dimensions a hostile file declares."""
    sizes = [str(dim) for dim in dims]
    return "[" + ", ".join(sizes[:8] + ["..."] * (len(sizes) > 8)) + "]"
