# SPDX-License-Identifier: Apache-2.0
"""Leftovers of exporters: duplicate names, names of sizes, metadata."""

import onnx_ir as ir
from small_models import model, node

from anybit.onnx import read
from anybit.onnx.passes import DropMetadata, NameSizes, SeparateNames


def value(name: str, shape: list[int | str] | None = None) -> ir.Value:
    size = None if shape is None else ir.Shape(shape)
    return ir.Value(name=name, shape=size, type=ir.TensorType(ir.DataType.FLOAT))


def test_exporter_passes_rename_results_named_like_inputs() -> None:
    x, stored = value("x"), value("val_0")
    stored.const_value = ir.tensor([1.0])
    first = ir.node("Add", [x, stored], name="first")
    second = ir.node("Mul", [first.outputs[0], x], name="second")
    first.outputs[0].name, second.outputs[0].name = "val_0", "x"
    graph = ir.Graph([x], second.outputs, nodes=[first, second], initializers=[stored], name="g")
    result = ir.Model(graph, ir_version=8)
    assert SeparateNames()(result).modified
    assert [item.outputs[0].name for item in graph] == ["val_0_1", "x_1"]
    assert (x.name, stored.name) == ("x", "val_0")
    assert not SeparateNames()(result).modified


def test_exporter_passes_sizes_get_the_names_of_the_caller() -> None:
    x = value("x", ["s0", 4, "s1"])
    made = ir.node("Abs", [x])
    made.outputs[0].shape = ir.Shape(["4*s0", "s01", "s1 + s0", 7])
    graph = ir.Graph([x], made.outputs, nodes=[made], name="g")
    result = ir.Model(graph, ir_version=8)
    assert NameSizes([{0: "batch", 1: "fixed"}])(result).modified
    assert str(x.shape) == "[batch,4,s1]"
    assert str(made.outputs[0].shape) == "[4*batch,s01,s1 + batch,7]"
    assert not NameSizes([{}])(result).modified


def test_exporter_passes_metadata() -> None:
    proto = model([node("Abs", "x", domain="", doc_string="line 3")])
    proto.doc_string = "made by"
    proto.metadata_props.add(key="path", value="/home")
    proto.graph.doc_string = proto.graph.input[0].doc_string = "module.py"
    result = read(proto).clone()
    assert DropMetadata()(result).modified
    data = ir.to_proto(result).SerializeToString()
    for trace in (b"line 3", b"made by", b"/home", b"module.py"):
        assert trace not in data
    assert not DropMetadata()(result).modified
