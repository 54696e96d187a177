# SPDX-License-Identifier: Apache-2.0
"""Layers with dynamic activations, quantized and compiled, against the quantized graph."""

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper
from small_models import model_of_floats

import anybit
from anybit.compiler.program import program as p
from anybit.errors import ModelError

ROUNDING = 2.0**-24
FORMATS = (
    *("int8 dynamic", "uint8 dynamic", "int4 dynamic"),
    *("int8 dynamic per-tensor", "uint8 dynamic per-tensor"),
)


def make_matmul(shape=("n", 24), outer=17):
    random = np.random.default_rng(0)
    constants = {"w": random.normal(size=(shape[-1], outer)), "b": random.normal(size=outer)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["y"]),
    ]
    return model_of_floats(nodes, constants, shape, [*shape[:-1], outer], opset=20)


def make_block(shape, seed=0):
    """Return x + W2 relu(W1 x + b1) + b2 on channels of the last axis."""
    random = np.random.default_rng(seed)
    channels, inner = shape[-1], int(random.integers(3, 50))
    constants = {
        "w1": random.normal(size=(channels, inner)) / 4,
        "b1": random.normal(size=inner),
        "w2": random.normal(size=(inner, channels)) / 4,
        "b2": random.normal(size=channels),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["m1"]),
        helper.make_node("Add", ["m1", "b1"], ["a1"]),
        helper.make_node("Relu", ["a1"], ["r1"]),
        helper.make_node("MatMul", ["r1", "w2"], ["m2"]),
        helper.make_node("Add", ["m2", "b2"], ["a2"]),
        helper.make_node("Add", ["x", "a2"], ["y"]),
    ]
    return model_of_floats(nodes, constants, shape, shape, opset=20)


def make_convolution(groups=1):
    random = np.random.default_rng(0)
    constants = {"w": random.normal(size=(6, 4 // groups, 3, 3)), "b": random.normal(size=6)}
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], pads=[1, 1, 1, 1], group=groups)
    return model_of_floats([node], constants, ("n", 4, 8, 7), ("n", 6, 8, 7), opset=20)


def quantize(model, activations, weights="int8"):
    return anybit.quantize(model, weights=weights, activations=activations).model


def run_floats(model, x):
    return anybit.load(model).run(x)["y"]


def compile_all(model):
    compiled = anybit.compile(model)
    assert all(layer.guarantee == "bounded" for layer in compiled.report.products)
    assert compiled.report.share == 1
    return compiled


def list_instructions(compiled):
    return [
        [type(at).__name__ for at in program.instructions] for program in compiled.report.programs
    ]


@pytest.mark.parametrize("activations", FORMATS)
@pytest.mark.parametrize("weights", ["int8", "int3", "ternary"])
def test_results_are_within_the_bound_of_float32_sums(activations, weights):
    model = quantize(make_matmul(), activations, weights)
    compiled = compile_all(model)
    x = np.random.default_rng(1).normal(size=(50, 24)).astype(np.float32)
    expected = run_floats(model, x)
    actual = compiled.run(x)["y"]
    reach = np.abs(x).sum(axis=1, keepdims=True) * 4
    assert np.all(np.abs(actual - expected) <= (24 + 8) * ROUNDING * reach)


def test_channels_of_a_large_vocabulary_are_multiplied_without_blocks():
    model = quantize(make_matmul(outer=50_000), "int8 dynamic")
    compiled = compile_all(model)
    ((*_, product, _),) = list_instructions(compiled)
    assert product == "Product", list_instructions(compiled)
    x = np.random.default_rng(1).normal(size=(3, 24)).astype(np.float32)
    reach = np.abs(x).sum(axis=1, keepdims=True) * 4
    difference = np.abs(compiled.run(x)["y"] - run_floats(model, x))
    assert np.all(difference <= (24 + 8) * ROUNDING * reach)


def make_hostile_rows():
    x = np.random.default_rng(2).normal(size=(12, 24)).astype(np.float32)
    x[0, 3], x[1, 4], x[2, 5] = np.nan, np.inf, -np.inf
    x[3], x[4], x[5] = 0, x[4] * np.float32(1e-41), x[5] * np.float32(1e36)
    x[6], x[7] = np.abs(x[6]), -np.abs(x[7])
    return x


@pytest.mark.parametrize("activations", ["int8 dynamic", "uint8 dynamic"])
def test_hostile_rows_are_those_of_the_graph(activations):
    model = quantize(make_matmul(), activations)
    x = make_hostile_rows()
    expected, actual = run_floats(model, x), compile_all(model).run(x)["y"]
    assert np.isnan(expected[:3]).all()
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    for row, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(row, other, rtol=1e-5, atol=1e-5 * np.abs(other).max())


def make_rectified(moves=()):
    """Return W max(x, 0), with nodes of other operators in between."""
    names = ["r", *(f"r{i}" for i in range(len(moves)))]
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        *(
            helper.make_node(operator, [names[i]], [names[i + 1]])
            for i, operator in enumerate(moves)
        ),
        helper.make_node("MatMul", [names[-1], "w"], ["y"]),
    ]
    w = np.random.default_rng(0).normal(size=(24, 17))
    return model_of_floats(nodes, {"w": w}, ("n", 24), ("n", 17), opset=20)


