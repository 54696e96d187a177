# SPDX-License-Identifier: Apache-2.0
"""Quantizers become QuantizeLinear and DequantizeLinear with the same values."""

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from qdq_models import (
    STYLES,
    WEIGHT,
    Written,
    checked,
    columns,
    dtypes,
    float_model,
    int_model,
    runs,
    telling,
)
from small_models import kinds, model, node

import anybit
from anybit import formats
from anybit.formats import FloatFormat
from anybit.onnxruntime import session

SCALES = np.float32([0.3, 1, 2**-3, 4e-45, 1e-40, 7e30, 1e38])


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("bits", range(1, 17))
def test_to_qdq_integers(bits: int, signed: bool, narrow: bool, style: str) -> None:
    options = {"signed": signed, "narrow": narrow}
    x = columns(SCALES)
    expected = anybit.int_quant(x, SCALES, 0, bits, **options)
    flags = {name: int(value) for name, value in options.items()}
    written = Written(int_model(SCALES, bits=bits, **flags), style)
    if style == "qcdq" and bits > 8:
        assert written.reasons["y"].startswith("no 8-bit type holds")
        return
    assert not written.reasons
    for result in runs(checked(written.proto), x=x):
        np.testing.assert_array_equal(result, expected)
    single = Written(int_model(SCALES[0], bits=bits, **flags), style)
    for result in runs(checked(single.proto), x=x[:, 0]):
        np.testing.assert_array_equal(result, expected[:, 0])


CLIP = ["QuantizeLinear", "Clip", "DequantizeLinear"]


BARE = ["QuantizeLinear", "DequantizeLinear"]


@pytest.mark.parametrize(
    ("bits", "signed", "narrow", "limit", "type_name", "nodes"),
    [
        # 2 bits: the runtime's kernel does not saturate far out, so that x is limited first.
        (2, 1, 0, 25, "int2", ["Min", *BARE]),
        (2, 0, 0, 25, "uint2", ["Min", *BARE]),
        (2, 1, 0, 24, "int8", CLIP),
        (3, 1, 0, 25, "int8", CLIP),
        (4, 1, 0, 25, "int4", BARE),
        (4, 0, 0, 21, "uint4", BARE),
        (4, 0, 0, 20, "uint8", CLIP),
        (4, 1, 1, 25, "int8", CLIP),
        (8, 1, 0, 10, "int8", BARE),
        (8, 0, 0, 13, "uint8", BARE),
        (8, 0, 1, 13, "uint8", CLIP),
        (12, 1, 0, 25, "int16", ["Max", "Min", *BARE]),
        (12, 0, 0, 25, "uint16", ["Min", *BARE]),
        (16, 1, 0, 25, "int16", BARE),
        (16, 1, 1, 25, "int16", ["Max", *BARE]),
        (16, 0, 1, 25, "uint16", ["Min", *BARE]),
    ],
)
def test_to_qdq_types(
    bits: int, signed: int, narrow: int, limit: int, type_name: str, nodes: list[str]
) -> None:
    proto = int_model(bits=bits, signed=signed, narrow=narrow)
    proto.opset_import[0].version = min(13, limit)
    written = Written(proto, opset_limit=limit)
    assert kinds(written.model) == nodes
    assert set(dtypes(written.model)) == {type_name}
    (step,) = written.steps
    assert (step.node, step.operator) == ("the_Quant", "IntQuant")
    assert (step.action, step.exact) == (f"QuantizeLinear and DequantizeLinear {type_name}", True)


def test_to_qdq_few_bits_per_channel() -> None:
    """Avoid kernels of 4 bits, which do not saturate, and of 2 bits, which are wrong."""
    assert kinds(Written(int_model([0.1, 0.2])).model) == ["Min", *BARE]
    assert kinds(Written(int_model([0.1, 0.2], bits=2)).model) == CLIP


def test_to_qdq_zero_point_is_always_written() -> None:
    for item in Written(int_model()).model.graph:
        assert len(item.inputs) == 3


