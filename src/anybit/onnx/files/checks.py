# SPDX-License-Identifier: Apache-2.0
"""What a model file claims, compared with what is there, before anything is allocated or read."""

import math
import os.path
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import onnx
import onnx_ir as ir

from anybit.errors import ModelError

# 4 TiB of float32: beyond any machine these models are for, and below any overflow.
_MOST_ELEMENTS = 2**40

# Runtimes put the bodies of local functions in the place of their calls.
_MOST_NODES = 2**15

_DATA_TYPES = frozenset(each.value for each in ir.DataType if each is not ir.DataType.UNDEFINED)

FREE_SIZE = -1
"""How some exporters write a size that is not fixed; runtimes and the checker take it so."""

_SINGULAR = {"FLOAT": "f", "INT": "i", "STRING": "s", "TENSOR": "t", "GRAPH": "g"}
_SINGULAR |= {"SPARSE_TENSOR": "sparse_tensor", "TYPE_PROTO": "tp"}
_ATTRIBUTE_FIELDS = {
    number: _SINGULAR.get(name, name.lower())
    for name, number in onnx.AttributeProto.AttributeType.items()
    if number
}
"""Where the value of each type stands in an attribute."""


def check_shapes(proto: onnx.ModelProto, where: str) -> None:
    """Refuse declared shapes that no memory holds, or that hold no input. -1 is a free size."""
    for graph in _graphs(proto):
        initialized = {tensor.name for tensor in graph.initializer}
        inputs = {value.name for value in graph.input} - initialized
        for value in (*graph.input, *graph.output, *graph.value_info):
            dims = [
                dim.dim_value
                for dim in value.type.tensor_type.shape.dim
                if dim.HasField("dim_value") and dim.dim_value != FREE_SIZE
            ]
            what = f"{where}: {value.name!r} is declared with shape {_shown(dims)}"
            if any(dim < 0 for dim in dims) or math.prod(dims) > _MOST_ELEMENTS:
                raise ModelError(f"{what}, which no machine can hold")
            if 0 in dims and value.name in inputs:
                raise ModelError(f"{what}: an input without elements; export it with real sizes")


def check_names(proto: onnx.ModelProto, where: str) -> None:
    """Refuse names that are not text: protobuf hands out damaged ones as bytes."""
    for function in proto.functions:
        names: list[object] = [function.name, function.domain, *function.input, *function.output]
        _check_text([*names, *(each.domain for each in function.opset_import)], where)
        _check_nodes(function.node, where)
    _check_text([each.domain for each in proto.opset_import], where)
    entries = [entry for tensor in _tensors(proto) for entry in tensor.external_data]
    _check_text([text for entry in entries for text in (entry.key, entry.value)], where)
    for graph in _graphs(proto):
        values = (*graph.input, *graph.output, *graph.value_info)
        names = [each.name for each in (*values, *graph.initializer)]
        dims = [dim for each in values for dim in each.type.tensor_type.shape.dim]
        _check_text([*names, *(dim.dim_param for dim in dims)], where)
        _check_nodes(graph.node, where)


def _check_nodes(nodes: Iterable[onnx.NodeProto], where: str) -> None:
    for node in nodes:
        attributes = [each.name for each in node.attribute]
        names = [node.name, node.op_type, node.domain, node.overload, *attributes]
        _check_text([*names, *node.input, *node.output], where)


def _check_text(names: Iterable[object], where: str) -> None:
    for name in names:
        if not isinstance(name, str):
            raise ModelError(f"{where} holds the name {name!r}, which is not UTF-8; it is damaged")


def check_attributes(proto: onnx.ModelProto, where: str) -> None:
    """Refuse attributes without a value, or whose value no caller of a function can give."""
    for graph in _graphs(proto):
        for attribute in _attributes(graph.node):
            what = f"{where}: attribute {attribute.name!r}"
            if attribute.ref_attr_name and graph is proto.graph:
                raise ModelError(f"{what} is a parameter, which only local functions have")
            _check_attribute(attribute, what)
    for function in proto.functions:
        for attribute in (*function.attribute_proto, *_attributes(function.node)):
            _check_attribute(attribute, f"{where}: attribute {attribute.name!r}")


def _check_attribute(attribute: onnx.AttributeProto, what: str) -> None:
    field = _ATTRIBUTE_FIELDS.get(attribute.type)
    if field is None:
        raise ModelError(f"{what} has no known type")
    if attribute.ref_attr_name:
        if field in ("g", "graphs"):
            raise ModelError(f"{what} is a graph that a function is called with; inline it")
    elif attribute.DESCRIPTOR.fields_by_name[field].has_presence and not attribute.HasField(field):
        raise ModelError(f"{what} has no value")


def _attributes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.AttributeProto]:
    return (attribute for node in nodes for attribute in node.attribute)


def check_versions(proto: onnx.ModelProto, where: str) -> None:
    """Refuse numbers that are not versions: the schemas are asked with them."""
    for imports in (proto.opset_import, *(function.opset_import for function in proto.functions)):
        for each in imports:
            if not 0 <= each.version < 2**31:
                raise ModelError(
                    f"{where} imports {each.domain!r} version {each.version}; "
                    "export the model again"
                )