def find_codes(compiled):
    """Return the ranges of the tensors of dynamic codes."""
    tensors = [
        program.tensors[at.target]
        for program in compiled.report.programs
        for at in program.instructions
        if isinstance(at, p.DynamicQuantize)
    ]
    return [(tensor.lowest, tensor.lowest + tensor.levels - 1) for tensor in tensors]


@pytest.mark.parametrize(
    ("moves", "activations", "codes"),
    [
        ((), "int8 dynamic", (0, 127)),
        (("Identity",), "int8 dynamic", (0, 127)),
        (("Flatten",), "int4 dynamic", (0, 7)),
        (("Neg",), "int8 dynamic", (-128, 127)),
        ((), "uint8 dynamic", (0, 255)),
    ],
)
def test_codes_after_relu_are_not_negative(moves, activations, codes):
    model = quantize(make_rectified(moves), activations)
    compiled = compile_all(model)
    assert find_codes(compiled) == [codes]
    (layer,) = compiled.report.layers
    assert layer.layer.input_bits == int(activations.split()[0][-1])
    x = make_hostile_rows()
    expected, actual = run_floats(model, x), compiled.run(x)["y"]
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    for row, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(row, other, rtol=1e-5, atol=1e-5 * np.abs(other).max())


@pytest.mark.parametrize("activations", ["int8 dynamic", "uint8 dynamic"])
@pytest.mark.parametrize("rows", [1, 5])
def test_any_number_of_rows(activations, rows):
    model = quantize(make_matmul(), activations)
    x = np.random.default_rng(0).normal(size=(rows, 24)).astype(np.float32)
    expected, actual = run_floats(model, x), compile_all(model).run(x)["y"]
    assert actual.shape == expected.shape == (rows, 17)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def test_no_rows():
    compiled = compile_all(quantize(make_block(("n", 24)), "uint8 dynamic"))
    assert compiled.run(np.zeros((0, 24), np.float32))["y"].shape == (0, 24)


@pytest.mark.parametrize("activations", FORMATS)
@pytest.mark.parametrize("shape", [("n", 16), ("n", 3, 16), ("n", "t", 16), ("n", "t", 2, 16)])
def test_blocks_with_free_sizes(activations, shape):
    """Allow a step of codes of the second layer where the first one rounds differently."""
    model = quantize(make_block(shape), activations)
    compiled = compile_all(model)
    sizes = [5 if isinstance(size, str) else size for size in shape]
    x = np.random.default_rng(3).normal(size=sizes).astype(np.float32)
    expected, actual = run_floats(model, x), compiled.run(x)["y"]
    assert actual.shape == expected.shape
    step = 0.5 if "int4" in activations else 0.05
    np.testing.assert_allclose(actual, expected, rtol=0, atol=step * np.abs(expected).max())
    assert np.quantile(np.abs(actual - expected), 0.5) < 1e-5


def test_block_is_one_region():
    instructions = list_instructions(compile_all(quantize(make_block(("n", "t", 16)), FORMATS[0])))
    layer = ["DynamicScale", "DynamicQuantize", "Product", "Elementwise"]
    assert instructions == [[*layer, *layer, "Elementwise"]]


@pytest.mark.parametrize("activations", FORMATS[:2])
def test_layers_after_functions_without_instructions(activations):
    """Compute the function in floats, which enter the region of the next layer."""
    model = make_block(("n", "t", 16))
    nodes = model.graph.node
    (relu,) = [node for node in nodes if node.op_type == "Relu"]
    relu.op_type = "Sin"
    quantized = quantize(model, activations)
    compiled = compile_all(quantized)
    assert len(compiled.report.programs) == 2
    x = np.random.default_rng(3).normal(size=(2, 5, 16)).astype(np.float32)
    expected, actual = run_floats(quantized, x), compiled.run(x)["y"]
    np.testing.assert_allclose(actual, expected, rtol=0, atol=0.02 * np.abs(expected).max())
    assert np.quantile(np.abs(actual - expected), 0.5) < 1e-5


def test_zero_points_are_further_channels():
    compiled = compile_all(quantize(make_matmul(), "uint8 dynamic"))
    (program,) = compiled.report.programs
    (codes,) = program.tensors
    assert codes.channels > 24
    assert any(isinstance(at, p.DynamicZero) for at in program.instructions)


