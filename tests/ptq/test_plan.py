# SPDX-License-Identifier: Apache-2.0
"""Plans: specs by layer, patterns, shared tensors, and errors."""

import numpy as np
import pytest
from float_models import attention, convolutions, data_for
from pass_checks import random
from small_models import model, node

import anybit
from anybit import OptionError


def get_specs(result: anybit.QuantizationResult) -> dict[str, tuple[str, str]]:
    return {layer.name: (layer.weights, layer.activations) for layer in result.layers}


def test_plan_applies_specs_of_layers() -> None:
    result = anybit.quantize(
        convolutions(),
        data_for("convolutions", 8),
        layers={"*wise": "int4", "first": "fp8_e4m3/int16", "up": "float/uint6", "head": "float"},
    )
    assert get_specs(result) == {
        "first": ("float8_e4m3fn", "int16"),
        "depthwise": ("int4", "uint8"),
        "pointwise": ("int4", "uint8"),
        "up": ("", "uint6"),
    }
    assert result.skipped == {"head": "float was requested"}
    x = random(3, 3, 8, 8)
    assert np.isfinite(anybit.load(result.model).run(x)["y"]).all()
    assert result.bytes_after < result.bytes_before


def test_plan_applies_the_last_pattern_and_matches_names_literally() -> None:
    data = data_for("convolutions", 8)
    result = anybit.quantize(convolutions(), data, layers={"*": "int4/uint4", "head": "int8"})
    assert get_specs(result)["head"] == ("int8", "uint4")
    assert {pair for name, pair in get_specs(result).items() if name != "head"} == {
        ("int4", "uint4")
    }
    odd = model(
        [node("MatMul", "x w", domain="", name="a[0]=*")],
        {"w": random(4, 4)},
        inputs={"x": ["rows", 4]},
        opsets={"": 17},
    )
    kept = anybit.quantize(odd, weights="int8", activations="float", layers={"a[0]=*": "int3"})
    assert get_specs(kept) == {"a[0]=*": ("int3", "")}


def test_plan_gives_a_shared_activation_the_widest_format() -> None:
    layers = {"query": "int8/uint4", "key": "int4/uint12", "wide": "float"}
    result = anybit.quantize(attention(), data_for("attention", 8), layers=layers)
    assert {name: get_specs(result)[name] for name in ("query", "key", "value")} == {
        "query": ("int8", "uint12"),
        "key": ("int4", "uint12"),
        "value": ("int8", "uint12"),
    }
    assert "wide" in result.skipped
    assert "gets uint12, the widest for what reads it: query asks for uint4" in result.remarks[0]
    assert result.to_json()["remarks"] == list(result.remarks)


def test_quantize_does_not_smooth_a_tensor_of_float_weights() -> None:
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
    result = anybit.quantize(proto, data, weights="int8", layers={"kept": "float/uint8"})
    assert get_specs(result)["kept"] == ("", "uint8")
    assert [layer.smoothed for layer in result.layers] == [False, False]
    both = anybit.quantize(proto, data, weights="int8")
    assert [layer.smoothed for layer in both.layers] == [True, True]


def test_plan_gives_a_shared_weight_the_widest_format() -> None:
    proto = model(
        [
            node("MatMul", "x w", "a", domain="", name="first"),
            node("MatMul", "a w", "y", domain="", name="second"),
        ],
        {"w": random(8, 8, seed=1)},
        inputs={"x": ["rows", 8]},
        opsets={"": 17},
    )
    result = anybit.quantize(proto, weights="int8", activations="float", layers={"second": "int2"})
    (quantizer,) = [node for node in result.model.graph if node.op_type != "MatMul"]
    assert quantizer.inputs[3].const_value.numpy() == 8
    assert result.remarks == (
        "w gets int8, the widest for what reads it: first asks for int8, second asks for int2",
    )


def test_keep_accepts_nodes_that_stay_float32_anyway() -> None:
    result = anybit.quantize(attention(), data_for("attention", 8), keep=["*oftmax", "sc*"])
    assert result.skipped == {"scores": "float was requested"}


def test_quantize_with_power_of_two_scales_has_no_others() -> None:
    data = data_for("convolutions", 8)
    layers = {"head": "fp8_e4m3/int6", "up": "mxfp8"}
    result = anybit.quantize(convolutions(), data, layers=layers, scales="power-of-two")
    scales = [
        np.ravel(node.inputs[1].const_value.numpy())
        for node in result.model.graph
        if node.op_type in ("IntQuant", "FloatQuant")
    ]
    assert len(scales) > 10
    assert all(np.all(np.frexp(scale)[0] == 0.5) for scale in scales)
    assert result.verdict is not None
    assert result.verdict.sqnr > 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": {"heads": "int4"}}, r"layers\['heads'\]: no layer matches; there are head"),
        (
            {"layers": {"head": "INT4"}},
            r"layers\['head'\]: weights 'INT4': unknown format .* \"int4\"",
        ),
        (
            {"layers": {"head": "int4/fp8"}},
            "'head'.: activations .*unknown format .* \"float8_e4m3fn",
        ),
        ({"layers": {"head": "int4/"}}, "'head'.: activations .*unknown format"),
        ({"layers": {"head": ""}}, "'head'.: weights .*unknown format"),
        ({"layers": {"head": "int4/uint8/uint8"}}, 'unknown format "uint8/uint8"'),
        ({"layers": {"head": 4}}, "use a spec like"),
        ({"layers": {"[": "int4"}}, r"layers\['\['\]: no layer matches"),
        ({"layers": {"*" * 5000 + "x": "int4"}}, "no layer matches"),
        ({"keep": ["softmax"]}, "keep='softmax': no layer matches; there are"),
        ({"scales": "powers-of-two"}, 'did you mean "power-of-two"'),
        (
            {"scales": "power-of-two", "weights": "nvfp4"},
            "scales='power-of-two': nvfp4 has other scales; use mxfp4",
        ),
        ({"weights": "4bit"}, 'did you mean "int4"'),
        ({"activations": "FP8"}, "did you mean"),
    ],
)
def test_plan_rejects_invalid_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        anybit.quantize(convolutions(), data_for("convolutions", 4), **options)


def test_plan_rejects_a_weight_spec_for_a_layer_without_weights() -> None:
    with pytest.raises(OptionError, match=r"'scores'\]: no match has weights; use .float/int4"):
        anybit.quantize(attention(), data_for("attention", 4), layers={"scores": "int4"})


def test_result_describes_layers_by_their_specs() -> None:
    layers = {
        "up": "ternary",
        "head": "int4 per-block 2",
        "pointwise": "int3 per-tensor/uint4 per-tensor",
        "depthwise": "int6 per-channel narrow",
    }
    result = anybit.quantize(convolutions(), data_for("convolutions", 8), layers=layers)
    assert get_specs(result) == {
        "first": ("int8", "uint8"),
        "depthwise": ("int6 narrow", "uint8"),
        "pointwise": ("int3 per-tensor", "uint4"),
        "up": ("ternary", "uint8"),
        "head": ("int4 per-block 2", "uint8"),
    }
