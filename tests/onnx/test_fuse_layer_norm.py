# SPDX-License-Identifier: Apache-2.0
"""Layer normalization in primitive operators becomes LayerNormalization, with the same numbers."""

import re
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from pass_checks import apply_passes, random
from text_models import parse

from anybit.errors import ModelError
from anybit.model import load
from anybit.onnx.passes import FuseLayerNorm, LiftOpset

ROWS, TOKENS, CHANNELS = 2, 5, 24
EPSILON = 1e-3
GAIN, OFFSET = 1 + random(CHANNELS, seed=1) / 4, random(CHANNELS, seed=2)

MEAN = "m = ReduceMean <axes = [-1]> (x)\n d = Sub (x, m)\n"
VARIANCE = "s = Pow (d, two)\n v = ReduceMean <axes = [-1]> (s)\n e = Add (v, epsilon)\n"
ROOT = MEAN + VARIANCE + "r = Sqrt (e)\n"
AFFINE = "g = Mul (n, gain)\n y = Add (g, offset)\n"
PADDLE = ROOT + "n = Div (d, r)\n" + AFFINE
TENSORFLOW = (
    ROOT
    + """i = Reciprocal (r)
    w = Mul (i, gain)
    a = Mul (x, w)
    b = Mul (m, w)
    o = Sub (offset, b)
    y = Add (a, o)"""
)
FLAX = """
    m = ReduceMean <axes = [-1]> (x)
    xx = Mul (x, x)
    q = ReduceMean <axes = [2]> (xx)
    mm = Mul (m, m)
    v0 = Sub (q, mm)
    v = Max (zero, v0)
    d = Sub (x, m)
    e = Add (v, epsilon)
    r = Sqrt (e)
    i = Div (one, r)
    w = Mul (i, gain)
    g = Mul (d, w)
    y = Add (g, offset)
"""
FORMS = {
    "paddle": PADDLE,
    "operands swapped": PADDLE.replace("Add (v, epsilon)", "Add (epsilon, v)")
    .replace("Mul (n, gain)", "Mul (gain, n)")
    .replace("Add (g, offset)", "Add (offset, g)"),
    "two differences": PADDLE.replace("s = Pow (d, two)", "d2 = Sub (x, m)\n s = Pow (d2, two)"),
    "product": PADDLE.replace("Pow (d, two)", "Mul (d, d)"),
    "reciprocal": ROOT + "i = Reciprocal (r)\n n = Mul (d, i)\n" + AFFINE,
    "quotient of one": ROOT + "i = Div (one, r)\n n = Mul (i, d)\n" + AFFINE,
    "quotient of the gain": ROOT + "w = Div (gain, r)\n g = Mul (d, w)\n y = Add (g, offset)\n",
    "powers": PADDLE.replace("Sqrt (e)", "Pow (e, half)"),
    "negative power": MEAN + VARIANCE + "i = Pow (e, minus_half)\n n = Mul (d, i)\n" + AFFINE,
    "tensorflow": TENSORFLOW,
    "flax": FLAX,
    "flax without a limit": FLAX.replace("v = Max (zero, v0)", "").replace("v0", "v"),
    "flax with Relu": FLAX.replace("Max (zero, v0)", "Relu (v0)"),
}


def primitive(text: str, opset: int = 13, shape: tuple[Any, ...] = (), **changes: Any) -> Any:
    """Return a model of these nodes from x to y."""
    numbers = {"two": 2, "one": 1, "zero": 0, "half": 0.5, "minus_half": -0.5, "epsilon": EPSILON}
    constants = {
        **{name: np.float32(number) for name, number in numbers.items()},
        "gain": GAIN,
        "offset": OFFSET,
        **changes,
    }
    if opset >= 18:
        constants |= {"axis2": np.int64([2]), "last": np.int64([-1])}
        text = re.sub(r"<axes = \[-1\]> \((\w+)\)", r"(\1, last)", text)
        text = re.sub(r"<axes = \[2\]> \((\w+)\)", r"(\1, axis2)", text)
    sizes = ", ".join(map(str, shape or ("n", TOKENS, CHANNELS)))
    return parse(f"g (float[{sizes}] x) => (float[{sizes}] y) {{ {text} }}", constants, opset=opset)


