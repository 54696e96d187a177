# SPDX-License-Identifier: Apache-2.0
"""What `quantize` makes for a compiler for FPGAs is what `check` lets pass for it."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from pass_checks import random
from shell import Shell
from small_models import kinds, model, node

import anybit
from anybit.errors import OptionError
from anybit.model import load
from anybit.onnx.checks.checking import check

TARGETS = ("finn", "hls4ml")


def network() -> onnx.ModelProto:
    """Convolutions with Relu and a maximum between them, and a Gemm."""
    constants = {
        "w1": random(4, 2, 3, 3, seed=1) / 3,
        "b1": random(4, seed=2) / 3,
        "w2": random(3, 4, 2, 2, seed=3) / 3,
        "g": random(5, 12, seed=4) / 3,
        "c": random(5, seed=5),
    }
    nodes = [
        node("Conv", "input w1 b1", "a", domain="", name="first", pads=[1, 1, 1, 1]),
        node("Relu", "a", "r", domain="", name="relu"),
        node("MaxPool", "r", "p", domain="", name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", "p w2", "d", domain="", name="second"),
        node("Relu", "d", "e", domain="", name="relu2"),
        node("Flatten", "e", "f", domain="", name="flat"),
        node("Gemm", "f g c", "y", domain="", name="head", transB=1),
    ]
    return model(nodes, constants, inputs={"input": ["n", 2, 6, 6]}, opsets={"": 17})


DATA = random(32, 2, 6, 6, seed=9)


def quantizers(quantized: ir.Model) -> dict[str, dict[str, object]]:
    """Parameters and attributes of quantizers, by what they quantize."""
    found: dict[str, dict[str, object]] = {}
    for each in quantized.graph:
        if each.op_type != "IntQuant":
            continue
        values = [value.const_value.numpy() for value in each.inputs[1:]]
        signed, narrow = (each.attributes[name].value for name in ("signed", "narrow"))
        found[str(each.inputs[0].name)] = {
            "scale": values[0], "zeropt": values[1], "signed": signed, "narrow": narrow,
        }  # fmt: skip
    return found


@pytest.mark.sample(4)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weights": "int4", "activations": "uint4"},
        {"weights": "ternary"},
        {"activations": "int8", "effort": "fast"},
        {"integer_only": True},
        {"budget": "60%bops"},
    ],
)
def test_quantize_makes_what_the_target_takes(target: str, options: dict[str, object]) -> None:
    result = anybit.quantize(network(), DATA, target=target, **options)
    assert not [remark for remark in result.remarks if remark.startswith(target)]
    cleaned = ir.to_proto(anybit.clean(result, target=target).model)
    assert [each for each in check(cleaned, target) if each.severity == "error"] == []
    x = DATA[:1] if target == "finn" else np.moveaxis(DATA[:1], 1, -1)
    (expected,) = load(ir.to_proto(result.model)).run(DATA[:1]).values()
    (got,) = load(cleaned).run(x).values()
    np.testing.assert_allclose(got, expected, rtol=0 if target == "hls4ml" else 1e-5)


@pytest.mark.parametrize("target", TARGETS)
def test_quantizers_for_targets_are_symmetric_and_stand_after_relu(target: str) -> None:
    result = anybit.quantize(network(), DATA, target=target)
    found = quantizers(result.model)
    assert {name: each["signed"] for name, each in found.items() if name in "input r e"} == {
        "input": 1, "r": 0, "e": 0,
    }  # fmt: skip
    assert {float(np.max(each["zeropt"])) for each in found.values()} == {0.0}
    weights = [each for name, each in found.items() if name in ("w1", "w2", "g")]
    assert {each["narrow"] for each in weights} == {1}
    order = kinds(result.model)
    assert order[order.index("Relu") + 1] == "IntQuant"
    if target == "hls4ml":
        scales = [np.asarray(each["scale"]) for each in found.values()]
        assert all(scale.size == 1 and np.frexp(scale)[0] == 0.5 for scale in scales)


@pytest.mark.filterwarnings("ignore")  # of QONNX, about opsets
def test_qonnx_prepares_and_runs_what_is_made_for_finn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transformations that FINN's conversion from QONNX begins with find nothing to extract."""
    pytest.importorskip("qonnx")
    monkeypatch.setattr(onnx, "IR_VERSION", 8)  # QONNX asks the runtime for the newest
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.core.onnx_exec import execute_onnx
    from qonnx.transformation.extract_conv_bias import ExtractBiasFromConv
    from qonnx.transformation.gemm_to_matmul import GemmToMatMul
    from qonnx.transformation.infer_datatypes import InferDataTypes
    from qonnx.transformation.infer_shapes import InferShapes
    from qonnx.transformation.quant_constant_folding import FoldTransposeIntoQuantInit

    result = anybit.quantize(network(), DATA, target="finn")
    cleaned = ir.to_proto(anybit.clean(result, target="finn").model)
    x = DATA[:1]
    (expected,) = load(cleaned).run(x).values()
    wrapped = ModelWrapper(cleaned)
    before = sorted(each.op_type for each in wrapped.graph.node)
    extractions = (ExtractBiasFromConv(), GemmToMatMul(), FoldTransposeIntoQuantInit())
    for each in (*extractions, InferShapes(), InferDataTypes()):
        wrapped = wrapped.transform(each)
    assert sorted(each.op_type for each in wrapped.graph.node) == before
    (got,) = execute_onnx(wrapped, {"input": x}).values()
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_channels_are_not_scaled_for_targets() -> None:
    data = DATA * np.float32([1, 400]).reshape(2, 1, 1)
    plain = anybit.quantize(network(), data)
    for target in TARGETS:
        result = anybit.quantize(network(), data, target=target)
        assert "Mul" not in kinds(result.model)
        assert not any(layer.smoothed for layer in result.layers)
    assert "Mul" in kinds(plain.model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "tpu"}, 'unknown target "tpu"'),
        ({"target": "finn", "weights": "fp8_e4m3"}, "'fp8_e4m3' is not supported"),
        ({"target": "finn", "weights": "mxfp4"}, "'mxfp4' is not supported"),
        ({"target": "hls4ml", "weights": "bipolar"}, "'bipolar' is not supported"),
        ({"target": "hls4ml", "activations": "uint8 asymmetric"}, "zero-points must be 0"),
        ({"target": "hls4ml", "activations": None}, "activations must be integers; give data"),
        ({"target": "finn", "activations": "uint1"}, "signed activations are .*; use 2 bits"),
    ],
)
def test_targets_refuse_what_they_have_no_counterpart_for(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        anybit.quantize(network(), DATA, **options)


def test_remarks_name_layers_that_the_target_lacks() -> None:
    proto = network()
    proto.graph.node[1].op_type = "HardSwish"
    result = anybit.quantize(proto, DATA, target="hls4ml")
    assert [remark for remark in result.remarks if "hls4ml has no layer for HardSwish" in remark]


def test_the_command_takes_a_target(shell: Shell) -> None:
    onnx.save(network(), "model.onnx")
    np.save("data.npy", DATA)
    call = ["quantize", "model.onnx", "-o", "q.onnx", "--data", "data.npy", "--target", "hls4ml"]
    assert shell(*call)[0] in (0, 2)
    assert shell("clean", "q.onnx", "-o", "c.onnx", "--target", "hls4ml")[0] == 0
    assert shell("check", "c.onnx", "--target", "hls4ml")[:2] == (0, "nothing wrong\n")
