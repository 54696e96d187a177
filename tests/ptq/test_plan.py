# SPDX-License-Identifier: Apache-2.0
"""Words per layer: patterns, layers that share a tensor, and what makes no sense."""

import numpy as np
import pytest
from float_models import attention, convolutions, data_for
from pass_checks import random
from small_models import model, node

import anybit
from anybit import OptionError


def widths(found: anybit.QuantizationResult) -> dict[str, tuple[str, str]]:
    return {each.name: (each.weights, each.activations) for each in found.layers}


def test_words_for_some_layers() -> None:
    found = anybit.quantize(
        convolutions(),
        data_for("convolutions", 8),
        layers={"*wise": "int4", "first": "fp8_e4m3/int16", "up": "float/uint6", "head": "float"},
    )
    assert widths(found) == {
        "first": ("float8_e4m3fn", "int16"),
        "depthwise": ("int4", "uint8"),
        "pointwise": ("int4", "uint8"),
        "up": ("", "uint6"),
    }
    assert found.skipped == {"head": "it was to be kept"}
    x = random(3, 3, 8, 8)
    assert np.isfinite(anybit.load(found.model).run(x)["y"]).all()
    assert found.bytes_after < found.bytes_before


def test_later_words_win_and_names_are_not_patterns_alone() -> None:
    data = data_for("convolutions", 8)
    found = anybit.quantize(convolutions(), data, layers={"*": "int4/uint4", "head": "int8"})
    assert widths(found)["head"] == ("int8", "uint4")
    assert {pair for name, pair in widths(found).items() if name != "head"} == {("int4", "uint4")}
    odd = model(
        [node("MatMul", "x w", domain="", name="a[0]=*")],
        {"w": random(4, 4)},
        inputs={"x": ["rows", 4]},
        opsets={"": 17},
    )
    kept = anybit.quantize(odd, weights="int8", activations=None, layers={"a[0]=*": "int3"})
    assert widths(kept) == {"a[0]=*": ("int3", "")}


def test_layers_that_share_a_tensor_agree_on_the_widest() -> None:
    layers = {"query": "int8/uint4", "key": "int4/uint12", "wide": "float"}
    found = anybit.quantize(attention(), data_for("attention", 8), layers=layers)
    assert {name: widths(found)[name] for name in ("query", "key", "value")} == {
        "query": ("int8", "uint12"),
        "key": ("int4", "uint12"),
        "value": ("int8", "uint12"),
    }
    assert "wide" in found.skipped
    assert "gets uint12, the widest for what reads it: query asks for uint4" in found.remarks[0]
    assert found.to_json()["remarks"] == list(found.remarks)


def test_a_tensor_that_weights_in_floats_read_is_not_smoothed() -> None:
    sizes = np.float32([1, 300, 1, 1, 1, 1, 1, 1])
    proto = model(
        [
            node("MatMul", "x w", "a", domain="", name="few"),
            node("MatMul", "x v", "b", domain="", name="kept"),
            node("Add", "a b", "y", domain="", name="sum"),
        ],
        {"w": random(8, 4, seed=1) / sizes[:, None], "v": random(8, 4, seed=2) / sizes[:, None]},
        inputs={"x": ["rows", 8]},
        opsets={"": 17},
    )
    data = random(64, 8) * sizes
    found = anybit.quantize(proto, data, weights="int8", layers={"kept": "float/uint8"})
    assert widths(found)["kept"] == ("", "uint8")
    assert [each.smoothed for each in found.layers] == [False, False]
    both = anybit.quantize(proto, data, weights="int8")
    assert [each.smoothed for each in both.layers] == [True, True]


def test_one_constant_has_one_width() -> None:
    proto = model(
        [
            node("MatMul", "x w", "a", domain="", name="first"),
            node("MatMul", "a w", "y", domain="", name="second"),
        ],
        {"w": random(8, 8, seed=1)},
        inputs={"x": ["rows", 8]},
        opsets={"": 17},
    )
    found = anybit.quantize(proto, weights="int8", activations=None, layers={"second": "int2"})
    (quantizer,) = [each for each in found.model.graph if each.op_type != "MatMul"]
    assert quantizer.inputs[3].const_value.numpy() == 8
    assert found.remarks == (
        "w gets int8, the widest for what reads it: first asks for int8, second asks for int2",
    )


def test_nodes_that_keep_their_floats_anyhow_may_be_kept() -> None:
    found = anybit.quantize(attention(), data_for("attention", 8), keep=["*oftmax", "sc*"])
    assert found.skipped == {"scores": "it was to be kept"}


def test_all_scales_are_powers_of_two() -> None:
    data = data_for("convolutions", 8)
    layers = {"head": "fp8_e4m3/int6", "up": "mxfp8"}
    found = anybit.quantize(convolutions(), data, layers=layers, scales="power-of-two")
    scales = [
        np.ravel(each.inputs[1].const_value.numpy())
        for each in found.model.graph
        if each.op_type in ("IntQuant", "FloatQuant")
    ]
    assert len(scales) > 10
    assert all(np.all(np.frexp(each)[0] == 0.5) for each in scales)
    assert found.verdict is not None
    assert found.verdict.sqnr > 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": {"heads": "int4"}}, "layers: no layer matches 'heads'; there are head"),
        ({"layers": {"head": "INT4"}}, "layers: 'head': weights: .*unknown kind .* \"int4\""),
        (
            {"layers": {"head": "int4/fp8"}},
            "'head': activations: .*unknown kind .* \"float8_e4m3fn",
        ),
        ({"layers": {"head": "int4/"}}, "'head': activations: .*unknown kind"),
        ({"layers": {"head": ""}}, "'head': weights: .*unknown kind"),
        ({"layers": {"head": "int4/uint8/uint8"}}, 'unknown kind "uint8/uint8"'),
        ({"layers": {"head": 4}}, "use a spec like"),
        ({"layers": {"[": "int4"}}, r"no layer matches '\['"),
        ({"layers": {"*" * 5000 + "x": "int4"}}, "no layer matches"),
        ({"keep": ["softmax"]}, "keep: no layer matches 'softmax'; there are"),
        ({"scales": "powers-of-two"}, 'did you mean "power-of-two"'),
        (
            {"scales": "power-of-two", "weights": "nvfp4"},
            "the scales of nvfp4 are not powers",
        ),
        ({"weights": "4bit"}, 'did you mean "int4"'),
        ({"activations": "FP8"}, "did you mean"),
    ],
)
def test_what_makes_no_sense(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        anybit.quantize(convolutions(), data_for("convolutions", 4), **options)


def test_words_for_weights_that_are_not_there() -> None:
    with pytest.raises(OptionError, match="'scores' has no weights; use \"float/int4\""):
        anybit.quantize(attention(), data_for("attention", 4), layers={"scores": "int4"})


def test_layers_are_told_in_the_words_that_were_said() -> None:
    layers = {
        "up": "ternary",
        "head": "int4 per-block 2",
        "pointwise": "int3 per-tensor/uint4 per-tensor",
        "depthwise": "int6 per-channel narrow",
    }
    found = anybit.quantize(convolutions(), data_for("convolutions", 8), layers=layers)
    assert {each.name: (each.weights, each.activations) for each in found.layers} == {
        "first": ("int8", "uint8"),
        "depthwise": ("int6 narrow", "uint8"),
        "pointwise": ("int3 per-tensor", "uint4"),
        "up": ("ternary", "uint8"),
        "head": ("int4 per-block 2", "uint8"),
    }