def normalize(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """Return the normalization without gain and offset in float64."""
    x = x.astype(np.float64)
    d = x - x.mean(axis, keepdims=True)
    return d / np.sqrt((d * d).mean(axis, keepdims=True) + np.float64(np.float32(EPSILON)))


def list_kinds(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


@pytest.mark.sample(4)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("opset", [13, 17, 18])
def test_fuse_layer_norm_knows_the_form(form: str, opset: int) -> None:
    proto = primitive(FORMS[form], opset)
    changed = apply_passes(proto, FuseLayerNorm())
    assert list_kinds(changed) == ["LayerNormalization"]
    assert changed.graph.opset_imports[""] == max(opset, 17)
    assert changed.graph.outputs[0].name == "y"
    x = 3 * random(ROWS, TOKENS, CHANNELS, seed=3) + 1
    expected = normalize(x) * GAIN + OFFSET
    for model in (proto, ir.to_proto(changed)):
        (y,) = load(model).run(x).values()
        assert np.abs(y - expected).max() < 3e-6


@pytest.mark.parametrize(
    ("text", "gain", "offset"),
    [
        (ROOT + "y = Div (d, r)\n", 1, 0),
        (ROOT + "n = Div (d, r)\n y = Mul (n, gain)\n", GAIN, 0),
        (ROOT + "n = Div (d, r)\n y = Add (n, offset)\n", 1, OFFSET),
    ],
)
def test_fuse_layer_norm_without_gain_or_offset(text: str, gain: Any, offset: Any) -> None:
    changed = apply_passes(primitive(text), FuseLayerNorm())
    assert list_kinds(changed) == ["LayerNormalization"]
    x = random(ROWS, TOKENS, CHANNELS, seed=3)
    (y,) = load(ir.to_proto(changed)).run(x).values()
    assert np.abs(y - (normalize(x) * gain + offset)).max() < 3e-6


@pytest.mark.parametrize("shape", [("n", CHANNELS, 3, 2), ("n", CHANNELS, TOKENS)])
def test_fuse_layer_norm_of_channels_first_transposes(shape: tuple[Any, ...]) -> None:
    """Fuse as in ConvNeXt, with one gain per channel of an image."""
    ones = (1,) * (len(shape) - 2)
    constants = {"gain": GAIN.reshape(CHANNELS, *ones), "offset": OFFSET.reshape(CHANNELS, *ones)}
    text = PADDLE.replace("[-1]", "[1]")
    changed = apply_passes(primitive(text, shape=shape, **constants), FuseLayerNorm())
    assert list_kinds(changed) == ["Transpose", "LayerNormalization", "Transpose"]
    x = random(ROWS, *shape[1:], seed=3)
    (y,) = load(ir.to_proto(changed)).run(x).values()
    expected = normalize(x, 1) * constants["gain"] + constants["offset"]
    assert np.abs(y - expected).max() < 3e-6


def test_fuse_layer_norm_of_sums_of_normalized_tensors() -> None:
    """Fuse a normalization that reads the result of another one and a part of it."""
    second = re.sub(r"\b([dmsvernhgyx])\b", r"\1_2", PADDLE).replace("x_2", "sum")
    text = PADDLE.replace("y = ", "first = ") + "sum = Add (first, d)\n" + second
    proto = primitive(text.replace("y_2", "y"))
    changed = apply_passes(proto, FuseLayerNorm())
    assert list_kinds(changed).count("LayerNormalization") == 2
    assert set(list_kinds(changed)) == {"LayerNormalization", "ReduceMean", "Sub", "Add"}
    x = random(ROWS, TOKENS, CHANNELS, seed=3)
    (expected,), (y,) = (load(model).run(x).values() for model in (proto, ir.to_proto(changed)))
    assert np.abs(y - expected).max() < 3e-6


UNLIKE = {
    "another epsilon per channel": PADDLE.replace("(v, epsilon)", "(v, gain)"),
    "no epsilon": PADDLE.replace("e = Add (v, epsilon)", "").replace("(e)", "(v)"),
    "epsilon after the root": PADDLE.replace("e = Add (v, epsilon)", "").replace(
        "r = Sqrt (e)", "r0 = Sqrt (v)\n r = Add (r0, epsilon)"
    ),
    "a third power": PADDLE.replace("two", "three"),
    "the mean of rows": PADDLE.replace("[-1]", "[0]"),
    "the mean of all": PADDLE.replace("<axes = [-1]>", ""),
    "two different means": PADDLE.replace("axes = [-1]> (x)", "axes = [0]> (x)"),
    "the variance of another tensor": PADDLE.replace("Pow (d, two)", "Pow (x, two)"),
    "a root mean square": FLAX.replace("d = Sub (x, m)", "d = Identity (x)"),
    "a difference in the other order": PADDLE.replace("Div (d, r)", "Div (r, d)"),
    "another limit": FLAX.replace("zero", "one"),
}


@pytest.mark.parametrize("form", UNLIKE)
def test_fuse_layer_norm_leaves_other_formulas(form: str) -> None:
    proto = primitive(UNLIKE[form], three=np.float32(3))
    before = list_kinds(ir.from_proto(proto))
    changed = apply_passes(proto, FuseLayerNorm())
    assert list_kinds(changed) == before
    assert changed.graph.opset_imports[""] == 13


def test_fuse_layer_norm_keeps_gains_that_vary_otherwise() -> None:
    """Keep one gain per token, and a gain that the model computes."""
    per_token = primitive(PADDLE, gain=random(TOKENS, 1))
    assert list_kinds(apply_passes(per_token, FuseLayerNorm())) == [
        *("LayerNormalization", "Mul", "Add")
    ]
    computed = primitive(PADDLE.replace("Mul (n, gain)", "Mul (n, x)"))
    assert list_kinds(apply_passes(computed, FuseLayerNorm()))[1:] == ["Mul", "Add"]


def test_fuse_layer_norm_keeps_outputs_of_the_model() -> None:
    proto = primitive(PADDLE)
    proto.graph.output.append(onnx.helper.make_tensor_value_info("n", 1, None))
    changed = apply_passes(proto, FuseLayerNorm())
    assert list_kinds(changed) == ["LayerNormalization", "Mul", "Add"]
    assert [value.name for value in changed.graph.outputs] == ["y", "n"]


def test_fuse_layer_norm_leaves_models_that_cannot_be_lifted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(self: LiftOpset, model: ir.Model) -> None:
        raise ModelError("refused")

    proto = primitive(PADDLE)
    monkeypatch.setattr(LiftOpset, "call", refuse)
    changed = apply_passes(proto, FuseLayerNorm())
    assert "Div" in list_kinds(changed)
