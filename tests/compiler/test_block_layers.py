# SPDX-License-Identifier: Apache-2.0
"""Weights with a scale per block after dynamic quantizers, against the quantized graph."""

import copy
from itertools import pairwise

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from nbits_models import NBits
from onnx import TensorProto, helper, numpy_helper
from parallel_tasks import num_threads

import anybit
from anybit.compiler.program import program as p
from anybit.compiler.program.reference import unpack_indices
from anybit.onnx.qdq.packed_weights import unpack_codes

ROUNDING = 2.0**-24
FORMATS = "int8 dynamic", "uint8 dynamic", "uint8 dynamic per-tensor"
CHAIN = ["DynamicScale", "DynamicQuantize", "BlockProduct", "Elementwise"]


def make_model(depth, columns=20, operator="MatMul", shape=("n",)):
    """Return x W + b."""
    random = np.random.default_rng(0)
    constants = {
        "w": random.normal(size=(depth, columns)),
        "b": random.normal(size=columns),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["y"]),
    ]
    if operator == "Gemm":
        nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["y"])]
    return helper.make_model(
        helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [*shape, depth])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [*shape, columns])],
            [numpy_helper.from_array(np.float32(v), name) for name, v in constants.items()],
        ),
        opset_imports=[helper.make_opsetid("", 21)],
        ir_version=10,
    )


def quantize(model, activations="int8 dynamic", weights="int4 per-block 32"):
    return anybit.quantize(model, weights=weights, activations=activations).model


def find_product(compiled):
    (program,) = compiled.report.programs
    kinds = p.BlockProduct | p.AsymmetricBlockProduct
    (product,) = [at for at in program.instructions if isinstance(at, kinds)]
    return program, product


def check_floats(model, compiled, x):
    """Compare with the graph; both round sums of as many products."""
    expected, actual = anybit.load(model).run(x)["y"], compiled.run(x)["y"]
    assert actual.shape == expected.shape
    reach = np.abs(x).sum(axis=-1, keepdims=True) * 5
    assert np.all(np.abs(actual - expected) <= (x.shape[-1] + 8) * ROUNDING * reach)


@pytest.mark.parametrize("activations", FORMATS)
@pytest.mark.parametrize(
    "weights", ["int2", "uint2", "int3", "int4", "uint4", "int5", "int8", "uint8"]
)
@pytest.mark.parametrize(("depth", "block"), [(64, 16), (96, 32), (70, 32), (200, 64)])
@pytest.mark.sample(8)
def test_layers_run_on_integers(activations, weights, depth, block):
    model = quantize(make_model(depth), activations, f"{weights} per-block {block}")
    compiled = anybit.compile(model)
    (layer,) = compiled.report.layers
    assert layer.guarantee == "bounded"
    assert layer.kernel == "blocks"
    _, product = find_product(compiled)
    if weights != "uint2":  # its codes may need no zero-points
        assert isinstance(product, p.AsymmetricBlockProduct) == weights.startswith("uint")
    assert layer.layer.weight_bits == product.weight_bits == int(weights[-1])
    assert product.block == block
    check_floats(model, compiled, np.random.default_rng(1).normal(size=(9, depth)).astype("f"))


@pytest.mark.parametrize("operator", ["MatMul", "Gemm"])
@pytest.mark.parametrize("shape", [("n",), ("n", "t"), ("n", 2, 3)])
def test_shapes(operator, shape):
    if operator == "Gemm" and len(shape) > 1:
        pytest.skip("Gemm multiplies matrices")
    model = quantize(make_model(64, operator=operator, shape=shape))
    compiled = anybit.compile(model)
    (program,) = compiled.report.programs
    assert [type(at).__name__ for at in program.instructions] == CHAIN
    sizes = [4 if isinstance(size, str) else size for size in shape]
    check_floats(model, compiled, np.random.default_rng(1).normal(size=(*sizes, 64)).astype("f"))


def multiply_blocks(x, weights, scales, block):
    """Return x W, where x has one scale per row: exact sums of blocks, in ascending order."""
    step = np.maximum(np.abs(x).max(axis=1, keepdims=True), np.float32(2.0**-119)) / np.float32(127)
    codes = np.clip(np.rint(x / step), -128, 127).astype(np.int64)
    y = np.zeros((len(x), len(weights)), np.float32)
    for number, start in enumerate(range(0, x.shape[1], block)):
        part = slice(start, start + block)
        sums = codes[:, part] @ weights[:, part].T
        y = y + sums.astype(np.float32) * scales[:, number]
    return y * step


