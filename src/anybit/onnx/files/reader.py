# SPDX-License-Identifier: Apache-2.0
"""Reading of untrusted models."""

import os
import stat
from pathlib import Path
from typing import TypeAlias

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from anybit.errors import ModelError
from anybit.onnx.files.checks import (
    DYNAMIC_SIZE,
    check_attributes,
    check_functions,
    check_names,
    check_shapes,
    check_tensors,
    check_versions,
)
from anybit.onnx.files.origin import resolve_origin
from anybit.onnx.files.writer import ModelResult
from anybit.onnx.graph.walk import iter_nodes
from anybit.onnx.process import silence_onnx_logs
from anybit.text import describe_os_error

Source: TypeAlias = str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model | ModelResult
"""A model: a path, the bytes of a file, a model of onnx or onnx_ir, or a result that holds one."""

# Protobuf's limit for one message.
_LARGEST_PROTO = 2**31 - 1
# The tensors of larger messages are copied out; those that are not small become arrays.
_LARGE_MESSAGE, _LARGE_TENSOR = 2**24, 2**16


@silence_onnx_logs()
def read(source: Source) -> ir.Model:
    """Return a model as it is, after checks for anything harmful to the program that runs it.

    Args:
        source: A path, the bytes of a file, an `onnx.ModelProto`, an `onnx_ir.Model`, or a result
            of `clean`, `convert`, `quantize` or `export`. An `onnx_ir.Model` is returned as it is.
            External data stay on disk until they are used; they need a path.

    Raises:
        ModelError: Not a readable ONNX file; external data that are missing, too short or outside
            the model's folder; tensors whose shape and data disagree; shapes beyond any memory;
            attributes without a value; values that nothing produces; cycles.
        TypeError: The source is none of these types.
    """
    if isinstance(source, ModelResult):
        return source.model
    if isinstance(source, ir.Model):
        return source
    folder, where = None, "the model"
    if isinstance(source, onnx.ModelProto):
        proto = source
    elif isinstance(source, bytes):
        proto = _parse(source, where)
    elif not isinstance(source, str | os.PathLike):
        raise TypeError(
            "a model is a path, the bytes of a file, an onnx.ModelProto, an onnx_ir.Model, or a "
            f"result such as that of anybit.clean, not {type(source).__name__}"
        )
    else:
        path = Path(source)
        where = str(path)
        proto = _parse(_read_bytes(path), where)
        folder = path.resolve().parent
    check_names(proto, where)
    check_versions(proto, where)
    check_attributes(proto, where)
    check_functions(proto, where)
    check_shapes(proto, where)
    check_tensors(proto, folder, where)
    model = _deserialize(proto, where)
    if proto is not source and proto.ByteSize() > _LARGE_MESSAGE:
        _copy_tensors(model)
    if folder is not None:
        resolve_origin(model, folder)
        # An empty base_dir would switch off the containment checks of onnx_ir.
        for graph in (model.graph, *(function.graph for function in model.functions.values())):
            ir.external_data.set_base_dir(graph, folder)
    _check_values(model, where)
    _normalize_dynamic_sizes(model)
    return model


def read_copy(source: Source) -> ir.Model:
    """Return a model that may be changed: one that belongs to the caller is copied."""
    model = read(source)
    return model.clone() if isinstance(source, ir.Model | ModelResult) else model


def _read_bytes(path: Path) -> bytes:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            # Opening a pipe would wait for a writer.
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise ModelError(f"{path} is {kind}; pass the path of an .onnx file")
        if status.st_size > _LARGEST_PROTO:
            raise ModelError(
                f"{path} is larger than 2 GiB, which no ONNX file can be; "
                "save the weights as external data"
            )
        return path.read_bytes()
    except OSError as error:
        raise ModelError(describe_os_error(error)) from error


