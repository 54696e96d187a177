# SPDX-License-Identifier: Apache-2.0
"""Layers in the branches of If and in loops."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from pass_checks import random
from small_models import kinds

import anybit

FLOAT, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def make_branch(name: str, seed: int, inner: onnx.NodeProto | None = None) -> onnx.GraphProto:
    """Return a graph of relu(x @ w), with the same tensor names for both branches."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["product"], name=f"{name}/first")]
    last = "product"
    if inner is not None:
        nodes.append(inner)
        last = "joined"
    nodes.append(helper.make_node("Relu", [last], ["result"], name=f"{name}/relu"))
    weight = onnx.numpy_helper.from_array(random(8, 6, seed=seed), "w")
    result = helper.make_tensor_value_info("result", FLOAT, None)
    return helper.make_graph(nodes, name, [], [result], [weight])


def make_switch(then: onnx.GraphProto, other: onnx.GraphProto) -> onnx.ModelProto:
    """Return a model that runs one branch at a rate of 16 and the other otherwise, then a layer."""
    nodes = [
        helper.make_node("Equal", ["rate", "sixteen"], ["condition"], name="equal"),
        helper.make_node("If", ["condition"], ["h"], then_branch=then, else_branch=other),
        helper.make_node("MatMul", ["h", "head"], ["y"], name="head"),
    ]
    constants = {"sixteen": np.array(16, np.int64), "head": random(6, 3, seed=9)}
    graph = helper.make_graph(
        nodes,
        "by_rate",
        [
            helper.make_tensor_value_info("x", FLOAT, ["rows", 8]),
            helper.make_tensor_value_info("rate", INT64, []),
        ],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)


def make_samples(*rates: int) -> list[dict[str, Any]]:
    return [
        {"x": random(4, 8, seed=seed), "rate": np.array(rates[seed % len(rates)], np.int64)}
        for seed in range(24)
    ]


def make_nested_branches() -> onnx.ModelProto:
    """Return a model with branches in a branch; the second shares names with the outer ones."""
    inside = [make_branch("low", 4), make_branch("high", 5)]
    for graph in inside:
        graph.node[0].input[0] = "product"
        graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(random(6, 6, seed=7), "v"))
        graph.node[0].input[1] = "v"
        graph.node[0].output[0] = graph.node[1].input[0] = "inner"
        graph.node[1].output[0] = graph.output[0].name = "inner_result"
    both = helper.make_node(
        "If", ["condition"], ["joined"], then_branch=inside[0], else_branch=inside[1]
    )
    return make_switch(make_branch("then", 1, both), make_branch("else", 2))


@pytest.mark.parametrize("rates", [(16, 8), (16,)])
def test_quantize_handles_layers_in_branches(rates: tuple[int, ...]) -> None:
    proto = make_switch(make_branch("then", 1), make_branch("else", 2))
    result = anybit.quantize(proto, make_samples(*rates))
    assert {layer.name for layer in result.layers} == {"then/first", "else/first", "head"}
    assert not result.skipped
    assert result.verdict is not None
    assert result.verdict.sqnr > 25
    # Activations: one that both branches use, and one of the head. Weights: three.
    assert kinds(result.model).count("IntQuant") == 5
    for sample in make_samples(16, 8)[:2]:
        y, z = anybit.load(proto).run(sample)["y"], anybit.load(result.model).run(sample)["y"]
        np.testing.assert_allclose(y, z, atol=0.1 * np.abs(y).max())


def test_quantize_keeps_activations_of_an_unused_branch_in_float32() -> None:
    result = anybit.quantize(make_nested_branches(), make_samples(8))
    layers = {layer.name: layer for layer in result.layers}
    assert layers["then/first"].activations == "uint8"  # the other branch uses the same tensor
    for name in ("low/first", "high/first"):
        assert (layers[name].weights, layers[name].activations) == ("int8", "")
    remark = "2 layers read floats, since no sample runs a branch: "
    assert sum(text.startswith(remark) for text in result.remarks) == 1


@pytest.mark.parametrize(
    "options",
    [{"weights": "int4"}, {"budget": "30dB"}, {"sensitivity": True}, {"integer_only": True}],
)
def test_quantize_handles_branches_with_other_options(options: dict[str, Any]) -> None:
    result = anybit.quantize(make_nested_branches(), make_samples(16, 8), **options)
    assert len(result.layers) == 5
    assert result.verdict is not None
    assert result.verdict.sqnr > 10


def test_quantize_handles_weights_in_branches_without_data() -> None:
    result = anybit.quantize(make_nested_branches(), weights="mxfp4", activations="float")
    assert {layer.weights for layer in result.layers} == {"mxfp4"}


def test_quantize_skips_layers_in_loops() -> None:
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["before", "w"], ["after"], name="again"),
            helper.make_node("Identity", ["go"], ["on"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("count", INT64, []),
            helper.make_tensor_value_info("go", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("before", FLOAT, [None, 8]),
        ],
        [
            helper.make_tensor_value_info("on", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("after", FLOAT, [None, 8]),
        ],
        [onnx.numpy_helper.from_array(random(8, 8) / 3, "w")],
    )
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["h"], name="once"),
        helper.make_node("Loop", ["three", "", "h"], ["y"], name="loop", body=body),
    ]
    constants = {"three": np.array(3, np.int64), "first": random(8, 8, seed=3)}
    graph = helper.make_graph(
        nodes,
        "looping",
        [helper.make_tensor_value_info("x", FLOAT, ["rows", 8])],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)
    result = anybit.quantize(proto, random(32, 8))
    assert result.skipped == {"again": "it is inside 'loop', which runs it repeatedly"}


def make_unbalanced_branch(name: str, seed: int) -> onnx.GraphProto:
    """Return a branch of two layers with channels of very different magnitudes between them."""
    graph = make_branch(
        name, seed, helper.make_node("MatMul", ["product", f"v_{name}"], ["joined"])
    )
    first = random(8, 6, seed=seed) * np.array([300, 1, 1, 40, 1, 1], np.float32)
    graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(first, "w"))
    return graph


@pytest.mark.parametrize("options", [{}, {"sensitivity": True}, {"budget": "20dB"}])
def test_quantize_handles_branches_that_few_samples_run(options: dict[str, Any]) -> None:
    proto = make_switch(make_unbalanced_branch("then", 1), make_unbalanced_branch("else", 2))
    for name, seed in (("then", 7), ("else", 8)):
        weight = onnx.numpy_helper.from_array(random(6, 6, seed=seed), f"v_{name}")
        proto.graph.initializer.append(weight)
    for rare in range(12) if not options else (5,):
        data = [
            {"x": random(1, 8, seed=index), "rate": np.array(16 if index == rare else 8, np.int64)}
            for index in range(12)
        ]
        result = anybit.quantize(proto, data, **options)
        assert result.verdict is not None
        assert result.verdict.sqnr > 15
