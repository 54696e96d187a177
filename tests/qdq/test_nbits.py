# SPDX-License-Identifier: Apache-2.0
"""MatMulNBits of ONNX Runtime becomes a quantizer and MatMul."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from nbits_models import ORT, NBits, nbits_model, pack_codes
from onnx import TensorProto, helper
from onnxruntime.quantization import matmul_nbits_quantizer
from pass_checks import random
from qdq_models import Lifted, quantizers
from small_models import kinds, model, node

import anybit
from anybit.errors import ModelError
from anybit.onnx.qdq.qlinear import is_integer_operator

FORMS = ("qonnx", "compact", "standard", "portable", "qdq", "qcdq")
BIAS = np.arange(6, dtype=np.float32)
BASE = NBits()
# K, block size: blocks that fill K and others, one block, one that is longer than K.
SIZES = [(40, 16), (64, 32), (33, 16), (16, 16), (13, 16), (16, 128)]


def run(proto: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    """Run a model in ONNX Runtime, without our library."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, ["CPUExecutionProvider"]
    )
    return session.run(None, {"x": x})[0]


@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("zeropts", [False, True])
@pytest.mark.parametrize(("k", "block"), SIZES)
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_nbits_weights_are_those_of_onnxruntime(
    bits: int, k: int, block: int, zeropts: bool, negative: bool
) -> None:
    weight = NBits(k, bits=bits, block=block, zeropts=zeropts, negative=negative)
    one_hot = np.eye(k, dtype=np.float32)
    for bias in (None, BIAS):
        proto = weight.model(bias)
        expected = (weight.weight + (0 if bias is None else bias)).astype(np.float32)
        np.testing.assert_array_equal(run(proto, one_hot), expected)
        converted = anybit.convert(proto, to="qonnx")
        assert converted.exact
        assert not any(item.domain == ORT for item in converted.model.graph)
        np.testing.assert_array_equal(anybit.load(converted.model).run(one_hot)["y"], expected)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("zeropts", [False, True])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_nbits_all_forms_give_the_same_results(bits: int, zeropts: bool, form: str) -> None:
    weight = NBits(bits=bits, zeropts=zeropts, negative=True)
    proto = weight.model(BIAS)
    # Sums stay below 2^24 of the smallest steps, so that their order does not matter.
    x = np.random.default_rng(1).integers(-8, 9, (9, weight.k)).astype(np.float32)
    expected = (x.astype(np.float64) @ weight.weight + BIAS).astype(np.float32)
    np.testing.assert_array_equal(run(proto, x), expected)
    converted = anybit.convert(proto, to=form)
    assert converted.exact
    assert all(item.domain != ORT for item in converted.model.graph)
    assert ORT not in converted.model.graph.opset_imports
    np.testing.assert_array_equal(anybit.load(converted.model).run(x)["y"], expected)
    if form in ("standard", "qdq", "qcdq"):
        assert {item.domain for item in converted.model.graph} == {""}
        np.testing.assert_array_equal(run(ir.to_proto(converted.model), x), expected)


def test_nbits_quantizers_have_scales_and_zero_points_per_block() -> None:
    weight = NBits(zeropts=True)
    lifted = Lifted(weight.model())
    assert kinds(lifted.model) == ["IntQuant", "Reshape", "Slice", "MatMul"]
    (quantizer,) = quantizers(lifted.model)
    assert quantizer["bitwidth"] == 4
    assert quantizer["signed"] is False
    np.testing.assert_array_equal(quantizer["scale"], weight.scales.T[:, np.newaxis])
    assert weight.zeropts is not None
    np.testing.assert_array_equal(quantizer["zeropt"], weight.zeropts.T[:, np.newaxis])


def test_nbits_quantizers_of_default_zero_points_are_signed() -> None:
    (quantizer,) = quantizers(Lifted(NBits(bits=8).model()).model)
    assert (quantizer["zeropt"], quantizer["bitwidth"], quantizer["signed"]) == (0, 8, True)


def test_nbits_negative_scales_mirror_the_codes_of_their_block() -> None:
    weight = NBits(negative=True)
    (quantizer,) = quantizers(Lifted(weight.model()).model)
    assert (weight.scales < 0).any()
    np.testing.assert_array_equal(quantizer["scale"], abs(weight.scales).T[:, np.newaxis])
    expected = np.where(weight.scales < 0, 7, 8).T[:, np.newaxis]
    np.testing.assert_array_equal(quantizer["zeropt"], expected)