@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        ((3, 1, 1), 1),
        ((1, 3, 1, 1), 1),
        ((4,), 3),
        ((2, 1, 1, 1), 0),
        ((1, 1, 1), None),
        ((), None),
    ],
)
@pytest.mark.parametrize("style", STYLES)
def test_to_qdq_axes(shape: tuple[int, ...], axis: int | None, style: str) -> None:
    scale = np.linspace(0.1, 1, max(np.prod(shape, dtype=int), 1), dtype=np.float32).reshape(shape)
    x = np.random.default_rng(1).standard_normal((2, 3, 5, 4)).astype(np.float32)
    written = Written(int_model(scale, bits=3, shape=x.shape), style)
    for item in written.model.graph:
        if item.op_type != "Clip":
            assert item.attributes.get_int("axis") == axis
            assert item.inputs[1].const_value.numpy().shape == (
                () if axis is None else (scale.size,)
            )
    for result in runs(checked(written.proto), x=x):
        np.testing.assert_array_equal(result, anybit.int_quant(x, scale, 0, 3))


def test_to_qdq_axis_from_the_end_where_the_rank_is_unknown() -> None:
    proto = int_model(np.float32([1, 2, 4]).reshape(3, 1), bits=8)
    proto.graph.input[0].type.tensor_type.ClearField("shape")
    written = Written(proto)
    assert [item.attributes["axis"].value for item in written.model.graph] == [-2, -2]
    x = np.random.default_rng(1).standard_normal((2, 3, 5)).astype(np.float32) * 100
    expected = anybit.int_quant(x, np.float32([[1], [2], [4]]), 0, 8)
    for result in runs(written.proto, x=x):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("bits", [2, 4, 7, 16])
def test_to_qdq_half_precision(dtype: Any, bits: int) -> None:
    element = int(ir.DataType.from_numpy(np.dtype(dtype)))
    nodes = [
        node("Cast", "x", "half", domain="", to=element, name="first"),
        node("Quant", "half s z b", "q"),
        node("Cast", "q", domain="", to=onnx.TensorProto.FLOAT),
    ]
    written = Written(model(nodes, {"s": 0.3, "z": 0, "b": bits}, inputs={"x": ["n"]}))
    assert kinds(written.model).count("Cast") == 4
    with np.errstate(all="ignore"):
        x = telling(0.3).astype(dtype).astype(np.float32)
    expected = anybit.int_quant(x.astype(dtype), 0.3, 0, bits).astype(np.float32)
    for result in runs(checked(written.proto), x=x):
        np.testing.assert_array_equal(result, expected)


FLOATS = {
    "float8e4m3fn": formats.float8_e4m3fn,
    "float8e5m2": formats.float8_e5m2,
    "float8e4m3fnuz": FloatFormat(4, 3, 8),
    "float8e5m2fnuz": FloatFormat(5, 2, 16),
}


@pytest.mark.parametrize("name", FLOATS)
def test_to_qdq_float8(name: str) -> None:
    """Return every float16, its float32 neighbours, and numbers beyond the format."""
    scales = np.float32([1, 0.3, 2**10, 1e-3])
    every = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
    every = np.concatenate([every[np.isfinite(every)], np.float32([1e9, -1e9, 3e34, 1e-45])])
    x = np.concatenate([every, np.nextafter(every, 9), np.nextafter(every, -9)])[:, None] * scales
    written = Written(float_model(scales, FLOATS[name]))
    assert set(dtypes(written.model)) == {name}
    assert written.steps[0].action == f"QuantizeLinear and DequantizeLinear {name}"
    expected = anybit.float_quant(x, scales, *FLOATS[name])
    for result in runs(checked(written.proto), x=x):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    ("limit", "type_name"), [(25, "int2"), (24, "int4"), (21, "int4"), (20, "int8"), (12, "int8")]
)
def test_to_qdq_signs(limit: int, type_name: str, style: str) -> None:
    nodes = [node("BipolarQuant", "x s")]
    scale = SCALES if limit > 12 else np.float32(0.3)
    shape = ["n", len(SCALES)]
    proto = model(nodes, {"s": scale}, inputs={"x": shape})
    proto.opset_import[0].version = 12
    written = Written(proto, style, limit)
    assert ("int8" if style == "qcdq" else type_name) in dtypes(written.model)
    x = np.concatenate([columns(SCALES), np.full((2, len(SCALES)), np.nan, np.float32)])
    for result in runs(checked(written.proto), x=x):
        np.testing.assert_array_equal(result, anybit.bipolar_quant(x, scale))


