# SPDX-License-Identifier: Apache-2.0
"""There and back: the same quantizers and the same values."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto
from places import every_model, needs_models
from qdq_models import (
    STYLES,
    TYPES,
    Lifted,
    Written,
    check,
    integer,
    only,
    pair,
    quantizers,
    telling,
)
from small_models import kinds, model, node

import anybit
from anybit import formats
from anybit.onnxruntime import session

# 1-bit narrow codes are 0 .. 0, signed or not; QCDQ has 8-bit types only.
RANGES = [
    (bits, signed, narrow, style)
    for bits, signed, narrow, style in product(range(1, 17), (False, True), (False, True), STYLES)
    if not (bits == 1 and narrow) and not (bits > 8 and style == "qcdq")
]


@pytest.mark.parametrize(("bits", "signed", "narrow", "style"), RANGES)
@pytest.mark.parametrize("scale", [0.3, [0.25, 0.3, 1e-40], [[1.0], [2.0], [7e30]]])
def test_round_trip(scale: Any, bits: int, signed: bool, narrow: bool, style: str) -> None:
    options = {"signed": int(signed), "narrow": int(narrow)}
    constants = {"s": np.float32(scale), "z": 0, "b": bits}
    proto = model([node("Quant", "x s z b", **options)], constants, inputs={"x": ["n", 3, 3]})
    lifted = Lifted(Written(proto, style).proto)
    assert kinds(lifted.model) == ["IntQuant"]
    assert only(lifted) == integer(scale, bits, signed=signed, narrow=narrow)
    assert lifted.exact


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 7, 8, 12, 16, 24, 32])
def test_round_trip_of_weights(bits: int, signed: bool, narrow: bool, style: str) -> None:
    zeropt = 1.0 if bits < 17 else 0.0
    scale = np.float32([[0.25], [0.5], [2.0**-20]])
    weight = np.random.default_rng(bits).standard_normal((3, 4)).astype(np.float32)
    nodes = [
        node("Quant", "w s z b", "q", signed=int(signed), narrow=int(narrow)),
        node("Add", "x q", domain=""),
    ]
    proto = model(nodes, {"w": weight, "s": scale, "z": zeropt, "b": bits}, inputs={"x": [1]})
    written = Written(proto, style)
    no_type = (bits == 32 and not signed) or (style == "qcdq" and 8 < bits <= 16)
    assert bool(written.reasons) == no_type
    if no_type:
        return
    lifted = Lifted(written.proto)
    expected = integer(scale, bits, signed=signed, narrow=narrow, zeropt=zeropt)
    assert only(lifted) == expected
    zero = np.zeros(1, np.float32)
    np.testing.assert_array_equal(
        session(lifted.model).run(None, {"x": zero})[0],
        session(proto).run(None, {"x": zero})[0],
    )


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("limit", [25, 20])
@pytest.mark.parametrize("style", STYLES)
def test_round_trip_of_signs(style: str, limit: int, constant: bool) -> None:
    scale = np.float32([[0.3], [2], [1]])
    x = np.float32([[-1, 0], [0.5, -0.0], [7, -7]])
    nodes = [node("BipolarQuant", "w s" if constant else "x s", "q"), node("Add", "q x", domain="")]
    proto = model(nodes, {"s": scale, **({"w": x} if constant else {})}, inputs={"x": [3, 2]})
    lifted = Lifted(Written(proto, style, limit).proto)
    assert kinds(lifted.model) == ["BipolarQuant", "Add"]
    assert only(lifted)["scale"] == scale.tolist()
    np.testing.assert_array_equal(
        session(lifted.model).run(None, {"x": x})[0], session(proto).run(None, {"x": x})[0]
    )


FLOATS = [
    formats.float8_e4m3fn,
    formats.float8_e5m2,
    formats.FloatFormat(4, 3, 8),
    formats.FloatFormat(5, 2, 16),
]


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("float_format", FLOATS, ids=str)
def test_round_trip_of_floats(float_format: Any, constant: bool) -> None:
    e, m, bias, largest = float_format
    constants = {"s": np.float32([0.5, 0.3]), "e": e, "m": m, "bias": bias, "l": largest}
    x = np.random.default_rng(5).standard_normal((99, 2)).astype(np.float32) * 100
    nodes = [
        node("FloatQuant", f"{'w' if constant else 'x'} s e m bias l", "q"),
        node("Add", "q x", domain=""),
    ]
    proto = model(nodes, {**constants, **({"w": x} if constant else {})}, inputs={"x": ["n", 2]})
    lifted = Lifted(Written(proto).proto)
    assert kinds(lifted.model) == ["FloatQuant", "Add"]
    actual = only(lifted)
    assert [actual[name] for name in ("exponent_bitwidth", "mantissa_bitwidth")] == [e, m]
    assert [actual[name] for name in ("exponent_bias", "max_val")] == [bias, largest]
    np.testing.assert_array_equal(
        session(lifted.model).run(None, {"x": x})[0], session(proto).run(None, {"x": x})[0]
    )


def test_round_trip_quantizer_of_halves_comes_back() -> None:
    """float16 is cast around the native nodes; the Casts stay."""
    nodes = [
        node("Cast", "x", "h", domain="", to=TensorProto.FLOAT16, name="in"),
        node("Quant", "h s z b", "q"),
        node("Cast", "q", domain="", to=TensorProto.FLOAT, name="out"),
    ]
    proto = model(nodes, {"s": 0.5, "z": 0, "b": 4}, inputs={"x": ["n"]})
    lifted = Lifted(Written(proto).proto)
    assert kinds(lifted.model) == ["Cast", "Cast", "IntQuant", "Cast", "Cast"]
    x = np.float32([0.3, 0.25, 9, -7])
    expected = anybit.int_quant(x.astype(np.float16), 0.5, 0, 4).astype(np.float32)
    np.testing.assert_array_equal(session(lifted.model).run(None, {"x": x})[0], expected)


@needs_models
@pytest.mark.parametrize("style", STYLES)
@every_model
def test_round_trip_real_models(path: Any, style: str) -> None:
    """Convert there and back: the same quantizers, and bit-identical results."""
    lifted = Lifted(Written(path, style).proto)
    assert quantizers(lifted.model) == quantizers(Lifted(path).model)
    assert not {"QuantizeLinear", "DequantizeLinear", "Where"} & set(kinds(lifted.model))
    stored = np.load(path.with_suffix(".npz"))
    before, after = session(path), session(lifted.model)
    rng = np.random.default_rng(0)
    feeds = {
        get_input.name: stored[get_input.name]
        if get_input.name in stored
        else rng.standard_normal(
            [n if isinstance(n, int) else 1 for n in get_input.shape], np.float32
        )
        for get_input in before.get_inputs()
    }
    for expected, actual in zip(before.run(None, feeds), after.run(None, feeds), strict=True):
        np.testing.assert_array_equal(actual, expected)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_round_trip_any_pair(data: Any) -> None:
    """Any type, zero-point, Clip and scale: exact in any case, unless it is refused."""
    draw = data.draw
    kind = draw(st.sampled_from(sorted(TYPES)))
    lowest, highest = {
        "int8": (-128, 127),
        "uint8": (0, 255),
        "int4": (-8, 7),
        "uint4": (0, 15),
        "int16": (-(2**15), 2**15 - 1),
        "uint16": (0, 2**16 - 1),
    }[kind]
    code = st.integers(lowest, highest)
    channels = draw(st.sampled_from([0, 1, 2, 3]))
    size = st.floats(2.0**-149, 2.0**100, width=32)
    scale = draw(st.lists(size, min_size=channels, max_size=channels)) or draw(size)
    zeropts = st.just(0) | code
    zeropt = draw(st.lists(zeropts, min_size=channels, max_size=channels)) or draw(zeropts)
    clip = None
    if kind.endswith("8") and draw(st.booleans()):
        clip = tuple(sorted((draw(code), draw(code))))
    shape = ("n", channels) if channels else ("n",)
    proto = pair(scale, zeropt, kind, clip=clip, shape=shape)
    # Beyond 2^31 the runtime's 4-bit kernel for channels wraps.
    x = np.stack([telling(row, 300) for row in np.atleast_1d(scale)], axis=1)
    if kind.endswith("4"):
        with np.errstate(all="ignore"):
            x = np.where(np.abs(x / np.atleast_1d(np.float32(scale))) < 2**30, x, np.float32(0))
    lifted = check(proto, x if channels else x[:, 0])
    assert lifted.exact
    assert "QuantizeLinear" not in kinds(lifted.model)