def test_nbits_one_block_is_a_matrix_with_a_scale_per_channel() -> None:
    lifted = Lifted(NBits(16).model(BIAS))
    assert kinds(lifted.model) == ["IntQuant", "MatMul", "Add"]
    (quantizer,) = quantizers(lifted.model)
    assert np.shape(quantizer["scale"]) == (6,)


def test_nbits_scales_of_zero_give_zeros() -> None:
    weight = NBits()
    weight.scales[1, 2] = 0
    weight.scales[2, 1] = -0.0
    one_hot = np.eye(40, dtype=np.float32)
    converted = anybit.convert(weight.model(), to="qonnx")
    actual = anybit.load(converted.model).run(one_hot)["y"]
    np.testing.assert_array_equal(actual, weight.weight)
    np.testing.assert_array_equal(actual, run(weight.model(), one_hot))


@pytest.mark.parametrize(("k", "block"), SIZES)
@pytest.mark.parametrize(("bits", "dtype"), [(2, "uint2"), (4, "uint4"), (8, "uint8")])
def test_nbits_qdq_has_one_dequantize_linear_with_blocks(
    bits: int, dtype: str, k: int, block: int
) -> None:
    weight = NBits(k, bits=bits, block=block, zeropts=True)
    back = anybit.convert(anybit.convert(weight.model(), to="qonnx").model, to="qdq")
    (dequantize,) = (item for item in back.model.graph if item.op_type == "DequantizeLinear")
    codes = dequantize.inputs[0]
    assert codes is not None
    assert codes.const_value is not None
    assert codes.const_value.dtype.name.lower() == dtype
    assert tuple(codes.const_value.shape) == (k, 6)
    arguments = dequantize.attributes.get("block_size")
    assert (arguments is not None and arguments.value) == (block if weight.blocks > 1 else False)
    assert not {"Reshape", "Slice"} & set(kinds(back.model))


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(("bits", "block"), [(4, 32), (4, 128), (8, 32)])
def test_nbits_models_of_onnxruntimes_quantizer(bits: int, block: int, symmetric: bool) -> None:
    """Weights are equal; sums of products differ by their order at most."""
    k, n = 100, 12
    weight = random(k, n, seed=bits)
    nodes = [node("MatMul", "x w", domain="", name="layer")]
    proto = model(nodes, {"w": weight}, inputs={"x": ["rows", k]}, opsets={"": 17})
    tool = matmul_nbits_quantizer.MatMulNBitsQuantizer(
        proto, bits=bits, block_size=block, is_symmetric=symmetric, accuracy_level=1
    )
    tool.process()
    quantized = tool.model.model
    assert [item.op_type for item in quantized.graph.node] == ["MatMulNBits"]
    converted = anybit.load(anybit.convert(quantized, to="qonnx").model)
    one_hot, x = np.eye(k, dtype=np.float32), random(7, k)
    weights = run(quantized, one_hot)
    np.testing.assert_array_equal(converted.run(one_hot)["y"], weights)
    bound = 2 * k * np.finfo(np.float32).eps * (abs(x) @ abs(weights))
    assert np.all(abs(converted.run(x)["y"] - run(quantized, x)) <= bound)


def test_nbits_nodes_that_share_a_weight_share_its_quantizer() -> None:
    proto = NBits(40, 40).model()
    first, second = proto.graph.node[0], onnx.NodeProto()
    second.CopyFrom(first)
    first.output[0], second.input[0], second.name = "t", "t", "again"
    proto.graph.node.append(second)
    lifted = Lifted(proto)
    assert kinds(lifted.model) == ["IntQuant", "Reshape", "Slice", "MatMul", "MatMul"]
    assert [item.name for item in lifted.model.graph][-2:] == ["product", "again"]
    one_hot = np.eye(40, dtype=np.float32)
    np.testing.assert_array_equal(anybit.load(lifted.model).run(one_hot)["y"], run(proto, one_hot))


