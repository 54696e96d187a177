# SPDX-License-Identifier: Apache-2.0
"""Compiled models give what the float graph gives, and say what became of each layer."""

import numpy as np
import onnx
import onnxruntime
import pytest
from places import MODELS

import anybit
from anybit.onnxruntime import library_path
from anybit.quant_types.layer_info import Guarantee

pytestmark = pytest.mark.skipif(not MODELS.exists(), reason="the shared models are missing")


def rows_of(name, more):
    """The stored inputs of a model, and random ones."""
    x = np.load(MODELS / f"{name}.npz")["x"].astype(np.float32)
    random = np.random.default_rng(0).standard_normal((more, *x.shape[1:])).astype(np.float32)
    return np.concatenate([x, random])


@pytest.mark.parametrize("name", ["TFC_1W1A", "TFC_2W2A", "cnv_1w1a"])
def test_exact_networks_equal_the_float_graph(name):
    compiled = anybit.compile(MODELS / f"{name}.onnx", guarantee="exact")
    assert compiled.report.share == 1
    assert set(compiled.report.guarantees) == {Guarantee.EXACT}
    x = rows_of(name, 40 if name == "cnv_1w1a" else 400)
    wanted = anybit.load(MODELS / f"{name}.onnx").run(x)
    got = compiled.run(x)
    assert got.keys() == wanted.keys()
    for output, array in wanted.items():
        np.testing.assert_array_equal(got[output], array)


@pytest.mark.parametrize("name", ["TFC_2W2A", "cnv_1w1a", "kwsmlp_w3a3", "mobilenet_w4a4"])
def test_layers_are_those_of_the_analysis(name):
    """The same figures, whatever becomes of a layer; means are layers of the compiler alone."""
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


def test_a_whole_network_takes_any_number_of_rows():
    compiled = anybit.compile(MODELS / "TFC_1W1A.onnx")
    (name,) = (each.name for each in compiled.outputs)
    x = rows_of("TFC_1W1A", 9)
    together = compiled.run(x)[name]
    single = np.concatenate([compiled.run(row[None])[name] for row in x])
    np.testing.assert_array_equal(together, single)


def test_arbitrary_scales_are_bounded_and_close():
    name = "kwsmlp_w3a3"
    compiled = anybit.compile(MODELS / f"{name}.onnx")
    assert compiled.report.guarantees == {Guarantee.BOUNDED: 4}
    assert all(layer.reason for layer in compiled.report.layers)
    x = rows_of(name, 100)
    wanted = anybit.load(MODELS / f"{name}.onnx").run(x)["74"]
    got = compiled.run(x)["74"]
    off = np.abs(got - wanted).max(axis=1) > 1e-4
    assert off.mean() < 0.02  # a row with an element at risk


def test_nan_is_refused_where_the_graph_keeps_it():
    compiled = anybit.compile(MODELS / "TFC_2W2A.onnx")
    x = np.full((1, 1, 28, 28), np.nan, np.float32)
    with pytest.raises(anybit.ModelError, match="NaN"):
        compiled.run(x)


def test_a_class_is_one_of_three():
    with pytest.raises(anybit.ModelError, match="exact, certified, bounded, got 'true'"):
        anybit.compile(MODELS / "TFC_1W1A.onnx", guarantee="true")


@pytest.mark.parametrize("name", ["qkeras_jettagging", "mobilenet_w4a4", "cnv_1w1a"])
def test_saved_files_run_as_they_were_compiled(tmp_path, name):
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
        (wanted,) = compiled.run(row).values()
        (got,) = session.run(None, {session.get_inputs()[0].name: row})
        np.testing.assert_array_equal(got, wanted)


def test_an_exact_region_between_floats_is_the_float_graph():
    path = MODELS / "qkeras_jettagging.onnx"
    compiled = anybit.compile(path)
    assert compiled.report.coverage == "3 of 4 layers, 75.9 % of MACs"
    assert compiled.report.layers[0].reason == (
        "its input 'global_in' is not quantized: say what it holds with --input-range global_in=..."
    )
    x = rows_of("qkeras_jettagging", 200)
    wanted, got = anybit.load(path).run(x), compiled.run(x)
    np.testing.assert_array_equal(got["global_out"], wanted["global_out"])


@pytest.mark.parametrize(
    "name", ["TFC_1W1A", "TFC_2W2A", "cnv_1w1a", "qkeras_jettagging", "mobilenet_w4a4"]
)
def test_all_tensors_of_codes_are_those_of_the_float_graph(name):
    found = anybit.diff(
        MODELS / f"{name}.onnx", inputs=rows_of(name, 0), runners=("anybit", "compiled")
    )
    codes = [tensor for tensor in found.tensors if tensor.steps is not None]
    assert len(codes) >= 3
    assert not any(tensor.differing for tensor in codes)


def test_layers_of_a_weaker_class_stay_float():
    compiled = anybit.compile(MODELS / "mobilenet_w4a4.onnx", guarantee="certified")
    classes = compiled.report.guarantees
    assert set(classes) == {Guarantee.CERTIFIED}
    refused = [layer for layer in compiled.report.layers if layer.guarantee is None]
    assert any("only certified was asked for" in layer.reason for layer in refused)
    x = rows_of("mobilenet_w4a4", 2)
    wanted = anybit.load(MODELS / "mobilenet_w4a4.onnx").run(x)["linear"]
    np.testing.assert_array_equal(compiled.run(x)["linear"], wanted)
