# SPDX-License-Identifier: Apache-2.0
"""DynamicDequantize in models: a dequantizer of integers, in every form."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_models import kinds

import anybit
from anybit import ModelError
from anybit.onnx.graph.walk import iter_nodes
from anybit.onnx.passes import Normalize, RemoveQuantizers
from anybit.onnx.quantizers.quantizer import find_own_quantizer, find_quantizer
from anybit.onnx.quantizers.trace import Traces

F32, NAN, INF = np.float32, np.nan, np.inf
EVERY = {dtype: np.arange(256).astype(dtype).reshape(64, 4) for dtype in (np.int8, np.uint8)}
SCALES, STRANGE = F32([0.3, 1, 2.5, 0.1]), F32([NAN, INF, -0.7, 0.0])


def dequantizer(
    parameters: dict[str, np.ndarray],
    dtype: Any = np.int8,
    *,
    computed: Sequence[str] = (),
    codes: np.ndarray | None = None,
    shape: Any = ("n", 4),
    **attributes: Any,
) -> onnx.ModelProto:
    """src -> DynamicDequantize -> y. `computed` parameters, and src without `codes`, are inputs."""
    inputs = [] if codes is not None else [("src", np.dtype(dtype), shape)]
    inputs += [(name, parameters[name].dtype, parameters[name].shape) for name in computed]
    stored = {name: item for name, item in parameters.items() if name not in computed}
    stored |= {} if codes is None else {"src": codes}
    names = ["src", *parameters]
    node = helper.make_node("DynamicDequantize", names, ["y"], "dd", domain="anybit", **attributes)
    graph = helper.make_graph(
        [node],
        "graph",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(kind), sizes)
            for name, kind, sizes in inputs
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )
    imports = {"": 13, "anybit": 1}
    opsets = [helper.make_opsetid(*opset) for opset in imports.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def pair(zps: np.ndarray | None = None) -> onnx.ModelProto:
    """x -> DynamicQuantize -> codes -> DynamicDequantize -> y."""
    proto = dequantizer({"scales": SCALES} | ({} if zps is None else {"zps": zps}))
    node = proto.graph.node[0]
    node.input[0] = "codes"
    node.attribute.append(helper.make_attribute("qtype", "per_channel"))
    before = helper.make_node(
        "DynamicQuantize", ["src", *node.input[1:]], ["codes"], "dq", domain="anybit"
    )
    before.attribute.append(helper.make_attribute("qtype", "per_channel"))
    proto.graph.node.insert(0, before)
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT
    return proto


def run(model: ir.Model, feeds: dict[str, np.ndarray]) -> np.ndarray:
    """Return the result of ONNX Runtime with default options, without the operator library."""
    content = ir.to_proto(model).SerializeToString()
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(content, providers=providers)
    names = {get_input.name for get_input in session.get_inputs()}
    return session.run(None, {name: item for name, item in feeds.items() if name in names})[0]


def same(actual: np.ndarray, expected: np.ndarray) -> None:
    """Equal numbers; NaN equals NaN."""
    assert actual.dtype == expected.dtype == F32
    np.testing.assert_array_equal(actual, expected)


CALLS: dict[str, tuple[dict[str, np.ndarray], dict[str, Any]]] = {
    "per_tensor": ({"scales": F32([0.3])}, {}),
    "per_tensor_zps": ({"scales": F32([0.3]), "zps": np.int32([100])}, {}),
    "zps_s8": ({"scales": F32([0.3]), "zps": np.int8([-5])}, {}),
    "zero_zps": ({"scales": F32([0.3]), "zps": np.uint8([0])}, {}),
    "per_channel": ({"scales": SCALES}, {"qtype": "per_channel"}),
    "per_channel_zps": (
        {"scales": SCALES, "zps": np.int32([0, 1, 127, 99])},
        {"qtype": "per_channel", "axis": -1},
    ),
    "strange": ({"scales": STRANGE, "zps": np.int8([3, 0, 1, 2])}, {"qtype": "per_channel"}),
}
LARGE = {"scales": F32([0.3]), "zps": np.int32([2**24 + 5])}


@pytest.mark.parametrize("computed", [(), ("scales",)], ids=["constant", "computed"])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("call", CALLS)
def test_dequantizers_become_dequantize_linear(call: str, dtype: Any, computed: Any) -> None:
    parameters, attributes = CALLS[call]
    if call == "zps_s8" and dtype is np.uint8:
        parameters = {**parameters, "zps": np.uint8([250])}
    proto = dequantizer(parameters, dtype, computed=computed, **attributes)
    feeds = {"src": EVERY[dtype], **parameters}
    expected = anybit.dynamic_dequantize(*feeds.values(), **attributes)
    for form in ("qdq", "qcdq"):
        converted = anybit.convert(proto, to=form)
        reshapes = ["Reshape"] * bool(computed and not attributes)
        assert kinds(converted.model) == [*reshapes, "DequantizeLinear"]
        assert all(step.exact for step in converted.steps)
        same(run(converted.model, feeds), expected)
    assert not anybit.check(proto, "qdq") or call == "strange"  # each check reports these


@pytest.mark.parametrize("computed", [(), ("scales",), ("zps",), ("scales", "zps")], ids=str)
@pytest.mark.parametrize("form", ["standard", "portable"])
@pytest.mark.parametrize("call", [*CALLS, "large"])
def test_dequantizers_standard_operators_are_exact(call: str, form: str, computed: Any) -> None:
    """Zero-points beyond 2**24 are subtracted as they are, and the difference rounded once."""
    parameters, attributes = CALLS[call] if call != "large" else (LARGE, {})
    computed = [name for name in computed if name in parameters]
    feeds = {"src": EVERY[np.int8], **parameters}
    expected = anybit.dynamic_dequantize(*feeds.values(), **attributes)
    proto = dequantizer(parameters, computed=computed, **attributes)
    converted = anybit.convert(proto, to=form)
    assert not {node.domain for node in iter_nodes(converted.model.graph)} - {""}
    assert "DequantizeLinear" not in kinds(converted.model)
    same(run(converted.model, feeds), expected)
    arguments = {name: feeds[name] for name in ("src", *computed)}
    same(anybit.load(proto).run(arguments)["y"], expected)


@pytest.mark.parametrize(
    ("zps", "dtype", "computed", "reason"),
    [
        (np.int32([128]), np.int8, (), r"zero-point 128 is not int8, the type of x"),
        (np.int8([-1]), np.uint8, (), r"zero-point -1 is not uint8, the type of x"),
        (np.int32([2**24 + 5]), np.int8, (), r"zero-point 16777221 is not int8"),
        (np.int32([3]), np.int8, ("zps",), r"computed when the model runs, as int32"),
        (np.int8([3]), np.uint8, ("zps",), r"computed when the model runs, as int8"),
    ],
)
def test_dequantizers_other_zero_points_become_standard_operators(
    zps: np.ndarray, dtype: Any, computed: Any, reason: str
) -> None:
    """DequantizeLinear has zero-points of the type of its codes."""
    parameters = {"scales": F32([0.3]), "zps": zps}
    proto = dequantizer(parameters, dtype, computed=computed)
    converted = anybit.convert(proto, to="qdq")
    assert "DequantizeLinear" not in kinds(converted.model)
    (step,) = converted.steps
    assert step.action == "standard operators"
    assert re.search(reason, step.reason)
    feeds = {"src": EVERY[dtype], **parameters}
    same(run(converted.model, feeds), anybit.dynamic_dequantize(*feeds.values()))
    actual = [
        finding.code for finding in set(anybit.check(proto, "qdq")) - set(anybit.check(proto))
    ]
    assert actual == ["not-expressible"]


@pytest.mark.parametrize(("attributes", "opset"), [({}, 10), ({"qtype": "per_channel"}, 13)])
def test_dequantizers_opset_is_lifted_as_far_as_channels_need(attributes: Any, opset: int) -> None:
    """Before opset 13 DequantizeLinear has one scale."""
    parameters = {"scales": SCALES if attributes else SCALES[:1]}
    proto = dequantizer(parameters, **attributes)
    proto.opset_import[0].version = 10
    converted = anybit.convert(proto, to="qdq")
    assert kinds(converted.model) == ["DequantizeLinear"]
    assert converted.model.graph.opset_imports[""] == opset
    if attributes:
        limited = anybit.convert(proto, to="qdq", opset_limit=12)
        assert "opset 13" in limited.steps[0].reason
        assert "DequantizeLinear" not in kinds(limited.model)


def test_dequantizers_computed_zero_points_of_the_type_of_the_codes() -> None:
    parameters = {"scales": SCALES, "zps": np.int8([1, 2, 3, -128])}
    proto = dequantizer(parameters, computed=["zps"], qtype="per_channel")
    converted = anybit.convert(proto, to="qdq")
    assert kinds(converted.model) == ["DequantizeLinear"]
    feeds = {"src": EVERY[np.int8], **parameters}
    same(
        run(converted.model, feeds),
        anybit.dynamic_dequantize(*feeds.values(), qtype="per_channel"),
    )


@pytest.mark.parametrize("form", ["qdq", "compact"])
def test_dequantizers_stored_codes_stay_codes(form: str) -> None:
    codes = EVERY[np.int8]
    proto = dequantizer({"scales": SCALES}, codes=codes, qtype="per_channel")
    expected = anybit.dynamic_dequantize(codes, SCALES, qtype="per_channel")
    converted = anybit.convert(proto, to=form).model
    assert kinds(converted) == ["DequantizeLinear"]
    stored = {value.const_value.dtype.name for value in converted.graph.initializers.values()}
    assert stored == {"INT8", "FLOAT"}
    same(run(converted, {}), expected)
    same(run(anybit.convert(proto, to="standard").model, {}), expected)
    same(anybit.load(proto).run({})["y"], expected)


@pytest.mark.parametrize("form", ["qdq", "standard", "portable"])
@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize(
    ("parameters", "attributes", "message"),
    [
        ({"scales": SCALES}, {}, r"scales must have shape \(1,\) for per_tensor, got \(4,\)"),
        ({"scales": SCALES[:3]}, {"qtype": "per_channel"}, r"scales must have shape \(4,\)"),
        ({"scales": SCALES}, {"qtype": "per_channel", "axis": 2}, "axis must be in"),
        ({"scales": SCALES[:1]}, {"axis": 7}, r"axis must be in \[-2, 1\] for src of rank 2"),
        ({"scales": SCALES}, {"qtype": "per_group"}, "qtype must be per_tensor or per_channel"),
        ({"scales": np.ones(1)}, {}, "scales must be float32, got dtype float64"),
        ({"scales": SCALES[:1], "zps": np.int64([1])}, {}, "zps must be int8, uint8 or int32"),
    ],
    ids=["many", "few", "axis", "unused_axis", "qtype", "float64", "int64"],
)
def test_dequantizers_bad_parameters_are_refused(
    parameters: Any, attributes: Any, message: str, stored: bool, form: str
) -> None:
    codes = EVERY[np.int8] if stored else None
    proto = dequantizer(parameters, codes=codes, **attributes)
    with pytest.raises(ModelError, match=rf"dd.*{message}"):
        anybit.convert(proto, to=form)


@pytest.mark.parametrize("dtype", [np.int16, np.float32])
def test_dequantizers_codes_of_other_types_are_refused(dtype: Any) -> None:
    proto = dequantizer({"scales": F32([0.3])}, dtype)
    with pytest.raises(ModelError, match=f"src must be int8 or uint8, got.*{np.dtype(dtype)}"):
        anybit.convert(proto, to="qdq")
    findings = anybit.check(dequantizer({"scales": F32([0.3])}, dtype, shape=[3, 4]))
    assert any("src must be int8 or uint8" in finding.problem for finding in findings)


def test_dequantizers_pair_returns_its_values_in_every_form() -> None:
    x = np.append(np.linspace(-400, 400, 63), [NAN]).astype(F32).reshape(16, 4)
    for zps in (None, np.int8([3, 0, -128, 127])):
        proto = pair(zps)
        parameters = (SCALES,) if zps is None else (SCALES, zps)
        codes = anybit.dynamic_quantize(x, *parameters, qtype="per_channel")
        expected = anybit.dynamic_dequantize(codes, *parameters, qtype="per_channel")
        same(anybit.load(proto).run({"src": x})["y"], expected)
        for form in ("standard", "portable", "qdq"):
            converted = anybit.convert(proto, to=form)
            assert ("DequantizeLinear" in kinds(converted.model)) == (form == "qdq")
            same(run(converted.model, {"src": x}), expected)


def test_dequantizers_result_is_typed_and_no_other_type() -> None:
    proto = dequantizer({"scales": SCALES[:1]})
    proto.graph.output[0].ClearField("type")
    model = ir.from_proto(proto)
    assert Normalize()(model).modified
    assert model.graph.outputs[0].dtype == ir.DataType.FLOAT
    proto.graph.output[0].type.tensor_type.elem_type = TensorProto.INT8
    with pytest.raises(ModelError, match=r"dd.*makes 'y' FLOAT, but the model declares INT8"):
        anybit.convert(proto, to="standard")


def test_dequantizers_are_not_quantizers() -> None:
    model = ir.from_proto(pair())
    Normalize()(model)
    quantize, dequantize = model.graph
    assert find_quantizer(quantize, Traces()) is not None
    assert find_quantizer(dequantize, Traces()) is None
    actual = find_own_quantizer(dequantize)
    assert actual is not None
    assert actual.operator.is_dequantizer
    assert [operator.name for operator in anybit.ops.OPERATORS if operator.is_dequantizer] == [
        "dynamic_dequantize"
    ]


def test_dequantizers_no_float_takes_its_place() -> None:
    """RemoveQuantizers leaves what gives and what reads codes: one is nothing without the other."""
    model = ir.from_proto(pair())
    Normalize()(model)
    assert not RemoveQuantizers()(model).modified
    assert kinds(model) == ["DynamicQuantize", "DynamicDequantize"]


def test_dequantizers_info_shows_the_codes_that_it_reads() -> None:
    zps = np.uint8([128])
    (actual,) = anybit.inspect(
        dequantizer({"scales": SCALES[:1], "zps": zps}, np.uint8), layers=False
    ).summary.quantizers
    assert (actual.operator, actual.role, actual.bits, actual.type) == (
        *("DynamicDequantize", "input", "8"),
        "",
    )
    assert actual.zero_point is not None
    assert actual.zero_point.largest == 128
    proto = dequantizer({"scales": SCALES}, codes=EVERY[np.int8], qtype="per_channel")
    summary = anybit.inspect(proto, layers=False).summary
    assert summary.weights == {"src": "int8[64, 4]"}
    assert summary.quantizers[0].role == "weight"
    assert summary.quantizers[0].constant


@pytest.mark.parametrize("target", ["finn", "hls4ml"])
def test_dequantizers_hardware_compilers_have_no_dequantizer(target: str) -> None:
    findings = anybit.check(dequantizer({"scales": SCALES[:1]}, shape=[1, 4]), target)
    assert any("has no DynamicDequantize" in finding.problem for finding in findings)


def test_dequantizers_checks_of_its_parameters() -> None:
    def codes(**parameters: Any) -> list[str]:
        return [finding.code for finding in anybit.check(dequantizer(parameters))]

    assert codes(scales=F32([0.3])) == []
    assert codes(scales=F32([INF])) == ["not-finite"]
    assert codes(scales=F32([0.0])) == ["scale-not-positive"]
    assert codes(scales=F32([0.3]), zps=np.int32([255])) == []
    assert codes(scales=F32([0.3]), zps=np.int32([256])) == ["zero-point-off-range"]
    (finding,) = anybit.check(dequantizer({"scales": F32([0.0])}))
    assert "makes all values 0" in finding.problem
    assert codes(scales=SCALES, zps=np.int8([1])) == ["bad-shape"]
    assert codes(scales=F32([0.3]), zps=np.int16([1])) == ["bad-type", "bad-shape", "schema"]


def test_dequantizers_step_of_its_values_is_its_scale() -> None:
    codes = EVERY[np.int8]
    ours = dequantizer({"scales": SCALES}, qtype="per_channel")
    other = dequantizer({"scales": SCALES * F32([1, 1, 1.5, 1])}, qtype="per_channel")
    actual = anybit.diff(ours, other, inputs={"src": codes})
    assert not actual.equal
    assert kinds(anybit.convert(ours, to="qdq").model) == ["DequantizeLinear"]
    assert anybit.diff(ours, anybit.convert(ours, to="qdq").model, inputs={"src": codes}).equal


QONNX = "qonnx.custom_op.general"


def layer(scales: np.ndarray, zps: np.ndarray | None = None, **attributes: Any) -> onnx.ModelProto:
    """x -> IntQuant -> MatMul with dequantized codes -> IntQuant -> y."""
    codes = np.random.default_rng(0).integers(-128, 128, (8, 4)).astype(np.int8)
    parameters = {"scales": scales} | ({} if zps is None else {"zps": zps})
    proto = dequantizer(parameters, codes=codes, **attributes)
    graph = proto.graph
    graph.node[0].output[0] = "weights"
    for name, value in {"s": F32(0.5), "t": F32(64), "z": F32(0), "b": F32(8)}.items():
        graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    graph.node.extend(
        [
            helper.make_node("IntQuant", ["x", "s", "z", "b"], ["q"], "first", domain=QONNX),
            helper.make_node("MatMul", ["q", "weights"], ["m"], "mm"),
            helper.make_node("IntQuant", ["m", "t", "z", "b"], ["y"], "last", domain=QONNX),
        ]
    )
    graph.input.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8]))
    proto.opset_import.append(helper.make_opsetid(QONNX, 1))
    return proto


@pytest.mark.parametrize(
    ("scales", "zps", "attributes"),
    [
        (F32([0.25]), None, {}),
        (F32([0.25]), np.int8([-7]), {}),
        (F32([0.5, 1, 2, 0.25]), None, {"qtype": "per_channel"}),
        (F32([0.5, 1, 2, 0.25]), np.int32([0, 5, -128, 127]), {"qtype": "per_channel"}),
    ],
    ids=["scale", "zero_point", "channels", "zero_points"],
)
def test_dequantizers_stored_codes_are_multiplied_on_integers(
    scales: Any, zps: Any, attributes: Any
) -> None:
    proto = layer(scales, zps, **attributes)
    (product,) = anybit.inspect(proto).layers
    assert product.layer.guarantee == "exact"
    assert product.layer.weight_bits == 8
    x = np.random.default_rng(1).normal(0, 30, (50, 8)).astype(F32)
    expected = anybit.load(proto).run({"x": x})["y"]
    compiled = anybit.compile(proto)
    # No kernel has zero-points per channel of weights.
    several = zps is not None and zps.size > 1
    assert kinds(compiled.model) == (
        ["IntQuant", "MatMul", "IntQuant"] if several else ["IntegerNetwork"]
    )
    same(compiled.run({"x": x})["y"], expected)


@pytest.mark.parametrize("scale", [-0.25, 0.0, INF, NAN])
def test_dequantizers_codes_with_strange_scales_are_constants_of_floats(scale: float) -> None:
    proto = layer(F32([scale]))
    x = np.random.default_rng(1).normal(0, 30, (50, 8)).astype(F32)
    expected = anybit.load(proto).run({"x": x})["y"]
    anybit.inspect(proto)
    same(anybit.compile(proto).run({"x": x})["y"], expected)