def test_nbits_nodes_in_branches_are_replaced() -> None:
    weight = NBits()
    proto = weight.model()
    inner = proto.graph.node.pop()
    inner.output[0] = "inner"
    branches = {}
    for name, made in (("then_branch", inner), ("else_branch", onnx.NodeProto())):
        made.CopyFrom(inner)
        made.name = made.output[0] = f"{name}_product"
        result = helper.make_tensor_value_info(made.output[0], TensorProto.FLOAT, None)
        branches[name] = helper.make_graph([made], name, [], [result])
    proto.graph.node.append(helper.make_node("If", ["c"], ["y"], name="if", **branches))
    proto.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    converted = anybit.convert(proto, to="qonnx")
    assert [step.action for step in converted.steps] == ["IntQuant and MatMul"] * 2
    one_hot = np.eye(40, dtype=np.float32)
    for taken in (True, False):
        actual = anybit.load(converted.model).run({"x": one_hot, "c": np.asarray(taken)})["y"]
        np.testing.assert_array_equal(actual, weight.weight)


def test_nbits_models_without_standard_operators_get_an_opset() -> None:
    proto = NBits().model()
    del proto.opset_import[0]
    for form in FORMS:
        converted = anybit.convert(proto, to=form)
        assert converted.model.graph.opset_imports[""] >= 13
        onnx.checker.check_model(ir.to_proto(anybit.convert(proto, to="standard").model), True)


def test_nbits_results_of_old_opsets() -> None:
    """Before opset 10 Slice has no inputs."""
    whole = NBits(32)
    for weight, action in ((BASE, "kept"), (whole, "IntQuant and MatMul")):
        proto = nbits_model(weight.tensors, weight.sizes, opset=9)
        (step,) = anybit.convert(proto, to="qonnx").steps
        assert step.action == action


CODES = [
    *("MatMulNBits", "MatMulBnb4", "MatMulFpQ4", "GatherBlockQuantized", "MatMulIntegerToFloat"),
    *("DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "MatMulInteger16", "MulInteger", "QMoE"),
    *("QGemm", "QLinearAdd", "QLinearConv", "QAttention", "QOrderedMatMul", "QOrderedGelu"),
    *("QEmbedLayerNormalization", "MatMulNBitsMlp", "QuantizeWithOrder"),
]
FLOATS = ["QuickGelu", "Gelu", "FusedMatMul", "Attention", "MatMulPacked", "MoE", "Range"]


@pytest.mark.parametrize("name", [*CODES, *FLOATS])
def test_nbits_operators_on_codes_are_known_by_name(name: str) -> None:
    assert is_integer_operator(ir.Node(ORT, name, [])) == (name in CODES)
    assert not is_integer_operator(ir.Node("mine", name, []))


# ---- nodes that stay ------------------------------------------------------------------------


def changed(
    replaced: dict[str, np.ndarray | None] | None = None, **attributes: Any
) -> onnx.ModelProto:
    """Return the model of BASE with other tensors and attributes; None drops one."""
    tensors = {**BASE.tensors, **(replaced or {})}
    kept = {name: array for name, array in tensors.items() if array is not None}
    sizes = {**BASE.sizes, **attributes}
    arguments = {name: value for name, value in sizes.items() if value is not None}
    return nbits_model(kept, arguments, shape=["rows", 40])


def as_input(name: str) -> onnx.ModelProto:
    """Return the model of BASE with an input instead of one of its tensors."""
    proto = changed({"z": pack_codes(np.zeros((6, 3), np.int64), 4)})
    tensor = next(tensor for tensor in proto.graph.initializer if tensor.name == name)
    value = helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims))
    proto.graph.input.append(value)
    proto.graph.initializer.remove(tensor)
    return proto


def half_bias() -> onnx.ModelProto:
    return changed({"bias": BIAS.astype(np.float16)})


