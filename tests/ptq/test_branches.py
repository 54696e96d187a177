# SPDX-License-Identifier: Apache-2.0
"""Layers inside the branches of If, and inside loops."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from pass_checks import random
from small_models import kinds

import anybit

FLOAT, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


def branch(name: str, seed: int, inner: onnx.NodeProto | None = None) -> onnx.GraphProto:
    """x @ w, whose names are those of the other branch, too."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["made"], name=f"{name}/first")]
    last = "made"
    if inner is not None:
        nodes.append(inner)
        last = "joined"
    nodes.append(helper.make_node("Relu", [last], ["result"], name=f"{name}/relu"))
    weight = onnx.numpy_helper.from_array(random(8, 6, seed=seed), "w")
    result = helper.make_tensor_value_info("result", FLOAT, None)
    return helper.make_graph(nodes, name, [], [result], [weight])


def by_rate(then: onnx.GraphProto, other: onnx.GraphProto) -> onnx.ModelProto:
    """One branch for a rate of 16, the other for all others, and a layer behind."""
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
        [onnx.numpy_helper.from_array(each, name) for name, each in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)


def samples(*rates: int) -> list[dict[str, Any]]:
    return [
        {"x": random(4, 8, seed=seed), "rate": np.array(rates[seed % len(rates)], np.int64)}
        for seed in range(24)
    ]


def nested() -> onnx.ModelProto:
    """A branch with branches of its own, of which the second shares names with the outer ones."""
    inside = [branch("low", 4), branch("high", 5)]
    for each in inside:
        each.node[0].input[0] = "made"
        each.initializer[0].CopyFrom(onnx.numpy_helper.from_array(random(6, 6, seed=7), "v"))
        each.node[0].input[1] = "v"
        each.node[0].output[0] = each.node[1].input[0] = "inner"
        each.node[1].output[0] = each.output[0].name = "inner_result"
    both = helper.make_node(
        "If", ["condition"], ["joined"], then_branch=inside[0], else_branch=inside[1]
    )
    return by_rate(branch("then", 1, both), branch("else", 2))


@pytest.mark.parametrize("rates", [(16, 8), (16,)])
def test_layers_in_branches_are_quantized(rates: tuple[int, ...]) -> None:
    proto = by_rate(branch("then", 1), branch("else", 2))
    found = anybit.quantize(proto, samples(*rates))
    assert {each.name for each in found.layers} == {"then/first", "else/first", "head"}
    assert not found.skipped
    assert found.verdict is not None
    assert found.verdict.sqnr > 25
    # One tensor that both branches read, and the head's; a weight for each of three layers.
    assert kinds(found.model).count("IntQuant") == 5
    for sample in samples(16, 8)[:2]:
        y, z = anybit.load(proto).run(sample)["y"], anybit.load(found.model).run(sample)["y"]
        np.testing.assert_allclose(y, z, atol=0.1 * np.abs(y).max())


def test_what_is_computed_in_a_branch_that_does_not_run_stays_float() -> None:
    found = anybit.quantize(nested(), samples(8))
    layers = {each.name: each for each in found.layers}
    assert layers["then/first"].activations == "uint8"  # the other branch reads the same
    for name in ("low/first", "high/first"):
        assert (layers[name].weights, layers[name].activations) == ("int8", "")
    said = "2 layers read floats, since no sample runs a branch: "
    assert sum(each.startswith(said) for each in found.remarks) == 1


@pytest.mark.parametrize(
    "options",
    [{"weights": "int4"}, {"budget": "30dB"}, {"sensitivity": True}, {"integer_only": True}],
)
def test_branches_under_other_wishes(options: dict[str, Any]) -> None:
    found = anybit.quantize(nested(), samples(16, 8), **options)
    assert len(found.layers) == 5
    assert found.verdict is not None
    assert found.verdict.sqnr > 10


def test_weights_alone_need_no_run() -> None:
    found = anybit.quantize(nested(), weights="mxfp4", activations=None)
    assert {each.weights for each in found.layers} == {"mxfp4"}


def test_layers_in_loops_are_named() -> None:
    """They run many times, so that there is not one tensor that they read."""
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
        [onnx.numpy_helper.from_array(each, name) for name, each in constants.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)
    found = anybit.quantize(proto, random(32, 8))
    assert found.skipped == {"again": "it is inside 'loop', which runs it repeatedly"}


def lopsided(name: str, seed: int) -> onnx.GraphProto:
    """Two layers, with channels of very different sizes between them."""
    found = branch(name, seed, helper.make_node("MatMul", ["made", f"v_{name}"], ["joined"]))
    first = random(8, 6, seed=seed) * np.array([300, 1, 1, 40, 1, 1], np.float32)
    found.initializer[0].CopyFrom(onnx.numpy_helper.from_array(first, "w"))
    return found


@pytest.mark.parametrize("words", [{}, {"sensitivity": True}, {"budget": "20dB"}])
def test_what_few_samples_run_is_quantized(words: dict[str, Any]) -> None:
    proto = by_rate(lopsided("then", 1), lopsided("else", 2))
    for name, seed in (("then", 7), ("else", 8)):
        weight = onnx.numpy_helper.from_array(random(6, 6, seed=seed), f"v_{name}")
        proto.graph.initializer.append(weight)
    for rare in range(12) if not words else (5,):
        data = [
            {"x": random(1, 8, seed=at), "rate": np.array(16 if at == rare else 8, np.int64)}
            for at in range(12)
        ]
        found = anybit.quantize(proto, data, **words)
        assert found.verdict is not None
        assert found.verdict.sqnr > 15
