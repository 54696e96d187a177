# SPDX-License-Identifier: Apache-2.0
"""MultiThreshold of QONNX: run, converted and compiled, against a count of thresholds."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from small_models import DOMAIN, kinds, model, node

import anybit
from anybit.comparison.sides.runners import capture
from anybit.errors import ModelError
from anybit.onnx.checks.checking import check
from anybit.onnx.conversion import convert

RNG = np.random.default_rng(7)
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, 3.4e38, -3.4e38], np.float32)


def counted(x: np.ndarray, thresholds: np.ndarray, axis: int, scale: float, bias: float):
    """Compute a MultiThreshold one threshold after the other, in the type of the thresholds."""
    shape = [1] * x.ndim
    shape[axis] = -1
    counts = np.zeros(x.shape, np.float32)
    for column in np.broadcast_to(thresholds, (x.shape[axis], thresholds.shape[1])).T:
        counts += x >= column.reshape(shape)
    return counts * np.float32(scale) + np.float32(bias)


def thresholded(thresholds: np.ndarray, shape: list[Any], opset: int = 13, **options: Any):
    made = node("MultiThreshold", "x t", out_dtype="INT8", **options)
    opsets = {"": opset, made.domain: 1}
    return model([made], {"t": thresholds}, inputs={"x": shape}, opsets=opsets)


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 7, 15, 100, 255])
@pytest.mark.parametrize("channels", [1, 6])
def test_multi_threshold_counts_the_thresholds_that_x_reaches(steps: int, channels: int) -> None:
    thresholds = np.sort(RNG.normal(size=(channels, steps)).astype(np.float32), axis=1)
    thresholds[0, 0] = 0
    x = RNG.normal(size=(3, 6, 5, 4)).astype(np.float32)
    x[0, :, 0, 0] = thresholds[:, steps // 2]  # equal to a threshold
    x[1].reshape(-1)[: len(SPECIAL)] = SPECIAL
    proto = thresholded(thresholds, ["N", 6, 5, 4], out_scale=0.3, out_bias=-1.7)
    expected = counted(x, thresholds, 1, 0.3, -1.7)
    np.testing.assert_array_equal(anybit.load(proto).run({"x": x})["y"], expected)


def test_multi_threshold_sorts_thresholds_and_skips_nan() -> None:
    thresholds = np.array([[3, 1, np.nan, 2], [np.inf, -np.inf, 0, 0]], np.float32)
    x = np.broadcast_to(np.append(SPECIAL, np.float32([1, 2, 2.5, 3])), (2, 12)).T.copy()
    proto = thresholded(thresholds, ["N", 2])
    expected = counted(x, thresholds, 1, 1, 0)
    np.testing.assert_array_equal(anybit.load(proto).run({"x": x})["y"], expected)


def test_multi_threshold_rounds_thresholds_of_float64_up() -> None:
    one = np.nextafter(1.0, 2.0)  # float32 has no number between 1 and its neighbour
    thresholds = np.array([[1e-60, one, 1.0, 1e300]])
    near = np.nextafter(np.float32(1), np.float32(2))
    x = np.float32([[0, 1e-45, 1, near, np.inf, -1]])
    proto = thresholded(thresholds, [1, 6])
    expected = counted(x.astype(np.float64), thresholds, 1, 1, 0)
    np.testing.assert_array_equal(anybit.load(proto).run({"x": x})["y"], expected)


@pytest.mark.parametrize(
    ("layout", "shape", "axis"),
    [
        ("NHWC", (2, 3, 4, 5), 3),
        ("NCHW", (2, 3, 4, 5), 1),
        ("", (2, 3, 4, 5), 1),
        ("", (2, 3, 4), 2),  # which QONNX takes for NWC
        ("NCW", (2, 3, 4), 1),
        ("", (2, 3), 1),
        ("", (2, 3, 4, 5, 6), 1),
    ],
)
def test_multi_threshold_finds_channels_where_qonnx_does(
    layout: str, shape: tuple[int, ...], axis: int
) -> None:
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.core.onnx_exec import execute_onnx

    thresholds = np.sort(RNG.normal(size=(shape[axis], 3)).astype(np.float32), axis=1)
    x = RNG.normal(size=shape).astype(np.float32)
    options = {"data_layout": layout} if layout else {}
    proto = thresholded(thresholds, list(shape), **options)
    proto.graph.output[0].CopyFrom(
        onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, shape)
    )
    ours = anybit.load(proto).run({"x": x})["y"]
    np.testing.assert_array_equal(ours, counted(x, thresholds, axis, 1, 0))
    np.testing.assert_array_equal(ours, execute_onnx(ModelWrapper(proto), {"x": x})["y"])


@pytest.mark.parametrize("layout", ["NHWC", "NCHW", "NC"])
def test_multi_threshold_of_rows_has_channels_at_axis_1_in_any_layout(layout: str) -> None:
    thresholds = np.sort(RNG.normal(size=(3, 3)).astype(np.float32), axis=1)
    x = RNG.normal(size=(5, 3)).astype(np.float32)
    proto = thresholded(thresholds, ["N", 3], data_layout=layout)
    np.testing.assert_array_equal(
        anybit.load(proto).run({"x": x})["y"], counted(x, thresholds, 1, 1, 0)
    )


@pytest.mark.parametrize("form", ["load", "standard", "compile"])
def test_multi_threshold_takes_the_rank_of_its_result(form: str) -> None:
    thresholds = np.sort(RNG.normal(size=(4, 3)).astype(np.float32), axis=1)
    x = RNG.normal(size=(1, 4, 3, 4)).astype(np.float32)
    proto = thresholded(thresholds, [1])
    for value, shape in ((proto.graph.input[0], None), (proto.graph.output[0], x.shape)):
        info = onnx.helper.make_tensor_value_info(value.name, onnx.TensorProto.FLOAT, shape)
        value.CopyFrom(info)
    source = convert(proto, to="standard").model if form == "standard" else proto
    model = anybit.compile(source) if form == "compile" else anybit.load(source)
    np.testing.assert_array_equal(model.run({"x": x})["y"], counted(x, thresholds, 1, 1, 0))


@pytest.mark.parametrize("made_by", ["Constant", "Identity", "Cast"])
@pytest.mark.parametrize("runner", ["anybit", "onnxruntime", "reference", "compiled"])
def test_multi_threshold_takes_thresholds_that_nodes_make_of_constants(
    made_by: str, runner: str
) -> None:
    thresholds = np.sort(RNG.integers(-3, 3, size=(4, 3)).astype(np.float32), axis=1)
    x = RNG.normal(size=(1, 4, 3, 4)).astype(np.float32)
    tensor = onnx.numpy_helper.from_array(thresholds)
    constants: dict[str, np.ndarray] = {}
    match made_by:
        case "Constant":
            first = node("Constant", "", "t", domain="", value=tensor)
        case "Cast":
            constants["stored"] = thresholds.astype(np.int8)
            first = node("Cast", "stored", "t", domain="", to=onnx.TensorProto.FLOAT)
        case _:
            constants["stored"] = thresholds
            first = node(made_by, "stored", "t", domain="")
    proto = model([first, node("MultiThreshold", "x t")], constants, inputs={"x": [1, 4, 3, 4]})
    actual = capture(runner, ir.from_proto(proto), {"x": x}, "model")["y"]
    np.testing.assert_array_equal(actual, counted(x, thresholds, 1, 1, 0))
    assert not check(proto)


def test_a_function_named_multi_threshold_stands_for_the_operator() -> None:
    proto = thresholded(np.float32([[0, 1]]), [1, 4])
    body = [onnx.helper.make_node("Identity", ["a"], ["b"])]
    opsets = [onnx.helper.make_opsetid("", 13)]
    function = onnx.helper.make_function(DOMAIN, "MultiThreshold", ["a", "t"], ["b"], body, opsets)
    proto.functions.append(function)
    x = np.float32([[-1, 0, 0.5, 2]])
    np.testing.assert_array_equal(anybit.load(proto).run({"x": x})["y"], [[0, 1, 1, 2]])


def network(opset: int = 11, domain: str = DOMAIN) -> onnx.ModelProto:
    """Layers as FINN's files have them: integers for weights, thresholds for activations."""
    rng = np.random.default_rng(3)
    constants = {
        "t0": np.sort(rng.normal(size=(1, 15)), axis=1).astype(np.float32) * 2,
        "w1": rng.integers(-2, 2, (8, 3, 3, 3)).astype(np.float32),
        "t1": np.sort(rng.integers(-60, 60, (8, 7)), axis=1).astype(np.float32),
        "w2": rng.integers(-7, 8, (12, 8, 1, 1)).astype(np.float32),
        "t2": np.sort(rng.normal(size=(12, 1)) * 20, axis=1).astype(np.float32),
        "w3": rng.choice([-1.0, 1.0], (12, 5)).astype(np.float32),
        "scale": np.float32(0.37),
    }

    def thresholds(inputs: str, output: str, **options: Any) -> onnx.NodeProto:
        return node("MultiThreshold", inputs, output, domain=domain, name=output, **options)

    nodes = [
        thresholds("x t0", "a0", out_dtype="UINT4"),
        node("Conv", "a0 w1", "c1", domain="", name="conv1", pads=[1, 1, 1, 1]),
        thresholds("c1 t1", "a1", out_dtype="INT4", out_bias=-4.0),
        node("Conv", "a1 w2", "c2", domain="", name="conv2"),
        thresholds("c2 t2", "a2", out_dtype="BIPOLAR", out_scale=2.0, out_bias=-1.0),
        node("GlobalMaxPool", "a2", "pooled", domain=""),
        node("Flatten", "pooled", "flat", domain=""),
        node("MatMul", "flat w3", "sums", domain=""),
        node("Mul", "sums scale", domain=""),
    ]
    inputs: dict[str, list[int | str]] = {"x": ["N", 3, 8, 8]}
    return model(nodes, constants, inputs=inputs, opsets={"": opset, domain: 1})


