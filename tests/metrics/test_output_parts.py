# SPDX-License-Identifier: Apache-2.0
"""Parts of concatenated outputs, and the metrics of the worst part."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import parallel_tasks
import pytest
from pass_checks import random
from small_models import model, node

import anybit
from anybit.evaluation import driver as evaluation_driver
from anybit.metrics.output_parts import OutputPart, find_output_parts
from anybit.metrics.quality import QualityAccumulator, QualityMetrics, compare_outputs
from anybit.onnx.files.reader import read_copy
from anybit.onnx.passes import InferShapes
from anybit.onnx.preparation import apply_passes
from anybit.ptq import pipeline as quantization_driver

OPSETS = {"": 17}


def standard(kind: str, inputs: str, outputs: str = "y", **attributes: Any) -> onnx.NodeProto:
    return node(kind, inputs, outputs, domain="", name=outputs.split()[0], **attributes)


def network(
    nodes: Sequence[onnx.NodeProto],
    constants: Mapping[str, Any] | None = None,
    inputs: Mapping[str, Sequence[int | str]] | None = None,
    outputs: Sequence[str] = ("y",),
) -> onnx.ModelProto:
    return model(nodes, constants, inputs=inputs, outputs=outputs, opsets=OPSETS)


def parts(proto: onnx.ModelProto) -> dict[str, tuple[OutputPart, ...]]:
    copy = read_copy(proto)
    apply_passes(copy, proto, InferShapes())
    return find_output_parts(copy)


def names(proto: onnx.ModelProto) -> list[str]:
    return [part.name for group in parts(proto).values() for part in group]


A, B, C = {"a": ["n", 2, 6]}, {"b": ["n", 3, 6]}, {"c": ["n", 2, 6]}
AXES = {
    "one": np.int64([1]),
    "two": np.int64([2]),
    "three": np.int64([3]),
    "four": np.int64([4]),
    "last": np.int64([-1]),
    "far": np.int64([2**63 - 1]),
    "sizes": np.int64([1, 4]),
    "image": np.int64([0, 5, 2, 3]),
    "flat": np.int64([0, -1]),
    "turned": np.int64([0, 6, 5]),
}
JOINED = standard("Concat", "a b", "j", axis=1)

CASES = {
    "concat": ([standard("Concat", "a b", axis=1)], A | B, ["y[:, 0:2]", "y[:, 2:5]"]),
    "negative axis": (
        [standard("Concat", "a c", axis=-1)],
        A | C,
        ["y[..., 0:6]", "y[..., 6:12]"],
    ),
    "transposed": (
        [JOINED, standard("Transpose", "j", perm=[0, 2, 1])],
        A | B,
        ["y[..., 0:2]", "y[..., 2:5]"],
    ),
    "elementwise": (
        [JOINED, standard("Sigmoid", "j", "s"), standard("Cast", "s", to=1)],
        A | B,
        ["y[:, 0:2]", "y[:, 2:5]"],
    ),
    "reshaped": (
        [JOINED, standard("Reshape", "j image")],
        A | B,
        ["y[:, 0:2]", "y[:, 2:5]"],
    ),
    "mixed up": ([JOINED, standard("Reshape", "j turned")], A | B, ["y"]),
    "flattened": ([JOINED, standard("Reshape", "j flat")], A | B, ["y"]),
    "nested": (
        [JOINED, standard("Concat", "j c", axis=1)],
        A | B | C,
        ["y[:, 0:2]", "y[:, 2:5]", "y[:, 5:7]"],
    ),
    "two axes": (
        [
            standard("Concat", "a b", "j", axis=1),
            standard("Concat", "c d", "k", axis=1),
            standard("Concat", "j k", axis=2),
        ],
        A | B | C | {"d": ["n", 3, 6]},
        ["y[:, 0:2, 0:6]", "y[:, 2:5, 0:6]", "y[:, 0:2, 6:12]", "y[:, 2:5, 6:12]"],
    ),
    "unknown sizes, common parts": (
        [
            standard("Concat", "a b", "j", axis=1),
            standard("Concat", "c d", "k", axis=1),
            standard("Concat", "j k", axis=2),
        ],
        {
            "a": ["n", 2, "p"],
            "b": ["n", 3, "p"],
            "c": ["n", 2, "q"],
            "d": ["n", 3, "q"],
        },
        ["y[:, 0:2]", "y[:, 2:5]"],
    ),
    "stacked": (
        [
            standard("Unsqueeze", "a one", "s"),
            standard("Unsqueeze", "c one", "t"),
            standard("Concat", "s t", axis=1),
        ],
        A | C,
        ["y[:, 0:1]", "y[:, 1:2]"],
    ),
    "sliced": (
        [JOINED, standard("Slice", "j one four one")],
        A | B,
        ["y[:, 0:1]", "y[:, 1:3]"],
    ),
    "sliced to one": ([JOINED, standard("Slice", "j two far one")], A | B, ["y"]),
    "sliced elsewhere": (
        [JOINED, standard("Slice", "j one far two")],
        A | B,
        ["y[:, 0:2]", "y[:, 2:5]"],
    ),
    "sliced with steps": ([JOINED, standard("Slice", "j one far one two")], A | B, ["y"]),
    "split": (
        [JOINED, standard("Split", "j sizes", "z y", axis=1)],
        A | B,
        ["y[:, 0:1]", "y[:, 1:4]"],
    ),
    "shuffled": ([JOINED, standard("Gather", "j two", axis=1)], A | B, ["y"]),
    "added up": ([JOINED, standard("ReduceSum", "j one", keepdims=0)], A | B, ["y"]),
}


@pytest.mark.parametrize("case", CASES)
def test_output_parts_hold_elements_of_one_input(case: str) -> None:
    # The graph runs with a different constant per input: no part mixes two of them.
    nodes, inputs, expected = CASES[case]
    read = {name for proto_node in nodes for name in proto_node.input}
    constants = {name: array for name, array in AXES.items() if name in read}
    proto = network(nodes, constants, inputs)
    (result,) = parts(proto).values()
    assert [part.name for part in result] == expected
    # Unknown sizes are equal along one axis.
    numbers = [shape[1] if "q" in str(inputs) else at for at, shape in enumerate(inputs.values())]
    feeds = {
        name: np.full([{"n": 2, "p": 4, "q": 3}.get(str(size), size) for size in shape], number)
        for (name, shape), number in zip(inputs.items(), numbers, strict=True)
    }
    arrays = {name: array.astype(np.float32) for name, array in feeds.items()}
    y = anybit.load(proto).run(arrays)["y"]
    for part in result:
        assert part.fits(y)
        assert np.array_equal(part.crop(y), eval(part.name, {"y": y}))
        assert len(np.unique(part.crop(y))) == 1 or len(result) == 1
    assert sum(part.crop(y).size for part in result) == y.size


def test_output_parts_follow_slices_of_consumers() -> None:
    constants = {"w": random(4, 10), **AXES}
    nodes = [standard("MatMul", "x w"), standard("Slice", "y one four one", "z")]
    proto = network(nodes, constants, {"x": ["n", 4]}, ["y", "z"])
    assert names(proto) == ["y[:, 0:1]", "y[:, 1:4]", "y[:, 4:10]", "z"]


def test_output_parts_have_their_own_class_axis() -> None:
    nodes = [
        standard("MatMul", "x w", "s"),
        standard("Softmax", "s", "p", axis=-1),
        standard("Concat", "x p", axis=1),
    ]
    boxes, scores = parts(network(nodes, {"w": random(4, 5)}, {"x": ["n", 4]}))["y"]
    assert (boxes.kind, scores.kind, scores.class_axis) == ("", "distribution", 1)


@pytest.mark.parametrize("count", [64, 65])
def test_output_parts_do_not_split_sequences(count: int) -> None:
    inputs = " ".join(["x"] * count)
    assert len(names(network([standard("Concat", inputs, axis=1)], {}, {"x": ["n", 2]}))) == (
        count if count == 64 else 1
    )


def test_output_parts_limit_nested_concats() -> None:
    # A repeated Concat of a tensor with itself has 2^100 parts.
    nodes = [
        standard("Concat", f"h{at} h{at}" if at else "x x", f"h{at + 1}", axis=1)
        for at in range(20)
    ]
    nodes.append(standard("Identity", "h20"))
    result = names(network(nodes, {}, {"x": ["n", 1]}))
    assert 1 < len(result) <= 64
    long = [standard("Identity", f"i{at}" if at else "x", f"i{at + 1}") for at in range(3000)]
    long.append(standard("Identity", "i3000"))
    assert names(network(long, {}, {"x": ["n", 1]})) == ["y"]


@pytest.mark.parametrize("axis", [2**62, -(2**62), 3])
def test_output_parts_ignore_invalid_axes(axis: int) -> None:
    proto = network([standard("Concat", "x x", axis=axis)], {}, {"x": ["n", 2, 3]})
    proto.graph.output[0].CopyFrom(
        onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 4, 3])
    )
    assert [part.name for part in find_output_parts(read_copy(proto))["y"]] == ["y"]


def test_compare_outputs_ignores_parts_that_do_not_fit() -> None:
    (expected_parts,) = parts(network([standard("Concat", "a b", axis=1)], {}, A | B)).values()
    a = random(2, 9, 6)
    result = compare_outputs({"y": a}, {"y": a}, {"y": expected_parts})
    assert list(result.outputs) == ["y"]
    a = random(2, 5, 6)
    result = compare_outputs({"y": a}, {"y": random(2, 5, 7)}, {"y": expected_parts})
    assert list(result.outputs) == ["y[:, 0:2]", "y[:, 2:5]"]
    assert result.sqnr == -np.inf


def detector() -> onnx.ModelProto:
    """Return a detector as YOLO: boxes, hundreds of times as large as the scores beside them."""
    nodes = [
        standard("Conv", "x wb bb", "boxes", kernel_shape=[1, 1]),
        standard("Conv", "x wc bc", "raw", kernel_shape=[1, 1]),
        standard("Sigmoid", "raw", "scores"),
        standard("Concat", "boxes scores", "all", axis=1),
        standard("Reshape", "all shape", "flat"),
        standard("Transpose", "flat", perm=[0, 2, 1]),
    ]
    constants = {
        "wb": random(4, 6, 1, 1, seed=1) * np.float32(50),
        "bb": np.full(4, 300, np.float32),
        "wc": random(7, 6, 1, 1, seed=2),
        "bc": np.full(7, -3, np.float32),
        "shape": np.int64([0, 11, -1]),
    }
    return network(nodes, constants, {"x": ["n", 6, 5, 5]})


def decibels(a: np.ndarray, b: np.ndarray) -> float:
    x = a.astype(np.float64)
    return float(10 * np.log10(np.square(x).sum() / np.square(x - b).sum()))


def test_metrics_have_the_sqnr_of_the_worst_part() -> None:
    data = random(160, 6, 5, 5, seed=3)
    proto = detector()
    result = anybit.quantize(proto, data, weights="int3", activations="uint3", effort="fast")
    verdict = result.verdict
    assert verdict is not None
    boxes, scores = verdict.outputs
    assert (boxes.name, scores.name) == ("y[..., 0:4]", "y[..., 4:11]")
    a, b = (anybit.load(source).run(data)["y"] for source in (proto, result.model))
    assert decibels(a, b) > 20
    assert decibels(a[..., 4:], b[..., 4:]) < 10
    assert verdict.sqnr == scores.sqnr
    assert verdict.sqnr == pytest.approx(decibels(a[..., 4:], b[..., 4:]), abs=1)
    assert not verdict.passed
    assert "of y[..., 4:11] is below 10 dB" in verdict.failures[0]
    other = anybit.evaluate(proto, result, data=data).models[1]
    assert other.sqnr == pytest.approx(decibels(a[..., 4:], b[..., 4:]), abs=1e-3)
    assert [output.name for output in other.outputs] == ["y[..., 0:4]", "y[..., 4:11]"]


def test_budget_limits_the_noise_of_the_worst_part() -> None:
    data = random(160, 6, 5, 5, seed=3)
    result = anybit.quantize(detector(), data, budget="25dB")
    assert result.verdict is not None
    a, b = (anybit.load(source).run(data)["y"] for source in (detector(), result.model))
    assert result.verdict.sqnr is not None
    assert result.verdict.sqnr >= 25
    assert decibels(a[..., 4:], b[..., 4:]) > 24
    widths = {layer.name: layer.weight_bits for layer in result.layers}
    assert widths["raw"] > widths["boxes"]
    noises = {layer.name: layer.output_sqnr for layer in result.layers}
    assert all(noise is not None for noise in noises.values())


def test_accumulator_keeps_the_order_of_outputs_and_samples() -> None:
    accumulator = QualityAccumulator()
    (expected_parts,) = parts(network([standard("Concat", "a b", axis=1)], {}, A | B)).values()
    for seed in range(3):
        a = random(1, 5, 6, seed=seed)
        accumulator.add(
            compare_outputs({"y": a}, {"y": a + np.float32(1e-3)}, {"y": expected_parts})
        )
    verdict: QualityMetrics = accumulator.compute(seen=False)
    assert [output.name for output in verdict.outputs] == ["y[:, 0:2]", "y[:, 2:5]"]
    assert verdict.sqnr == min(output.sqnr for output in verdict.outputs if output.sqnr is not None)


def test_output_parts_are_equal_in_pickled_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    data = random(40, 6, 5, 5, seed=3)

    def results() -> tuple[Any, Any]:
        verdict = anybit.quantize(detector(), data, weights="int4", effort="fast").verdict
        evaluation = anybit.evaluate(detector(), detector(), data=data)
        assert verdict is not None
        return verdict, evaluation.models[1].outputs

    verdict, outputs = results()
    assert (len(verdict.outputs), len(outputs)) == (2, 2)
    for module in (quantization_driver, evaluation_driver):
        monkeypatch.setattr(module, "open_executor", parallel_tasks.open_pickling_executor)
    assert results() == (verdict, outputs)
