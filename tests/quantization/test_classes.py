# SPDX-License-Identifier: Apache-2.0
"""Which outputs have classes, so that their largest element is an answer."""

from collections.abc import Sequence

import onnx
import pytest
from passes import random
from small_models import model, node

import anybit
from anybit.onnx.files.reader import read_copy
from anybit.quantization.classes import with_classes

OPSETS = {"": 17}


def classes(operators: Sequence[onnx.NodeProto], shape: Sequence[int | str | None]) -> bool:
    proto = model(operators, {"w": random(4, 4), "s": random(4)}, inputs={"x": ["n", 4]})
    kind = onnx.TensorProto.FLOAT
    proto.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("y", kind, shape))
    return with_classes(read_copy(proto)) == {"y"}


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        (["n", 10], True),
        (["n", 1], False),
        (["n", "classes"], False),
        (["n", 2**19], False),
        (["n", "tokens", 30522], True),
        (["n", 100, 92], True),
        (["n", "boxes", 4], False),
        (["n", 84, "boxes"], False),
        (["n", 84, 8400], False),
        ([10], False),
        (["n", 3, 8, 8], False),
    ],
)
def test_shapes(shape: Sequence[int | str | None], expected: bool) -> None:
    assert classes([node("MatMul", "x w", domain="")], shape) == expected


@pytest.mark.parametrize("operator", ["LayerNormalization", "Concat", "Softmax", "Identity"])
def test_what_gives_them(operator: str) -> None:
    """Also through what only moves them."""
    inputs = {"LayerNormalization": "h s", "Concat": "h h"}.get(operator, "h")
    words = {"axis": -1} if operator == "Concat" else {}
    nodes = [
        node("MatMul", "x w", "h", domain=""),
        node(operator, inputs, "g", domain="", **words),
        node("Transpose", "g", "y", domain="", perm=[0, 1]),
    ]
    assert classes(nodes, ["n", 8]) == (operator in ("Softmax", "Identity"))


def test_boxes_do_not_agree_or_disagree() -> None:
    """Neither in the verdict nor beside another model; the noise counts alone."""
    constants = {"w": random(5, 3, 1) / 4, "b": random(5)}
    nodes = [node("Conv", "x w b", domain="", name="head")]
    proto = model(nodes, constants, inputs={"x": ["n", 3, "boxes"]}, opsets=OPSETS)
    data = random(24, 3, 40)
    found = anybit.quantize(proto, data, weights="int4")
    assert found.verdict is not None
    assert found.verdict.agreement is None
    assert found.verdict.passed
    assert anybit.evaluate(proto, found, data=data).models[1].agreement is None
