# SPDX-License-Identifier: Apache-2.0
"""QLinearConv and QLinearMatMul come apart where float32 computes the same."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from qdq_models import Lifted, check, plain, qdq, telling, tensor
from small_models import kinds

from anybit.errors import ModelError


def qlinear(kind: str, scales: Sequence[Any], zeropts: Sequence[Any], codes: np.ndarray, **options):
    """x -> QuantizeLinear -> QLinearConv or QLinearMatMul -> DequantizeLinear -> y."""
    types = [TensorProto.UINT8, TensorProto.INT8, TensorProto.UINT8]
    tensors = [tensor("w", codes, TensorProto.INT8)]
    for name, scale, zeropt, type_ in zip("abc", scales, zeropts, types, strict=True):
        tensors += [tensor(f"{name}s", scale), tensor(f"{name}z", zeropt, type_)]
    inputs = "q as az w bs bz cs cz"
    if "bias" in options:
        tensors.append(tensor("bias", options.pop("bias"), TensorProto.INT32))
        inputs += " bias"
    nodes = [
        plain("QuantizeLinear", "x as az", "q"),
        plain(kind, inputs, "r"),
        plain("DequantizeLinear", "r cs cz"),
    ]
    return qdq(nodes, tensors, **options)


CONV = np.random.default_rng(7).integers(-128, 128, (3, 2, 3, 3))


CONV_SHAPES = {"shape": (1, 2, 6, 6), "output": (1, 3, 4, 4)}


@pytest.mark.parametrize(
    "proto",
    [
        qlinear("QLinearConv", (0.25, 0.5, 4), (128, 0, 128), CONV, **CONV_SHAPES),
        qlinear(
            "QLinearConv",
            (0.25, [0.5, 1, 2], 16),
            (3, [0, 0, 0], 0),
            CONV,
            bias=[100, -7, 9999],
            **CONV_SHAPES,
        ),
        qlinear(
            "QLinearMatMul",
            (0.25, 0.5, 4),
            (128, 5, 127),
            CONV.reshape(2, 27),
            shape=(3, 2),
            output=(3, 27),
        ),
        qlinear(
            "QLinearMatMul",
            (0.25, [0.5, 2], 8),
            (0, [0, 1], 9),
            CONV.reshape(27, 2),
            shape=(1, 27),
            output=(1, 2),
        ),
    ],
    ids=["Conv", "Conv per channel", "MatMul", "MatMul per channel"],
)
def test_qlinear_operators(proto: onnx.ModelProto) -> None:
    shape = [each.dim_value for each in proto.graph.input[0].type.tensor_type.shape.dim]
    x = np.random.default_rng(8).standard_normal(shape).astype(np.float32) * 20
    lifted = check(proto, x)
    assert lifted.exact
    assert not {"QLinearConv", "QLinearMatMul", "DequantizeLinear"} & set(kinds(lifted.model))


@pytest.mark.parametrize(
    ("scales", "codes", "reason"),
    [
        ((0.3, 0.5, 4), CONV, r"x_scale 0\.3 is not a normal power of two"),
        ((0.25, 0.7, 4), CONV, r"w_scale 0\.7"),
        ((0.25, 0.5, 3), CONV, "y_scale 3"),
        ((0.25, 2.0**-60, 4), CONV, "w_scale 8.67"),
        ((0.25, 0.5, 4), np.full((3, 999, 1, 1), -128), "a sum may reach 32607360"),
    ],
)
def test_qlinear_operators_that_differ(scales: Any, codes: np.ndarray, reason: str) -> None:
    shapes = {**CONV_SHAPES, "shape": (1, codes.shape[1], 6, 6)}
    proto = qlinear("QLinearConv", scales, (0, 0, 0), codes, **shapes)
    with pytest.raises(ModelError, match=rf"the_QLinearConv_r.*{reason}.*--allow-approximate"):
        Lifted(proto)
    lifted = Lifted(proto, allow_approximate=True)
    assert [step.operator for step in lifted.steps if not step.exact] == ["QLinearConv"]
    assert "Conv" in kinds(lifted.model)


def test_qlinear_operators_with_computed_scales_stay() -> None:
    proto = qlinear("QLinearConv", (0.25, 0.5, 4), (0, 0, 0), CONV, **CONV_SHAPES)
    del proto.graph.initializer[1]
    proto.graph.node.insert(0, plain("ReduceMax", "x", "as", keepdims=0))
    lifted = Lifted(proto)
    assert "QLinearConv" in kinds(lifted.model)
    assert any("computes with integers" in step.reason for step in lifted.steps)


def test_other_integer_operators_stay() -> None:
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], name="dynamic"),
        plain("DequantizeLinear", "q s z"),
    ]
    lifted = check(qdq(nodes, []), telling(0.5)[:100])
    assert [step.action for step in lifted.steps] == ["kept", "kept"]
    assert {step.node for step in lifted.steps} == {"dynamic", "the_DequantizeLinear_y"}
