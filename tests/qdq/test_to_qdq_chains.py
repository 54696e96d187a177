# SPDX-License-Identifier: Apache-2.0
"""A quantizer right behind another: ONNX Runtime's optimizer would drop one of the two."""

import numpy as np
import onnx
import pytest
from qdq_models import STYLES, Lifted, Written, checked, quantizers, runs, telling
from small_models import kinds, model, node

import anybit


def chain(first: int, second: int, *, signed: int = 1, inner: str = "") -> onnx.ModelProto:
    nodes = [
        node("Quant", "x s1 z b1", "a", name="first", signed=signed),
        *([node(inner, "a", "m", domain="")] if inner else []),
        node("Quant", f"{'m' if inner else 'a'} s2 z b2", name="second", signed=signed),
    ]
    constants = {"s1": 0.1, "s2": 0.25, "z": 0, "b1": first, "b2": second}
    return model(nodes, constants, inputs={"x": ["n"]})


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("signed", [0, 1])
@pytest.mark.parametrize(
    ("first", "second"), [(2, 2), (4, 4), (8, 8), (5, 8), (8, 5), (16, 16), (12, 16), (16, 12)]
)
def test_to_qdq_chains(first: int, second: int, signed: int, style: str) -> None:
    proto = chain(first, second, signed=signed)
    x = np.concatenate([telling(0.1), telling(0.25)])
    expected = x
    for scale, bits in ((0.1, first), (0.25, second)):
        expected = anybit.int_quant(expected, np.float32(scale), 0, bits, signed=bool(signed))
    written = Written(proto, style)
    if written.reasons:
        assert style == "qcdq"
        assert max(first, second) > 8
        return
    for result in runs(checked(written.proto), x=x):
        np.testing.assert_array_equal(result, expected)
    lifted = Lifted(written.proto)
    assert kinds(lifted.model) == ["IntQuant", "IntQuant"]
    assert [quantizer["bitwidth"] for quantizer in quantizers(lifted.model)] == [first, second]


def test_to_qdq_only_neighbours_are_kept_apart() -> None:
    pair = ["QuantizeLinear", "DequantizeLinear"]
    apart = ["QuantizeLinear", "Clip", "DequantizeLinear"]
    assert kinds(Written(chain(8, 8)).model) == [*pair, *apart]
    assert kinds(Written(chain(8, 8, inner="Identity")).model) == [*pair, "Identity", *apart]
    assert kinds(Written(chain(8, 8, inner="Neg")).model) == [*pair, "Neg", *pair]
    assert kinds(Written(chain(4, 4)).model) == [*pair, *pair]
    assert kinds(Written(chain(16, 16)).model) == [*pair, "Min", *pair]


def test_to_qdq_quantizer_before_one_that_the_model_had_already() -> None:
    foreign = [
        node("QuantizeLinear", "a s2 c", "q", domain=""),
        node("DequantizeLinear", "q s2 c", domain=""),
    ]
    nodes = [node("Quant", "x s1 z b", "a"), *foreign]
    constants = {"s1": 0.1, "s2": 0.25, "z": 0, "b": 8, "c": np.zeros((), np.int8)}
    written = Written(model(nodes, constants, inputs={"x": ["n"]}))
    x = np.concatenate([telling(0.1), telling(0.25)])
    expected = anybit.int_quant(anybit.int_quant(x, np.float32(0.1), 0, 8), 0.25, 0, 8)
    for result in runs(written.proto, x=x):
        np.testing.assert_array_equal(result, expected)
