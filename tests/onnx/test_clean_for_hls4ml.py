# SPDX-License-Identifier: Apache-2.0
"""Output of `clean` for hls4ml: names, constants and layers of its frontend."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from clean_checks import assert_array_bits
from pass_checks import apply_passes, random
from small_models import kinds, model, node

import anybit
from anybit.model import load
from anybit.onnx.checks.checking import check
from anybit.onnx.checks.targets.hls4ml_names import is_usable
from anybit.onnx.passes import JoinConvBias, MeanToConv, OneScale, OwnConstants, TrimConstants

QUARTER = {"quarter": 0.25, "zero": 0, "six": 6}


def cleaned(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    """Return the model cleaned for hls4ml, and the remarks; check idempotence."""
    source = proto.SerializeToString(deterministic=True)
    result = anybit.clean(proto, target="hls4ml")
    assert proto.SerializeToString(deterministic=True) == source
    written = ir.to_proto(result.model)
    again = ir.to_proto(anybit.clean(written, target="hls4ml").model)
    assert again.SerializeToString(deterministic=True) == written.SerializeToString(
        deterministic=True
    )
    return written, result.remarks


def assert_same(proto: onnx.ModelProto, other: onnx.ModelProto, x: np.ndarray) -> None:
    (expected,), (got,) = (load(item).run(x).values() for item in (proto, other))
    assert_array_bits(got, expected)


def codes(proto: onnx.ModelProto, severity: str = "error") -> set[str]:
    return {finding.code for finding in check(proto, "hls4ml") if finding.severity == severity}


def product(x: str = "x", y: str = "y", name: str = "product") -> onnx.ModelProto:
    """Build a product of a quantized input and weights with shared parameters."""
    nodes = [
        node("IntQuant", f"{x} quarter zero six", "q", name="act"),
        node("IntQuant", "w quarter zero six", "v", name="weight"),
        node("MatMul", "q v", y, domain="", name=name),
    ]
    constants = {**QUARTER, "w": random(4, 3, seed=1)}
    return model(nodes, constants, inputs={x: [1, 4]}, outputs=[y])


@pytest.mark.parametrize(
    ("name", "new"),
    [
        ("input", "input_1"),
        ("class", "class_1"),
        ("input.1", "input_1"),
        ("1", "x_1"),
        ("input_t", "x_input_t_1"),
        ("größe", "gr_e"),
        ("layer2_out", "x_layer2_out"),
    ],
)
def test_clean_for_hls4ml_inputs_get_names_of_cpp(name: str, new: str) -> None:
    proto = product(name)
    assert "name" in codes(proto)
    written, remarks = cleaned(proto)
    got = written.graph.input[0].name
    assert is_usable(got)
    assert remarks == (f"renamed for C++: {name} is {got}",)
    assert codes(written) == set()


@pytest.mark.parametrize("name", ["x", "X", "images", "output", "data_in", "pixel_values"])
def test_clean_for_hls4ml_names_that_cpp_takes_stay(name: str) -> None:
    written, remarks = cleaned(product(name))
    assert (written.graph.input[0].name, remarks) == (name, ())


@pytest.mark.parametrize("name", ["conv/1", "w", "x", "int"])
def test_clean_for_hls4ml_nodes_get_names_of_their_own(name: str) -> None:
    proto = product(name=name)
    assert "name" in codes(proto)
    written, _ = cleaned(proto)
    assert codes(written) == set()
    names = [item.name for item in written.graph.node]
    names += [tensor.name for tensor in (*written.graph.initializer, *written.graph.input)]
    assert len(names) == len(set(names))


def test_clean_for_hls4ml_constants_have_one_reader() -> None:
    proto = product()
    assert "fork" in codes(proto)
    written, _ = cleaned(proto)
    read = [name for item in written.graph.node for name in item.input]
    assert len(read) == len(set(read))
    assert_same(proto, written, random(1, 4))


def test_clean_for_hls4ml_quantized_constants_have_one_reader() -> None:
    nodes = [
        node("IntQuant", "x quarter zero six", "q", name="act"),
        node("IntQuant", "w quarter zero six", "v", name="weight"),
        node("MatMul", "q v", "m", domain="", name="first"),
        node("MatMul", "m v", "y", domain="", name="second"),
    ]
    constants = {**QUARTER, "w": random(4, 4, seed=1)}
    proto = model(nodes, constants, inputs={"x": [1, 4]})
    changed = apply_passes(proto, OwnConstants())
    assert kinds(changed) == ["IntQuant", "IntQuant", "MatMul", "IntQuant", "MatMul"]
    assert_same(proto, ir.to_proto(changed), random(1, 4))
    assert codes(cleaned(proto)[0]) == set()


def convolution(bias: str, shape: list[int], **constants: object) -> onnx.ModelProto:
    """Build a convolution followed by an Add of a bias."""
    nodes = [
        node("IntQuant", "x quarter zero six", "q", name="act"),
        node("IntQuant", "w quarter zero six", "v", name="weight"),
        node("Conv", "q v", "c", domain="", name="conv"),
        *([node("IntQuant", "b quarter zero six", "d", name="bias")] if bias == "d" else []),
        node("Add", f"c {bias}", "y", domain="", name="add"),
    ]
    values = {**QUARTER, "w": random(3, 2, 3, 3, seed=1), "b": random(*shape, seed=2), **constants}
    return model(nodes, values, inputs={"x": [1, 2, 5, 5]})


@pytest.mark.parametrize("bias", ["b", "d"])
@pytest.mark.parametrize("shape", [[3, 1, 1], [1, 3, 1, 1]])
def test_clean_for_hls4ml_constants_added_to_convolutions_become_their_bias(
    bias: str, shape: list[int]
) -> None:
    proto = convolution(bias, shape)
    changed = apply_passes(proto, JoinConvBias())
    assert kinds(changed)[-1] == "Conv"
    assert_same(proto, ir.to_proto(changed), random(1, 2, 5, 5))
    written, _ = cleaned(proto)
    assert "Add" not in [item.op_type for item in written.graph.node]
    assert codes(written) == set()
    (conv,) = (item for item in written.graph.node if item.op_type == "Conv")
    assert len(conv.input) == 3


@pytest.mark.parametrize("shape", [[3], [1, 1, 1, 3]])
def test_check_reports_constants_added_to_convolutions_with_channels_last(shape: list[int]) -> None:
    written, _ = cleaned(convolution("b", [3, 1, 1]))
    graph = written.graph
    (conv,) = (item for item in graph.node if item.op_type == "Conv")
    (reader,) = (item for item in graph.node if conv.output[0] in item.input)
    add = onnx.helper.make_node("Add", [conv.output[0], "more"], ["sum"], "sum")
    reader.input[0] = "sum"
    graph.node.insert(list(graph.node).index(reader), add)
    graph.initializer.append(onnx.numpy_helper.from_array(random(*shape), "more"))
    assert "bias" in codes(written)


@pytest.mark.parametrize("shape", [[1, 1, 1], [5], [3, 5, 5], [1, 3, 5, 5], [1, 1, 5]])
def test_clean_for_hls4ml_other_constants_are_added_still(shape: list[int]) -> None:
    if max(shape) == 5 and shape[-1] == 5:
        shape = [3 if size == 5 else size for size in shape]
    proto = convolution("b", shape)
    changed = apply_passes(proto, JoinConvBias())
    assert kinds(changed)[-2:] == ["Conv", "Add"]


def test_clean_for_hls4ml_operands_lose_axes_in_front() -> None:
    nodes = [
        node("Mul", "x factor", "m", domain="", name="mul"),
        node("IntQuant", "m s zero six", "y", name="act"),
    ]
    constants = {
        "factor": random(1, 1, 4, seed=1),
        "s": np.full((1, 2, 1), 0.25, np.float32),
        "zero": 0,
        "six": 6,
    }
    proto = model(nodes, constants, inputs={"x": [1, 2, 4]})
    changed = apply_passes(proto, TrimConstants())
    shapes = {name: list(item.shape) for name, item in changed.graph.initializers.items()}
    assert shapes == {"factor": [4], "s": [1], "zero": [], "six": []}
    assert_same(proto, ir.to_proto(changed), random(1, 2, 4))


def test_clean_for_hls4ml_operands_that_give_the_rank_stay() -> None:
    nodes = [node("Mul", "x factor", "y", domain="", name="mul")]
    proto = model(nodes, {"factor": random(1, 1, 4, seed=1)}, inputs={"x": [4]})
    assert list(apply_passes(proto, TrimConstants()).graph.initializers["factor"].shape) == [
        1,
        1,
        4,
    ]


def constant_quantizer(scale: object, bits: int, x: np.ndarray) -> onnx.ModelProto:
    nodes = [
        node("IntQuant", "w s zero bits", "v", name="weight"),
        node("MatMul", "x v", "y", domain="", name="product"),
    ]
    return model(nodes, {"w": x, "s": scale, "zero": 0, "bits": bits}, inputs={"x": [1, len(x)]})


@pytest.mark.parametrize(
    ("scale", "bits", "one_scale", "new_bits"),
    [
        (np.float32([[0.25, 0.5, 2]]), 4, 0.25, 6),
        (np.float32([[1, 2**-20, 1]]), 4, 2.0**-20, 24),
        (np.float32(2**-12), 32, 2.0**-12, 17),
        (np.float32([[0.25, 0.3, 2]]), 4, None, None),
        (np.float32([[1, 2**-40, 1]]), 4, None, None),
        (np.float32(0.25), 4, None, None),
    ],
)
def test_clean_for_hls4ml_scales_that_are_powers_of_two_become_one(
    scale: np.ndarray, bits: int, one_scale: float | None, new_bits: int | None
) -> None:
    x = np.float32([[2.3, -1.2, 0], [-0.1, 3, -9], [1.5, -0.2, 4]])
    proto = constant_quantizer(scale, bits, x)
    changed = apply_passes(proto, OneScale())
    constants = {name: item.const_value.numpy() for name, item in changed.graph.initializers.items()
                 if item.const_value is not None}  # fmt: skip
    if one_scale is None:
        assert (constants["s"].tobytes(), constants["bits"]) == (scale.tobytes(), bits)
        return
    assert (constants["s"], constants["bits"]) == (one_scale, new_bits)
    assert_same(proto, ir.to_proto(changed), random(1, 3))
    quantizers = [model_of_weight(item) for item in (proto, ir.to_proto(changed))]
    (expected,), (got,) = (load(quantizer).run({}).values() for quantizer in quantizers)
    assert_array_bits(got, expected)


def model_of_weight(proto: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model with the quantized weight as its only output."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    del copy.graph.node[1:], copy.graph.input[:], copy.graph.output[:]
    copy.graph.output.append(onnx.helper.make_tensor_value_info("v", onnx.TensorProto.FLOAT, None))
    return copy


@pytest.mark.parametrize(
    ("kind", "shape", "attributes", "expected"),
    [
        ("GlobalAveragePool", [1, 3, 4, 8], {}, "Conv"),
        ("GlobalAveragePool", [1, 3, 8], {}, "Conv"),
        ("GlobalAveragePool", [1, 3, 3, 8], {}, "GlobalAveragePool"),
        ("GlobalAveragePool", ["n", 3, 4, 8], {}, "Conv"),
        ("GlobalMaxPool", [1, 3, 3, 5], {}, "MaxPool"),
        ("AveragePool", [1, 3, 4, 6], {"kernel_shape": [2, 2], "strides": [2, 1]}, "Conv"),
        ("AveragePool", [1, 3, 4, 6], {"kernel_shape": [3, 2]}, "AveragePool"),
        ("AveragePool", [1, 3, 4, 6], {"kernel_shape": [2, 2], "pads": [1] * 4}, "AveragePool"),
        ("AveragePool", [1, 3, 5, 5], {"kernel_shape": [2, 2], "ceil_mode": 1}, "AveragePool"),
        ("AveragePool", [1, 3, 4, 6], {"kernel_shape": [2, 2], "auto_pad": "SAME_UPPER"},
         "AveragePool"),
    ],
)  # fmt: skip
def test_clean_for_hls4ml_means_of_powers_of_two_become_convolutions(
    kind: str, shape: list[object], attributes: dict[str, object], expected: str
) -> None:
    nodes = [
        node("IntQuant", "x quarter zero six", "q", name="act"),
        node(kind, "q", "y", domain="", name="pool", **attributes),
    ]
    proto = model(nodes, QUARTER, inputs={"x": shape})
    changed = apply_passes(proto, MeanToConv())
    assert kinds(changed)[-1] == expected
    x = 8 * random(*(2 if size == "n" else size for size in shape))
    assert_same(proto, ir.to_proto(changed), x)


RESIZE = onnx.helper.make_node("Resize", ["q", "", "sizes"], ["y"], "resize")
REFUSED = [
    ("layout", [node("GlobalAveragePool", "q", domain="", name="pool")], [1, 3, 3, 5]),
    ("layer", [node("Conv", "q w", domain="", name="conv", dilations=[2, 2])], [1, 2, 6, 6]),
    ("layer", [node("Conv", "q half", domain="", name="conv", group=2)], [1, 4, 6, 6]),
    ("layer", [node("Clip", "q", domain="", name="clip")], [1, 4]),
    ("layer", [node("Min", "q quarter", domain="", name="least")], [1, 4]),
    ("layer", [node("Sum", "q q x", domain="", name="sum")], [1, 4]),
    ("rank", [node("MatMul", "q m", domain="", name="product")], [1, 3, 4]),
    (
        "threshold",
        [
            node("Add", "q b", "s", domain="", name="add"),
            node("BipolarQuant", "s one", name="sign"),
        ],
        [1, 4],
    ),
    ("layer", [RESIZE], [1, 2, 4, 4]),
    ("layout", [node("Pad", "q pads", domain="", name="pad")], [1, 2, 4, 4]),
    ("reader", [node("MatMul", "q x", domain="", name="product")], [4, 4]),
]


@pytest.mark.parametrize(("code", "nodes", "shape"), REFUSED)
def test_check_reports_errors_of_hls4ml(
    code: str, nodes: list[onnx.NodeProto], shape: list[int]
) -> None:
    nodes = [node("IntQuant", "x quarter zero six", "q", name="act"), *nodes]
    constants = {
        **QUARTER,
        "w": random(3, 2, 3, 3, seed=1),
        "half": random(4, 2, 3, 3, seed=1),
        "m": random(4, 3, seed=1),
        "b": random(4, seed=1),
        "one": 1,
        "sizes": np.float32([1, 1, 2, 2]),
        "pads": np.int64([0, 0, 1, 1, 0, 0, 1, 1]),
    }
    read = {name for item in nodes for name in item.input}
    kept = {name: value for name, value in constants.items() if name in read}
    written, _ = cleaned(model(nodes, kept, inputs={"x": shape}))
    assert code in codes(written)


def test_clean_for_hls4ml_check_reports_constants_that_are_not_stored() -> None:
    proto = product()
    scale = onnx.numpy_helper.from_array(np.float32(0.25))
    proto.graph.node.insert(0, onnx.helper.make_node("Constant", [], ["k"], "scale", value=scale))
    proto.graph.node[1].input[1] = "k"
    assert "layer" in codes(proto)
    assert codes(cleaned(proto)[0]) == set()


def test_check_reports_roundings_of_hls4ml() -> None:
    nodes = [
        node("IntQuant", "x quarter zero six", "q", name="act"),
        node("MatMul", "q w", "m", domain="", name="product"),
        node("Tanh", "m", domain="", name="tanh"),
    ]
    proto = model(nodes, {**QUARTER, "w": random(4, 3, seed=1)}, inputs={"x": [1, 4]})
    assert {"float-constant", "table"} <= codes(cleaned(proto)[0], "warning")
