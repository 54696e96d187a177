# SPDX-License-Identifier: Apache-2.0
"""Layers that stay float32 for a reason, with unchanged results."""

import numpy as np
import onnx
import pytest
from onnx import helper
from pass_checks import random
from small_models import model, node
from text_models import FOUR, QUANTIZED, parse_lines, random_rows, random_weights

import anybit
from anybit import ModelError
from anybit.compiler.partition import data_movement
from anybit.compiler.program import program as p


def equal(proto: onnx.ModelProto, x: np.ndarray | dict[str, np.ndarray]) -> anybit.CompiledModel:
    compiled = anybit.compile(proto)
    np.testing.assert_array_equal(compiled.run(x)["y"], anybit.load(proto).run(x)["y"])
    return compiled


def reasons(compiled: anybit.CompiledModel) -> set[str]:
    return {layer.reason for layer in compiled.report.layers if layer.guarantee is None}


@pytest.mark.parametrize("to", [2, 3, 6, 7, 9])
def test_compile_leaves_casts_to_integers(to):
    """Cast numbers beyond the integers; 0 is a gap among the booleans."""
    proto = parse_lines(
        f"a = Cast(x) to={to}\nc = Cast(a) to=1\nq = Quant(c, s, z, b)\ny = MatMul(q, w)",
        {**QUANTIZED, "w": random_weights(4, 3)},
        (4,),
    )
    equal(proto, np.array([[0, 1, -1, 2], [0.3, -0.3, 100, 1.75]], np.float32))


@pytest.mark.parametrize("exponents", [(60, 64), (-75, -75), (100, 100)])
def test_accumulators_refuse_subnormal_sums(exponents):
    """Infinities and zeros come up in the float graph that integers know nothing of."""
    x_scale, w_scale = (np.float32(2.0**exponent) for exponent in exponents)
    proto = parse_lines(
        "q = Quant(x, xs, z, b)\na = MatMul(q, w)\ny = Quant(a, one, z, b)",
        {**QUANTIZED, "xs": x_scale, "w": random_weights(4, 6) * w_scale},
        (4,),
    )
    x = np.random.default_rng(0).integers(-8, 8, (9, 4)).astype(np.float32) * x_scale
    (reason,) = reasons(equal(proto, x))
    assert "numbers of float32" in reason


def test_accumulators_allow_tiny_scales_of_zero_channels():
    """Quantizers give what is 0 in a channel the smallest scale that there is."""
    w, scales = random_weights(4, 6), np.full(6, 0.125, np.float32)
    w[:, 2], scales[2] = 0, np.finfo(np.float32).tiny
    lines = "v = Quant(w, ws, z, b)\na = Gemm(q, v, c)\ny = Quant(a, one, z, b)"
    constants = {**QUANTIZED, "w": w, "ws": scales, "c": np.linspace(-3, 3, 6, dtype="f")}
    proto = parse_lines(f"{FOUR}\n{lines}", constants, (4,))
    compiled = equal(proto, random_rows(proto, 9))
    assert compiled.report.coverage == "1 of 1 layer, 100 % of MACs"
    assert not reasons(compiled)
    w[1, 2] = scales[2]
    (reason,) = reasons(
        equal(parse_lines(f"{FOUR}\n{lines}", constants, (4,)), random_rows(proto, 9))
    )
    assert "below the normal numbers" in reason


def test_accumulators_refuse_bias_per_row():
    proto = parse_lines(
        f"{FOUR}\na = Gemm(q, w, c)\ny = Quant(a, one, z, b)",
        {**QUANTIZED, "w": random_weights(4, 6), "c": np.linspace(-9, 9, 6, dtype="f")[:, None]},
        (4,),
    )
    assert reasons(equal(proto, random_rows(proto, 6))) == {
        "its bias is not one number per channel"
    }


def test_accumulators_refuse_dilated_mean():
    proto = parse_lines(
        f"{FOUR}\np = AveragePool(q) kernel_shape=[2,2] dilations=[2,2]\ny = Quant(p, s, z, b)",
        QUANTIZED,
        (4, 6, 6),
    )
    proto.opset_import[0].version = 19
    equal(proto, random_rows(proto))


def test_partition_does_not_pair_different_rows():
    proto = parse_lines(
        "q = Quant(x, s, z, b)\nr = Quant(u, s, z, b)\na = Add(q, r)\ny = Quant(a, one, z, b)",
        QUANTIZED,
        (4,),
    )
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 3
    proto.graph.input.append(helper.make_tensor_value_info("u", 1, [1, 4]))
    x = np.arange(12, dtype=np.float32).reshape(3, 4) / 4
    equal(proto, {"x": x, "u": -x[1:2]})


def call_batch(proto: onnx.ModelProto, name: str | None) -> None:
    batch = proto.graph.input[0].type.tensor_type.shape.dim[0]
    batch.Clear()
    if name is not None:
        batch.dim_param = name


