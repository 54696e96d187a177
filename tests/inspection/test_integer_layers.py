# SPDX-License-Identifier: Apache-2.0
"""Layers of files that ONNX Runtime's quantizers write: integer operators and MatMulNBits."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from small_models import model

import anybit
from anybit.inspection.collect import report_compilation
from anybit.inspection.pages import render_report
from anybit.inspection.text import describe_conclusion
from anybit.quant_types.layer_info import Guarantee

quantization = pytest.importorskip("onnxruntime.quantization")

CNN_WEIGHTS = 8 * 3 * 9 + 8 * 9 + 512 * 10


def make_mlp() -> onnx.ModelProto:
    random = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"], name="first"),
        helper.make_node("Add", ["a", "b0"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("MatMul", ["c", "w1"], ["y"], name="second"),
    ]
    shapes = {"w0": (64, 32), "b0": (32,), "w1": (32, 8)}
    constants = {name: np.float32(random.normal(size=shape)) for name, shape in shapes.items()}
    return model(nodes, constants, inputs={"x": ["rows", 64]}, opsets={})


def make_cnn() -> onnx.ModelProto:
    random = np.random.default_rng(1)
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["a"], name="first", pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w1"], ["c"], name="depthwise", pads=[1] * 4, group=8),
        helper.make_node("Flatten", ["c"], ["d"]),
        helper.make_node("MatMul", ["d", "w2"], ["y"], name="last"),
    ]
    shapes = {"w0": (8, 3, 3, 3), "b0": (8,), "w1": (8, 1, 3, 3), "w2": (512, 10)}
    constants = {name: np.float32(random.normal(size=shape)) for name, shape in shapes.items()}
    return model(nodes, constants, inputs={"x": ["rows", 3, 8, 8]}, opsets={})


class _Samples(quantization.CalibrationDataReader):
    def __init__(self, *shape: int) -> None:
        random = np.random.default_rng(2)
        self._samples: Iterator[np.ndarray] = iter(np.float32(random.normal(size=(4, 1, *shape))))

    def get_next(self) -> dict[str, np.ndarray] | None:
        sample = next(self._samples, None)
        return None if sample is None else {"x": sample}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "quantized.onnx"


def quantize_dynamic(proto: onnx.ModelProto, file: Path, *, per_channel: bool = False) -> None:
    source = file.with_name("float.onnx")
    onnx.save(proto, source)
    quantization.quantize_dynamic(source, file, per_channel=per_channel)


def quantize_nbits(proto: onnx.ModelProto, file: Path, **options: int) -> None:
    nbits = pytest.importorskip("onnxruntime.quantization.matmul_nbits_quantizer")
    config = nbits.DefaultWeightOnlyQuantConfig(block_size=32, is_symmetric=False, **options)
    quantizer = nbits.MatMulNBitsQuantizer(proto, algo_config=config)
    quantizer.process()
    onnx.save(quantizer.model.model, file)


@pytest.mark.parametrize("per_channel", [False, True])
def test_inspect_lists_layers_of_dynamic_quantization(file: Path, per_channel: bool) -> None:
    quantize_dynamic(make_mlp(), file, per_channel=per_channel)
    report = anybit.inspect(file)
    first, second = (row.layer for row in report.layers)
    assert (first.operator, second.operator) == ("MatMulInteger", "MatMulInteger")
    assert (first.shape, first.weight_shape) == ("[?, 32]", "[64, 32]")
    assert (first.macs, second.macs) == (64 * 32, 32 * 8)
    assert (first.weight_bits, first.input_bits, first.dynamic) == (8, 8, True)
    assert second.inputs == (first.name,)
    assert (report.totals.layers, report.totals.integer, report.totals.float) == (2, 2, 0)
    assert report.totals.weight_bytes == 64 * 32 + 32 * 8
    assert report.summary is not None
    assert report.summary.parameters == 64 * 32 + 32 + 32 * 8
    assert "8 x 8 dynamic" in str(report)
    assert "an integer operator of the file" in render_report(report)


def test_inspect_counts_macs_of_conv_integer_as_of_conv(file: Path) -> None:
    quantize_dynamic(make_cnn(), file)
    report, floats = anybit.inspect(file), anybit.inspect(make_cnn())
    assert [row.layer.operator for row in report.layers] == [
        *("ConvInteger", "ConvInteger", "MatMulInteger")
    ]
    assert [row.layer.macs for row in report.layers] == [row.layer.macs for row in floats.layers]
    assert report.totals.parameters == CNN_WEIGHTS


def test_inspect_lists_layers_of_operators_on_codes(file: Path) -> None:
    source = file.with_name("float.onnx")
    onnx.save(make_cnn(), source)
    form = quantization.QuantFormat.QOperator
    quantization.quantize_static(source, file, _Samples(3, 8, 8), quant_format=form)
    report, floats = anybit.inspect(file), anybit.inspect(make_cnn())
    assert [row.layer.operator for row in report.layers] == [
        *("QLinearConv", "QLinearConv", "QLinearMatMul")
    ]
    assert [row.layer.macs for row in report.layers] == [row.layer.macs for row in floats.layers]
    assert not any(row.layer.dynamic for row in report.layers)
    assert {row.kind for row in report.layers} == {"integer"}
    assert report.summary is not None
    assert report.summary.parameters == CNN_WEIGHTS + 8  # the bias


def test_compile_computes_operators_on_codes_in_regions(file: Path) -> None:
    source = file.with_name("float.onnx")
    onnx.save(make_cnn(), source)
    form = quantization.QuantFormat.QOperator
    quantization.quantize_static(source, file, _Samples(3, 8, 8), quant_format=form)
    layers = anybit.compile(file).report.layers
    rows = anybit.inspect(file).layers
    assert [(layer.name, layer.layer.operator) for layer in layers] == [
        (row.name, row.layer.operator) for row in rows
    ]
    assert {layer.guarantee for layer in layers} == {Guarantee.EXACT}


def test_compile_lists_operators_on_codes_as_not_compiled(file: Path) -> None:
    source = file.with_name("float.onnx")
    onnx.save(make_cnn(), source)
    form = quantization.QuantFormat.QOperator
    quantization.quantize_static(source, file, _Samples(3, 8, 8), quant_format=form)
    made = onnx.load(file)
    for node in made.graph.node:
        if node.op_type.startswith("QLinear"):
            node.input[1] = "scale"  # an input of the model
    made.graph.input.append(helper.make_tensor_value_info("scale", TensorProto.FLOAT, []))
    compiled = anybit.compile(made)
    assert [layer.name for layer in compiled.report.layers] == [
        row.name for row in anybit.inspect(made).layers
    ]
    assert {layer.guarantee for layer in compiled.report.layers} == {None}
    assert {layer.reason for layer in compiled.report.layers} == {
        "already an integer operator, which stays as it is: the scale of the input is computed at "
        "run time: quantize with a static one"
    }
    report = report_compilation(compiled.report, "cnn")
    assert {row.kind for row in report.layers} == {"integer"}
    assert "3 integer operators not compiled" in describe_conclusion(report)


def test_inspect_lists_layers_that_onnxruntime_has_fused(file: Path) -> None:
    quantize_dynamic(make_mlp(), file)
    options, fused = ort.SessionOptions(), file.with_name("fused.onnx")
    options.optimized_model_filepath = str(fused)
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    first, second = (row.layer for row in anybit.inspect(fused).layers)
    assert first.operator == "DynamicQuantizeMatMul"
    assert (first.macs, first.weight_bits, first.input_bits) == (64 * 32, 8, 8)
    assert (second.shape, second.macs) == ("[?, 8]", 32 * 8)
    assert (first.integer, first.dynamic) == (True, True)


@pytest.mark.parametrize("bits", [4, 8])
def test_inspect_lists_layers_of_matmul_nbits(file: Path, bits: int) -> None:
    quantize_nbits(make_mlp(), file, bits=bits)
    report = anybit.inspect(file)
    first, second = (row.layer for row in report.layers)
    assert (first.weight_shape, second.weight_shape) == ("[64, 32]", "[32, 8]")
    assert (first.macs, first.weight_bits, first.input_bits) == (64 * 32, bits, 32)
    assert (second.shape, second.macs) == ("[?, 8]", 32 * 8)
    assert report.totals.weight_bytes == (64 * 32 + 32 * 8) * bits // 8
    assert report.summary is not None
    assert report.summary.parameters == 64 * 32 + 32 + 32 * 8
    assert (report.totals.integer, report.totals.float) == (0, 2)


def test_inspect_infers_shapes_after_operators_of_onnxruntime() -> None:
    pair, domain = ["s", "z"], "com.microsoft"
    nodes = [
        helper.make_node("QuantizeLinear", ["x", *pair], ["a"]),
        helper.make_node("QLinearSigmoid", ["a", *pair, *pair], ["b"], domain=domain),
        helper.make_node("QLinearAdd", ["b", *pair, "a", *pair, *pair], ["q"], domain=domain),
        helper.make_node(
            "QGemm", ["q", *pair, "w", *pair, "", *pair], ["r"], domain=domain, transB=1
        ),
        helper.make_node("DequantizeLinear", ["r", *pair], ["y"]),
    ]
    constants = {"s": np.float32(0.5), "z": np.zeros((), np.int8), "w": np.ones((10, 4), np.int8)}
    proto = model(nodes, constants, opsets={"com.microsoft": 1})
    (layer,) = (row.layer for row in anybit.inspect(proto).layers)
    assert (layer.operator, layer.weight_shape, layer.macs) == ("QGemm", "[10, 4]", 40)
    assert layer.shape == "[1, 10]"


def test_inspect_infers_shapes_of_qgemm_per_node() -> None:
    """Without an output scale the result is float32, which no definition gives."""
    pair, domain = ["s", "z"], "com.microsoft"
    factors = ["q", *pair, "w", *pair]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", *pair], ["q"]),
        helper.make_node("QGemm", [*factors, "", *pair], ["r"], domain=domain, transB=1),
        helper.make_node("DequantizeLinear", ["r", *pair], ["t"]),
        helper.make_node("QGemm", factors, ["f"], domain=domain, transB=1),
        helper.make_node("Add", ["t", "f"], ["y"]),
    ]
    constants = {"s": np.float32(0.5), "z": np.zeros((), np.int8), "w": np.ones((10, 4), np.int8)}
    proto = model(nodes, constants, opsets={"com.microsoft": 1})
    first, second = (row.layer for row in anybit.inspect(proto).layers)
    assert (first.shape, second.shape) == ("[1, 10]", "[...]")
    assert first.macs == second.macs == 40


@pytest.mark.parametrize(("level", "codes"), [(0, []), (1, []), (4, ["accuracy-level"])])
def test_check_warns_of_accuracy_levels_that_round(
    file: Path, level: int, codes: list[str]
) -> None:
    quantize_nbits(make_mlp(), file, bits=4, accuracy_level=level)
    findings = [item for item in anybit.check(file) if item.severity == "warning"]
    assert [finding.code for finding in findings] == codes
    assert all("int8" in finding.problem for finding in findings)
