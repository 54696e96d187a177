# SPDX-License-Identifier: Apache-2.0
"""Class axes of outputs, and the agreement along them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from pass_checks import random
from small_models import model, node

import anybit
from anybit.metrics.output_parts import OutputPart, find_output_parts
from anybit.metrics.quality import QualityAccumulator, QualityMetrics, compare_outputs
from anybit.onnx.files.reader import read_copy
from anybit.onnx.passes import InferShapes
from anybit.onnx.preparation import apply_passes

OPSETS = {"": 17}


def standard(kind: str, inputs: str, outputs: str = "y", **attributes: Any) -> onnx.NodeProto:
    return node(kind, inputs, outputs, domain="", name=outputs.split()[0], **attributes)


def parts(
    nodes: Sequence[onnx.NodeProto],
    constants: dict[str, Any],
    shape: Sequence[int | str],
    outputs: Sequence[str] = ("y",),
    opset: int = 17,
) -> tuple[OutputPart, ...]:
    proto = model(nodes, constants, inputs={"x": shape}, outputs=outputs, opsets={"": opset})
    copy = read_copy(proto)
    apply_passes(copy, proto, InferShapes())
    return find_output_parts(copy)["y"]


def kind(
    nodes: Sequence[onnx.NodeProto], shape: Sequence[int | str] = ("n", 4), **options: Any
) -> tuple[str, int | None]:
    """Return the kind and class axis of y, which has a single part."""
    constants = {"w": random(4, 10), "b": random(10), "k": np.int64([3])}
    (part,) = parts(nodes, constants, shape, **options)
    return part.kind, part.class_axis


SCORES = standard("MatMul", "x w", "h")


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([SCORES, standard("Softmax", "h", axis=-1)], ("distribution", 1)),
        ([SCORES, standard("LogSoftmax", "h", axis=1)], ("distribution", 1)),
        ([SCORES, standard("Softmax", "h", axis=0)], ("distribution", 0)),
        (
            [
                SCORES,
                standard("Softmax", "h", "p", axis=-1),
                standard("Transpose", "p", perm=[1, 0]),
            ],
            ("distribution", 0),
        ),
        ([standard("MatMul", "x w"), standard("Softmax", "y", "p", axis=-1)], ("distribution", 1)),
        ([standard("MatMul", "x w"), standard("ArgMax", "y", "c", axis=1)], ("distribution", 1)),
        ([standard("MatMul", "x w"), standard("TopK", "y k", "v i")], ("distribution", 1)),
        (
            [SCORES, standard("Identity", "h"), standard("ArgMax", "h", "c", axis=1)],
            ("distribution", 1),
        ),
        ([standard("MatMul", "x w")], ("logits", 1)),
        ([SCORES, standard("Add", "h b")], ("logits", 1)),
        ([SCORES, standard("Sigmoid", "h")], ("", None)),
        ([SCORES, standard("Relu", "h")], ("", None)),
        ([SCORES, standard("Sigmoid", "h"), standard("ArgMax", "h", "c", axis=1)], ("", None)),
    ],
)
def test_class_axis_follows_from_the_graph(
    nodes: Sequence[onnx.NodeProto], expected: tuple[str, int | None]
) -> None:
    assert kind(nodes) == expected


def test_class_axis_of_softmax_before_opset_13_is_the_last_or_none() -> None:
    nodes = [SCORES, standard("Softmax", "h", axis=1)]
    assert kind(nodes, opset=11) == ("distribution", 1)
    assert kind(nodes, ("n", 6, 4), opset=11) == ("", None)
    assert kind(nodes, ("n", 6, 4)) == ("distribution", 1)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (("n", 4), "logits"),
        (("n", 20, 4), "logits"),
        (("n", "tokens", 4), "logits"),
        (("n", 6, 4), ""),  # features are longer than sequences
        (("n", 3, 6, 4), ""),
    ],
)
def test_class_axis_of_products_depends_on_their_shape(
    shape: Sequence[int | str], expected: str
) -> None:
    assert kind([standard("MatMul", "x w")], shape)[0] == expected


def test_class_axis_ignores_attributes_of_a_wrong_type() -> None:
    assert kind([SCORES, standard("Softmax", "h", axis=1.5)]) == ("", None)
    assert kind([SCORES, standard("Softmax", "h", axis=7)]) == ("", None)


def measure_quality(a: np.ndarray, b: np.ndarray, part: OutputPart | None = None) -> QualityMetrics:
    accumulator = QualityAccumulator()
    for x, y in zip(a, b, strict=True):
        accumulator.add(
            compare_outputs({"y": x[None]}, {"y": y[None]}, {"y": (part,)} if part else None)
        )
    return accumulator.compute(seen=False)


def test_output_sums_take_rows_that_sum_to_one_as_distributions() -> None:
    scores = np.exp(random(50, 7))
    rows = scores / scores.sum(axis=1, keepdims=True)
    other = rows[:, ::-1]
    verdict = measure_quality(rows, other)
    assert verdict.outputs[0].kind == "distribution"
    assert verdict.agreement == np.mean(rows.argmax(1) == other.argmax(1))
    for broken in (-rows, np.where(np.arange(50)[:, None] == 49, 2 * rows, rows)):
        verdict = measure_quality(broken, other)
        assert (verdict.outputs[0].kind, verdict.agreement) == ("float", None)
    assert (
        measure_quality(np.ones((9, 1), np.float32), np.ones((9, 1), np.float32)).agreement is None
    )


def music(head: Sequence[onnx.NodeProto], notes: int) -> onnx.ModelProto:
    nodes = [
        standard("Conv", "x c", "h"),
        standard("Relu", "h", "r"),
        standard("Flatten", "r", "f"),
        standard("Gemm", "f w b", "g"),
        *head,
    ]
    constants = {
        "c": random(4, 1, 5, seed=1),
        "w": random(4 * 28, notes, seed=2) / 16,
        "b": random(notes, seed=3) / 64,
        "f440": np.float32(440),
    }
    return model(nodes, constants, inputs={"x": ["n", 1, 32]}, opsets=OPSETS)


@pytest.mark.parametrize(
    ("head", "notes"),
    [
        ([standard("Sigmoid", "g")], 88),
        ([standard("Exp", "g", "e"), standard("Mul", "e f440")], 12),
    ],
    ids=["88 notes", "pitch in Hz"],
)
def test_metrics_of_sigmoids_have_no_agreement(head: Sequence[onnx.NodeProto], notes: int) -> None:
    # The arg max of many equal values is unstable and meaningless.
    data = random(120, 1, 32, seed=4)
    proto = music(head, notes)
    result = anybit.quantize(proto, data, weights="int4", activations="uint4", effort="fast")
    a, b = (anybit.load(source).run(data)["y"] for source in (proto, result.model))
    assert np.mean(a.argmax(axis=1) == b.argmax(axis=1)) < 0.9
    verdict = result.verdict
    assert verdict is not None
    assert (verdict.agreement, verdict.logits_agreement) == (None, None)
    assert verdict.sqnr is not None
    assert verdict.sqnr > 10
    assert verdict.correlation is not None
    assert verdict.correlation > 0.7
    assert verdict.passed
    other = anybit.evaluate(proto, result, data=data).models[1]
    assert other.agreement is None
    assert other.correlation == pytest.approx(
        np.corrcoef(a.ravel().astype(float), b.ravel())[0, 1], abs=1e-4
    )


def test_metrics_do_not_check_the_agreement_of_logits() -> None:
    data = random(120, 1, 32, seed=4)
    proto = music([standard("Identity", "g")], 88)
    result = anybit.quantize(proto, data, weights="int4", activations="uint4", effort="fast")
    verdict = result.verdict
    assert verdict is not None
    assert verdict.agreement is None
    assert verdict.logits_agreement is not None
    assert verdict.logits_agreement < 0.9
    assert verdict.passed
    named = anybit.quantize(
        proto, data, weights="int4", activations="uint4", effort="fast", fail_below="90%"
    ).verdict
    assert named is not None
    assert not named.passed
    assert named.failures[0].startswith("same arg max ")
    assert named.failures[0].endswith(" % is below 90 %")


def test_metrics_check_the_agreement_of_a_softmax() -> None:
    data = random(120, 1, 32, seed=4)
    proto = music([standard("Softmax", "g", axis=-1)], 88)
    result = anybit.quantize(proto, data, weights="int4", activations="uint4", effort="fast")
    verdict = result.verdict
    assert verdict is not None
    assert verdict.agreement is not None
    assert verdict.agreement < 0.9
    assert not verdict.passed
    assert "agreement" in verdict.failures[-1]
    unnamed = anybit.quantize(proto, data, weights="int4", effort="fast", fail_below="none")
    assert unnamed.verdict is not None
    assert unnamed.verdict.passed


def test_output_sums_compare_classes_along_any_axis() -> None:
    a = random(6, 5, 3, 3)
    b = a.copy()
    b[:, :, 0, 0] = -b[:, :, 0, 0]
    nodes = [standard("Conv", "x c", "h"), standard("Softmax", "h", axis=1)]
    (part,) = parts(nodes, {"c": random(5, 4, 1, 1)}, ("n", 4, 3, 3))
    assert measure_quality(a, b, part).agreement == np.mean(a.argmax(1) == b.argmax(1)) == 8 / 9


def test_metrics_of_boxes_have_no_agreement() -> None:
    # Only the noise is measured, in `quantize` and `evaluate`.
    constants = {"w": random(5, 3, 1) / 4, "b": random(5)}
    nodes = [node("Conv", "x w b", domain="", name="head")]
    proto = model(nodes, constants, inputs={"x": ["n", 3, "boxes"]}, opsets=OPSETS)
    data = random(24, 3, 40)
    result = anybit.quantize(proto, data, weights="int4")
    assert result.verdict is not None
    assert result.verdict.agreement is None
    assert result.verdict.passed
    assert anybit.evaluate(proto, result, data=data).models[1].agreement is None
