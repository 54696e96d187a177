# SPDX-License-Identifier: Apache-2.0
"""DequantizeLinear of constants becomes a quantizer of their values."""

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from qdq_models import (
    TYPES,
    ZERO,
    Lifted,
    check,
    dtypes,
    integer,
    only,
    plain,
    qdq,
    quantizers,
    tensor,
    weights,
)
from small_models import kinds


def test_from_qdq_weights_do_not_wrap() -> None:
    """-128 - 127 does not fit int8, 0 - 200 does not fit uint8."""
    lifted = check(weights([[-128, 0, 127]], TensorProto.INT8, 0.3, 127), ZERO)
    assert only(lifted) == integer(0.3, 8, zeropt=127.0)
    lifted = check(weights([[0, 200, 255]], TensorProto.UINT8, 0.3, 200), ZERO)
    assert only(lifted) == integer(0.3, 8, signed=False, zeropt=200.0)


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [({}, [0.5, 2.0]), ({"axis": -2}, [[0.5], [2.0]]), ({"axis": 0}, [[0.5], [2.0]])],
)
def test_from_qdq_weights_per_channel(attributes: dict[str, int], expected: Any) -> None:
    proto = weights([[1, 2], [3, -4]], TensorProto.INT8, [0.5, 2], [0, 1], **attributes)
    actual = only(check(proto, ZERO))
    assert actual["scale"] == expected
    assert np.shape(actual["zeropt"]) == np.shape(expected)


@pytest.mark.parametrize("kind", ["int8", "uint8", "int4", "uint4", "int16", "uint16"])
def test_from_qdq_types_of_weights(kind: str) -> None:
    low = -8 if kind.startswith("i") else 0
    proto = weights([[low, 0, 7, 3]], TYPES[kind], 0.3, 2)
    lifted = check(proto, ZERO)
    bits = int(kind.lstrip("uint"))
    assert only(lifted) == integer(0.3, bits, signed=kind.startswith("i"), zeropt=2.0)
    assert dtypes(lifted.model) == {}, "the codes are still there"


def test_from_qdq_biases() -> None:
    proto = weights([100, -(2**20)], TensorProto.INT32, 0.3)
    assert only(check(proto, ZERO)) == integer(0.3, 32)


def test_from_qdq_clip_of_constants_is_their_range() -> None:
    """Clip codes beyond the range, as Brevitas does for weights."""
    proto = weights([[-3, 0, 9]], TensorProto.INT8, 0.3, 0, clip=(-4, 3))
    lifted = check(proto, ZERO)
    assert only(lifted) == integer(0.3, 3)
    assert kinds(lifted.model) == ["IntQuant", "Add"]
    odd = check(weights([[-3, 0, 9]], TensorProto.INT8, 0.3, 0, clip=(-5, 6)), ZERO)
    assert only(odd) == integer(0.3, 4)
    assert "codes -5 .. 6 only" in odd.steps[0].reason


def test_from_qdq_clips_of_constant_nodes() -> None:
    """Use Constant nodes instead of initializers; a string is not a bound."""
    proto = weights([[-3, 0, 9]], TensorProto.INT8, 0.3, 0, clip=(-4, 3))
    tensors = list(proto.graph.initializer)
    del proto.graph.initializer[:]
    for item in reversed(tensors):
        proto.graph.node.insert(0, plain("Constant", "", item.name, value=item))
    assert only(check(proto, ZERO)) == integer(0.3, 3)
    low = next(node for node in proto.graph.node if node.output[0] == "a")
    low.attribute[0].CopyFrom(helper.make_attribute("value", "text"))
    assert not quantizers(Lifted(proto).model)


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("-4..3", 3),
        ("-3..3", 3),
        ("-1..1", 8),  # not with these codes
        ("-200..200", 8),
        ("3..-3", 8),
        ("-99999999999..3", 8),
        ("x", 8),
        ("", 8),
    ],
)
def test_from_qdq_notes_are_not_trusted(text: str, bits: int) -> None:
    proto = weights([[-3, 0, 3]], TensorProto.INT8, 0.3, 0)
    for key, value in (("anybit.range", text), ("anybit.coding", "sign")):
        proto.graph.node[0].metadata_props.add(key=key, value=value)
    lifted = check(proto, ZERO)
    if bits == 3:  # the codes are not signs
        bits = 8
    assert only(lifted) == integer(0.3, bits)
    del proto.graph.node[0].metadata_props[1]
    lifted = check(proto, ZERO)
    noted = {"-4..3": (3, False), "-3..3": (3, True)}.get(text, (8, False))
    assert only(lifted) == integer(0.3, noted[0], narrow=noted[1])


def test_from_qdq_shared_tensors() -> None:
    """Two readers of one weight, and a scale that is also added: nothing is overwritten."""
    nodes = [
        plain("DequantizeLinear", "w s z", "d1"),
        plain("DequantizeLinear", "w s z", "d2"),
        plain("DequantizeLinear", "w t z", "d3"),
        plain("Cast", "w", "plain", to=TensorProto.FLOAT),
        plain("Sum", "x d1 d2 d3 s plain"),
    ]
    codes = tensor("w", [[-3, 5]], TensorProto.INT8)
    tensors = [codes, tensor("s", 0.5), tensor("t", 2), tensor("z", 1, TensorProto.INT8)]
    lifted = check(qdq(nodes, tensors, shape=(1,), output=(1, 2)), ZERO)
    assert len(quantizers(lifted.model)) == 3
    floats = [name for name in lifted.model.graph.initializers if name.startswith("w_values")]
    assert len(floats) == 2, "equal values are stored twice"


def test_from_qdq_float_weights_become_codes_and_keep_their_zero_point() -> None:
    """0.25 / 0.5 is a tie, which QuantizeLinear rounds to even before it adds the zero-point."""
    nodes = [
        plain("QuantizeLinear", "w s z", "q"),
        plain("DequantizeLinear", "q s z", "d"),
        plain("Add", "x d"),
    ]
    for values in ([[0.1, 0.7]], [[0.25, 0.7]]):
        tensors = [tensor("w", values), tensor("s", 0.5), tensor("z", 3, TensorProto.UINT8)]
        lifted = check(qdq(nodes, tensors, shape=(1,), output=(1, 2)), ZERO)
        assert (only(lifted)["bitwidth"], only(lifted)["zeropt"]) == (8, 3)
        assert lifted.exact


def test_from_qdq_blocks_stay() -> None:
    proto = weights([[1, 2, 3, 4]], TensorProto.INT4, [[0.5, 2]], [[0, 0]], axis=1, block_size=2)
    lifted = check(proto, ZERO)
    assert [step.reason for step in lifted.steps] == ["it has one scale per block"]