def test_results_are_those_of_the_documented_order():
    """Blocks are added in ascending order, then come the scale of the row and the bias."""
    source = make_model(96)
    model = quantize(source)
    compiled = anybit.compile(model)
    _, product = find_product(compiled)
    weights = product.lowest + unpack_indices(product.weights, product.weight_bits, (20, 96))
    x = np.random.default_rng(1).normal(size=(7, 96)).astype(np.float32)
    y = multiply_blocks(x, weights, product.scales.reshape(20, 3), 32)
    (bias,) = [numpy_helper.to_array(x) for x in source.graph.initializer if x.name == "b"]
    np.testing.assert_array_equal(compiled.run(x)["y"], y + bias)


def test_stronger_guarantees_leave_floats():
    model = quantize(make_model(64))
    compiled = anybit.compile(model, guarantee="certified")
    (layer,) = compiled.report.layers
    assert layer.guarantee is None
    assert "only certified was asked for" in layer.reason


def test_two_formats_of_weights_read_one_tensor():
    """Zero-points are channels for weights per channel, and not for those in blocks."""
    model = make_model(64)
    model.graph.node.append(helper.make_node("MatMul", ["x", "v"], ["z"]))
    v = np.random.default_rng(1).normal(size=(64, 9)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(v, "v"))
    model.graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, ["n", 9]))
    model.graph.node[0].name, model.graph.node[-1].name = "first", "second"
    quantized = anybit.quantize(
        model,
        weights="int8",
        activations="uint8 dynamic",
        layers={"first": "int4 per-block 32/uint8 dynamic"},
    ).model
    compiled = anybit.compile(quantized)
    assert [layer.guarantee for layer in compiled.report.layers] == ["bounded"] * 2
    x = np.random.default_rng(1).normal(size=(5, 64)).astype(np.float32)
    expected, actual = anybit.load(quantized).run(x), compiled.run(x)
    for name in ("y", "z"):
        np.testing.assert_allclose(actual[name], expected[name], rtol=0, atol=2e-5)


def make_dynamic_nbits(packed, *, bias=False, **attributes):
    """Return a MatMulNBits after a quantizer with computed scales."""
    weight = packed.weight.astype(np.float32)
    model = make_model(packed.k, packed.n)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "w"))
    del model.graph.node[1:]
    model.graph.node[0].output[0] = "y"
    quantized = ir.to_proto(quantize(model, weights="int8"))
    (node,) = [node for node in quantized.graph.node if node.op_type == "MatMul"]
    tensors, names = packed.tensors, ["b", "s", "z", "", "bias"]
    if bias:
        tensors["bias"] = np.arange(packed.n, dtype=np.float32)
    names = [node.input[0], *(name if name in tensors else "" for name in names)]
    del node.input[:]
    node.input.extend(names)
    node.op_type, node.domain = "MatMulNBits", "com.microsoft"
    node.attribute.extend(
        helper.make_attribute(*item) for item in {**packed.sizes, **attributes}.items()
    )
    quantized.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in tensors.items()
    )
    quantized.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return quantized


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("zeropts", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("k", [16, 72])
def test_nbits_after_dynamic_quantizers(bits, zeropts, bias, k):
    packed = NBits(k=k, n=20, bits=bits, block=16, zeropts=zeropts)
    model = make_dynamic_nbits(packed, bias=bias)
    compiled = anybit.compile(model)
    (layer,) = compiled.report.layers
    assert layer.guarantee == "bounded"
    if k > 16 or (bits == 8 and zeropts):
        assert find_product(compiled)[1].weight_bits == layer.layer.weight_bits == bits
    x = np.random.default_rng(0).normal(size=(5, k)).astype(np.float32)
    expected, actual = anybit.load(model).run(x)["y"], compiled.run(x)["y"]
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_zero_points_need_more_bits_than_codes():
    """Codes of blocks that begin below 0, and end below 0 too, may all be small."""
    packed = NBits(k=80, n=3, bits=4, block=16, zeropts=True, negative=True)
    packed.codes[:], packed.scales[0] = 0, [-4, -4, 0.25, 1, 2]
    packed.zeropts[0] = 6, 0, 15, 3, 1
    packed.zeropts[1:] = packed.zeropts[0]
    packed.scales[1:] = packed.scales[0]
    model = make_dynamic_nbits(packed)
    compiled = anybit.compile(model)
    _, product = find_product(compiled)
    assert isinstance(product, p.AsymmetricBlockProduct)
    x = np.random.default_rng(0).normal(size=(5, 80)).astype(np.float32)
    expected, actual = anybit.load(model).run(x)["y"], compiled.run(x)["y"]
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def pack_with_onnxruntime(proto, **options):
    """Return a model whose MatMul has become a MatMulNBits with zero-points, and its inputs."""
    nbits = pytest.importorskip("onnxruntime.quantization.matmul_nbits_quantizer")
    tool = nbits.MatMulNBitsQuantizer(copy.deepcopy(proto), is_symmetric=False, **options)
    tool.process()
    packed = tool.model.model
    constants = {x.name: numpy_helper.to_array(x) for x in packed.graph.initializer}
    (node,) = [node for node in packed.graph.node if node.op_type == "MatMulNBits"]
    return packed, [constants[name] for name in node.input[1:]]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("depth", "block"), [(200, 32), (50, 16), (128, 64), (30, 32)])
