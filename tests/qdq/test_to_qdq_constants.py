# SPDX-License-Identifier: Apache-2.0
"""Constants are stored as codes of native types that stand for the same values."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper
from places import every_model, needs_models
from qdq_models import (
    CHANNELS,
    STYLES,
    WEIGHT,
    ZERO,
    Written,
    checked,
    dtypes,
    outputs,
    runs,
    weight_model,
)
from small_models import kinds, model, node

import anybit
from anybit.onnx import read
from anybit.onnx.folding.evaluation import evaluate_operator
from anybit.onnx.graph.constants import is_constant, read_array
from anybit.onnx.operators.registry import find_operator
from anybit.onnx.passes import FoldConstants, Normalize
from anybit.onnxruntime import session
from anybit.ops.grids import IntegerGrid


@pytest.mark.parametrize(
    ("kind", "parameters", "options", "stored"),
    [
        ("Quant", {"s": 0.5, "z": 0, "b": 2}, {}, "int2"),
        ("Quant", {"s": 0.5, "z": 0, "b": 2}, {"narrow": 1}, "int2"),
        ("Quant", {"s": CHANNELS, "z": 0, "b": 3}, {"narrow": 1}, "int4"),
        ("Quant", {"s": CHANNELS, "z": 0, "b": 4}, {"rounding_mode": "FLOOR"}, "int4"),
        ("Quant", {"s": 0.1, "z": 7, "b": 4}, {"signed": 0}, "uint4"),
        ("Quant", {"s": 0.1, "z": np.arange(6)[:, None], "b": 3}, {"signed": 0}, "uint4"),
        ("Quant", {"s": 0.1, "z": 20, "b": 4}, {"signed": 0}, "uint8"),
        ("Quant", {"s": 0.1, "z": -3, "b": 4}, {"signed": 0}, "int8"),
        ("Quant", {"s": 0.01, "z": 0, "b": 7}, {"rounding_mode": "CEIL"}, "int8"),
        ("Quant", {"s": 0.01, "z": 128, "b": 8}, {"signed": 0}, "uint8"),
        ("Quant", {"s": 0.001, "z": 0, "b": 12}, {}, "int16"),
        ("Quant", {"s": 0.001, "z": 9, "b": 16}, {"signed": 0, "narrow": 1}, "uint16"),
        ("Quant", {"s": 1e-5, "z": 0, "b": 24}, {}, "int32"),
        ("Quant", {"s": 2.0**-20, "z": 0, "b": 32}, {}, "int32"),
        ("Quant", {"s": 1e-41, "z": 0, "b": 4}, {}, "int4"),
        ("BipolarQuant", {"s": CHANNELS}, {}, "int2"),
        ("Trunc", {"s": 0.01, "z": 0, "b": 8, "t": 0.04, "c": 6}, {}, "int8"),
        ("FloatQuant", {"s": 0.7, "e": 4, "m": 3, "bias": 7, "l": 448}, {}, "float8e4m3fn"),
        (
            "FloatQuant",
            {"s": CHANNELS, "e": 5, "m": 2, "bias": 15, "l": 57344},
            {"rounding_mode": "UP"},
            "float8e5m2",
        ),
    ],
)
@pytest.mark.parametrize("style", STYLES)
def test_to_qdq_constants(
    kind: str, parameters: dict[str, Any], options: Any, stored: str, style: str
) -> None:
    proto = weight_model(kind, parameters, WEIGHT, **options)
    expected = session(proto).run(None, {"x": ZERO})[0]
    written = Written(proto, style)
    if style == "qcdq":
        if stored.startswith("float8"):
            assert list(written.reasons) == ["q"]
            return
        stored = {"int2": "int8", "int4": "int8", "uint4": "uint8"}.get(stored, stored)
        stored = "int32" if stored == "int16" else stored
        if stored == "uint16":
            assert "no 8-bit type holds" in written.reasons["q"]
            return
    assert not written.reasons
    assert written.steps[0].action == f"DequantizeLinear {stored}"
    tensors = written.model.graph.initializers
    assert stored == tensors[f"w_{stored}"].const_value.dtype.name.lower()
    assert "w" not in tensors, "the float weights are still there"
    for result in runs(checked(written.proto), x=ZERO):
        np.testing.assert_array_equal(result, expected)


def test_to_qdq_narrow_range_is_noted_or_clipped() -> None:
    proto = weight_model("Quant", {"s": 0.5, "z": 0, "b": 3}, WEIGHT, narrow=1)
    native, eight = Written(proto), Written(proto, "qcdq")
    assert native.model.graph[0].metadata_props == {"anybit.range": "-3..3"}
    assert kinds(eight.model) == ["Clip", "DequantizeLinear", "Add"]
    whole = Written(weight_model("Quant", {"s": 0.5, "z": 0, "b": 4}, WEIGHT))
    assert whole.model.graph[0].metadata_props == {}
    signs = Written(weight_model("BipolarQuant", {"s": 0.5}, WEIGHT))
    assert signs.model.graph[0].metadata_props["anybit.coding"] == "sign"


def test_to_qdq_four_bits_are_packed() -> None:
    weight = np.random.default_rng(3).standard_normal((256, 256)).astype(np.float32)
    proto = weight_model("Quant", {"s": 0.1, "z": 0, "b": 4}, weight)
    written = Written(proto)
    assert len(written.proto.SerializeToString()) <= 0.16 * len(proto.SerializeToString())


def test_to_qdq_codes_beyond_24_bits() -> None:
    """float32 has not all of them: the codes found stand for the same values nevertheless."""
    weight = np.random.default_rng(0).integers(2**26, 2**31, 999).astype(np.float32)
    for scale in (0.3, 0.7, 1.1):
        x = weight * np.float32(scale)
        proto = weight_model("Quant", {"s": scale, "z": 0, "b": 32}, x)
        written = Written(proto)
        assert not written.reasons
        for result in runs(written.proto, x=ZERO):
            np.testing.assert_array_equal(result, session(proto).run(None, {"x": ZERO})[0])


def test_to_qdq_values_off_the_grid_are_not_stored() -> None:
    grid = IntegerGrid(np.array(0.5, np.float32), np.array(0, np.float32), range(-8, 8))
    int4 = ir.DataType.INT4.numpy()
    assert grid.encode(np.float32([0.5, -4]), int4).astype(int).tolist() == [1, -8]
    for value in (0.75, 4, -4.5, np.inf, np.nan):
        with pytest.raises(ValueError, match=r"off their grid|differ from its values"):
            grid.encode(np.float32([0.5, value]), int4)


def test_to_qdq_shared_weights_and_scales() -> None:
    """Nothing is overwritten: others read the same tensors."""
    nodes = [
        node("Quant", "w s z b", "a", name="a"),
        node("Quant", "w s z b", "b4", name="b4"),
        node("Quant", "w s z c", "b8", name="b8"),
        node("Add", "a b4", "ab", domain="", name="1"),
        node("Add", "ab b8", "abc", domain="", name="2"),
        node("Mul", "abc s", "scaled", domain=""),
        node("Add", "scaled w", "sum", domain="", name="3"),
        node("Add", "sum x", domain=""),
    ]
    proto = model(nodes, {"w": WEIGHT, "s": 0.1, "z": 0, "b": 4, "c": 8}, inputs={"x": [1]})
    written = Written(proto)
    tensors = written.model.graph.initializers
    assert {"w", "s", "w_int4", "w_int8"} <= set(tensors)
    np.testing.assert_array_equal(tensors["w"].const_value.numpy(), WEIGHT)
    assert dtypes(written.model) == {"int4": 2, "int8": 2}, "equal codes are stored twice"
    assert sum(value.dtype == ir.DataType.FLOAT for value in tensors.values()) == 3
    for result in runs(checked(written.proto), x=ZERO):
        np.testing.assert_array_equal(result, session(proto).run(None, {"x": ZERO})[0])


def test_to_qdq_weights_after_moves() -> None:
    """Transpose and Reshape of constants are folded before; those after the quantizer stay."""
    nodes = [
        node("Transpose", "w", "t", domain=""),
        node("Reshape", "t shape", "r", domain=""),
        node("Quant", "r s z b", "q"),
        node("Transpose", "q", "back", domain=""),
        node("Add", "x back", domain=""),
    ]
    arguments = {"w": WEIGHT, "s": CHANNELS, "z": 0, "b": 4, "shape": np.array([6, 5])}
    proto = model(nodes, arguments, inputs={"x": [1]})
    written = Written(proto)
    assert kinds(written.model) == ["DequantizeLinear", "Transpose", "Add"]
    assert written.model.graph[0].attributes["axis"].value == 0
    for result in runs(checked(written.proto), x=ZERO):
        np.testing.assert_array_equal(result, session(proto).run(None, {"x": ZERO})[0])


def test_to_qdq_constant_output() -> None:
    arguments = {"w": WEIGHT, "s": 0.3, "z": 0, "b": 4}
    proto = model([node("Quant", "w s z b")], arguments, inputs={})
    written = Written(proto)
    assert [value.name for value in written.model.graph.outputs] == ["y"]
    for result in runs(written.proto):
        np.testing.assert_array_equal(result, anybit.int_quant(WEIGHT, 0.3, 0, 4))


@pytest.mark.parametrize("weight", [np.zeros((0, 3)), np.zeros(()), np.full((2, 2), np.inf)])
def test_to_qdq_odd_weights(weight: np.ndarray) -> None:
    arguments = {"w": weight.astype(np.float32), "s": 0.5, "z": 0, "b": 4}
    written = Written(model([node("Quant", "w s z b")], arguments, inputs={}))
    assert [step.action for step in written.steps] == ["DequantizeLinear int4"]


def test_to_qdq_nan_weights_stay() -> None:
    proto = weight_model("Quant", {"s": 1, "z": 0, "b": 4}, np.float32([1, np.nan]))
    assert "NaN or infinite" in Written(proto).reasons["q"]


def test_to_qdq_constants_that_do_not_broadcast() -> None:
    """Whoever computes them next will refuse them."""
    written = Written(weight_model("Quant", {"s": np.ones(4, "f"), "z": 0, "b": 3}, WEIGHT))
    assert "4 scales do not broadcast to x" in written.reasons["q"]


@needs_models
@pytest.mark.parametrize("style", STYLES)
@every_model
def test_to_qdq_real_models(path: Any, style: str) -> None:
    """Nothing is left, and the weights are what they were, bit for bit."""
    written = Written(path, style)
    assert not written.reasons
    original = read(path)
    Normalize()(original)
    FoldConstants(operators=False)(original)
    weights = {}
    for item in original.graph:
        operator = find_operator(item)
        if operator is not None and is_constant(item.inputs[0]):
            arrays = [None if value is None else read_array(value) for value in item.inputs]
            weights[item.outputs[0].name] = evaluate_operator(item, operator, arrays)
    proto = checked(written.proto)
    rng = np.random.default_rng(0)
    feeds = {
        value.name: rng.standard_normal([size.dim_value or 1 for size in _sizes(value)], np.float32)
        for value in proto.graph.input
    }
    (expected,) = session(path).run(None, feeds)
    for name, values in weights.items():
        proto.graph.output.append(
            helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, values.shape)
        )
    stored = dict(
        zip([value.name for value in proto.graph.output], outputs(proto, feeds), strict=True)
    )
    for name, values in weights.items():
        np.testing.assert_array_equal(stored[name], values)
    # With weights that are constants from the start, as before, the runtime sums in the same order.
    kept = [item for item in proto.graph.node if item.output[0] not in weights]
    del proto.graph.node[:], proto.graph.output[1:]
    proto.graph.node.extend(kept)
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(stored[name], name) for name in weights
    )
    np.testing.assert_array_equal(session(proto).run(None, feeds)[0], expected)
    size = path.stat().st_size
    if size > 2**16:
        assert len(written.proto.SerializeToString()) < (0.3 if style == "qdq" else 0.5) * size


def _sizes(value: onnx.ValueInfoProto) -> Any:
    return value.type.tensor_type.shape.dim
