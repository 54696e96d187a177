# SPDX-License-Identifier: Apache-2.0
"""`anybit.analyze`: costs, ranges and guarantees of layers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from carried import prepared
from places import MODELS, needs_models
from small_models import model, node, quantized_weight

import anybit
from anybit.errors import DataError, ModelError, OptionError
from anybit.layers import Guarantee, page

NAMES = ["TFC_1W1A", "TFC_2W2A", "cnv_1w1a", "kwsmlp_w3a3", "mobilenet_w4a4", "qkeras_jettagging"]


def qonnx_cost(path: Path) -> list[dict[str, Any]]:
    """What QONNX's inference cost says of each node, with the types that its quantizers give."""
    pytest.importorskip("qonnx")
    from qonnx.analysis.inference_cost import inference_cost
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.custom_op.registry import getCustomOp
    from qonnx.transformation.general import GiveUniqueNodeNames
    from qonnx.transformation.infer_shapes import InferShapes

    cleaned = ir.to_proto(prepared(onnx.load(path)))
    wrapped = ModelWrapper(cleaned).transform(InferShapes()).transform(GiveUniqueNodeNames())
    for each in wrapped.graph.node:
        if each.op_type in ("IntQuant", "Quant", "BipolarQuant"):
            kind = getCustomOp(each).get_integer_datatype(wrapped)
        elif each.op_type in ("Transpose", "Reshape", "Flatten", "MaxPool"):
            kind = wrapped.get_tensor_datatype(each.input[0])
        else:
            continue
        wrapped.set_tensor_datatype(each.output[0], kind)
    found = inference_cost(wrapped, discount_sparsity=False, cost_breakdown=True)
    return list(found["node_cost"].values())


def bits_of(datatype: str) -> int:
    from qonnx.core.datatype import DataType

    return int(DataType[datatype].bitwidth())


@needs_models
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_costs_are_those_of_qonnx(name: str) -> None:
    """MACs and BOPs of every layer."""
    path = MODELS / f"{name}.onnx"
    costs = qonnx_cost(path)
    layers = anybit.analyze(path).layers
    assert len(costs) == len(layers)
    for layer, cost in zip(layers, costs, strict=True):
        ((key, macs),) = [(key, n) for key, n in cost.items() if key.startswith("op_mac")]
        assert layer.macs == macs
        x, weight = key.removeprefix("op_mac_").rsplit("_", 1)
        assert layer.bops == macs * bits_of(x) * bits_of(weight)


@needs_models
@pytest.mark.parametrize("name", NAMES)
def test_what_is_seen_is_within_what_is_proven(name: str) -> None:
    path = MODELS / f"{name}.onnx"
    found = anybit.analyze(path, data=np.load(path.with_suffix(".npz"))["x"])
    assert found.rows > 0
    for layer in found.layers:
        seen = layer.seen
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
    json.dumps(found.to_json(), allow_nan=False)


@needs_models
def test_guarantees() -> None:
    """Signs are exact; scales of any size round; what is not quantized stays float."""
    assert len(anybit.analyze(MODELS / "cnv_1w1a.onnx").of(Guarantee.EXACT)) == 9
    rounding = anybit.analyze(MODELS / "kwsmlp_w3a3.onnx")
    assert len(rounding.of(Guarantee.BOUNDED)) == 4
    assert "not a power of two" in rounding.layers[0].reason
    tagging = anybit.analyze(MODELS / "qkeras_jettagging.onnx")
    assert [each.guarantee for each in tagging.layers] == [None, *["exact"] * 3]
    assert tagging.layers[0].reason == "nothing is known of its input"


def test_input_ranges() -> None:
    proto, _ = quantized_weight()
    (plain,) = anybit.analyze(proto).layers
    assert plain.guarantee is None
    for given in ("uint8", {"x": "uint8"}):
        (layer,) = anybit.analyze(proto, input_ranges=given).layers
        assert (layer.guarantee, layer.input_codes, layer.input_bits) == ("exact", (0, 255), 8)
    (bounded,) = anybit.analyze(proto, input_ranges=(-1, 1)).layers
    assert bounded.guarantee is None
    assert bounded.reason == "its input is not on a grid"
    assert bounded.sums is not None
    with pytest.raises(OptionError, match="no input 'z'"):
        anybit.analyze(proto, input_ranges={"z": "uint8"})
    with pytest.raises(OptionError, match="range must be such as"):
        anybit.analyze(proto, input_ranges="8 bits")


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
def test_clipped_is_what_rounds_beyond_the_codes(mode: str) -> None:
    """-2 .. 1: ties go to even numbers, and a value that rounds to the last code is none."""
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
        "UP": lambda each: np.where(each < 0, np.floor(each), np.ceil(each)),
    }[mode](x)
    expected = np.count_nonzero((rounded > 1) | (rounded < -2))
    (layer,) = anybit.analyze(proto, data=x).layers
    assert layer.seen.clipped == expected / len(x)