HUGE = 2**62
KEPT = [
    (lambda: changed({"g": np.zeros(40, np.int32)}), "g_idx"),
    (lambda: changed(bits=3), "bits is 3"),
    (lambda: changed(bits=-4), "bits is -4"),
    (lambda: changed(block_size=0), "block_size is 0"),
    (lambda: changed(block_size=-16), "block_size is -16"),
    (lambda: changed(block_size=24), "block_size is 24"),
    (lambda: changed(block_size=None), "block_size is 0"),
    (lambda: changed(block_size=HUGE), r"B has shape \[6, 3, 8\]"),
    (lambda: changed(K=0), "K is 0"),
    (lambda: changed(N=-6), "N is -6"),
    (lambda: changed(K=HUGE), r"B has shape \[6, 3, 8\], but K = 4611686018427387904"),
    (lambda: changed(N=HUGE), r"B has shape \[6, 3, 8\]"),
    (lambda: changed(N=5), r"N = 5.* give \[5, 3, 8\]"),
    (lambda: changed(K=41), "the last axis of A has 40 elements, but K is 41"),
    (lambda: changed(bits=8), r"give \[6, 3, 16\]"),
    (lambda: changed({"b": np.zeros((0, 3, 8), np.uint8)}), r"B has shape \[0, 3, 8\]"),
    (lambda: changed({"b": np.zeros((6, 24), np.uint8)}), r"B has shape \[6, 24\]"),
    (lambda: changed({"b": BASE.tensors["b"].view(np.int8)}), "B is int8"),
    (lambda: changed({"b": None}), "B is missing"),
    (lambda: changed({"s": None}), "scales are missing"),
    (lambda: changed({"s": np.ones(17, np.float32)}), r"scales has shape \[17\]"),
    (lambda: changed({"s": np.ones((3, 6), np.float32)}), r"scales has shape \[3, 6\]"),
    (lambda: changed({"s": np.ones((6, 3), np.float64)}), "scales are double"),
    (lambda: changed({"s": np.full((6, 3), np.inf, np.float32)}), "not finite"),
    (lambda: changed({"s": np.full((6, 3), np.nan, np.float32)}), "not finite"),
    (lambda: changed({"z": np.zeros((6, 3), np.uint8)}), r"zero_points has shape \[6, 3\]"),
    (lambda: changed({"z": np.zeros((6, 3), np.int32)}), "zero-points are int32"),
    (lambda: changed({"bias": np.zeros(1, np.float32)}), r"bias does not have the shape \[6\]"),
    (lambda: changed({"bias": np.zeros((2, 6), np.float32)}), r"bias does not have the shape"),
    (half_bias, "its bias is float16"),
    (lambda: changed(weight_prepacked=1), "weight_prepacked"),
    (lambda: changed(other=1), "attribute other"),
    (lambda: as_input("b"), "B is not constant"),
    (lambda: as_input("s"), "scales are not constant"),
    (lambda: as_input("z"), "zero-points are not constant"),
]


@pytest.mark.parametrize(("make", "reason"), KEPT, ids=[reason for _, reason in KEPT])
def test_nbits_other_nodes_stay_with_their_reason(make: Any, reason: str) -> None:
    proto = make()
    for allowed in (False, True):
        lifted = Lifted(proto, allow_approximate=allowed)
        (step,) = lifted.steps
        assert (step.operator, step.action, step.exact) == ("MatMulNBits", "kept", True)
        with pytest.raises(AssertionError, match=reason):
            raise AssertionError(step.reason)
        assert kinds(lifted.model) == ["MatMulNBits"]
        assert len(lifted.model.graph.initializers) == len(proto.graph.initializer)


def test_nbits_attributes_of_other_types_are_errors() -> None:
    with pytest.raises(ModelError, match=r"'product' \(MatMulNBits\): K must be an integer"):
        anybit.convert(changed(K="40"), to="qonnx")


def test_nbits_standard_form_keeps_them_with_both_reasons() -> None:
    converted = anybit.convert(changed({"g": np.zeros(40, np.int32)}), to="standard")
    (step,) = converted.steps
    assert step.operator == "com.microsoft::MatMulNBits"
    assert "its runtime must have it; its channels are reordered by g_idx" in step.reason
    assert "operators of other domains stay: 1 com.microsoft::MatMulNBits" in converted.remarks


@pytest.mark.parametrize(
    ("make", "remedy"),
    [
        (BASE.model, r"convert it first \(anybit convert --to qonnx\)"),
        (lambda: changed(accuracy_level=4), "convert --to qonnx --allow-approximate"),
        (lambda: changed(weight_prepacked=1), r"quantize the float model .*anybit quantize\)"),
    ],
)
def test_nbits_compile_names_the_remedy(make: Any, remedy: str) -> None:
    with pytest.raises(ModelError, match=rf"'product' \(MatMulNBits\) computes .*{remedy}"):
        anybit.compile(make())


