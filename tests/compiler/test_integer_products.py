# SPDX-License-Identifier: Apache-2.0
"""Compiled MatMulInteger and ConvInteger on dynamic codes, against plain ONNX Runtime, in bits."""

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from small_models import model_of_floats

import anybit
from anybit.compiler.compiled import CompiledModel
from anybit.compiler.pipeline import find_regions
from anybit.compiler.rewrite.regions import replace_regions
from anybit.compiler.selection import LeftRegion
from anybit.errors import ModelError
from anybit.inspection.collect import report_compilation
from anybit.inspection.text import describe_conclusion
from anybit.onnx.preparation import prepare_for_analysis
from anybit.quant_types.layer_info import Guarantee

ON_X86 = platform.machine() in ("x86_64", "AMD64")
QUANTIZER = helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"])
# ONNX Runtime saturates sums of two products of uint8 and int8 on CPUs without VNNI.
REDUCED = range(-64, 64)
SCALE = np.float32(0.0123)


def make_product(
    weights: np.ndarray,
    zero: Any = None,
    scale: Any = SCALE,
    x: Sequence[int | str] = ("n", 24),
    opset: int = 17,
) -> onnx.ModelProto:
    """Return relu(dynamic product + bias), as quantize_dynamic writes it."""
    constants = {"w": weights, "t": scale, "b": np.linspace(-3, 3, weights.shape[1])}
    constants["b"] = constants["b"].astype(np.float32)
    inputs = ["q", "w", "z"]
    if zero is not None:
        constants["wz"] = zero
        inputs.append("wz")
    nodes = [
        QUANTIZER,
        helper.make_node("Mul", ["s", "t"], ["st"]),
        helper.make_node("MatMulInteger", inputs, ["i"], name="layer"),
        helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["f", "st"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["a"]),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    return model_of_floats(nodes, constants, x, [*x[:-1], weights.shape[1]], opset)


def make_weights(
    dtype: Any, shape: Sequence[int] = (24, 17), codes: range | None = None
) -> np.ndarray:
    info = np.iinfo(dtype)
    codes = range(info.min, info.max + 1) if codes is None else codes
    return np.random.default_rng(0).integers(codes[0], codes[-1] + 1, shape).astype(dtype)


def run_plain(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def compile_all(model: onnx.ModelProto) -> CompiledModel:
    compiled = anybit.compile(model, guarantee="exact")
    assert compiled.report.share == 1, [layer.reason for layer in compiled.report.layers]
    return compiled


def assert_same_bits(actual: np.ndarray, expected: np.ndarray) -> None:
    """Compare bits; all NaNs are equal, and so are zeros."""
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    np.testing.assert_array_equal(actual, expected, strict=True)


def quantize(x: np.ndarray) -> tuple[np.ndarray, np.float32, np.float32]:
    """Return the codes less their zero-point, the scale and the zero-point of ONNX's formula."""
    low, high = np.minimum(x.min(), 0), np.maximum(x.max(), 0)
    scale = np.float32(1) if low == high else np.float32((high - low) / np.float32(255))
    zero = np.rint(np.clip(np.float32(0) - low / scale, 0, 255))
    return np.clip(np.rint(x / scale), -zero, 255 - zero), scale, zero


def compute_product(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    """Return the results of `make_product` in NumPy."""
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    codes, scale, _ = quantize(x)
    weights = constants["w"].astype(np.int64) - constants.get("wz", np.int64(0)).astype(np.int64)
    sums = (codes.astype(np.int64) @ weights).astype(np.float32)
    with np.errstate(over="ignore"):
        return np.asarray(np.maximum(sums * (scale * constants["t"]) + constants["b"], 0))


def make_inputs(shape: Sequence[int]) -> list[np.ndarray]:
    """Return usual tensors, constant ones, of one sign, tiny and huge ones, and ties."""
    x = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    ties = (np.arange(x.size) % 511 - 200).reshape(shape).astype(np.float32) / 2
    ties.ravel()[:2] = -101, 154  # a range of 255: the scale is 1, and the zero-point is odd
    return [
        *(x, np.abs(x), -np.abs(x), ties, x * np.float32(1e-30), x * np.float32(1e37)),
        *(np.full(shape, value, np.float32) for value in (0, -0.0, 2.5, -1e-3)),
    ]


KINDS = {
    "int8": (make_weights(np.int8, codes=REDUCED), None),
    "int8 with zero-points": (
        make_weights(np.int8, codes=REDUCED),
        make_weights(np.int8, (17,), range(-20, 20)),
    ),
    "uint8 without zero-point": (make_weights(np.uint8), None),
    "uint8": (make_weights(np.uint8), np.uint8(131)),
    "uint8 per channel": (make_weights(np.uint8), make_weights(np.uint8, (17,))),
    "uint8 of 7 bits": (make_weights(np.uint8, codes=range(128)), np.uint8(64)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("opset", [11, 17])
def test_matmul_integer_has_the_bits_of_plain_onnxruntime(
    kind: str, per_channel: bool, opset: int
) -> None:
    weights, zero = KINDS[kind]
    scale = np.linspace(0.01, 0.7, 17) if per_channel else np.float64(0.0123)
    model = make_product(weights, zero, scale.astype(np.float32), opset=opset)
    compiled = compile_all(model)
    assert compiled.report.guarantees == {Guarantee.EXACT: 1}
    for rows in (1, 40):
        for x in make_inputs((rows, 24)):
            expected = run_plain(model, x)
            assert_same_bits(compiled.run(x)["y"], expected)
            assert_same_bits(compute_product(model, x), expected)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("seed", range(5))
def test_matmul_integer_has_the_bits_of_the_definition(dtype: Any, seed: int) -> None:
    random = np.random.default_rng(seed)
    inner, outer = (int(size) for size in random.integers(2, 200, 2))
    info = np.iinfo(dtype)
    zero = random.integers(info.min, info.max + 1, outer).astype(dtype)
    scale = random.uniform(1e-4, 1, outer).astype(np.float32)
    model = make_product(make_weights(dtype, (inner, outer)), zero, scale, ("n", inner))
    compiled = compile_all(model)
    for x in make_inputs((int(random.integers(1, 30)), inner)):
        assert_same_bits(compiled.run(x)["y"], compute_product(model, x))


@pytest.mark.skipif(not ON_X86, reason="ONNX Runtime orders NaN otherwise on other CPUs")
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 5, 23])
def test_nan_and_infinity_are_those_of_plain_onnxruntime(value: float, place: int) -> None:
    model = make_product(*KINDS["uint8"])
    x = make_inputs((3, 24))[0]
    x[1, place] = value
    assert_same_bits(compile_all(model).run(x)["y"], run_plain(model, x))


@pytest.mark.parametrize("kind", ["int8", "uint8"])
def test_no_rows(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "fast.onnx"
    compile_all(make_product(*KINDS[kind])).save(file)
    session = anybit.onnxruntime.session(file)
    (y,) = session.run(None, {"x": np.zeros((0, 24), np.float32)})
    assert y.shape == (0, 17)


@pytest.mark.parametrize("shape", [("n", 3, 24), (2, 3, 24), ("n", "t", 24), ("n", "t", 2, 24)])
@pytest.mark.parametrize("per_channel", [False, True])
def test_positions_are_rows_where_sizes_are_free(
    shape: Sequence[int | str], per_channel: bool
) -> None:
    scale = np.linspace(0.01, 0.7, 17) if per_channel else np.float64(0.0123)
    model = make_product(*KINDS["uint8"], scale.astype(np.float32), shape)
    compiled = compile_all(model)
    sizes = [5 if size == "t" else 2 if isinstance(size, str) else size for size in shape]
    for x in make_inputs(sizes):
        assert_same_bits(compiled.run(x)["y"], run_plain(model, x))


def make_convolution(
    weights: np.ndarray, zero: Any, sizes: Sequence[int] = (9, 8), **attributes: Any
) -> onnx.ModelProto:
    outer, channels = len(weights), weights.shape[1] * attributes.get("group", 1)
    bias = np.linspace(-3, 3, outer).astype(np.float32).reshape(-1, *([1] * len(sizes)))
    nodes = [
        QUANTIZER,
        helper.make_node("Mul", ["s", "t"], ["st"]),
        helper.make_node("ConvInteger", ["q", "w", "z", "wz"], ["i"], name="c", **attributes),
        helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["f", "st"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["y"]),
    ]
    constants = {"w": weights, "wz": zero, "t": np.float32(0.02), "b": bias}
    x = ["n", channels, *sizes]
    return model_of_floats(nodes, constants, x, ["n", outer, *(f"y{i}" for i in range(len(sizes)))])


@pytest.mark.parametrize(
    ("shape", "attributes"),
    [
        ((6, 4, 3, 3), {"pads": [1, 1, 1, 1]}),
        ((6, 4, 3, 3), {"pads": [0, 1, 2, 1], "strides": [2, 1]}),
        ((6, 4, 3, 2), {"dilations": [2, 3]}),
        ((6, 4, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
        ((6, 4, 1, 1), {}),
        ((6, 2, 3, 3), {"group": 2, "pads": [1, 1, 1, 1]}),
        ((6, 1, 3, 3), {"group": 6, "pads": [1, 1, 1, 1]}),
    ],
)
@pytest.mark.parametrize("zero", [128, 117])
def test_conv_integer_has_the_bits_of_plain_onnxruntime(
    shape: Sequence[int], attributes: Mapping[str, Any], zero: int
) -> None:
    model = make_convolution(make_weights(np.uint8, shape), np.uint8(zero), **attributes)
    compiled = compile_all(model)
    channels = shape[1] * attributes.get("group", 1)
    for x in make_inputs((3, channels, 9, 8)):
        assert_same_bits(compiled.run(x)["y"], run_plain(model, x))


def test_conv_integer_of_one_axis() -> None:
    weights = make_weights(np.uint8, (6, 4, 5))
    model = make_convolution(weights, np.uint8(99), (20,), pads=[2, 2])
    compiled = compile_all(model)
    for x in make_inputs((3, 4, 20)):
        assert_same_bits(compiled.run(x)["y"], run_plain(model, x))


def test_products_of_one_tensor_share_its_codes() -> None:
    nodes, constants = [QUANTIZER], {}
    for name, dtype in (("a", np.uint8), ("b", np.int8)):
        constants[f"w{name}"] = make_weights(dtype, codes=range(50))
        nodes += [
            helper.make_node("MatMulInteger", ["q", f"w{name}", "z"], [f"i{name}"]),
            helper.make_node("Cast", [f"i{name}"], [f"f{name}"], to=TensorProto.FLOAT),
            helper.make_node("Mul", [f"f{name}", "s"], [f"m{name}"]),
        ]
    nodes.append(helper.make_node("Sub", ["ma", "mb"], ["y"]))
    model = model_of_floats(nodes, constants, ("n", 24), ("n", 17))
    compiled = compile_all(model)
    (program,) = compiled.report.programs
    names = [type(at).__name__ for at in program.instructions]
    assert (names.count("DynamicQuantize"), names.count("Product")) == (1, 2)
    for x in make_inputs((5, 24)):
        assert_same_bits(compiled.run(x)["y"], run_plain(model, x))


@pytest.mark.parametrize("opset", [11, 17])
def test_fused_operators_have_the_bits_of_plain_onnxruntime(opset: int) -> None:
    weights, zero = KINDS["uint8 per channel"]
    scale = np.linspace(0.01, 0.7, 17).astype(np.float32)
    constants = {"w": weights, "t": scale, "wz": zero, "b": scale}
    fused = helper.make_node(
        "DynamicQuantizeMatMul", ["x", "w", "t", "wz", "b"], ["y"], domain="com.microsoft"
    )
    inputs = ["q", "w", "s", "t", "z", "wz", "b"]
    parts = helper.make_node("MatMulIntegerToFloat", inputs, ["y"], domain="com.microsoft")
    for nodes in ([fused], [QUANTIZER, parts]):
        model = model_of_floats(nodes, constants, ("n", 24), ("n", 17), opset)
        compiled = compile_all(model)
        for x in make_inputs((5, 24)):
            assert_same_bits(compiled.run(x)["y"], run_plain(model, x))


def edit(model: onnx.ModelProto, node: str, place: int, value: str) -> onnx.ModelProto:
    """Return the model with another input of the first node of an operator."""
    (reader, *_) = (n for n in model.graph.node if n.op_type == node)
    reader.input[place] = value
    return model


def make_stored_codes() -> onnx.ModelProto:
    model = edit(make_product(*KINDS["int8"]), "MatMulInteger", 0, "stored")
    codes = make_weights(np.uint8, (5, 24))
    model.graph.initializer.append(numpy_helper.from_array(codes, "stored"))
    return model


def make_other_zero() -> onnx.ModelProto:
    model = edit(make_product(*KINDS["int8"]), "MatMulInteger", 2, "other")
    model.graph.initializer.append(numpy_helper.from_array(np.uint8(3), "other"))
    return model


def make_computed_weights() -> onnx.ModelProto:
    model = edit(make_product(make_weights(np.uint8, (24, 24))), "MatMulInteger", 1, "q")
    del model.graph.initializer[0]
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 24
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 24
    return model


def make_read_sums() -> onnx.ModelProto:
    model = make_product(*KINDS["int8"])
    sums = helper.make_tensor_value_info("i", TensorProto.INT32, ["n", 17])
    model.graph.output.append(sums)
    return model


def make_double_sums() -> onnx.ModelProto:
    model = make_product(*KINDS["int8"])
    (cast,) = (node for node in model.graph.node if node.op_type == "Cast")
    cast.attribute[0].i, cast.output[0] = TensorProto.DOUBLE, "d"
    back = helper.make_node("Cast", ["d"], ["f"], to=TensorProto.FLOAT)
    model.graph.node.insert(list(model.graph.node).index(cast) + 1, back)
    return model


def make_batch_of_matrices() -> onnx.ModelProto:
    weights = make_weights(np.int8, (2, 24, 17), REDUCED)
    constants = {"w": weights}
    nodes = [
        QUANTIZER,
        helper.make_node("MatMulInteger", ["q", "w", "z"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["f", "s"], ["y"]),
    ]
    return model_of_floats(nodes, constants, (2, 5, 24), (2, 5, 17))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (make_stored_codes, "zero-point of the input is computed at run time"),
        (make_other_zero, "its zero-point is not that of its codes"),
        (make_computed_weights, "its weights are computed"),
        (make_read_sums, "other nodes than one Cast read its sums"),
        (make_double_sums, "its sums are not cast to float32"),
        (make_batch_of_matrices, r"its weights have the shape \[2, 24, 17\]"),
    ],
)
def test_other_integer_operators_stay_for_a_reason(make: Any, reason: str) -> None:
    model = make()
    with pytest.raises(ModelError, match=reason):
        anybit.compile(model)


def test_operators_that_stay_are_those_of_the_file() -> None:
    model = make_product(*KINDS["uint8"])
    prepared = prepare_for_analysis(model)
    parts = find_regions(prepared, Guarantee.EXACT)
    assert any(node.op_type == "Expand" for node in prepared.graph)
    replace_regions(parts.analyzed.model, ())
    operators = [node.op_type for node in parts.analyzed.model.graph]
    assert sorted(operators) == sorted(node.op_type for node in model.graph.node)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("weights", ["QInt8", "QUInt8"])
@pytest.mark.parametrize("reduce_range", [False, True])
def test_files_of_quantize_dynamic_compile_as_a_whole(
    tmp_path: Path, per_channel: bool, weights: str, reduce_range: bool
) -> None:
    quantization = pytest.importorskip("onnxruntime.quantization")
    random = np.random.default_rng(3)
    shapes = {"w0": (8, 3, 3, 3), "b0": (8,), "w1": (8, 10), "w2": (10, 6), "b2": (6,)}
    constants = {name: random.normal(size=shape) for name, shape in shapes.items()}
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["a"], name="conv", pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("GlobalAveragePool", ["b"], ["c"]),
        helper.make_node("Flatten", ["c"], ["d"]),
        helper.make_node("MatMul", ["d", "w1"], ["e"], name="matmul"),
        helper.make_node("Gemm", ["e", "w2", "b2"], ["y"], name="gemm"),
    ]
    floats = {name: value.astype(np.float32) for name, value in constants.items()}
    source, file = tmp_path / "float.onnx", tmp_path / "dynamic.onnx"
    onnx.save(model_of_floats(nodes, floats, ("n", 3, 8, 8), ("n", 6)), source)
    quantization.quantize_dynamic(
        source,
        file,
        per_channel=per_channel,
        reduce_range=reduce_range,
        weight_type=quantization.QuantType[weights],
    )
    compiled = anybit.compile(file, guarantee="exact")
    report = report_compilation(compiled.report, "dynamic")
    assert describe_conclusion(report) == "3 of 3 layers, 100 % of MACs on integers: 3 exact"
    compiled.save(tmp_path / "fast.onnx")
    model, written = onnx.load(file), anybit.load(tmp_path / "fast.onnx")
    for x in make_inputs((5, 3, 8, 8)) if reduce_range or weights == "QUInt8" else ():
        expected = run_plain(model, x)
        assert_same_bits(compiled.run(x)["y"], expected)
        assert_same_bits(written.run(x)["y"], expected)


def test_regions_that_are_left_are_listed_once() -> None:
    prepared = prepare_for_analysis(make_product(*KINDS["uint8"]))
    parts = find_regions(prepared, Guarantee.EXACT)
    left = LeftRegion(layers=("layer",), seconds=1.0, float_seconds=0.5)
    (layer,) = parts.without(dict.fromkeys(parts.regions, left)).layers
    assert (layer.name, layer.guarantee, layer.layer.integer) == ("layer", None, True)
    assert layer.reason == "stays as it is: a region would be 0.5 x as fast as ONNX Runtime here"


def test_times_are_beside_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "dynamic.onnx"
    onnx.save(make_product(*KINDS["uint8"]), file)
    report = anybit.compile(file, time=True).report
    assert report.speed is not None
    names = [row["one row"] for row in report.speed.rows()]
    assert names == ["compiled", "file with integer operators", "quantized graph"]
    assert len(report.layers) == 1


@pytest.mark.parametrize("shape", [("n", "t", 16), (1, 5, 16), ("n", 5, 16)])
def test_attention_of_quantize_dynamic_keeps_its_bits(
    tmp_path: Path, shape: Sequence[int | str]
) -> None:
    """Products of two computed tensors stay operators of the file."""
    quantization = pytest.importorskip("onnxruntime.quantization")
    random = np.random.default_rng(4)
    constants = {f"w{name}": np.float32(random.normal(size=(16, 16)) / 4) for name in "qkvo"}
    nodes = [helper.make_node("MatMul", ["x", f"w{n}"], [n], name=f"to_{n}") for n in "qkv"]
    nodes += [
        helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "kt"], ["a"], name="scores"),
        helper.make_node("Softmax", ["a"], ["s"], axis=-1),
        helper.make_node("MatMul", ["s", "v"], ["o"], name="mix"),
        helper.make_node("MatMul", ["o", "wo"], ["p"], name="out"),
        helper.make_node("Add", ["x", "p"], ["y"]),
    ]
    source, file = tmp_path / "float.onnx", tmp_path / "dynamic.onnx"
    onnx.save(model_of_floats(nodes, constants, shape, shape), source)
    quantization.quantize_dynamic(source, file, reduce_range=True)
    model, compiled = onnx.load(file), anybit.compile(file, guarantee="exact")
    exact = [layer for layer in compiled.report.layers if layer.guarantee is Guarantee.EXACT]
    assert len(exact) == 4
    sizes = [size if isinstance(size, int) else 3 for size in shape]
    for x in make_inputs(sizes)[:4]:
        assert_same_bits(compiled.run(x)["y"], run_plain(model, x))


def test_factors_may_be_inputs() -> None:
    model = edit(make_product(*KINDS["uint8"]), "Mul", 0, "g")
    model.graph.input.append(helper.make_tensor_value_info("g", TensorProto.FLOAT, [1]))
    (product,) = (node for node in model.graph.node if list(node.output) == ["m"])
    product.input[1] = "g"
    compiled = anybit.compile(model)
    assert [layer.guarantee for layer in compiled.report.layers] == [Guarantee.EXACT]
    feeds = {"x": make_inputs((5, 24))[0], "g": np.float32([0.3])}
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert_same_bits(compiled.run(feeds)["y"], session.run(None, feeds)[0])


def test_recurrent_layers_stay_with_the_reason() -> None:
    """Name the state, which no region hands from step to step, and not the sizes of the file."""
    codes = {"w": np.ones((1, 6, 16), np.int8), "r": np.ones((1, 4, 16), np.int8)}
    grids = {f"{name}s": np.ones(1, np.float32) for name in codes}
    zeros = {f"{name}z": np.zeros(1, np.int8) for name in codes}
    inputs = ["x", "w", "r", "", "", "", "", "", "ws", "wz", "rs", "rz"]
    lstm = helper.make_node("DynamicQuantizeLSTM", inputs, ["y"], "cells", domain="com.microsoft")
    lstm.attribute.append(helper.make_attribute("hidden_size", 4))
    model = model_of_floats([lstm], codes | grids | zeros, ["t", "n", 6], ["t", 1, "n", 4], 17)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    with pytest.raises(ModelError, match=r"'cells' .* quantizes its state at every step"):
        anybit.compile(model)