@pytest.mark.parametrize("activations", FORMATS)
def test_convolutions_have_a_scale_per_sample(activations):
    model = quantize(make_convolution(), activations)
    compiled = compile_all(model)
    x = np.random.default_rng(4).normal(1, 1, (5, 4, 8, 7)).astype(np.float32)
    x *= np.float32([1, 10, 0.1, 1e-3, 1e3])[:, None, None, None]
    expected, actual = run_floats(model, x), compiled.run(x)["y"]
    reach = np.abs(x).sum(axis=(1, 2, 3), keepdims=True)
    assert np.all(np.abs(actual - expected) <= 1e-5 * reach)


def test_groups_have_symmetric_codes_only():
    compile_all(quantize(make_convolution(2), "int8 dynamic"))
    report = anybit.compile(quantize(make_convolution(2), "uint8 dynamic")).report
    (layer,) = report.layers
    assert layer.guarantee is None
    assert "zero-points that are computed at run time" in layer.reason


def test_stronger_guarantees_leave_the_layer_float():
    model = quantize(make_matmul(), "int8 dynamic")
    (layer,) = anybit.compile(model, guarantee="certified").report.layers
    assert layer.guarantee is None
    assert "only certified was asked for" in layer.reason
    assert layer.layer.input_bits == 8


def test_report_has_the_widths():
    (layer,) = compile_all(quantize(make_matmul(), "int8 dynamic", "int4")).report.layers
    assert (layer.layer.weight_bits, layer.layer.input_bits) == (4, 8)
    assert layer.layer.dynamic
    assert layer.layer.bops == 24 * 17 * 32


@pytest.mark.parametrize("activations", ["int8 dynamic", "uint8 dynamic"])
def test_saved_file_runs_in_a_session(activations, tmp_path):
    model = quantize(make_block(("n", "t", 16)), activations)
    compiled = compile_all(model)
    compiled.save(tmp_path / "c.onnx")
    x = np.random.default_rng(3).normal(size=(2, 7, 16)).astype(np.float32)
    saved = anybit.load(tmp_path / "c.onnx").run(x)["y"]
    np.testing.assert_array_equal(saved, compiled.run(x)["y"])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_do_not_change_a_bit(threads, set_threads):
    compiled = compile_all(quantize(make_block(("n", 16)), "uint8 dynamic"))
    x = np.random.default_rng(3).normal(size=(300, 16)).astype(np.float32)
    set_threads(1)
    expected = compiled.run(x)["y"]
    set_threads(threads)
    np.testing.assert_array_equal(compiled.run(x)["y"], expected)


def test_scales_of_other_nodes_stay_float():
    """Without infinity for NaN, a row with NaN would not become NaN."""
    model = quantize(make_matmul(), FORMATS[0])
    for node in model.graph:
        if node.op_type == "Where" and node.inputs[0].producer().op_type == "IsNaN":
            node.outputs[0].replace_all_uses_with(node.inputs[2])
    (layer,) = anybit.compile(model).report.layers
    assert layer.guarantee is None
    assert "scale computed at run time" in layer.reason


@pytest.mark.parametrize(("steps", "macs"), [(6, 6 * 15 * 9), ("n", None)])
@pytest.mark.parametrize("activations", ["int8 dynamic", "float"])
def test_recurrent_layers_are_listed_with_their_reason(tmp_path, steps, macs, activations):
    random = np.random.default_rng(0)
    constants = {"w": random.normal(size=(1, 15, 4)), "r": random.normal(size=(1, 15, 5))}
    nodes = [helper.make_node("GRU", ["x", "w", "r"], ["y"], hidden_size=5, name="cells")]
    model = model_of_floats(nodes, constants, [steps, "b", 4], [steps, 1, "b", 5], opset=20)
    compiled = anybit.compile(quantize(model, activations))
    (layer,) = compiled.report.layers
    assert (layer.name, layer.guarantee, layer.macs) == ("cells", None, macs)
    assert (layer.layer.operator, layer.layer.weight_bits) == ("GRU", 8)
    assert "recurrent layers have no integer kernel: export one step" in layer.reason
    assert compiled.report.coverage.startswith("0 of 1 layer, 0 % of MACs")
    with pytest.raises(ModelError, match="recurrent layers have no integer kernel: export one"):
        compiled.to_c(tmp_path)