def test_nbits_models_with_nodes_that_stay_are_not_called_unquantized() -> None:
    converted = anybit.convert(changed(accuracy_level=4), to="qonnx")
    assert not any("no quantizers" in remark for remark in converted.remarks)


# ---- nodes whose values change --------------------------------------------------------------


def half() -> onnx.ModelProto:
    weight = NBits(zeropts=True)
    tensors = {**weight.tensors, "s": weight.scales.astype(np.float16)}
    return nbits_model({**tensors, "bias": BIAS.astype(np.float16)}, weight.sizes)


INEXACT = [
    (lambda: changed(accuracy_level=2), "to float16"),
    (lambda: changed(accuracy_level=3), "to bfloat16"),
    (lambda: changed(accuracy_level=4), "to int8"),
    (lambda: changed(accuracy_level=9), "accuracy_level 9"),
    (lambda: changed(accuracy_level=-1), "accuracy_level -1"),
    (lambda: changed({"z": np.full((6, 3), 7.5, np.float32)}), "zero-points that are floats"),
    (half, "in float16"),
]


@pytest.mark.parametrize(("make", "reason"), INEXACT, ids=[reason for _, reason in INEXACT])
def test_nbits_inexact_nodes_are_replaced_where_that_is_allowed(make: Any, reason: str) -> None:
    proto = make()
    kept = Lifted(proto)
    (step,) = kept.steps
    assert (step.action, step.exact) == ("kept", True)
    assert reason in step.reason
    assert "--allow-approximate" in step.reason
    assert kinds(kept.model) == ["MatMulNBits"]
    x = np.random.default_rng(2).integers(-4, 5, (5, 40)).astype(np.float32)
    for form in FORMS:
        converted = anybit.convert(proto, to=form, allow_approximate=True)
        assert not converted.exact
        assert not any(item.domain == ORT for item in converted.model.graph)
        assert reason in converted.steps[0].reason
        half_input = proto.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT16
        arguments = x.astype(np.float16) if half_input else x
        actual, expected = anybit.load(converted.model).run(arguments)["y"], run(proto, arguments)
        assert actual.dtype == expected.dtype
        # int8 rounds inputs of up to 4 by half of 4 / 127; the results of float16 by less.
        rows = np.eye(41, 40, dtype=arguments.dtype)  # the last row gives the bias
        columns = anybit.load(converted.model).run(rows)["y"].astype(np.float64)
        bound = 4 / 127 * abs(columns[:-1] - columns[-1]).sum(axis=0)
        assert np.all(abs(actual.astype(np.float64) - expected) <= bound)


def test_nbits_weights_without_quantizer_stay() -> None:
    """Convert a scale of 0, which has zeros regardless of the zero-point."""
    proto = changed({"z": np.full((6, 3), 7.5, np.float32), "s": np.zeros((6, 3), np.float32)})
    (step,) = Lifted(proto, allow_approximate=True).steps
    assert (step.action, step.reason) == ("kept", "no quantizer has all of its weights")


@pytest.mark.parametrize("scale", [1e-45, 1e-40, 1e-30, 1e30, 2e37, 3e38])
def test_nbits_extreme_scales_keep_all_weights(scale: float) -> None:
    proto = changed({"s": np.full((6, 3), scale, np.float32)})
    one_hot = np.eye(40, dtype=np.float32)
    codes = BASE.codes.reshape(6, -1)[:, :40].T - 8
    with np.errstate(over="ignore"):
        expected = codes.astype(np.float32) * np.float32(scale)
    converted = anybit.convert(proto, to="standard")
    (weight,) = converted.model.graph.initializers.values()
    assert weight.const_value is not None
    np.testing.assert_array_equal(weight.const_value.numpy(), expected)
    if np.isfinite(expected).all():
        np.testing.assert_array_equal(anybit.load(converted.model).run(one_hot)["y"], expected)


@pytest.mark.parametrize("level", [0, 1])
def test_nbits_levels_of_float32_are_exact(level: int) -> None:
    assert anybit.convert(changed(accuracy_level=level), to="qonnx").exact