@pytest.mark.parametrize("names", [("n", "m"), ("n", None), (None, None)])
def test_partition_does_not_pair_two_free_batches(names):
    """Add one row to all rows, which no region does."""
    proto = parse_lines(
        "q = Quant(x, s, z, b)\nr = Quant(u, s, z, b)\na = Add(q, r)\n"
        "c = Quant(a, one, z, b)\ny = MatMul(c, w)",
        {**QUANTIZED, "w": random_weights(4, 6)},
        (4,),
    )
    proto.graph.input.append(helper.make_tensor_value_info("u", 1, [names[1], 4]))
    call_batch(proto, names[0])
    x = np.arange(12, dtype=np.float32).reshape(3, 4) / 4
    equal(proto, {"x": x, "u": -x[1:2]})


@pytest.mark.parametrize("batch", ["n", None])
def test_partition_pairs_rows_of_one_input(batch):
    proto = parse_lines(
        "q = Quant(x, s, z, b)\nr = Reshape(q, sizes)\nm = MatMul(r, w)\np = Quant(m, s, z, b)\n"
        "a = Add(p, q)\ny = Quant(a, one, z, b)",
        {**QUANTIZED, "w": random_weights(4, 4), "sizes": np.array([-1, 4])},
        (4,),
    )
    call_batch(proto, batch)
    assert equal(proto, random_rows(proto)).report.coverage.startswith("1 of 1 layer")


@pytest.mark.parametrize(
    ("line", "constants"),
    [
        ("p = Tile(q, many)", {"many": np.array([1, 1, 2**20, 2**18])}),
        ("p = Tile(q, many)", {"many": np.array([2**40, 1, 1, 1])}),
        ("p = Resize(q, roi, scales)", {"scales": np.float32([1, 1, 2**19, 2**19])}),
        ("p = Resize(q, roi, scales)", {"scales": np.float32([2**38, 1, 1, 1])}),
        ("p = Pad(q, pads)", {"pads": np.array([0, 0, 0, 0, 2**40, 0, 0, 0])}),
        ("p = Pad(q, pads)", {"pads": np.array([0, 0, 0, 0, 0, 0, 2**30, 0])}),
    ],
)
def test_trace_elements_refuses_huge_tensors(line, constants, monkeypatch):
    monkeypatch.setattr(data_movement, "evaluate", None)
    proto = parse_lines(
        f"q = Quant(x, s, z, b)\n{line}\na = Conv(p, w)\ny = Quant(a, one, z, b)",
        {**QUANTIZED, **constants, "roi": np.float32([]), "w": random_weights(3, 4, 1, 1)},
        (4, 2, 2),
    )
    (region,) = anybit.compile(proto).report.programs or (None,)
    assert region is None or not any(isinstance(item, p.Gather) for item in region.instructions)


@pytest.mark.parametrize(
    ("line", "size"),
    [
        ("y = Conv(q, w) pads=[1,1,1,1]", 100_000),
        ("y = Conv(q, w) pads=[1000000,1000000,1000000,1000000]", 8),
        ("y = Conv(q, w) dilations=[2147483648,1] pads=[2147483648,0,2147483648,0]", 8),
        ("y = GlobalAveragePool(q)", 20_000),
    ],
)
def test_row_shapes_refuse_huge_rows(line, size):
    constants = {**QUANTIZED, "w": random_weights(4, 4, 3, 3)}
    proto = parse_lines(f"q = Quant(x, s, z, b)\n{line}", constants, (4, size, size))
    report = anybit.compile(proto).report
    assert all(layer.guarantee is None for layer in report.layers)


def test_compile_supports_negative_scales():
    """Use a negative scale: the largest value is the smallest code."""
    proto = parse_lines(
        "q = Quant(x, s, z, b)\nc = Conv(q, w)\nm = MaxPool(c) kernel_shape=[2,2]\n"
        "n = BipolarQuant(m, negative)\na = Identity(n)\nt = Quant(a, s, z, b)\ny = Conv(t, v)",
        {
            **QUANTIZED,
            "negative": np.float32(-0.5),
            "w": random_weights(4, 3, 3, 3),
            "v": random_weights(2, 4, 1, 1),
        },
        (3, 8, 8),
    )
    equal(proto, np.random.default_rng(0).standard_normal((5, 3, 8, 8)).astype(np.float32) * 2)


def test_legalize_reports_unsupported_layouts():
    proto = parse_lines(
        f"{FOUR}\na = Gemm(q, w) alpha=2.0\ny = Quant(a, one, z, b)",
        {**QUANTIZED, "w": random_weights(4, 6)},
        (4,),
    )
    assert reasons(equal(proto, random_rows(proto, 6))) == {
        "Gemm with alpha=2.0: only 1 is supported"
    }


def test_compile_leaves_nodes_without_evaluation():
    """Report slopes that do not fit, as `load` does."""
    proto = parse_lines(
        f"{FOUR}\nc = Conv(q, w)\nd = PRelu(c, slopes)\ny = Quant(d, one, z, b)",
        {**QUANTIZED, "w": random_weights(6, 4, 1, 1), "slopes": np.ones((5, 1, 1), np.float32)},
        (4, 3, 3),
    )
    for item in (anybit.load(proto), anybit.compile(proto)):
        with pytest.raises(anybit.ModelError, match=r"cannot be run: .* PRelu node"):
            item.run(random_rows(proto))


