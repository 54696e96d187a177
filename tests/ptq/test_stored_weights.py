# SPDX-License-Identifier: Apache-2.0
"""Activations of models whose weights are quantized already: these keep their values."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from nbits_models import NBits, nbits_model
from shell import Shell
from small_models import model_of_floats, node, quantized_weight

import anybit
from anybit.errors import ModelError, OptionError

RNG = np.random.default_rng(0)
X = RNG.standard_normal((5, 64), dtype=np.float32)
DYNAMIC = "int8 dynamic"


def make_floats() -> onnx.ModelProto:
    """Return two layers, a MatMul and a Gemm."""
    constants = {
        "a": RNG.standard_normal((64, 48)),
        "b": RNG.standard_normal((48, 32)),
        "c": RNG.standard_normal(32),
    }
    nodes = [
        node("MatMul", "x a", "h", domain="", name="first"),
        node("Relu", "h", "r", domain=""),
        node("Gemm", "r b c", domain="", name="second"),
    ]
    return model_of_floats(nodes, constants, ["n", 64], ["n", 32], opset=21)


FLOATS = make_floats()
FORMS = {
    "int8": ("compact", "qonnx", "qdq"),
    "uint4": ("compact", "qonnx", "qdq", "matmulnbits"),
    "int4 per-block 32": ("compact", "qonnx", "qdq", "matmulnbits"),
    "mxfp4": ("compact", "qonnx"),
}


@pytest.mark.parametrize(("weights", "form"), [(w, f) for w, forms in FORMS.items() for f in forms])
def test_stored_weights_give_the_model_with_both_quantized(weights: str, form: str) -> None:
    """Quantize the weights, store the model in a form, then quantize the activations."""
    both = anybit.quantize(FLOATS, weights=weights, activations=DYNAMIC)
    only = anybit.quantize(FLOATS, weights=weights, activations="float")
    result = anybit.quantize(anybit.convert(only, to=form).model, activations=DYNAMIC)
    expected, actual = (anybit.load(quantized).run(X)["y"] for quantized in (both, result))
    np.testing.assert_array_equal(actual, expected)
    for layer, other in zip(result.layers, both.layers, strict=True):
        assert layer.weights == f"{other.weight_bits} bits, kept"
        assert layer.weight_bits == other.weight_bits
        assert (layer.activations, layer.shape) == (other.activations, other.shape)
    if weights != "mxfp4":
        assert [x.guarantee is None for x in anybit.compile(result).report.products] == [False] * 2


@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize(("bits", "zeropts"), [(2, True), (4, False), (4, True), (8, False)])
def test_stored_weights_of_matmulnbits_stay(
    bits: int, zeropts: bool, level: int, tmp_path: Path
) -> None:
    weight = NBits(64, 16, bits=bits, block=32, zeropts=zeropts)
    proto = weight.model(accuracy_level=level)
    result = anybit.quantize(proto, activations=DYNAMIC)
    result.save(tmp_path / "q.onnx")
    saved = onnx.load(tmp_path / "q.onnx")
    (packed,) = (item for item in saved.graph.node if item.op_type == "MatMulNBits")
    stored = {item.name: onnx.numpy_helper.to_array(item) for item in saved.graph.initializer}
    for name, array in weight.tensors.items():
        assert stored[name].tobytes() == array.tobytes()
    attributes = {item.name: item.i for item in packed.attribute}
    assert attributes["accuracy_level"] == (1 if level else 0)
    assert len(result.remarks) == (2 if level else 1)
    assert (
        result.remarks[0] == f"Quantized weights stay as they are: 1 x MatMulNBits of {bits} bits."
    )
    compiled = anybit.compile(tmp_path / "q.onnx")
    assert [layer.guarantee is None for layer in compiled.report.products] == [False]
    expected = anybit.load(tmp_path / "q.onnx").run(X)["y"]
    np.testing.assert_allclose(compiled.run(X)["y"], expected, rtol=1e-5, atol=1e-4)


def make_mixed() -> onnx.ModelProto:
    """Return a layer with packed weights before one with float weights."""
    proto = NBits(64, 16, bits=4, block=32).model()
    proto.graph.node[0].output[0] = "h"
    proto.graph.node.append(node("MatMul", "h w", domain="", name="head"))
    head = onnx.numpy_helper.from_array(RNG.standard_normal((16, 8), dtype=np.float32), "w")
    proto.graph.initializer.append(head)
    del proto.graph.value_info[:]
    proto.graph.output[0].type.tensor_type.shape.dim[-1].dim_value = 8
    return proto


def test_stored_weights_leave_float_weights_alone_by_default() -> None:
    proto = make_mixed()
    for weights in (None, "float"):
        result = anybit.quantize(proto, weights=weights, activations=DYNAMIC)
        assert [layer.operator for layer in result.layers] == ["MatMulNBits"]
    assert result.skipped == {"head": "its weights are float; weights='int8' quantizes them, too"}
    result = anybit.quantize(proto, X, weights="int8", activations=DYNAMIC)
    assert [layer.macs for layer in result.layers] == [64 * 16, 16 * 8]
    assert [layer.weights for layer in result.layers] == ["4 bits, kept", "int8"]
    assert result.verdict is not None
    assert result.verdict.passed
    result = anybit.quantize(proto, activations=DYNAMIC, layers={"head": "int4/int8 dynamic"})
    assert [layer.weights for layer in result.layers] == ["4 bits, kept", "int4"]


REFUSED = {
    "no activations": ({}, "add activations='int8 dynamic'"),
    "float activations": ({"activations": "float"}, "add activations='int8 dynamic'"),
    "static activations": ({"activations": "uint8", "data": X}, "dynamic scales only"),
    "weights": (
        {"weights": "int4", "activations": DYNAMIC},
        "weights='int4': .* leave weights out",
    ),
    "weights of a layer": (
        {"activations": DYNAMIC, "layers": {"*": "int4"}},
        "weights of 'product' are quantized already; use \"float/ACTIVATIONS\"",
    ),
    "budget": ({"activations": DYNAMIC, "budget": "30dB", "data": X}, "budget: the weights"),
    "auto": ({"activations": "auto", "data": X}, "activations='auto': the weights"),
    "integer_only": ({"integer_only": True, "data": X}, "integer_only=True: the weights"),
    "sensitivity": ({"activations": DYNAMIC, "sensitivity": True, "data": X}, "sensitivity=True"),
    "target": ({"target": "finn", "data": X}, "target='finn': the weights"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_stored_weights_refuse_options_of_float_weights(case: str) -> None:
    options, message = REFUSED[case]
    with pytest.raises(OptionError, match=message):
        anybit.quantize(NBits(64, 16, block=32).model(), **options)


def test_stored_weights_next_to_quantized_activations_are_refused() -> None:
    proto, _ = quantized_weight()
    quantizer = node("Quant", "x one none four", "q", name="of x")
    constants = {"one": 1.0, "none": 0.0, "four": 4.0}
    for name, value in constants.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(value), name))
    proto.graph.node.insert(0, quantizer)
    product = next(item for item in proto.graph.node if item.op_type == "MatMul")
    product.input[0] = "q"
    with pytest.raises(ModelError, match=r"has quantizers already \(IntQuant\)"):
        anybit.quantize(proto, activations=DYNAMIC)


def test_stored_weights_command(shell: Shell, tmp_path: Path) -> None:
    onnx.save(NBits(64, 16, block=32).model(), tmp_path / "packed.onnx")
    files = str(tmp_path / "packed.onnx"), "-o", str(tmp_path / "q.onnx")
    report = str(tmp_path / "r.html")
    status, out, _ = shell("quantize", *files, "--activations", DYNAMIC, "--report", report)
    assert status == 0
    assert "4 bits, kept" in out
    error = shell.fails("quantize", *files, "--weights", "int8", "--activations", DYNAMIC)
    assert "quantized already" in error


DAMAGED = {
    "B has shape .* but K = 8": {"K": 8},
    "bits is 3": {"bits": 3},
    "block_size is 48": {"block_size": 48},
    "B has shape": {"N": 17},
    "its attribute transposed": {"transposed": 1},
}


@pytest.mark.parametrize("reason", DAMAGED)
def test_stored_weights_of_damaged_nodes_are_named(reason: str) -> None:
    proto = NBits(64, 16, block=32).model(**DAMAGED[reason])
    with pytest.raises(ModelError, match=f"product: .*{reason}"):
        anybit.quantize(proto, activations=DYNAMIC)


@pytest.mark.parametrize("kept", [0, 1, 2])
def test_stored_weights_of_nodes_with_few_inputs_are_named(kept: int) -> None:
    proto = NBits(64, 16, block=32).model()
    del proto.graph.node[0].input[kept:]
    with pytest.raises(
        ModelError, match=r"product: .*(one input A|B is missing|scales are missing)"
    ):
        anybit.quantize(proto, activations=DYNAMIC)


def test_stored_weights_of_float16_models() -> None:
    weight = NBits(64, 16, block=32)
    tensors = {
        name: array.astype(np.float16) if name == "s" else array
        for name, array in weight.tensors.items()
    }
    proto = nbits_model(tensors, weight.sizes)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    result = anybit.quantize(proto, activations=DYNAMIC)
    assert result.remarks[0].startswith("float16 tensors are computed in float32")
    assert [layer.guarantee is None for layer in anybit.compile(result).report.products] == [False]
    expected = X.astype(np.float64) @ weight.weight
    actual = anybit.load(result).run(X.astype(np.float16))["y"]
    assert np.abs(actual - expected).max() < 0.02 * np.abs(expected).max()