def images() -> np.ndarray:
    x = np.random.default_rng(5).normal(size=(4, 3, 8, 8)).astype(np.float32) * 2
    x[0].reshape(-1)[: len(SPECIAL)] = SPECIAL
    return x


def reference(proto: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.core.onnx_exec import execute_onnx
    from qonnx.transformation.infer_shapes import InferShapes

    fixed = onnx.ModelProto()
    fixed.CopyFrom(proto)
    fixed.graph.input[0].type.tensor_type.shape.dim[0].dim_value = len(x)
    wrapped = ModelWrapper(fixed).transform(InferShapes())
    return np.asarray(execute_onnx(wrapped, {"x": x})["y"])


@pytest.mark.parametrize("form", ["qonnx", "compact", "standard", "portable", "qdq", "qcdq"])
def test_convert_multi_threshold_exactly(form: str) -> None:
    proto, x = network(), images()
    converted = convert(proto, to=form)
    kept = form in ("qonnx", "compact")
    assert converted.exact
    assert not converted.remarks
    assert ("MultiThreshold" in kinds(converted.model)) == kept
    assert [step.action for step in converted.steps] == ["standard operators"] * (0 if kept else 3)
    result = anybit.load(converted.model).run({"x": x})["y"]
    np.testing.assert_array_equal(result, reference(proto, x))
    if not kept:
        assert {item.domain for item in converted.model.graph} == {""}


@pytest.mark.parametrize("domain", [DOMAIN, "finn.custom_op.general"])
def test_compile_runs_networks_of_multi_threshold_on_integers(domain: str) -> None:
    proto, x = network(domain=domain), images()
    compiled = anybit.compile(proto)
    assert [str(layer.guarantee) for layer in compiled.report.layers] == ["exact"] * 3
    assert kinds(compiled.model) == ["IntegerNetwork"]
    expected = reference(network(), x)
    np.testing.assert_array_equal(compiled.run({"x": x})["y"], expected)


@pytest.mark.parametrize(("scale", "bias"), [(0.3, -1.7), (-0.25, 0.5), (0.1, 0.0), (-1.0, 0.0)])
def test_compile_keeps_values_of_scaled_multi_threshold(scale: float, bias: float) -> None:
    rng = np.random.default_rng(11)
    x = rng.normal(size=(6, 4)).astype(np.float32)
    nodes = [
        node("MultiThreshold", "x t", "a", out_scale=scale, out_bias=bias, out_dtype="INT4"),
        node("MatMul", "a w", "s", domain="", name="dense"),
        node("MultiThreshold", "s u", "y", name="last", out_scale=scale, out_dtype="INT4"),
    ]
    constants = {
        "t": np.sort(rng.normal(size=(4, 7)), axis=1).astype(np.float32),
        "w": rng.integers(-3, 4, (4, 5)).astype(np.float32),
        "u": np.sort(rng.normal(size=(5, 15)) * 3, axis=1).astype(np.float32),
    }
    proto = model(nodes, constants, inputs={"x": ["N", 4]})
    expected = anybit.load(proto).run({"x": x})["y"]
    compiled = anybit.compile(proto)
    np.testing.assert_array_equal(compiled.run({"x": x})["y"], expected)
    saved = compiled.model
    assert "MultiThreshold" not in kinds(saved)


BAD = {
    "computed": (
        model(
            [node("Neg", "x", "t", domain=""), node("MultiThreshold", "x t", name="m")],
            inputs={"x": [1, 4]},
        ),
        "thresholds are computed",
    ),
    "rank": (thresholded(np.zeros(4, np.float32), [1, 4]), r"shape \[4\]"),
    "empty": (thresholded(np.zeros((4, 0), np.float32), [1, 4]), r"shape \[4, 0\]"),
    "channels": (thresholded(np.zeros((3, 2), np.float32), [1, 4]), "3 channels.*4 elements"),
    "layout": (
        thresholded(np.zeros((4, 2), np.float32), [1, 2, 4], data_layout="NHWC"),
        "'NHWC' has its channels at axis 3, but x has 3 axes",
    ),
    "text": (thresholded(np.array([["a"]]), [1, 4]), "str|type|numbers"),
    "large": (thresholded(np.array([[2**60]]), [1, 4]), r"exceed 2\^53"),
    "inputs": (model([node("MultiThreshold", "x")]), "must have 2 inputs"),
    "scale": (thresholded(np.zeros((1, 2), np.float32), [1, 4], out_scale="2"), "out_scale must"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_multi_threshold_is_refused(case: str) -> None:
    proto, message = BAD[case]
    with pytest.raises(ModelError, match=message):
        anybit.load(proto)
    with pytest.raises(ModelError):
        convert(proto, to="standard")
    assert any(finding.code == "bad-thresholds" for finding in check(proto)), check(proto)


def test_check_warns_of_multi_threshold_with_infinite_results() -> None:
    table = np.zeros((1, 2), np.float32)
    for scale in (np.inf, np.nan, 3e38):
        (finding,) = check(thresholded(table, [1, 4], out_scale=float(scale)))
        assert (finding.severity, finding.code) == ("warning", "result-not-finite")


def test_multi_threshold_other_operators_of_qonnx_are_refused_by_name() -> None:
    for name in ("XnorPopcountMatMul", "QuantAvgPool2d", "Im2Col"):
        proto = model([node(name, "x")])
        with pytest.raises(ModelError, match=f"not known: {DOMAIN}::{name}".replace(".", r"\.")):
            anybit.load(proto)


@pytest.mark.parametrize("target", ["standard", "qdq", "onnxruntime"])
def test_check_multi_threshold_for_targets(target: str) -> None:
    actual = [finding.code for finding in check(network(opset=13), target)]
    assert actual == (["operator"] if target == "onnxruntime" else [])


def test_quantize_refuses_models_of_multi_threshold() -> None:
    with pytest.raises(ModelError, match="quantizers already"):
        anybit.quantize(network())