def _parse(data: bytes, where: str) -> onnx.ModelProto:
    if not data:
        raise ModelError(f"{where} is empty; expected an ONNX model")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError:
        raise ModelError(f"{where} is not an ONNX model, or is cut short") from None
    # Protobuf skips unknown fields: many other files parse without an error.
    if not proto.HasField("graph") or not proto.ir_version or not proto.graph.output:
        raise ModelError(f"{where} is not an ONNX model, or is cut short: it holds no graph")
    return proto


def _deserialize(proto: onnx.ModelProto, where: str) -> ir.Model:
    try:
        model = ir.from_proto(proto)
    except Exception as error:  # onnx_ir has no error class of its own
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise ModelError(f"{where} is not a valid ONNX model: {cause}") from error
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        # The long name of the standard domain. onnx_ir shortens it in nodes, but not here.
        if "ai.onnx" in graph.opset_imports:
            graph.opset_imports.setdefault("", graph.opset_imports.pop("ai.onnx"))
    return model


def _copy_tensors(model: ir.Model) -> None:
    """Copy all tensors out of the message.

    Otherwise the message stays whole in memory as long as one tensor, and each access copies.
    """
    for graph in _list_graphs(model):
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.TensorProtoTensor):
                value.const_value = _copy_tensor(value.const_value)
        for node in graph:
            for name, held in list(node.attributes.items()):
                if isinstance(held, ir.Attr) and isinstance(held.value, ir.TensorProtoTensor):
                    node.attributes[name] = ir.AttrTensor(name, _copy_tensor(held.value))


def _copy_tensor(tensor: ir.TensorProtoTensor) -> ir.TensorProtocol:
    dtype = tensor.dtype
    if len(tensor.raw.raw_data) < _LARGE_TENSOR or dtype.numpy().isbuiltin != 1:
        copy = onnx.TensorProto()
        copy.CopyFrom(tensor.raw)
        return ir.TensorProtoTensor(copy)
    return ir.Tensor(
        tensor.numpy(),
        dtype=dtype,
        name=tensor.name,
        doc_string=tensor.doc_string,
        metadata_props=dict(tensor.metadata_props),
    )


def _list_graphs(model: ir.Model) -> list[ir.Graph]:
    """Return the main graph, those of local functions, and all graphs inside them."""
    bodies = [model.graph, *(function.graph for function in model.functions.values())]
    return [graph for body in bodies for graph in (body, *body.subgraphs())]


def _normalize_dynamic_sizes(model: ir.Model) -> None:
    """Leave sizes open that the file writes as -1 or "?".

    Shape inference would take -1 for a number, and all sizes named "?" for equal.
    """
    for graph in _list_graphs(model):
        results = (value for node in graph for value in node.outputs)
        for value in (*graph.inputs, *graph.initializers.values(), *results):
            if value.shape is not None and any(map(_is_open, value.shape)):
                value.shape = ir.Shape(None if _is_open(size) else size for size in value.shape)


def _is_open(size: int | ir.SymbolicDim) -> bool:
    return size == DYNAMIC_SIZE or (isinstance(size, ir.SymbolicDim) and size.value == "?")


def _check_values(model: ir.Model, where: str) -> None:
    bodies = [model.graph, *(function.graph for function in model.functions.values())]
    graphs = _list_graphs(model)
    sources = {value for graph in graphs for value in (*graph.inputs, *graph.initializers.values())}
    for node in (node for body in bodies for node in iter_nodes(body)):
        for value in node.inputs:
            if value is not None and value.producer() is None and value not in sources:
                raise ModelError(
                    f"{where}: node {node.name!r} reads {value.name!r}, which nothing produces; "
                    "export the model again"
                )
    for graph in graphs:
        for value in graph.outputs:
            if value.producer() is None and value not in sources:
                raise ModelError(f"{where}: nothing produces the output {value.name!r}")
    try:
        for body in bodies:
            body.sort()
    except ValueError:
        raise ModelError(
            f"{where}: the graph has a cycle, which ONNX graphs must not have"
        ) from None
