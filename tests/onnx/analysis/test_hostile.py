# SPDX-License-Identifier: Apache-2.0
"""Files that ask for much, and nodes that make no sense, get an answer in time."""

import cProfile
import pstats
import tracemalloc

import numpy as np
import onnx
import pytest
from analysis_cases import CASES, CHANNELS, SHAPE, Case, build_model, standard_node
from analysis_checks import prepare
from onnx import helper
from small_models import model, node

from anybit.onnx.analysis.abstract_values import MOST_CHANNELS
from anybit.onnx.analysis.analysis import analyze
from anybit.onnx.analysis.layers import find_quantizers_after
from anybit.onnx.analysis.rules.table import RULES


def without_a_channel(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Constants with an entry per channel have one less, except the scale."""
    for tensor in proto.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        if array.shape[:1] == (4,) and tensor.name != "scale":
            tensor.CopyFrom(onnx.numpy_helper.from_array(array[:3], tensor.name))
    return proto


def damaged(case: Case) -> list[onnx.ModelProto]:
    """Build a case with missing, swapped or replaced inputs, or other attributes or sizes."""
    made = [build_model(case, CHANNELS[:3]), without_a_channel(build_model(case, CHANNELS))]
    for change in ("none", "first", "last", "swapped", "text", "numbers", "scalar", "huge"):
        proto = build_model(case, np.float32(0.5))
        last = proto.graph.node[-1]
        inputs = list(last.input)
        if change == "none":
            del last.input[:]
        elif change == "first":
            last.input[0] = ""
        elif change == "last":
            del last.input[-1]
        elif change == "swapped":
            last.input[:] = inputs[::-1]
        elif change in ("text", "numbers", "huge"):
            values = {"text": "?", "numbers": [7, -9, 0], "huge": 2**62}[change]
            names = [attribute.name for attribute in last.attribute] or ["axis", "axes", "mode"]
            del last.attribute[:]
            last.attribute.extend(helper.make_attribute(name, values) for name in names)
        else:
            for name in inputs[1:]:
                for tensor in proto.graph.initializer:
                    if tensor.name == name:
                        value = np.asarray(onnx.numpy_helper.to_array(tensor)).reshape(-1)[:0]
                        tensor.CopyFrom(onnx.numpy_helper.from_array(value, name))
        made.append(proto)
    return made


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.filterwarnings("ignore")
def test_analysis_nodes_that_are_invalid(case: Case) -> None:
    """Only what says that a model is invalid is caught in the analysis."""
    for proto in damaged(case):
        analyze(prepare(proto))


def test_analysis_channels_of_many_nodes() -> None:
    """Drop channels of later nodes: all of them would need gigabytes."""
    count, channels = 3000, 16_000
    nodes = [
        standard_node("Add", f"{'q' if at == 0 else f't{at - 1}'} by", f"t{at}", name=f"n{at}")
        for at in range(count)
    ]
    nodes[-1].output[0] = "y"
    first = node("Quant", "x by zero four", "q", name="q")
    by = np.arange(1, channels + 1, dtype=np.float32)
    proto = model([first, *nodes], {"by": by, "zero": 0, "four": 4}, inputs={"x": [1, channels]})
    ready = prepare(proto)
    tracemalloc.start()
    actual = analyze(ready)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(actual.values) > count
    assert peak < 2**29


def test_analysis_one_weight_of_many_products() -> None:
    """Analyze a large weight for some of its readers only."""
    count, size = 300, 800
    nodes = [node("Quant", "x s zero four", "q", name="q"), node("Quant", "w s zero four", "wq")]
    nodes += [standard_node("MatMul", "q wq", f"y{at}", name=f"m{at}") for at in range(count)]
    weight = np.random.default_rng(0).standard_normal((size, size)).astype(np.float32)
    constants = {"w": weight, "s": 0.25, "zero": 0, "four": 4}
    outputs = [f"y{at}" for at in range(count)]
    proto = model(nodes, constants, inputs={"x": [1, size]}, outputs=outputs)
    actual = analyze(prepare(proto))
    assert actual.products[0].exact
    assert "too many products" in actual.products[-1].reason


def test_analysis_joined_channels() -> None:
    """Double the channels with each Concat."""
    nodes = [node("Quant", "x s zero four", "t0", name="q")]
    nodes += [
        standard_node("Concat", f"t{at} t{at}", f"t{at + 1}", axis=1, name=f"c{at}")
        for at in range(40)
    ]
    nodes.append(standard_node("Relu", "t40"))
    scale = np.float32([0.5, 1, 2, 4]).reshape(4, 1, 1)
    proto = model(nodes, {"s": scale, "zero": 0, "four": 4}, inputs={"x": SHAPE})
    actual = analyze(prepare(proto))
    assert max(value.lowest.size for value in actual.values.values()) <= MOST_CHANNELS


UNFIT = {
    "attribute": ("Gemm", (1, 4), (4, 3), {"transB": "?"}),
    "groups": ("Conv", (1, 4, 5, 5), (3, 4, 3, 3), {"group": 2}),
    "many groups": ("ConvTranspose", (1, 4, 5, 5), (4, 3, 3, 3), {"group": 2**62}),
    "channels": ("MatMul", (1, 4), (5, 3), {}),
    "rank": ("Gemm", (1, 4), (2, 4, 3), {}),
    "elements": ("MatMul", (1, 0), (0, 3), {}),
}


@pytest.mark.parametrize("wrong", UNFIT)
def test_analysis_product_that_cannot_be_read_is_a_row(wrong: str) -> None:
    kind, x, shape, options = UNFIT[wrong]
    scale = np.arange(1, x[1] + 1, dtype=np.float32).reshape(-1, *[1] * (len(x) - 2))
    constants = {"w": np.ones(shape, np.float32), "s": scale, "one": 1, "zero": 0, "four": 4}
    nodes = [
        node("Quant", "x s zero four", "q", name="q"),
        node("Quant", "w one zero four", "wq", name="wq"),
        node(kind, "q wq", name="m", domain="", **options),
    ]
    (actual,) = analyze(prepare(model(nodes, constants, inputs={"x": x}))).products
    assert not actual.exact
    assert actual.reason.startswith("invalid: ")


def test_analysis_propagates_internal_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Propagate errors of rules that no model causes."""

    def broken(node: object, view: object) -> None:
        raise IndexError("a fault")

    monkeypatch.setitem(RULES, "Relu", broken)
    proto = model([standard_node("Relu", "x")], {}, inputs={"x": [1, 4]})
    with pytest.raises(IndexError, match="a fault"):
        analyze(prepare(proto))


def chain(kind: str, count: int) -> onnx.ModelProto:
    """Follow a long chain of nodes."""
    nodes = [node("Quant", "x s zero four", "t0", name="q")]
    for at in range(count):
        reads, gives = f"t{at}", f"t{at + 1}"
        if kind == "MatMul":
            nodes.append(standard_node("MatMul", f"{reads} w", f"m{at}", name=f"m{at}"))
            nodes.append(node("Quant", f"m{at} s zero four", gives, name=f"q{at}"))
        else:
            inputs = f"{reads} t0" if kind in ("Add", "Max") else reads
            nodes.append(standard_node(kind, inputs, gives, name=f"n{at}"))
    nodes.append(standard_node("Identity", nodes[-1].output[0], "y", name="last"))
    constants = {"s": 0.5, "zero": 0, "four": 4, "w": np.eye(4, dtype=np.float32)}
    return model(nodes, constants, inputs={"x": [1, 4]})


CHAINS = ["Relu", "Flatten", "Sigmoid", "Add", "Max", "MatMul"]


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", CHAINS)
def test_analysis_long_chains_take_linear_time(kind: str) -> None:
    """Counted are calls: four times the nodes make four times as many."""
    calls = []
    for count in (200, 800):
        ready = prepare(chain(kind, count))
        profile = cProfile.Profile()
        profile.enable()
        actual = analyze(ready)
        find_quantizers_after(actual.products)
        profile.disable()
        calls.append(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]
    assert calls[1] < 4.4 * calls[0]


def long_way(kind: str, count: int, codes: np.ndarray) -> onnx.ModelProto:
    """Build a constant that many nodes read, or that passes through many."""
    nodes, outputs = [], ["y"]
    if kind == "DequantizeLinear":
        outputs = [f"y{at}" for at in range(count)]
        nodes = [standard_node(kind, "w s", name, name=f"n{at}") for at, name in enumerate(outputs)]
    else:
        nodes.append(standard_node("DequantizeLinear", "w s", "t0", name="d"))
        for at in range(count):
            nodes.append(standard_node("Transpose", f"t{at}", f"u{at}", perm=[1, 0], name=f"p{at}"))
            nodes.append(standard_node("Reshape", f"u{at} to", f"t{at + 1}", name=f"r{at}"))
        nodes.append(standard_node("MatMul", f"x t{count}", name="m"))
    constants = {"s": 0.5, "to": np.int64(codes.shape)}
    proto = model(nodes, constants, inputs={"x": [1, 2]}, outputs=outputs)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(codes, "w"))
    return proto


@pytest.mark.parametrize("kind", ["DequantizeLinear", "Transpose and Reshape"])
def test_analysis_constant_that_goes_a_long_way(kind: str) -> None:
    """Look at or copy a constant for some of many nodes only."""
    codes = np.random.default_rng(0).integers(-8, 8, (2, 2**17)).astype(np.int8)
    ready = prepare(long_way(kind, 300, codes))
    tracemalloc.start()
    actual = analyze(ready)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    known_values = [value.integers is not None for value in actual.values.values()]
    assert 60 < sum(known_values) < 200
    assert peak < 200 * codes.size