def test_channels_lie_where_the_layer_has_them() -> None:
    """[N, T, C]: not along axis 1."""
    weight = np.diag(np.float32([1, 1, 0]))
    constants = {"w": weight, "one": 1, "zero": 0, "four": 4, "s": np.float32([1, 2, 1])}
    x = np.random.default_rng(0).integers(-8, 8, (2, 4, 3)).astype(np.float32)
    for scale in ("one", "s"):
        nodes = [
            node("IntQuant", "x one zero four", "p", name="p"),
            node("MatMul", "p w", "m", domain=""),
            node("IntQuant", f"m {scale} zero four", name="q"),
        ]
        (layer,) = anybit.analyze(model(nodes, constants, inputs={"x": [2, 4, 3]}), data=x).layers
        assert (layer.seen.dead, layer.seen.channels) == ((2,), 3)


def test_data() -> None:
    x = np.float32([[0, 1, 7], [0, 5, 7], [1, -3, 7], [1, 0, 7]])
    found = anybit.analyze(clipping(), data=x)
    (layer,) = found.layers
    seen = layer.seen
    assert found.rows == 4
    assert (layer.quantizer, layer.output_codes) == ("q", (0, 1))
    assert (seen.sums, seen.output_codes) == ((-3, 5), (0, 1))
    assert seen.clipped == 1 / 12
    assert (seen.dead, seen.channels) == ((2,), 3)
    assert seen.shares == {0: 8 / 12, 1: 4 / 12}
    within = anybit.analyze(clipping(), input_ranges="int4", data=x).layers[0]
    assert within.guarantee == "exact"
    for given, wrong in (("uint4", "-3"), ("int4*2", "1"), ("-3,5", "7")):
        with pytest.raises(ModelError, match=f"'x' holds {wrong}, which is not in the range"):
            anybit.analyze(clipping(), input_ranges=given, data=x)
    with pytest.raises(DataError, match="must have shape"):
        anybit.analyze(clipping(), data=np.zeros((2, 4)))
    with pytest.raises(ModelError, match="input 'x' holds NaN; leave it out of the data"):
        anybit.analyze(clipping(), data=np.where(x == 5, np.float32(np.nan), x))


def test_what_has_no_layers() -> None:
    found = anybit.analyze(model([node("Relu", "x", domain="")]))
    assert found.layers == ()
    assert found.to_json()["total"]["macs"] == 0
    assert "No Conv" in page(found)


def test_sizes_that_are_declared_only() -> None:
    """A stale shape is not believed: nothing is counted with it."""
    proto, _ = quantized_weight()
    proto.graph.node[1].input[0] = "t"
    proto.graph.node.insert(1, node("Unknown", "x", "t", domain="elsewhere"))
    proto.graph.value_info.append(
        onnx.helper.make_tensor_value_info("t", onnx.TensorProto.FLOAT, [1000, 4])
    )
    (layer,) = anybit.analyze(proto).layers
    assert layer.macs is None


def test_the_page_escapes_names() -> None:
    proto, _ = quantized_weight()
    proto.graph.node[1].name = "<script>alert(1)</script>\n"
    text = page(anybit.analyze(proto, input_ranges="uint8", data=np.ones((1, 4))))
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert text.count("<svg") == text.count("</svg>") >= 1
    for word in ("http-equiv", "Proven and seen", "accumulator, of 32 bits"):
        assert word in text
    assert "src=" not in text
    assert "url(" not in text


def test_the_page_shows_shares() -> None:
    x = np.float32([[0, 1, 7], [0, 5, 7], [1, -3, 7], [1, 0, 7]])
    text = page(anybit.analyze(clipping(), data=x))
    assert "Codes of results" in text
    assert "<title>0: 66.7 %</title>" in text
    assert "<title>1: 33.3 %</title>" in text


@needs_models
@pytest.mark.parametrize("form", ["qdq", "qcdq", "portable"])
@pytest.mark.parametrize("name", ["TFC_2W2A", "kwsmlp_w3a3", "cnv_1w1a"])
def test_other_forms_of_a_model(name: str, form: str) -> None:
    """Stored codes and pairs say the same as the operators; local functions are inlined."""
    path = MODELS / f"{name}.onnx"
    plain = anybit.analyze(path)
    other = anybit.analyze(anybit.convert(path, to=form))
    for one, two in zip(plain.layers, other.layers, strict=True):
        assert (one.accumulator, one.accumulator_bits) == (two.accumulator, two.accumulator_bits)
        assert (one.macs, one.guarantee, one.sparsity) == (two.macs, two.guarantee, two.sparsity)
        assert one.output_codes == two.output_codes