@pytest.mark.usefixtures("level")
def test_nbits_of_onnxruntime_with_zero_points_are_exact(bits, depth, block):
    source = make_model(depth, 21)
    packed, (codes, scales, zeros) = pack_with_onnxruntime(source, bits=bits, block_size=block)
    compiled = anybit.compile(anybit.quantize(packed, activations="int8 dynamic"))
    blocks = -(-depth // block)
    if blocks > 1:
        _, product = find_product(compiled)
        assert isinstance(product, p.AsymmetricBlockProduct)
        assert (product.weight_bits, product.block) == (bits, block)
    zeros = unpack_codes(zeros.reshape(21, -1), bits)[:, :blocks].astype(np.int64)
    stored = unpack_codes(codes, bits).reshape(21, -1)[:, :depth].astype(np.int64)
    weights = stored - np.repeat(zeros, block, axis=1)[:, :depth]
    x = np.random.default_rng(1).normal(size=(7, depth)).astype(np.float32)
    x[1], x[2] = 1, -1
    x[3] = 0
    y = multiply_blocks(x, weights, scales.reshape(21, blocks), block)
    (bias,) = [numpy_helper.to_array(x) for x in source.graph.initializer if x.name == "b"]
    rows = np.concatenate([x, x[:2]])
    rows[7, 0], rows[8, 1] = np.nan, np.inf
    for threads in (1, 3):
        with num_threads(threads):
            actual = compiled.run(rows)["y"]
        np.testing.assert_array_equal(actual[:7], y + bias)
        assert np.isnan(actual[7:]).all()


def compile_shifted(activations, operator, shift, weights):
    """Compile a layer of 70 channels whose weights are not symmetric; compare its results."""
    source = make_model(70, operator=operator)
    constant = source.graph.initializer[0]
    shifted = numpy_helper.to_array(constant) + np.asarray(shift, np.float32)
    constant.CopyFrom(numpy_helper.from_array(shifted, constant.name))
    model = quantize(source, activations, weights)
    compiled = anybit.compile(model)
    (layer,) = compiled.report.layers
    assert layer.guarantee == "bounded"
    check_floats(model, compiled, np.random.default_rng(1).normal(size=(9, 70)).astype("f"))
    return compiled, layer


@pytest.mark.parametrize("activations", FORMATS[:2])
@pytest.mark.parametrize("operator", ["MatMul", "Gemm"])
@pytest.mark.parametrize("shift", [-3, 0.3, 3])
def test_weights_of_9_bits_less_one_zero_point(activations, operator, shift):
    compiled, _ = compile_shifted(activations, operator, shift, "uint8 per-tensor")
    _, product = find_product(compiled)
    assert isinstance(product, p.BlockProduct)
    assert (product.weight_bits, product.block) == (8, 70)


@pytest.mark.parametrize("activations", FORMATS[:2])
@pytest.mark.parametrize("operator", ["MatMul", "Gemm"])
def test_weights_of_9_bits_less_zero_points_per_channel(activations, operator):
    compiled, layer = compile_shifted(activations, operator, np.linspace(-3, 3, 20), "uint8")
    _, product = find_product(compiled)
    assert (product.weight_bits, product.block) == (8, 70)
    assert max(layer.layer.weight_codes) > 127


def test_weights_of_9_bits_in_too_long_columns_stay():
    model = make_model(p.MOST_ASYMMETRIC_BLOCK + 1, 2)
    constant = model.graph.initializer[0]
    shifted = numpy_helper.to_array(constant) + np.float32(3)
    constant.CopyFrom(numpy_helper.from_array(shifted, constant.name))
    (layer,) = anybit.compile(quantize(model, weights="uint8")).report.layers
    assert layer.guarantee is None
    assert layer.reason.endswith("quantize them to integers of 8 bits")


def test_nbits_with_zero_points_keep_their_size(tmp_path):
    source = make_model(2048, 64)
    packed, arrays = pack_with_onnxruntime(source, bits=4, block_size=32)
    compiled = anybit.compile(anybit.quantize(packed, activations="int8 dynamic"))
    compiled.save(tmp_path / "compiled.onnx")
    stored = sum(array.nbytes for array in arrays)
    assert stored < (tmp_path / "compiled.onnx").stat().st_size < stored + 4096


def test_zero_points_of_equal_blocks():
    """Scales that are equal make one block, whose codes may need more bits."""
    packed = NBits(k=64, n=20, bits=4, block=16, zeropts=True)
    packed.scales[:] = 0.5
    packed.zeropts[:, ::2], packed.zeropts[:, 1::2] = 0, 15
    model = make_dynamic_nbits(packed)
    x = np.random.default_rng(0).normal(size=(5, 64)).astype(np.float32)
    compiled = anybit.compile(model)
    assert compiled.report.layers[0].guarantee == "bounded"
    expected, actual = anybit.load(model).run(x)["y"], compiled.run(x)["y"]
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("k", [16, 72])
def test_nbits_with_negative_scales_keep_their_bits(k):
    model = make_dynamic_nbits(NBits(k=k, n=20, bits=4, block=16))
    (scales,) = [tensor for tensor in model.graph.initializer if tensor.name == "s"]
    signed = numpy_helper.to_array(scales).copy()
    signed[::3] *= -1
    scales.CopyFrom(numpy_helper.from_array(signed, "s"))
    compiled = anybit.compile(model)
    _, product = find_product(compiled)
    assert (product.weight_bits, product.lowest) == (4, -8)
    x = np.random.default_rng(0).normal(size=(5, k)).astype(np.float32)
    expected, actual = anybit.load(model).run(x)["y"], compiled.run(x)["y"]
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def check_nbits_stay(model, compiled):
    """Check that the node stays with its packed weights, and the bits with it."""
    assert [node.op_type for node in compiled.model.graph][-1] == "MatMulNBits"
    names = {initializer.name for initializer in model.graph.initializer}
    assert {"b", "s"} <= names & set(compiled.model.graph.initializers)
    depth = model.graph.input[0].type.tensor_type.shape.dim[-1].dim_value
    x = np.random.default_rng(0).normal(size=(5, depth)).astype(np.float32)
    expected, actual = anybit.load(model).run(x)["y"], compiled.run(x)["y"]
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("bias", [False, True])
def test_nbits_with_a_stronger_guarantee_stay(bias):
    model = make_dynamic_nbits(NBits(k=72, n=20), bias=bias)
    check_nbits_stay(model, anybit.compile(model, guarantee="certified"))


@pytest.mark.parametrize("scale", [3e38, 1e-42])
def test_nbits_beyond_floats_stay(scale):
    model = make_dynamic_nbits(NBits(k=72, n=20))
    (scales,) = [x for x in model.graph.initializer if x.name == "s"]
    values = numpy_helper.to_array(scales).copy()
    values[0, 0] = scale
    if scale < 1:
        values[:] = scale
    scales.CopyFrom(numpy_helper.from_array(values, "s"))
    check_nbits_stay(model, anybit.compile(model))


def insert_between(model, nodes, **constants):
    """Put nodes that compute W between the dequantized weights `d` and the product."""
    (product,) = [node for node in model.graph.node if node.op_type == "MatMul"]
    at = list(model.graph.node).index(product)
    product.input[1] = "W"
    quantizer = helper.make_node("DequantizeLinear", ["c", "s"], ["d"], axis=0, block_size=32)
    model.graph.node.insert(at, quantizer)
    for offset, node in enumerate(nodes, 1):
        model.graph.node.insert(at + offset, node)
    random = np.random.default_rng(1)
    constants = {name: np.array(value, np.int64) for name, value in constants.items()}
    constants["c"] = random.integers(-8, 8, (64, 28)).astype(np.int8)
    constants["s"] = random.uniform(0.1, 1, (2, 28)).astype(np.float32)
    for name, value in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(value, name))