def test_to_qdq_names_that_are_taken() -> None:
    nodes = [
        node("Quant", "x s z b", "y_scale", name="y_quantized"),
        node("Quant", "y_scale s z b", "y_zero_point", name="y_quantized_1"),
        node("Quant", "y_zero_point s z b", name="y_dequantized"),
    ]
    proto = model(nodes, {"s": 0.3, "z": 0, "b": 3}, inputs={"x": ["n"]}, outputs=["y", "y_scale"])
    written = Written(proto)
    names = [item.name for item in written.model.graph]
    values = [value.name for item in written.model.graph for value in item.outputs]
    values += list(written.model.graph.initializers)
    assert len(set(names)) == len(names)
    assert len(set(values)) == len(values)
    assert [value.name for value in written.model.graph.outputs] == ["y", "y_scale"]
    for result in runs(checked(written.proto), x=telling(0.3)):
        np.testing.assert_array_equal(result, anybit.int_quant(telling(0.3), 0.3, 0, 3))


def test_to_qdq_subgraphs() -> None:
    def branch(name: str, bits: str) -> onnx.GraphProto:
        output = helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, [1, 4])
        nodes = [
            node("Quant", f"w s zero {bits}", "q"),
            node("Add", "x q", "a", domain=""),
            node("Quant", f"a s zero {bits}", "z", name="the_last"),
        ]
        return helper.make_graph(nodes, name, [], [output])

    chooser = helper.make_node(
        "If", ["yes"], ["y"], then_branch=branch("a", "b2"), else_branch=branch("b", "b3")
    )
    constants = {"w": WEIGHT[:1, :4], "s": 0.3, "zero": 0, "b2": 2, "b3": 3}
    proto = model([chooser], constants)
    proto.graph.input.append(helper.make_tensor_value_info("yes", onnx.TensorProto.BOOL, []))
    written = Written(proto)
    assert len(written.steps) == 4
    x = np.float32([[0.1, -0.7, 3, 0.45]])
    for yes in (False, True):
        feeds = {"x": x, "yes": np.asarray(yes)}
        expected = session(proto).run(None, feeds)[0]
        for result in runs(checked(written.proto), **feeds):
            np.testing.assert_array_equal(result, expected)


@settings(max_examples=60, deadline=None)
@given(
    bits=st.integers(1, 16),
    signed=st.booleans(),
    narrow=st.booleans(),
    style=st.sampled_from(STYLES),
    scale=st.floats(2.0**-149, 2.0**127, width=32, allow_subnormal=True),
    limit=st.sampled_from([13, 21, 25]),
    data=st.data(),
)
def test_to_qdq_any_scale(
    bits: int, signed: bool, narrow: bool, style: str, scale: float, limit: int, data: Any
) -> None:
    proto = int_model(scale, bits=bits, signed=int(signed), narrow=int(narrow))
    written = Written(proto, style, limit)
    if written.reasons:
        assert bits > 8
        return
    numbers = st.floats(width=32, allow_nan=False, allow_subnormal=True)
    codes = data.draw(st.lists(st.integers(-(2**17), 2**17), max_size=9))
    near = np.asarray(codes, np.float64) / 2 * np.float32(scale)
    with np.errstate(all="ignore"):
        x = np.concatenate([near.astype(np.float32), np.float32(data.draw(st.lists(numbers)))])
    x = np.concatenate([x, telling(scale)])
    expected = anybit.int_quant(x, scale, 0, bits, signed=signed, narrow=narrow)
    for result in runs(written.proto, x=x):
        np.testing.assert_array_equal(result, expected)
