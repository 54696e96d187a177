# SPDX-License-Identifier: Apache-2.0
"""Models quantized for FPGA compilers pass `check` for these."""

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
    """Return a network of convolutions, Relu, MaxPool and Gemm."""
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


def get_quantizers(quantized: ir.Model) -> dict[str, dict[str, object]]:
    """Return the parameters and attributes of quantizers by the name of their input."""
    quantizers: dict[str, dict[str, object]] = {}
    for quantizer in quantized.graph:
        if quantizer.op_type != "IntQuant":
            continue
        values = [value.const_value.numpy() for value in quantizer.inputs[1:]]
        signed, narrow = (quantizer.attributes[name].value for name in ("signed", "narrow"))
        quantizers[str(quantizer.inputs[0].name)] = {
            "scale": values[0], "zeropt": values[1], "signed": signed, "narrow": narrow,
        }  # fmt: skip
    return quantizers


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
def test_quantize_for_target_passes_its_check(target: str, options: dict[str, object]) -> None:
    result = anybit.quantize(network(), DATA, target=target, **options)
    assert not [remark for remark in result.remarks if remark.startswith(target)]
    cleaned = ir.to_proto(anybit.clean(result, target=target).model)
    assert not [fault for fault in check(cleaned, target) if fault.severity == "error"]
    x = DATA[:1] if target == "finn" else np.moveaxis(DATA[:1], 1, -1)
    (expected,) = load(ir.to_proto(result.model)).run(DATA[:1]).values()
    (actual,) = load(cleaned).run(x).values()
    np.testing.assert_allclose(actual, expected, rtol=0 if target == "hls4ml" else 1e-5)


@pytest.mark.parametrize("target", TARGETS)
def test_quantize_for_target_is_symmetric_and_quantizes_after_relu(target: str) -> None:
    result = anybit.quantize(network(), DATA, target=target)
    quantizers = get_quantizers(result.model)
    signed = {name: quantizers[name]["signed"] for name in ("input", "r", "e")}
    assert signed == {
        "input": 1, "r": 0, "e": 0,
    }  # fmt: skip
    assert {float(np.max(quantizer["zeropt"])) for quantizer in quantizers.values()} == {0.0}
    weights = [quantizers[name] for name in ("w1", "w2", "g") if name in quantizers]
    assert {weight["narrow"] for weight in weights} == {1}
    order = kinds(result.model)
    assert order[order.index("Relu") + 1] == "IntQuant"
    if target == "hls4ml":
        scales = [np.asarray(quantizer["scale"]) for quantizer in quantizers.values()]
        assert all(scale.size == 1 and np.frexp(scale)[0] == 0.5 for scale in scales)


@pytest.mark.filterwarnings("ignore")  # of QONNX, about opsets
def test_qonnx_prepares_and_runs_models_for_finn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the first transformations of FINN's conversion from QONNX have nothing to do."""
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
    operators = sorted(node.op_type for node in wrapped.graph.node)
    extractions = (ExtractBiasFromConv(), GemmToMatMul(), FoldTransposeIntoQuantInit())
    for transformation in (*extractions, InferShapes(), InferDataTypes()):
        wrapped = wrapped.transform(transformation)
    assert sorted(node.op_type for node in wrapped.graph.node) == operators
    (actual,) = execute_onnx(wrapped, {"input": x}).values()
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)


def test_quantize_for_target_does_not_scale_channels() -> None:
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
        ({"target": "tpu"}, 'target=.tpu.: unknown value "tpu"'),
        ({"target": "finn", "weights": "fp8_e4m3"}, "'fp8_e4m3' is not supported"),
        ({"target": "finn", "weights": "mxfp4"}, "'mxfp4' is not supported"),
        ({"target": "hls4ml", "weights": "bipolar"}, "'bipolar' is not supported"),
        ({"target": "hls4ml", "activations": "uint8 asymmetric"}, "zero-points must be 0"),
        (
            {"target": "hls4ml", "activations": "float"},
            "activations must be integers, not float; add data=",
        ),
        ({"target": "finn", "activations": "uint1"}, "signed activations are .*; use 2 bits"),
    ],
)
def test_quantize_rejects_formats_that_the_target_lacks(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        anybit.quantize(network(), DATA, **options)


def test_quantize_remarks_name_operators_that_the_target_lacks() -> None:
    proto = network()
    proto.graph.node[1].op_type = "HardSwish"
    result = anybit.quantize(proto, DATA, target="hls4ml")
    assert [remark for remark in result.remarks if "hls4ml has no layer for HardSwish" in remark]


def test_quantize_command_takes_a_target(shell: Shell) -> None:
    onnx.save(network(), "model.onnx")
    np.save("data.npy", DATA)
    call = ["quantize", "model.onnx", "-o", "q.onnx", "--data", "data.npy", "--target", "hls4ml"]
    assert shell(*call)[0] in (0, 2)
    assert shell("clean", "q.onnx", "-o", "c.onnx", "--target", "hls4ml")[0] == 0
    assert shell("check", "c.onnx", "--target", "hls4ml")[:2] == (0, "no problems found\n")
