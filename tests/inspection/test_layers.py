# SPDX-License-Identifier: Apache-2.0
"""Layers of a report: work, bounds, guarantees, connections, and observations on data."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from analysis_checks import prepare
from places import MODELS, needs_models
from small_models import model, node, quantized_weight

import anybit
from anybit.errors import DataError, OptionError
from anybit.inspection import LayerReport, report_compilation, text
from anybit.inspection.pages import render_report
from anybit.quant_types.layer_info import LayerInfo

NAMES = ["TFC_1W1A", "TFC_2W2A", "cnv_1w1a", "kwsmlp_w3a3", "mobilenet_w4a4", "qkeras_jettagging"]


def qonnx_cost(path: Path) -> list[dict[str, Any]]:
    """Return the inference cost of QONNX for each node, with the types of its quantizers."""
    pytest.importorskip("qonnx")
    from qonnx.analysis.inference_cost import inference_cost
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.custom_op.registry import getCustomOp
    from qonnx.transformation.general import GiveUniqueNodeNames
    from qonnx.transformation.infer_shapes import InferShapes

    cleaned = ir.to_proto(prepare(onnx.load(path)))
    wrapped = ModelWrapper(cleaned).transform(InferShapes()).transform(GiveUniqueNodeNames())
    for item in wrapped.graph.node:
        if item.op_type in ("IntQuant", "Quant", "BipolarQuant"):
            kind = getCustomOp(item).get_integer_datatype(wrapped)
        elif item.op_type in ("Transpose", "Reshape", "Flatten", "MaxPool"):
            kind = wrapped.get_tensor_datatype(item.input[0])
        else:
            continue
        wrapped.set_tensor_datatype(item.output[0], kind)
    report = inference_cost(wrapped, discount_sparsity=False, cost_breakdown=True)
    return list(report["node_cost"].values())


def bits_of(datatype: str) -> int:
    from qonnx.core.datatype import DataType

    return int(DataType[datatype].bitwidth())


@needs_models
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_macs_and_bops_match_qonnx(name: str) -> None:
    path = MODELS / f"{name}.onnx"
    costs = qonnx_cost(path)
    layers = [row.layer for row in anybit.inspect(path).layers]
    assert len(costs) == len(layers)
    for layer, cost in zip(layers, costs, strict=True):
        ((key, macs),) = [(key, n) for key, n in cost.items() if key.startswith("op_mac")]
        assert layer.macs == macs
        x, weight = key.removeprefix("op_mac_").rsplit("_", 1)
        assert layer.bops == macs * bits_of(x) * bits_of(weight)


@needs_models
@pytest.mark.parametrize("name", NAMES)
def test_observed_values_lie_within_proven_bounds(name: str) -> None:
    path = MODELS / f"{name}.onnx"
    report = anybit.inspect(path, data=np.load(path.with_suffix(".npz"))["x"])
    assert report.data is not None
    for row in report.layers:
        layer, seen = row.layer, row.observed
        assert seen is not None
        for proven, shown in (
            (layer.input_codes, seen.input_codes),
            (layer.output_codes, seen.output_codes),
            (layer.sums, seen.sums),
        ):
            if proven is not None and shown is not None:
                assert proven[0] <= shown[0] <= shown[1] <= proven[1]
        assert not seen.shares or sum(seen.shares.values()) == pytest.approx(1)
        assert seen.clipped is None or 0 <= seen.clipped <= 1
    json.dumps(report.to_json(), allow_nan=False)


@needs_models
def test_guarantees_of_real_models() -> None:
    assert anybit.inspect(MODELS / "cnv_1w1a.onnx").totals.exact == 9
    rounding = anybit.inspect(MODELS / "kwsmlp_w3a3.onnx")
    assert rounding.totals.bounded == 4
    assert "not a power of two" in rounding.layers[0].reason
    tagging = anybit.inspect(MODELS / "qkeras_jettagging.onnx")
    assert [item.guarantee for item in tagging.layers] == [None, *["exact"] * 3]
    assert tagging.layers[0].reason == "nothing is known of its input"


def test_input_ranges_bound_the_layers() -> None:
    proto, _ = quantized_weight()
    (plain,) = anybit.inspect(proto).layers
    assert plain.kind == "float"
    for range_ in ("uint8", {"x": "uint8"}):
        layer = anybit.inspect(proto, input_ranges=range_).layers[0].layer
        assert (layer.guarantee, layer.input_codes, layer.input_bits) == ("exact", (0, 255), 8)
    (bounded,) = anybit.inspect(proto, input_ranges=(-1, 1)).layers
    assert bounded.guarantee is None
    assert bounded.reason == "its input is not on a grid"
    assert bounded.layer.sums is not None
    with pytest.raises(OptionError, match=r"input_ranges\['z'\]: the model has no such"):
        anybit.inspect(proto, input_ranges={"z": "uint8"})
    with pytest.raises(OptionError, match="range must be such as"):
        anybit.inspect(proto, input_ranges="8 bits")


def clipping() -> onnx.ModelProto:
    """x @ identity, quantized to -2 .. 1: the third channel is always 0."""
    nodes = [
        node("MatMul", "x w", "s", domain=""),
        node("Relu", "s", "r", domain=""),
        node("IntQuant", "r one zero two", name="q"),
    ]
    weight = np.diag(np.float32([1, 1, 0]))
    constants = {"w": weight, "one": 1, "zero": 0, "two": 2}
    return model(nodes, constants, inputs={"x": ["n", 3]})


@pytest.mark.parametrize("mode", ["ROUND", "FLOOR", "CEIL", "DOWN", "UP"])
def test_clipped_counts_values_that_round_beyond_the_codes(mode: str) -> None:
    nodes = [
        node("MatMul", "x w", "s", domain=""),
        node("IntQuant", "s one zero two", name="q", rounding_mode=mode),
    ]
    proto = model(
        nodes, {"w": np.eye(1, dtype="f"), "one": 1, "zero": 0, "two": 2}, inputs={"x": ["n", 1]}
    )
    x = np.float32([0, 1, 1.25, 1.5, 1.75, 2, 9, -2, -2.25, -2.5, -3])[:, None]
    rounded = {
        "ROUND": np.rint,
        "FLOOR": np.floor,
        "CEIL": np.ceil,
        "DOWN": np.trunc,
        "UP": lambda item: np.where(item < 0, np.floor(item), np.ceil(item)),
    }[mode](x)
    expected = np.count_nonzero((rounded > 1) | (rounded < -2))
    (layer,) = anybit.inspect(proto, data=x).layers
    assert layer.observed.clipped == expected / len(x)


def test_constant_channels_are_found_along_the_axis_of_the_layer() -> None:
    weight = np.diag(np.float32([1, 1, 0]))
    constants = {"w": weight, "one": 1, "zero": 0, "four": 4, "s": np.float32([1, 2, 1])}
    x = np.random.default_rng(0).integers(-8, 8, (2, 4, 3)).astype(np.float32)
    for scale in ("one", "s"):
        nodes = [
            node("IntQuant", "x one zero four", "p", name="p"),
            node("MatMul", "p w", "m", domain=""),
            node("IntQuant", f"m {scale} zero four", name="q"),
        ]
        (layer,) = anybit.inspect(model(nodes, constants, inputs={"x": [2, 4, 3]}), data=x).layers
        assert (layer.observed.constant_channels, layer.observed.channels) == ((2,), 3)


def test_observation_on_data() -> None:
    x = np.float32([[0, 1, 7], [0, 5, 7], [1, -3, 7], [1, 0, 7]])
    report = anybit.inspect(clipping(), data=x)
    (layer,) = report.layers
    seen = layer.observed
    assert report.data.observed == 4
    assert (layer.layer.quantizer, layer.layer.output_codes) == ("q", (0, 1))
    assert (seen.sums, seen.output_codes) == ((-3, 5), (0, 1))
    assert seen.clipped == 1 / 12
    assert (seen.constant_channels, seen.channels) == ((2,), 3)
    assert seen.shares == {0: 8 / 12, 1: 4 / 12}
    within = anybit.inspect(clipping(), input_ranges="int4", data=x).layers[0]
    assert within.guarantee == "exact"
    for range_, wrong in (("uint4", "-3"), ("int4*2", "1"), ("-3,5", "7")):
        with pytest.raises(DataError, match=f"'x' holds {wrong}, outside its range"):
            anybit.inspect(clipping(), input_ranges=range_, data=x)
    with pytest.raises(DataError, match="must have shape"):
        anybit.inspect(clipping(), data=np.zeros((2, 4)))
    with pytest.raises(DataError, match="NaN"):
        anybit.inspect(clipping(), data=np.where(x == 5, np.float32(np.nan), x))


def test_model_without_layers() -> None:
    report = anybit.inspect(model([node("Relu", "x", domain="")]))
    assert report.layers == ()
    assert report.to_json()["totals"]["macs"] == 0
    assert "No Conv" in render_report(report)


def test_declared_sizes_are_not_trusted() -> None:
    """Ignore a stale shape."""
    proto, _ = quantized_weight()
    proto.graph.node[1].input[0] = "t"
    proto.graph.node.insert(1, node("Unknown", "x", "t", domain="elsewhere"))
    proto.graph.value_info.append(
        onnx.helper.make_tensor_value_info("t", onnx.TensorProto.FLOAT, [1000, 4])
    )
    (row,) = anybit.inspect(proto).layers
    assert row.layer.macs is None


@needs_models
@pytest.mark.parametrize("form", ["qdq", "qcdq", "portable"])
@pytest.mark.parametrize("name", ["TFC_2W2A", "kwsmlp_w3a3", "cnv_1w1a"])
def test_forms_of_a_model_have_equal_layers(name: str, form: str) -> None:
    """Stored codes and pairs say the same as the operators; local functions are inlined."""
    path = MODELS / f"{name}.onnx"
    plain = anybit.inspect(path)
    other = anybit.inspect(anybit.convert(path, to=form))
    rows = zip(plain.layers, other.layers, strict=True)
    for one, two in ((row.layer, twin.layer) for row, twin in rows):
        assert (one.accumulator, one.accumulator_bits) == (two.accumulator, two.accumulator_bits)
        assert (one.macs, one.guarantee, one.sparsity) == (two.macs, two.guarantee, two.sparsity)
        assert one.output_codes == two.output_codes


RESIDUAL = """
<ir_version: 8, opset_import: ["": 13, "qonnx.custom_op.general": 1]>
graph (float[N, 4] x) => (float[N, 4] y)
<float one = {1}, float none = {0}, float four = {4}>
{
  xq = qonnx.custom_op.general.IntQuant(x, one, none, four)
  wq = qonnx.custom_op.general.IntQuant(w, one, none, four)
  a = MatMul(xq, wq)
  aq = qonnx.custom_op.general.IntQuant(a, one, none, four)
  b = MatMul(aq, wq)
  bq = qonnx.custom_op.general.IntQuant(b, one, none, four)
  c = MatMul(bq, wq)
  sum = Add(aq, c)
  sq = qonnx.custom_op.general.IntQuant(sum, one, none, four)
  y = MatMul(sq, wq)
}
"""


def test_inputs_are_the_preceding_layers() -> None:
    """Assign an addition to the last layer that it depends on."""
    proto = onnx.parser.parse_model(RESIDUAL)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(4, dtype="f"), "w"))
    for rows in (anybit.inspect(proto).layers, anybit.compile(proto).report.layers):
        a, b, c, y = (row.layer for row in rows)
        assert (a.inputs, b.inputs) == ((), (a.name,))
        assert (c.inputs, y.inputs) == ((a.name, b.name), (c.name,))


@pytest.mark.parametrize(
    "template",
    [
        "a step of {0}.5 is not a power of two: products round",
        "its input {0!r} is not quantized: quantize it",
        "node 'to {0}' (Reshape) takes it from node 'of {0}' (Mul), which computes it",
        'its input "the layer\'s {0}" is not quantized: quantize it',
        "its input 'the \"layer\\'s\" {0}' is not quantized: quantize it",
    ],
)
def test_group_reasons_joins_those_that_differ_in_numbers_or_names(template: str) -> None:
    layers = [
        LayerReport(LayerInfo(f"layer{n}", "MatMul", f"y{n}", reason=template.format(f"{n}")))
        for n in range(6)
    ]
    (reason,) = text.group_reasons(layers)
    first = layers[0].reason
    assert reason == f"layer0 (and layer1, layer2, layer3 and 2 more): float, {first}"


@pytest.mark.parametrize("which", ["a tensor's neighbour is a {}; so is another's", "it is {}"])
def test_group_reasons_that_differ_in_words_are_not_grouped(which: str) -> None:
    layers = [
        LayerReport(LayerInfo(word, "MatMul", word, reason=which.format(word)))
        for word in ("sum", "mean")
    ]
    assert len(text.group_reasons(layers)) == 2


def test_float_layers_count_their_weights() -> None:
    weight = np.random.default_rng(0).normal(size=(256, 4)).astype(np.float32)
    held = onnx.helper.make_node("Constant", [], ["w"], value=onnx.numpy_helper.from_array(weight))
    for tokens, work in ((4, "1 layer, 4.1 k MACs"), ("tokens", "1 layer, MACs unknown")):
        nodes = [held, node("MatMul", "x w", domain="")]
        report = anybit.inspect(model(nodes, inputs={"x": ["rows", tokens, 256]}))
        assert report.totals.parameters == weight.size
        assert report.totals.weight_bytes == weight.nbytes
        assert work in text.describe_work(report)


def test_weights_with_a_scale_per_block_have_their_bits_and_sizes() -> None:
    proto = model(
        [node("MatMul", "x w", domain="")], inputs={"x": [2, 64]}, opsets={"": 21}, ir_version=10
    )
    weight = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    quantized = anybit.quantize(proto, weights="int4 per-block 32")
    report = anybit.inspect(quantized)
    (row,) = report.layers
    assert (row.layer.weight_bits, row.layer.parameters, row.bytes) == (
        4,
        weight.size,
        weight.size / 2,
    )
    assert row.layer.bops == row.layer.macs * 4 * 32
    (tensor,) = row.tensors
    assert (tensor.role, tensor.scales) == ("weights", 2 * 8)
    assert report.summary is not None
    (quantizer,) = report.summary.quantizers
    assert quantizer.scale is not None
    assert (quantizer.bits, quantizer.codes, quantizer.scale.granularity) == (
        "4",
        "-8..7",
        "per-block 32",
    )


@pytest.mark.parametrize("spec", ["mxfp4", "mxfp6_e2m3", "nvfp4"])
def test_weights_of_few_float_bits_have_their_bits_and_sizes(spec: str) -> None:
    proto = model(
        [node("MatMul", "x w", domain="")], inputs={"x": [2, 64]}, opsets={"": 21}, ir_version=10
    )
    weight = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    (row,) = anybit.inspect(anybit.quantize(proto, weights=spec)).layers
    bits = 6 if "6" in spec else 4
    assert (row.layer.weight_bits, row.layer.parameters) == (bits, weight.size)
    assert row.bytes == weight.size * bits / 8
    assert row.layer.bops == row.layer.macs * bits * 32


@pytest.mark.parametrize("axis", [[], ["t"]], ids=["rows", "tokens"])
def test_layers_of_dynamic_scales_are_not_called_float(axis: list[str]) -> None:
    """Only `compile` knows their guarantee."""
    weights = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    nodes = [node("MatMul", "x w", domain="")]
    proto = model(nodes, {"w": weights}, inputs={"x": ["n", *axis, 8]}, opsets={"": 17})
    quantized = anybit.quantize(proto, activations="int8 dynamic").model
    report = anybit.inspect(quantized)
    assert [row.kind for row in report.layers] == ["dynamic"]
    assert (report.totals.dynamic, report.totals.float) == (1, 0)
    assert "0 of 1 layer exact in float32" in str(report)
    assert "1 dynamic (anybit compile reports the guarantees)" in str(report)
    assert "the_MatMul: dynamic, the scales of its input are computed at run time" in str(report)
    assert text.MEANINGS["dynamic"] in render_report(report)
    compiled = report_compilation(anybit.compile(quantized).report, "q.onnx")
    assert [row.kind for row in compiled.layers] == ["bounded"]


def test_layers_of_dynamic_scales_and_float_weights_are_float() -> None:
    weight = {"name": "", "operator": "MatMul", "output": "y", "dynamic": True}
    kinds = [
        LayerReport(LayerInfo(**weight, weight_bits=bits, parameters=parameters)).kind
        for bits, parameters in ((32, 9), (8, 9), (32, 0))
    ]
    assert kinds == ["float", "dynamic", "dynamic"]