@pytest.mark.parametrize("axis", [1, -1])
def test_slices_of_weights_may_count_axes_from_the_end(axis):
    model = ir.to_proto(quantize(make_model(64), weights="int8"))
    cut = helper.make_node("Slice", ["d", "start", "end", "axis"], ["W"])
    insert_between(model, [cut], start=[8], end=[28], axis=[axis])
    compiled = anybit.compile(model)
    assert compiled.report.layers[0].guarantee == "bounded"
    x = np.random.default_rng(1).normal(size=(5, 64)).astype(np.float32)
    expected, actual = anybit.load(model).run(x)["y"], compiled.run(x)["y"]
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_slices_of_weights_that_depend_on_inputs_stay():
    model = ir.to_proto(quantize(make_model(64), weights="int8"))
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"], start=1),
        helper.make_node("Sub", ["sizes", "width"], ["start"]),
        helper.make_node("Slice", ["d", "start", "end", "axis"], ["W"]),
    ]
    insert_between(model, nodes, width=[56], end=[28], axis=[1])
    x = np.random.default_rng(1).normal(size=(5, 64)).astype(np.float32)
    expected, actual = anybit.load(model).run(x)["y"], anybit.compile(model).run(x)["y"]
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_long_chains_of_movements_of_weights():
    model = ir.to_proto(quantize(make_model(64, 28), weights="int8"))
    names = ["d", *(f"t{i}" for i in range(1199)), "W"]
    nodes = [helper.make_node("Transpose", [first], [second]) for first, second in pairwise(names)]
    insert_between(model, nodes)
    assert anybit.compile(model).report.layers[0].guarantee == "bounded"