def test_compile_leaves_mean_of_moved_pair():
    proto = parse_lines(
        "q = Quant(x, s, z, b)\nr = MatMul(q, w)\nt = Quant(r, s, z, b)\na = Add(q, t)\n"
        "v = Reshape(a, sizes)\ny = ReduceMean(v) axes=[-1]",
        {**QUANTIZED, "w": random_weights(8, 8), "sizes": np.array([0, 2, 4])},
        (8,),
    )
    equal(proto, random_rows(proto))


def test_fix_shapes_sets_free_sizes() -> None:
    """Leave layers of dynamic sizes, and count them once the sizes are fixed."""
    constants = {
        "scale": 0.5,
        "zero": 0,
        "bits": 4,
        "w": random(4, 3, 3, 3, seed=1),
        "v": random(2, 4, 1, 1, seed=2),
    }
    quantize = "scale zero bits"
    nodes = [
        node("Quant", f"x {quantize}", "xq", name="of_x"),
        node("Quant", f"w {quantize}", "wq", name="of_w"),
        node("Conv", "xq wq", "a", domain="", name="first"),
        node("Quant", f"a {quantize}", "aq", name="of_a"),
        node("Quant", f"v {quantize}", "vq", name="of_v"),
        node("Conv", "aq vq", domain="", name="second"),
    ]
    proto = model(nodes, constants, inputs={"x": ["rows", 3, "height", "width"]})
    free = anybit.compile(proto)
    assert free.report.coverage == (
        "0 of 2 layers, 0 % of MACs (not counting 2 layers of unknown sizes)"
    )
    undeclared = onnx.ModelProto()
    undeclared.CopyFrom(proto)
    undeclared.graph.input[0].type.tensor_type.ClearField("shape")
    for item, shape in [(proto, "x=1,3,224,224"), (undeclared, "x=1,3,224,224")]:
        result = anybit.compile(item).report
        assert result.has_dynamic_sizes
        assert {layer.reason for layer in result.layers} == {
            "its shape is unknown at compile time: input sizes are dynamic; give sizes such as "
            f"--shape {shape}"
        }
        actual = anybit.compile(item, shapes={"x": (1, 3, 7, 9)})
        assert actual.report.coverage == "2 of 2 layers, 100 % of MACs"
        assert not actual.report.has_dynamic_sizes
    actual = anybit.compile(proto, shapes={"x": (1, 3, 7, 9)})
    x = random(2, 3, 7, 9, seed=3)
    np.testing.assert_array_equal(actual.run(x)["y"], anybit.load(proto).run(x)["y"])
    assert list(actual.model.graph.inputs[0].shape)[1:] == [3, 7, 9]
    assert not isinstance(actual.model.graph.inputs[0].shape[0], int), "any number of rows"
    two_rows = anybit.compile(proto, shapes={"x": (2, 3, 7, 9)})
    assert list(two_rows.model.graph.inputs[0].shape) == [2, 3, 7, 9]
    small = anybit.compile(proto, shapes={"x": (1, 3, 1, 1)}).report.layers
    assert "the sizes before it are too small" in " ".join(item.reason for item in small)
    for shapes, words in [
        ({"x": (1, 4, 7, 9)}, "does not fit"),
        ({"x": (1, 3, 0, 9)}, "integers from 1 on"),
        ({"x": (1, 3, "height", 9)}, "integers from 1 on"),
        ({"x": (1, 3, 7.0, 9)}, "integers from 1 on"),
        ({"x": (1, 3, 7)}, "does not fit"),
        ({"z": (1, 3, 7, 9)}, "z is not an input"),
    ]:
        with pytest.raises(anybit.OptionError, match=words):
            anybit.compile(proto, shapes=shapes)


def test_compile_reports_model_without_quantizers() -> None:
    plain = [node("MatMul", "x w", "a", domain=""), node("Relu", "a", domain="")]
    proto = model(plain, {"w": random(4, 3)}, opsets={"": 17})
    for options in ({}, {"input_ranges": "uint8"}):
        with pytest.raises(ModelError, match=r"no quantizers.*anybit quantize"):
            anybit.compile(proto, **options)
    with pytest.raises(ModelError, match=r"no operator on codes.*product: .*reach 255"):
        anybit.compile(_multiplied_as_integers())


def _multiplied_as_integers() -> onnx.ModelProto:
    constants = {
        "s": np.float32(0.5),
        "z": np.uint8(0),
        "w": np.full((4, 3), 255, np.uint8),
    }
    nodes = [
        node("QLinearMatMul", "x s z w s z s z", domain="", name="product"),
    ]
    made = model(nodes, {}, opsets={"": 17})
    made.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(item), name) for name, item in constants.items()
    )
    for value in (*made.graph.input, *made.graph.output):
        value.type.tensor_type.elem_type = onnx.TensorProto.UINT8
    return made