@pytest.mark.parametrize("form", ["int8 dynamic", "int8 dynamic per-tensor"])
@pytest.mark.parametrize("rows", [("n",), ("n", "t")], ids=["rows", "tokens"])
def test_c_code_is_refused(tmp_path, form, rows):
    compiled = anybit.compile(quantize(make_matmul((*rows, 24)), form))
    message = r"computed at run time; .*: \w+; quantize the .* static activations"
    with pytest.raises(ModelError, match=message):
        compiled.to_c(tmp_path)


def test_scales_of_torch_modules_of_whole_tensors():
    """Accept reductions of all axes by their numbers, without axes of size 1."""
    model = quantize(make_matmul(), "int8 dynamic per-tensor")
    for node in model.graph:
        if node.op_type == "ReduceMax":
            axes = ir.Value(name="every_axis", const_value=ir.tensor(np.int64([0, 1])))
            model.graph.register_initializer(axes)
            node.resize_inputs(2)
            node.replace_input_with(1, axes)
            node.attributes["keepdims"] = ir.AttrInt64("keepdims", 0)
    for value in (value for node in model.graph for value in node.outputs):
        value.shape = None if not value.is_graph_output() else value.shape
    x = np.random.default_rng(1).normal(size=(5, 24)).astype(np.float32)
    expected, actual = run_floats(model, x), compile_all(model).run(x)["y"]
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def find_nodes(model, operator):
    return [node for node in model.graph if node.op_type == operator]


def assert_layer_stays_float(model):
    (layer,) = anybit.compile(model).report.layers
    assert layer.guarantee is None


@pytest.mark.parametrize("sign", ["positive", "negative"])
def test_scales_that_ignore_infinities_stay_float(sign):
    model = quantize(make_matmul(), "int8 dynamic")
    (node,) = find_nodes(model, "IsInf")
    node.attributes[f"detect_{sign}"] = ir.AttrInt64(f"detect_{sign}", 0)
    assert_layer_stays_float(model)


def test_random_scales_stay_float():
    model = quantize(make_matmul(), "int8 dynamic")
    (quantizer,) = [node for node in find_nodes(model, "IntQuant") if node.inputs[0].name == "x"]
    scale = quantizer.inputs[1]
    random = ir.Node("", "RandomNormal", [], [ir.AttrInt64s("shape", [1])])
    random.outputs[0].name = "noise"
    random.outputs[0].dtype = ir.DataType.FLOAT
    model.graph.insert_before(scale.producer(), random)
    scale.replace_all_uses_with(random.outputs[0])
    assert_layer_stays_float(model)


def test_vectors_have_no_rows():
    """Keep the scale of a vector, whose only axis holds channels."""
    model = quantize(make_matmul((24,)), "int8 dynamic per-tensor")
    x = np.random.default_rng(1).normal(size=24).astype(np.float32)
    actual = anybit.compile(model).run(x)["y"]
    np.testing.assert_allclose(actual, run_floats(model, x), rtol=1e-5, atol=1e-5)


def test_numbers_have_no_rows():
    model = quantize(make_matmul(("n", 1)), "int8 dynamic per-tensor")
    model.graph.inputs[0].shape = ir.Shape([])
    (product,) = find_nodes(model, "MatMul")
    shape = ir.Value(name="one_by_one", const_value=ir.tensor(np.int64([1, 1])))
    model.graph.register_initializer(shape)
    reshape = ir.Node("", "Reshape", [product.inputs[0], shape])
    reshape.outputs[0].name = "matrix"
    model.graph.insert_before(product, reshape)
    product.replace_input_with(0, reshape.outputs[0])
    for value in (value for node in model.graph for value in node.outputs):
        value.shape = None
    x = np.float32(0.3)
    actual = anybit.compile(model).run(x)["y"]
    np.testing.assert_allclose(actual, run_floats(model, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("width", [np.nan, np.inf])
def test_widths_that_are_no_numbers(width):
    """Describe no width, and let the run report it."""
    model = quantize(make_matmul(), "int8 dynamic")
    (quantizer,) = [node for node in find_nodes(model, "IntQuant") if node.inputs[0].name == "x"]
    value = ir.Value(name="width", const_value=ir.tensor(np.float32(width)))
    model.graph.register_initializer(value)
    quantizer.replace_input_with(3, value)
    with pytest.raises(ModelError, match="width"):
        anybit.compile(model)


@pytest.mark.parametrize(
    ("activations", "programs"), [("uint8 dynamic", 1), ("uint8 dynamic per-tensor", 2)]
)
def test_scales_of_a_whole_tensor_divide_layers_into_regions(activations, programs):
    """Statistics over rows have no instruction; reports name the region of each layer."""
    report = anybit.compile(quantize(make_block(("n", 24)), activations)).report
    assert len(report.programs) == programs
    products = [layer for layer in report.products if layer.guarantee is not None]
    assert sorted({layer.place[0] for layer in products}) == list(range(programs))
    assert len(products) == 2