def test_nbits_that_round_their_input_again_stay():
    model = make_dynamic_nbits(NBits(k=64, n=20), accuracy_level=4)
    compiled = anybit.compile(model)
    assert not compiled.report.programs
    assert "accuracy_level 4 lets a runtime round" in compiled.report.layers[0].reason
    operators = [node.op_type for node in compiled.model.graph]
    assert "MatMulNBits" in operators


def test_nbits_on_floats_stay():
    model = NBits(k=64, n=20).model()
    with pytest.raises(anybit.ModelError, match="no quantizers"):
        anybit.compile(model)
    assert isinstance(model, onnx.ModelProto)


@pytest.mark.parametrize("operator", ["MatMul", "Gemm"])
def test_reason_with_static_activations_names_the_remedies(operator):
    data = np.random.default_rng(1).normal(size=(50, 64)).astype(np.float32)
    source = make_model(64, operator=operator)
    model = anybit.quantize(source, data, weights="int4 per-block 32").model
    (layer,) = anybit.compile(model).report.layers
    assert layer.guarantee is None
    assert layer.reason == (
        "its weights have a scale per block, which kernels multiply only with scales that are "
        "computed at run time: quantize activations with 'int8 dynamic', or weights per channel"
    )


@pytest.mark.parametrize("operator", ["MatMul", "Gemm"])
@pytest.mark.parametrize("block", [0, 32])
def test_reason_of_negative_scales_names_the_node(operator, block):
    proto = make_model(64, operator=operator)
    random = np.random.default_rng(1)
    codes = random.integers(-7, 8, size=(64, 20)).astype(np.int8)
    scales = np.full((64 // block, 20) if block else 20, -0.5, np.float32)
    stored = {"codes": codes, "scales": scales}
    kept = [tensor for tensor in proto.graph.initializer if tensor.name != "w"]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)
    proto.graph.initializer.extend(numpy_helper.from_array(v, name) for name, v in stored.items())
    blocks = {"axis": 0, "block_size": block} if block else {"axis": 1}
    proto.graph.node.insert(
        0, helper.make_node("DequantizeLinear", ["codes", "scales"], ["w"], "own", **blocks)
    )
    (layer,) = anybit.compile(proto).report.layers
    assert layer.guarantee is None
    assert layer.reason == (
        "node 'own' (DequantizeLinear) of its weights has no integer form: its scale is not finite "
        "and positive; quantize them again, for example per channel"
    )


def test_reason_of_minifloats_in_blocks():
    data = np.random.default_rng(1).normal(size=(50, 64)).astype(np.float32)
    model = anybit.quantize(make_model(64), data, weights="mxfp4").model
    (layer,) = anybit.compile(model).report.layers
    assert layer.reason.endswith("codes with one scale per channel: quantize them per channel")