def check_functions(proto: onnx.ModelProto, where: str) -> None:
    """Refuse local functions that call themselves, or that a runtime would expand without end."""
    calls = {
        (function.domain, function.name, function.overload): _calls(function.node)
        for function in proto.functions
    }
    called = {key: set(callees) & calls.keys() for key, callees in calls.items()}
    sizes: dict[tuple[str, str, str], int] = {}
    try:
        for key in TopologicalSorter(called).static_order():
            sizes[key] = sum(sizes.get(callee, 1) for callee in calls[key])
    except CycleError:
        raise ModelError(f"{where}: the graph of local functions has a cycle") from None
    nodes = _calls(proto.graph.node)
    expanded = sum(sizes.get(callee, 1) for callee in nodes)
    if max(expanded, len(nodes)) > _MOST_NODES:
        calls_functions = len(nodes) <= _MOST_NODES
        count = (
            f"its local functions expand to {expanded} nodes"
            if calls_functions
            else f"it has {len(nodes)} nodes"
        )
        raise ModelError(f"{where}: {count}, more than the {_MOST_NODES} that are taken")


def _calls(nodes: Iterable[onnx.NodeProto]) -> list[tuple[str, str, str]]:
    """The operator of each node, also of those in the graphs inside them."""
    return [(node.domain, node.op_type, node.overload) for node in _all_nodes(nodes)]


def check_tensors(proto: onnx.ModelProto, folder: Path | None, where: str) -> None:
    """Refuse tensors whose data are missing, misplaced or of another size than their shape."""
    for tensor in _tensors(proto):
        what = f"{where}: tensor {tensor.name!r}"
        elements = math.prod(tensor.dims)
        if any(dim < 0 for dim in tensor.dims) or elements > _MOST_ELEMENTS:
            raise ModelError(f"{what} has shape {_shown(tensor.dims)}, which no machine can hold")
        size = _bytes(tensor, elements, what)
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            _check_external(tensor, size, folder, what)
        elif tensor.HasField("raw_data"):
            if size is not None and len(tensor.raw_data) != size:
                raise ModelError(
                    f"{what} of shape {_shown(tensor.dims)} needs {size} bytes "
                    f"but holds {len(tensor.raw_data)}"
                )
        elif elements > 4 * tensor.ByteSize():  # no encoding has more than four elements a byte
            raise ModelError(f"{what} of shape {_shown(tensor.dims)} holds too few values")


def _bytes(tensor: onnx.TensorProto, elements: int, what: str) -> int | None:
    if tensor.data_type not in _DATA_TYPES:
        raise ModelError(f"{what} has the unknown data type {tensor.data_type}")
    dtype = ir.DataType(tensor.data_type)
    if dtype == ir.DataType.STRING:
        return None
    return -(-elements * dtype.bitwidth // 8)


def _check_external(
    tensor: onnx.TensorProto, size: int | None, folder: Path | None, what: str
) -> None:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise ModelError(f"{what} is stored in {location!r}; load the model by its path")
    beside = bool(location) and "\0" not in location and not Path(location).is_absolute()
    path = (folder / location).resolve() if beside else folder
    if not beside or not path.is_relative_to(folder):
        raise ModelError(
            f"{what} is stored in {location!r}, outside the model's folder; "
            "external data must lie beside the model"
        )
    try:
        offset = int(entries.get("offset") or 0)
        length = int(entries.get("length") or 0)
    except ValueError:
        raise ModelError(f"{what} has no valid offset and length") from None
    if not os.path.isfile(path):  # Path's own raises for names that are too long
        raise ModelError(
            f"{what} is stored in {location!r}, which is missing from {folder}; "
            "copy that file beside the model"
        )
    if size is None or min(offset, length) < 0 or (length and length != size):
        raise ModelError(
            f"{what} of shape {_shown(tensor.dims)} needs {size} bytes, "
            f"but its entry gives length {length} at offset {offset}"
        )
    if offset + size > path.stat().st_size:
        raise ModelError(
            f"{what} needs {size} bytes at offset {offset} of {location!r}, "
            f"which has {path.stat().st_size}; the file is cut short"
        )


def _graphs(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """The main graph and all graphs inside it and inside local functions."""
    waiting = [proto.graph]
    for function in proto.functions:
        waiting.extend(_subgraphs(function.node))
    while waiting:
        graph = waiting.pop()
        yield graph
        waiting.extend(_subgraphs(graph.node))


def _all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    waiting = [nodes]
    while waiting:
        for node in waiting.pop():
            yield node
            waiting.extend(graph.node for graph in _subgraphs([node]))


def _subgraphs(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.GraphProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield attribute.g
            yield from attribute.graphs


def _tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    graphs = list(_graphs(proto))
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


def _shown(dims: Iterable[int]) -> str:
    """A shape in few characters, however many dimensions a hostile file gives it."""
    sizes = [str(dim) for dim in dims]
    return "[" + ", ".join(sizes[:8] + ["..."] * (len(sizes) > 8)) + "]"
