# SPDX-License-Identifier: Apache-2.0
"""Compiled models equal the float graph, and report all layers."""

import numpy as np
import onnx
import onnxruntime
import pytest
from places import MODELS, needs_models

import anybit
from anybit.onnxruntime import library_path
from anybit.quant_types.layer_info import Guarantee

pytestmark = needs_models


def rows_of(name, more):
    """Return the stored inputs of a model, and random ones."""
    x = np.load(MODELS / f"{name}.npz")["x"].astype(np.float32)
    random = np.random.default_rng(0).standard_normal((more, *x.shape[1:])).astype(np.float32)
    return np.concatenate([x, random])


@pytest.mark.parametrize("name", ["TFC_1W1A", "TFC_2W2A", "cnv_1w1a"])
def test_compile_equals_float_graph_for_exact_networks(name):
    compiled = anybit.compile(MODELS / f"{name}.onnx", guarantee="exact")
    assert compiled.report.share == 1
    assert set(compiled.report.guarantees) == {Guarantee.EXACT}
    x = rows_of(name, 40 if name == "cnv_1w1a" else 400)
    expected = anybit.load(MODELS / f"{name}.onnx").run(x)
    got = compiled.run(x)
    assert got.keys() == expected.keys()
    for output, array in expected.items():
        np.testing.assert_array_equal(got[output], array)


@pytest.mark.parametrize("name", ["TFC_2W2A", "cnv_1w1a", "kwsmlp_w3a3", "mobilenet_w4a4"])
def test_compile_reports_layers_of_analysis(name):
    """Report the figures of the analysis; only the compiler counts means as layers."""
    path = MODELS / f"{name}.onnx"
    made = {layer.name: layer for layer in anybit.compile(path).report.layers}
    for row in anybit.inspect(path).layers:
        layer, outcome = row.layer, made[row.name]
        other = outcome.layer
        assert (layer.accumulator, layer.accumulator_bits) == (
            other.accumulator,
            other.accumulator_bits,
        )
        assert (layer.macs, layer.bops, layer.sparsity) == (other.macs, other.bops, other.sparsity)
        assert (layer.input_codes, layer.output_codes) == (other.input_codes, other.output_codes)
        assert layer.guarantee is None or layer.guarantee.rank >= outcome.guarantee.rank


def test_compile_whole_network_takes_any_rows():
    compiled = anybit.compile(MODELS / "TFC_1W1A.onnx")
    (name,) = (item.name for item in compiled.outputs)
    x = rows_of("TFC_1W1A", 9)
    together = compiled.run(x)[name]
    single = np.concatenate([compiled.run(row[None])[name] for row in x])
    np.testing.assert_array_equal(together, single)


def test_compile_is_bounded_for_arbitrary_scales():
    name = "kwsmlp_w3a3"
    compiled = anybit.compile(MODELS / f"{name}.onnx")
    assert compiled.report.guarantees == {Guarantee.BOUNDED: 4}
    assert all(layer.reason for layer in compiled.report.layers)
    x = rows_of(name, 100)
    expected = anybit.load(MODELS / f"{name}.onnx").run(x)["74"]
    got = compiled.run(x)["74"]
    off = np.abs(got - expected).max(axis=1) > 1e-4
    assert off.mean() < 0.02  # a row with an element at risk


def test_compile_refuses_nan_that_graph_keeps():
    compiled = anybit.compile(MODELS / "TFC_2W2A.onnx")
    x = np.full((1, 1, 28, 28), np.nan, np.float32)
    with pytest.raises(anybit.ModelError, match="NaN"):
        compiled.run(x)


def test_compile_reports_unknown_guarantee():
    with pytest.raises(anybit.OptionError, match="exact, certified, bounded, got 'true'"):
        anybit.compile(MODELS / "TFC_1W1A.onnx", guarantee="true")


@pytest.mark.parametrize("name", ["qkeras_jettagging", "mobilenet_w4a4", "cnv_1w1a"])
def test_compile_saved_file_gives_same_results(tmp_path, name):
    compiled = anybit.compile(MODELS / f"{name}.onnx")
    path = tmp_path / "fast.onnx"
    compiled.save(path)
    proto = onnx.load(path)
    onnx.checker.check_model(proto)
    assert [node.op_type for node in proto.graph.node].count("IntegerNetwork") == 1
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(library_path())
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    x = rows_of(name, 3)
    for row in x[:, None]:
        (expected,) = compiled.run(row).values()
        (got,) = session.run(None, {session.get_inputs()[0].name: row})
        np.testing.assert_array_equal(got, expected)


def test_compile_exact_region_between_floats_equals_graph():
    path = MODELS / "qkeras_jettagging.onnx"
    compiled = anybit.compile(path)
    assert compiled.report.coverage == "3 of 4 layers, 75.9 % of MACs"
    assert compiled.report.layers[0].reason.startswith(
        "its input 'global_in' is not quantized: say what it holds with --input-range global_in=..."
    )
    x = rows_of("qkeras_jettagging", 200)
    expected, got = anybit.load(path).run(x), compiled.run(x)
    np.testing.assert_array_equal(got["global_out"], expected["global_out"])


@pytest.mark.parametrize(
    "name", ["TFC_1W1A", "TFC_2W2A", "cnv_1w1a", "qkeras_jettagging", "mobilenet_w4a4"]
)
def test_exposed_tensors_equal_float_graph(name):
    result = anybit.diff(
        MODELS / f"{name}.onnx", inputs=rows_of(name, 0), runners=("anybit", "compiled")
    )
    codes = [tensor for tensor in result.tensors if tensor.steps is not None]
    assert len(codes) >= 3
    assert not any(tensor.differing for tensor in codes)


def test_compile_leaves_layers_of_weaker_guarantee():
    compiled = anybit.compile(MODELS / "mobilenet_w4a4.onnx", guarantee="certified")
    classes = compiled.report.guarantees
    assert set(classes) == {Guarantee.CERTIFIED}
    refused = [layer for layer in compiled.report.layers if layer.guarantee is None]
    assert any("only certified was asked for" in layer.reason for layer in refused)
    x = rows_of("mobilenet_w4a4", 2)
    expected = anybit.load(MODELS / "mobilenet_w4a4.onnx").run(x)["linear"]
    np.testing.assert_array_equal(compiled.run(x)["linear"], expected)
