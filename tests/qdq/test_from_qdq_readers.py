# SPDX-License-Identifier: Apache-2.0
"""QuantizeLinear with several readers, and with readers and neighbours from another domain."""

import numpy as np
import pytest
from bombs import moved_codes
from onnx import TensorProto, helper
from qdq_models import (
    check,
    integer,
    only,
    outputs,
    pair,
    plain,
    qdq,
    quantizers,
    telling,
    tensor,
)
from small_models import kinds

import anybit
from anybit.onnxruntime import session


def test_from_qdq_several_readers_share_one_quantizer() -> None:
    nodes = [
        plain("QuantizeLinear", "x s z", "q"),
        plain("DequantizeLinear", "q s z", "a"),
        plain("DequantizeLinear", "q s z", "b"),
        plain("Add", "a b"),
    ]
    tensors = [tensor("s", 0.5), tensor("z", 0, TensorProto.INT8)]
    proto = qdq(nodes, tensors)
    assert kinds(check(proto, telling(0.5)).model) == ["IntQuant", "Add"]
    for name in "ab":
        proto.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]))
    lifted = check(proto, telling(0.5))
    assert [value.name for value in lifted.model.graph.outputs] == ["y", "a", "b"]
    assert kinds(lifted.model).count("IntQuant") == 1
    for expected, actual in zip(
        outputs(proto, {"x": telling(0.5)}),
        session(lifted.model).run(None, {"x": telling(0.5)}),
        strict=True,
    ):
        np.testing.assert_array_equal(actual, expected)


def test_from_qdq_readers_that_clip_differently_do_not_share_one() -> None:
    """These ranges have equal bit-widths and scales, and differ in `signed` and `narrow` only."""
    spans = {"a": (-128, 127), "b": (-127, 127), "c": (0, 127), "d": (-64, 63)}
    proto = qdq([plain("QuantizeLinear", "x s z", "q"), plain("Sum", "a b c d")], [])
    tensors = [tensor("s", 0.5), tensor("z", 0, TensorProto.INT8)]
    for name, span in spans.items():
        low, high = (f"{name}_{end}" for end in ("low", "high"))
        tensors += [tensor(low, span[0], TensorProto.INT8), tensor(high, span[1], TensorProto.INT8)]
        clip = plain("Clip", f"q {low} {high}", f"{name}_codes")
        read = plain("DequantizeLinear", f"{name}_codes s z", name)
        for node in (read, clip):
            proto.graph.node.insert(1, node)
        proto.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]))
    proto.graph.initializer.extend(tensors)
    feeds = {"x": telling(0.5)[:-2]}
    expected = outputs(proto, feeds)
    actual = session(check(proto, feeds["x"]).model).run(None, feeds)
    for name, one, other in zip(["y", *spans], actual, expected, strict=True):
        np.testing.assert_array_equal(one, other, err_msg=name)


def test_from_qdq_microsoft_domain() -> None:
    proto = pair(0.5, 0, "int8", domain="com.microsoft")
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    proto.graph.node[1].domain = "com.microsoft"
    assert only(check(proto, telling(0.5))) == integer(0.5, 8)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_from_qdq_types_after_the_microsoft_domain_are_known(kind: str) -> None:
    """ONNX's inference stops there, but what follows from x is float32 all the same."""
    nodes = [
        plain("QuantizeLinear", "x s z", "q"),
        plain("DequantizeLinear", "q s z", "d"),
        plain("Neg", "d", "n"),
        plain("QuantizeLinear", "n s z", "r"),
        plain("DequantizeLinear", "r s z"),
    ]
    for index in (0, 1, 3, 4):
        nodes[index].domain = "com.microsoft"
    proto = qdq(nodes, [tensor("s", 0.5), tensor("z", 0, getattr(TensorProto, kind.upper()))])
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    lifted = check(proto, telling(0.5))
    assert kinds(lifted.model) == ["IntQuant", "Neg", "IntQuant"]
    assert quantizers(lifted.model) == [integer(0.5, int(kind[3:]))] * 2


def test_from_qdq_moves_of_codes_that_are_read_after_each_are_not_repeated() -> None:
    proto = moved_codes(30)
    converted = anybit.convert(proto, to="qonnx").model
    actual = [node.op_type for node in converted.graph]
    assert (actual.count("Transpose"), actual.count("IntQuant")) == (10, 1)
    x = np.array([[-1.3, 0.2, 5, 100]], np.float32)
    expected = anybit.load(proto).run(x)
    np.testing.assert_array_equal(anybit.load(converted).run(x)["v10"], expected["v10"])
