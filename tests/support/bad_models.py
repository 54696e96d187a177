# SPDX-License-Identifier: Apache-2.0
"""Damaged and hostile models, and the messages for them."""

from collections.abc import Callable

import onnx
from onnx import helper
from small_models import DOMAIN, model, node, quantized_input, quantized_weight


def change_model(change: Callable[[onnx.ModelProto], object]) -> onnx.ModelProto:
    proto, _ = quantized_weight()
    change(proto)
    return proto


def set_shape(value: onnx.ValueInfoProto, *shape: int) -> None:
    del value.type.tensor_type.shape.dim[:]
    for size in shape:
        value.type.tensor_type.shape.dim.add().dim_value = size


def functions(**calls: str) -> onnx.ModelProto:
    """Return a model that calls F0, and functions that call those named."""
    proto = model([node("F0", "x", domain="mine")], opsets={"mine": 1})
    imports = [helper.make_opsetid("", 13), helper.make_opsetid("mine", 1)]
    for name, words in calls.items():
        body = [
            helper.make_node(word, ["a"], [f"t{index}"], domain="mine")
            for index, word in enumerate(words.split())
        ]
        body.append(helper.make_node("Neg", ["a"], ["b"]))
        proto.functions.append(helper.make_function("mine", name, ["a"], ["b"], body, imports))
    return proto


def change_function(change: Callable[[onnx.FunctionProto], object]) -> onnx.ModelProto:
    proto = functions(F0="")
    change(proto.functions[0])
    return proto


BAD_MODELS = {
    "recursion": (functions(F0="F1", F1="F0"), "functions has a cycle"),
    "explosion": (
        functions(**{f"F{index}": f"F{index + 1} " * 2 for index in range(60)}, F60=""),
        "expand to [0-9]{18,} nodes",
    ),
    "cycle": (
        model(
            [node("Add", "x b", "a", domain=""), node("Add", "a x", "b", domain="", name="n")],
            outputs=["b"],
        ),
        "cycle",
    ),
    "self": (model([node("Add", "x y", domain="")]), "cycle"),
    "dangling": (model([node("Add", "x nothing", domain="")]), "'the_Add' reads 'nothing'"),
    "no output": (model([node("Neg", "x", "t", domain="")]), "nothing produces.*'y'"),
    "twice": (model([node("Neg", "x", domain=""), node("Abs", "x", domain="")]), "'y'"),
    "unknown": (
        model([node("XnorPopcountMatMul", "x", "t"), node("Foo", "t", domain="mine")]),
        r"mine::Foo, qonnx\.custom_op\.general::XnorPopcountMatMul",
    ),
    "not standard": (model([node("Quant", "x", domain="")]), "ai.onnx::Quant"),
    "too young": (model([node("Gelu", "x", domain="")]), "ai.onnx::Gelu"),
    "Trunc": (model([node("Trunc", "x x x x x x")], opsets={DOMAIN: 1}), "6 inputs.*version 1"),
    "rounding mode": (quantized_input(rounding_mode="NEAREST"), "rounding_mode.*'NEAREST'"),
    "large input": (
        change_model(lambda m: set_shape(m.graph.input[0], 2**30, 2**30)),
        r"'x'.*\[1073741824, 1073",
    ),
    "negative input": (change_model(lambda m: set_shape(m.graph.input[0], -4)), r"'x'.*\[-4\]"),
    "empty input": (
        change_model(lambda m: set_shape(m.graph.input[0], 0, 4)),
        r"\[0, 4\].*without elem",
    ),
    "large constant": (
        change_model(lambda m: m.graph.initializer[0].dims.__setitem__(0, 2**60)),
        "weight.*no machine",
    ),
    "short constant": (
        change_model(lambda m: m.graph.initializer[0].dims.append(9)),
        "needs 432 bytes but holds 48",
    ),
    "typeless": (
        change_model(lambda m: setattr(m.graph.initializer[0], "data_type", 99)),
        "data type 99",
    ),
    "future opset": (
        change_model(lambda m: setattr(m.opset_import[0], "version", 999)),
        "cannot be loaded",
    ),
    "past opset": (
        change_model(lambda m: setattr(m.opset_import[0], "version", -1)),
        "imports '' version -1",
    ),
    "attribute without type": (
        change_model(lambda m: m.graph.node[0].attribute.add(name="a", i=1)),
        "attribute 'a' has no known type",
    ),
    "attribute without value": (
        change_model(lambda m: m.graph.node[0].attribute.add(name="a", type="TENSOR")),
        "attribute 'a' has no value",
    ),
    "parameter": (
        change_model(
            lambda m: m.graph.node[0].attribute.add(name="a", type="INT", ref_attr_name="b")
        ),
        "attribute 'a' is a parameter, which only local functions have",
    ),
    "function": (
        change_function(lambda body: body.node[0].input.__setitem__(0, "nothing")),
        "reads 'nothing', which nothing produces",
    ),
    "strings": (
        change_model(lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 8)),
        "strings",
    ),
}
