# SPDX-License-Identifier: Apache-2.0
"""Models run, the real ones among them, and take their inputs in every sensible form."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper
from places import MODELS, needs_models
from small_models import array, model, node, quantized_input, quantized_weight
from text_models import parse

import anybit
from anybit.errors import DataError, ModelError
from anybit.inputs import TensorInfo
from anybit.model import load

X = np.array([[0.3, -0.8, 1.2, 99]], np.float32)
# The arithmetic of these is exact: weights and activations are small integers times powers of two.
EXACT = ("TFC_1W1A", "TFC_2W2A", "qkeras_jettagging")
# Sums of these round, so that they depend on their order; classes must agree all the same.
CLOSE = {"kwsmlp_w3a3": 5e-6, "cnv_1w1a": 1e-6, "mobilenet_w4a4": 1e-6}


def shared(name: str) -> tuple[Path, np.ndarray, np.ndarray]:
    with np.load(MODELS / f"{name}.npz") as arrays:
        return MODELS / f"{name}.onnx", arrays["x"], arrays["y"]


@needs_models
@pytest.mark.parametrize("name", EXACT)
def test_real_models_equal_the_expected_outputs(name: str) -> None:
    path, x, y = shared(name)
    (output,) = load(path).run(x).values()
    np.testing.assert_array_equal(output, y, strict=True)


@needs_models
@pytest.mark.parametrize("name", CLOSE)
def test_real_models_come_close_to_the_expected_outputs(name: str) -> None:
    path, x, y = shared(name)
    (output,) = load(path).run(x).values()
    np.testing.assert_allclose(output, y, rtol=0, atol=CLOSE[name], strict=True)
    np.testing.assert_array_equal(output.argmax(axis=1), y.argmax(axis=1))


@needs_models
def test_model_default_options_compute_the_graph_as_it_is_written() -> None:
    """Batch normalization that is merged into the weights before it gives other floats."""
    path, x, _ = shared("kwsmlp_w3a3")
    graph = ir.load(path).graph
    normalization = next(item for item in graph if item.op_type == "BatchNormalization")
    product, after = (
        tensor_of(path, value.name, [1, 256], x)
        for value in (normalization.inputs[0], normalization.outputs[0])
    )
    scale, bias, mean, variance = (value.const_value.numpy() for value in normalization.inputs[1:])
    epsilon = np.float32(normalization.attributes["epsilon"].value)
    factor = scale * (1 / np.sqrt(variance + epsilon))
    np.testing.assert_array_equal(after, product * factor + (bias - mean * factor))


def tensor_of(path: Path, name: str, shape: list[int], x: np.ndarray) -> np.ndarray:
    """Return an inner tensor of a model, computed without other inner outputs."""
    proto = onnx.load(path)
    proto.graph.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape))
    return load(proto).run(x)[name]


def test_model_quantized_weight_and_input() -> None:
    proto, weight = quantized_weight()
    expected = X @ anybit.int_quant(weight, 0.25, 0, 3)
    np.testing.assert_array_equal(load(proto).run(X)["y"], expected)
    expected = anybit.int_quant(X, 0.5, 0, 4)
    np.testing.assert_array_equal(load(quantized_input()).run(X)["y"], expected)


@pytest.mark.parametrize("kind", ["path", "text", "bytes", "proto", "model"])
def test_model_sources(kind: str, tmp_path: Path) -> None:
    proto = quantized_input()
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    source = {
        "path": path,
        "text": str(path),
        "bytes": path.read_bytes(),
        "proto": proto,
        "model": ir.from_proto(proto),
    }[kind]
    assert load(source).run(X)["y"][0, 3] == 3.5


def test_model_inputs_and_outputs() -> None:
    proto = quantized_input()
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    proto.graph.input[0].type.tensor_type.shape.dim[1].Clear()
    network = load(proto)
    assert network.inputs == (TensorInfo("x", np.dtype(np.float32), ("n", None)),)
    assert network.outputs == (TensorInfo("y", np.dtype(np.float32), None),)
    assert str(network.inputs[0]) == "x: float32[n, ?]"
    assert network.run(np.ones((3, 5), np.float32))["y"].shape == (3, 5)


def two_inputs() -> onnx.ModelProto:
    nodes = [node("Add", "a b", "c", domain=""), node("Quant", "c one zero four")]
    shapes = {"a": [2, 3], "b": [2, 3]}
    return model(nodes, {"one": 1, "zero": 0, "four": 4}, inputs=shapes)


def test_model_named_inputs() -> None:
    a = np.full((2, 3), 1.25, np.float32)
    np.testing.assert_array_equal(load(two_inputs()).run({"a": a, "b": a})["y"], 2)
    np.testing.assert_array_equal(load(quantized_input()).run({"x": X})["y"][0, 3], 3.5)


def test_model_rows_run_slice_by_slice() -> None:
    seen = []
    network = load(two_inputs())
    a = np.arange(18, dtype=np.float32).reshape(6, 3) / 4
    result = network.run({"a": a, "b": a}, progress=lambda done, of: seen.append((done, of)))
    np.testing.assert_array_equal(result["y"], anybit.int_quant(2 * a, 1, 0, 4))
    assert seen == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize(
    "arguments",
    [
        X.astype(np.float64),
        X.astype(np.float16).astype(np.float64),
        X.tolist(),
        X[:, ::-1][:, ::-1],
        X.astype(">f4"),
        np.asfortranarray(X),
    ],
)
def test_model_forms_of_an_input(arguments: Any) -> None:
    expected = anybit.int_quant(np.asarray(arguments, np.float32), 0.5, 0, 4)
    np.testing.assert_array_equal(load(quantized_input()).run(arguments)["y"], expected)


def test_model_integers_are_converted_where_that_is_exact() -> None:
    network = load(quantized_input(1, 0, 30))
    assert network.run(np.array([[1, 2, 3, 2**24]]))["y"][0, 3] == 2**24
    assert network.run(np.array([[True, False, True, True]]))["y"].sum() == 3
    with pytest.raises(DataError, match="'x' must be float32, got int64 values"):
        network.run(np.array([[1, 2, 3, 2**24 + 1]]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (np.ones((1, 5), np.float32), r"'x' must have shape \[1, 4\].*got \[1, 5\]"),
        (np.ones(4, np.float32), r"'x' must have shape \[1, 4\].*got \[4\]"),
        (np.float32(1), r"'x' must have shape"),
        (np.ones((0, 4), np.float32), r"\(0, 4\): it has no elements; the model takes \[1, 4\]"),
        ([["a", "b", "c", "d"]], "'x' must be float32, got <U1"),
        ([[1, 2], [3]], "'x' is not an array"),
        (X.astype(complex), "'x' must be float32, got complex128"),
        (X.astype(object), "'x' must be float32, got object"),
        ({"x": X, "z": X}, "not known: z"),
        ({}, "missing: x"),
    ],
)
def test_model_wrong_inputs(arguments: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(quantized_input()).run(arguments)


CACHED = """g (float[n, t, 2] x, float[n, past, 2] cache, float[n, 3] z)
    => (float[n, all, 2] y, float[n, 3] w) { y = Concat<axis = 1>(cache, x) w = Neg(z) }"""


def test_model_empty_cache() -> None:
    x, z = np.ones((1, 2, 2), np.float32), np.ones((1, 3), np.float32)
    model = load(parse(CACHED))
    outputs = model.run({"x": x, "cache": np.zeros((1, 0, 2), np.float32), "z": z})
    np.testing.assert_array_equal(outputs["y"], x)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(1, 2, 2), (1, 3, 0), (1, 3)], r"'cache' must have shape .* got \[1, 3, 0\]"),
        ([(1, 2, 2), (1, 3, 2), (1, 0)], r"'z' must have shape .* got \[1, 0\]"),
    ],
    ids=["fixed", "fixed-of-another"],
)
def test_model_refuses_zeros_for_fixed_sizes(shapes: list[tuple[int, ...]], message: str) -> None:
    arrays = (np.zeros(shape, np.float32) for shape in shapes)
    with pytest.raises(DataError, match=message):
        load(parse(CACHED)).run(dict(zip(("x", "cache", "z"), arrays, strict=True)))


JOINED = "g (float[n, t] x, float[n, u] z) => (float[n, v] y) { y = Concat<axis = 1>(x, z) }"


@pytest.mark.parametrize("shapes", [((1, 0), (1, 0)), ((0, 2), (0, 1)), ((0, 0), (0, 0))])
def test_model_without_elements(shapes: tuple[tuple[int, int], ...]) -> None:
    """Sizes of 0 are sizes as others."""
    feeds = dict(zip("xz", (np.zeros(shape, np.float32) for shape in shapes), strict=True))
    expected = np.concatenate(list(feeds.values()), axis=1)
    np.testing.assert_array_equal(load(parse(JOINED)).run(feeds)["y"], expected, strict=True)
    with pytest.raises(DataError, match=r"'x' has shape .* no elements, so that nothing can be"):
        anybit.diff(parse(JOINED), parse(JOINED), feeds)


def test_model_of_unknown_rank_without_elements() -> None:
    proto = parse("g (float[n] x) => (float[n] y) { y = Neg(x) }")
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.ClearField("shape")
    x = np.zeros((0, 3), np.float32)
    np.testing.assert_array_equal(load(proto).run(x)["y"], x, strict=True)


def test_model_that_cannot_run_without_rows() -> None:
    graph = """g (float[n, 4] x) => (float[n, m] y) {
        sizes = Constant<value_ints = [0, -1]>() y = Reshape(x, sizes) }"""
    with pytest.raises(ModelError, match=r"reshaped.*'x' has shape \(0, 4\): it has no elements"):
        load(parse(graph)).run(np.zeros((0, 4), np.float32))


FATAL = {
    "LSTM": "y, h, c = LSTM<hidden_size = 2>(x, w, r)",
    "GRU": "y, h = GRU<hidden_size = 2>(x, w, r)",
    "If": """yes = Constant<value = bool {1}>() y = If(yes)<
        then_branch = t () => (float[n, 1, b, 2] p) { p, h = GRU<hidden_size = 2>(x, w, r) },
        else_branch = e () => (float[n, 1, b, 2] q) { q, k = GRU<hidden_size = 2>(x, w, r) }>""",
}


@pytest.mark.parametrize("kind", FATAL)
@pytest.mark.parametrize("shape", [(2, 0, 3), (0, 1, 3)], ids=str)
def test_model_in_which_the_runtime_would_end_the_process(
    kind: str, shape: tuple[int, ...]
) -> None:
    gates = 4 if kind == "LSTM" else 3
    arrays = {"w": np.ones((1, 2 * gates, 3)), "r": np.ones((1, 2 * gates, 2))}
    proto = parse(
        f"g (float[n, b, 3] x) => (float[n, 1, b, 2] y) {{ {FATAL[kind]} }}",
        {name: array.astype(np.float32) for name, array in arrays.items()},
    )
    network = load(proto)
    assert network.run(np.zeros((2, 1, 3), np.float32))["y"].shape == (2, 1, 1, 2)
    with pytest.raises(DataError, match=r"'x' has shape .* ends the process in (LSTM|GRU)"):
        network.run(np.zeros(shape, np.float32))


def test_model_of_grouped_attention_without_rows() -> None:
    """Accept an empty cache; the runtime divides by the batch size."""
    attention = "com.microsoft.GroupQueryAttention<num_heads = 2, kv_num_heads = 1>"
    proto = parse(
        f"""g (float[n, t, 16] q, float[n, t, 8] k, float[n, 1, p, 8] c, int32[n] s)
            => (float[n, t, 16] y, float[n, 1, a, 8] u, float[n, 1, a, 8] v)
            {{ y, u, v = {attention}(q, k, k, c, c, s, one) }}""",
        {"one": np.ones(1, np.int32)},
    )
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    network = load(proto)
    feeds = {
        "q": np.ones((1, 1, 16), np.float32),
        "k": np.ones((1, 1, 8), np.float32),
        "c": np.ones((1, 1, 0, 8), np.float32),
        "s": np.zeros(1, np.int32),
    }
    assert network.run(feeds)["y"].shape == (1, 1, 16)
    with pytest.raises(DataError, match="ends the process in GroupQueryAttention"):
        network.run({name: array[:0] for name, array in feeds.items()})


def test_model_wrong_numbers_of_rows() -> None:
    network = load(two_inputs())
    three, four = (np.ones((rows, 3), np.float32) for rows in (3, 4))
    with pytest.raises(DataError, match=r"a multiple of 2 rows, got \[3, 3\]"):
        network.run({"a": three, "b": three})
    with pytest.raises(DataError, match="different numbers of rows"):
        network.run({"a": four, "b": four[:2]})
    with pytest.raises(DataError, match="takes 2 inputs"):
        network.run(four)


def test_model_outputs_that_cannot_be_joined() -> None:
    network = load(model([node("ReduceSum", "x", keepdims=0, domain="")]))
    assert network.run(X)["y"] == X.sum()
    with pytest.raises(ModelError, match="'y' does not have one row per input row"):
        network.run(np.concatenate([X, X]))


def test_model_half_precision() -> None:
    proto = quantized_input()
    proto.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    proto.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    x = X.astype(np.float16)
    np.testing.assert_array_equal(
        load(proto).run(x)["y"], anybit.int_quant(x, 0.5, 0, 4), strict=True
    )


def test_a_model_without_inputs() -> None:
    nodes = [node("Quant", "w one zero four")]
    proto = model(nodes, {"w": [1.3], "one": 1, "zero": 0, "four": 4}, inputs={})
    np.testing.assert_array_equal(load(proto).run({})["y"], [1])


def test_model_low_precision_weights() -> None:
    """bfloat16 constants, which travel inside the message, are quantized too."""
    weight = np.linspace(-2, 2, 65536, dtype=np.float32).astype(ml_dtypes.bfloat16).reshape(4, -1)
    nodes = [
        node("Quant", "w one zero four", "q"),
        node("Cast", "q", "f", domain="", to=onnx.TensorProto.FLOAT),
        node("MatMul", "x f", domain=""),
    ]
    proto = model(nodes, {"one": 1, "zero": 0, "four": 4})
    tensor = helper.make_tensor(
        "w", onnx.TensorProto.BFLOAT16, weight.shape, weight.tobytes(), raw=True
    )
    proto.graph.initializer.append(tensor)
    expected = X @ anybit.int_quant(weight, 1, 0, 4).astype(np.float32)
    np.testing.assert_allclose(load(proto).run(X)["y"], expected)


@pytest.mark.slow
def test_model_more_than_2_gib_of_weights(tmp_path: Path) -> None:
    """Five tables of half a GiB, on disk as holes; the first is quantized."""
    rows, columns, tables = 2**13, 2**14, 5
    with open(tmp_path / "tables.data", "wb") as file:
        for index in range(tables):
            file.seek(4 * (index * rows * columns))
            file.write(array(index + 0.3).tobytes())
        file.truncate(4 * tables * rows * columns)
    nodes = [node("Quant", "w0 one zero eight", "q")]
    for index in range(tables):
        table = f"w{index}" if index else "q"
        nodes.append(node("Gather", f"{table} rows", f"g{index}", domain="", name=f"get_{table}"))
    nodes.append(node("Sum", " ".join(f"g{index}" for index in range(tables)), domain=""))
    proto = model(nodes, {"one": 1, "zero": 0, "eight": 8}, inputs={})
    proto.graph.input.append(helper.make_tensor_value_info("rows", onnx.TensorProto.INT64, [1]))
    for index in range(tables):
        tensor = proto.graph.initializer.add(name=f"w{index}", data_type=1, dims=[rows, columns])
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", "tables.data"), ("offset", 4 * index * rows * columns)):
            tensor.external_data.add(key=key, value=str(value))
    onnx.save(proto, tmp_path / "model.onnx")
    result = load(tmp_path / "model.onnx").run(np.array([0]))["y"]
    expected = np.float32(0)
    for index in range(1, tables):
        expected += array(index + 0.3)
    assert result.shape == (1, columns)
    assert result[0, 0] == pytest.approx(expected)
    assert not result[0, 1:].any()


def test_model_output_that_the_file_does_not_type() -> None:
    quantizer = helper.make_node("DynamicQuantize", ["x", "s"], ["y"], domain="anybit", dst="u8")
    made = model([quantizer], {"s": np.float32([0.5])}, opsets={"anybit": 1})
    made.graph.output[0].ClearField("type")
    network = load(made)
    assert network.outputs == (TensorInfo("y", np.dtype(np.uint8), (1, 4)),)
    assert network.run(X)["y"].dtype == np.uint8


def test_model_integers_that_only_seem_exact_are_refused() -> None:
    with pytest.raises(DataError, match="int64"):
        load(quantized_input()).run(np.full((1, 4), 2**62 + 1))


def test_model_one_name_is_one_size() -> None:
    add = helper.make_node("Add", ["a", "b"], ["y"])
    network = load(model([add], inputs={"a": ["n", 4], "b": ["n", 4]}))
    with pytest.raises(DataError, match="'b' has n = 1, another input 3"):
        network.run({"a": np.ones((3, 4), np.float32), "b": np.ones((1, 4), np.float32)})
