# SPDX-License-Identifier: Apache-2.0
"""QuantizeLinear and DequantizeLinear become quantizers with the same values."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from qdq_models import (
    Lifted,
    check,
    integer,
    only,
    pair,
    plain,
    qdq,
    runs,
    telling,
    tensor,
)
from small_models import kinds

from anybit.onnxruntime import session


def test_from_qdq_unsigned_narrow_8_bits() -> None:
    lifted = check(pair(kind="uint8", clip=(0, 254)), telling(0.5))
    assert only(lifted) == integer(0.5, 8, signed=False, narrow=True)


@pytest.mark.parametrize(
    ("kind", "clip", "expected"),
    [
        ("int8", None, integer(0.5, 8)),
        ("uint8", None, integer(0.5, 8, signed=False)),
        ("int8", (-127, 127), integer(0.5, 8, narrow=True)),
        ("int8", (-4, 3), integer(0.5, 3)),
        ("int8", (-3, 3), integer(0.5, 3, narrow=True)),
        ("int8", (-1, 0), integer(0.5, 1)),
        ("int8", (-1, 1), integer(0.5, 2, narrow=True)),
        ("int8", (0, 15), integer(0.5, 4, signed=False)),
        ("uint8", (0, 14), integer(0.5, 4, signed=False, narrow=True)),
        ("uint8", (0, 1), integer(0.5, 1, signed=False)),
        ("int4", None, integer(0.5, 4)),
        ("uint4", None, integer(0.5, 4, signed=False)),
        ("int16", None, integer(0.5, 16)),
        ("uint16", None, integer(0.5, 16, signed=False)),
    ],
)
def test_from_qdq_ranges(kind: str, clip: tuple[int, int] | None, expected: dict[str, Any]) -> None:
    lifted = check(pair(kind=kind, clip=clip), telling(0.5))
    assert kinds(lifted.model) == ["IntQuant"]
    assert only(lifted) == expected


@pytest.mark.parametrize(
    ("kind", "zeropt", "clip", "nodes", "bits", "signed"),
    [
        # Clips that match the range of no quantizer are never widened.
        ("int8", 0, (-5, 5), ["IntQuant", "Clip"], 4, True),
        ("uint8", 0, (0, 100), ["IntQuant", "Clip"], 7, False),
        ("uint8", 0, (3, 200), ["IntQuant", "Clip"], 8, False),
        # A zero-point shifts the range.
        ("uint8", 128, None, ["IntQuant"], 8, True),
        ("int8", -128, None, ["IntQuant"], 8, False),
        ("uint4", 8, None, ["IntQuant"], 4, True),
        ("uint8", 8, (0, 15), ["IntQuant"], 4, True),
        ("uint8", 3, None, ["IntQuant", "Clip"], 9, True),
        ("uint8", 127, None, ["IntQuant", "Clip"], 9, True),
        ("int8", 127, None, ["IntQuant", "Clip"], 9, True),
        ("uint16", 1000, None, ["IntQuant", "Clip"], 17, True),
    ],
)
def test_from_qdq_composites(
    kind: str, zeropt: int, clip: tuple[int, int] | None, nodes: list[str], bits: int, signed: bool
) -> None:
    for scale in (0.5, 0.3):
        lifted = check(pair(scale, zeropt, kind, clip=clip), telling(scale, 300))
        assert kinds(lifted.model) == nodes
        assert only(lifted) == integer(scale, bits, signed=signed)
        assert lifted.exact


def test_from_qdq_composites_per_channel_and_in_old_opsets() -> None:
    scale, zeropt = [0.3, 0.5, 2.0], [3, 128, 255]
    x = np.stack([telling(parameter, 300) for parameter in scale], axis=1)
    proto = pair(scale, zeropt, "uint8", shape=("n", 3), opset=13)
    lifted = check(proto, x)
    assert kinds(lifted.model) == ["IntQuant", "Max", "Min"]
    (single, _) = runs(pair(0.3, 3, "uint8", opset=10), x=x[:, 0])
    lifted = Lifted(pair(0.3, 3, "uint8", opset=10))
    assert kinds(lifted.model) == ["IntQuant", "Max", "Min"]
    result = session(lifted.model).run(None, {"x": x[:, 0]})[0]
    np.testing.assert_array_equal(result, single)


def test_from_qdq_approximate_zero_points() -> None:
    lifted = Lifted(pair(0.5, 3, "uint8"), allow_approximate=True)
    assert only(lifted) == integer(0.5, 8, signed=False, zeropt=3.0)
    (step,) = lifted.steps
    assert not step.exact
    assert "zero-point 3 is added before rounding" in step.reason
    exact = Lifted(pair(0.5, 128, "uint8"), allow_approximate=True)
    assert exact.exact
    assert only(exact) == integer(0.5, 8)


def test_from_qdq_zero_points_of_channels() -> None:
    lifted = Lifted(pair([0.5, 1], [3, 4], "uint8", shape=("n", 2)), allow_approximate=True)
    assert only(lifted)["zeropt"] == [3, 4]


@pytest.mark.parametrize(
    ("attributes", "shape", "expected"),
    [
        ({}, ("n", 3, 4, 5), [[[1.0]], [[2.0]], [[4.0]]]),
        ({"axis": 1}, ("n", 3, 4), [[1.0], [2.0], [4.0]]),
        ({"axis": -1}, ("n", 4, 3), [1.0, 2.0, 4.0]),
        ({"axis": -3}, (3, 2, "n"), [[[1.0]], [[2.0]], [[4.0]]]),
        ({"axis": 0}, (3, "n"), [[1.0], [2.0], [4.0]]),
    ],
)
def test_from_qdq_axes(attributes: dict[str, int], shape: Any, expected: Any) -> None:
    x = np.random.default_rng(0).standard_normal([2 if n == "n" else n for n in shape])
    lifted = check(pair([1, 2, 4], [0, 0, 0], shape=shape, **attributes), x.astype(np.float32))
    assert only(lifted)["scale"] == expected


def test_from_qdq_one_scale_has_no_axis() -> None:
    """Whatever the attribute says, and also where x has no such axis."""
    proto = pair([0.5], [0], axis=7)
    assert only(Lifted(proto)) == integer(0.5, 8)


def test_from_qdq_missing_zero_points() -> None:
    nodes = [plain("QuantizeLinear", "x s", "q"), plain("DequantizeLinear", "q s")]
    lifted = check(qdq(nodes, [tensor("s", 0.5)]), telling(0.5))
    assert only(lifted) == integer(0.5, 8, signed=False)
    nodes[0].attribute.append(helper.make_attribute("output_dtype", int(TensorProto.INT4)))
    assert only(check(qdq(nodes, [tensor("s", 0.5)]), telling(0.5))) == integer(0.5, 4)
    nodes[1].input.append("z")
    nodes[1].input[2] = "z"
    proto = qdq(nodes, [tensor("s", 0.5), tensor("z", 0, TensorProto.INT4)])
    assert only(Lifted(proto)) == integer(0.5, 4)


@pytest.mark.parametrize(
    ("inner", "output"),
    [
        ([plain("Transpose", "q", "t", perm=[1, 0, 2, 3])], (4, 2, 6, 6)),
        ([plain("Reshape", "q shape", "t")], (2, 4, 36)),
        ([plain("MaxPool", "q", "t", kernel_shape=[2, 2], pads=[1, 1, 0, 0])], (2, 4, 6, 6)),
        ([plain("Flatten", "q", "f"), plain("Identity", "f", "t")], (2, 144)),
        ([plain("Slice", "q start end", "t")], (1, 4, 6, 6)),
        ([plain("Squeeze", "u axes", "t")], (2, 4, 6, 6)),
        ([plain("DepthToSpace", "q", "t", blocksize=2)], (2, 1, 12, 12)),
        ([plain("Clip", "q low", "k"), plain("Transpose", "k", "t")], (6, 6, 4, 2)),
    ],
)
def test_from_qdq_moves_between(inner: list[onnx.NodeProto], output: tuple[int, ...]) -> None:
    if inner[0].input[0] == "u":
        inner = [plain("Unsqueeze", "q axes", "u"), *inner]
    proto = pair(0.3, 0, "int8", middle=inner, shape=(2, 4, 6, 6), output=output, clip=(-4, 3))
    extras = {
        "shape": np.array([2, 4, 36]),
        "start": np.array([1]),
        "end": np.array([2]),
        "axes": np.array([0]),
        "low": np.array(-100, np.int8),
    }
    used = {name for kind in inner for name in kind.input}
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(extras[name], name) for name in sorted(used & set(extras))
    )
    x = np.random.default_rng(0).standard_normal((2, 4, 6, 6)).astype(np.float32)
    lifted = check(proto, x)
    moved = [kind.op_type for kind in inner if kind.op_type != "Clip"]
    assert kinds(lifted.model) == ["IntQuant", *moved]
    assert only(lifted) == integer(0.3, 3)


@pytest.mark.parametrize(
    ("bounds", "bits"), [((-127, 127), 8), ((-8, 7), 4), ((0, 127), 7), ((-128, 127), 8)]
)
@pytest.mark.parametrize("kind", ["Clip", "Max, Min", "Min, Max"])
def test_from_qdq_limits_that_are_codes_are_absorbed(
    kind: str, bounds: tuple[int, int], bits: int
) -> None:
    scale = np.float32(0.3)
    low, high = (np.float32(code) * scale for code in bounds)
    first, _, second = kind.partition(", ")
    limits = {"Max": "low", "Min": "high"}
    before = [plain("Clip", "x low high", "l")]
    if second:
        before = [
            plain(first, f"x {limits[first]}", "k"),
            plain(second, f"{limits[second]} k", "l"),
        ]
    proto = pair(scale)
    proto.graph.node[0].input[0] = "l"
    for item in reversed(before):
        proto.graph.node.insert(0, item)
    proto.graph.initializer.extend([tensor("low", low), tensor("high", high)])
    lifted = check(proto, telling(scale, 300))
    assert kinds(lifted.model) == ["IntQuant"]
    assert only(lifted)["bitwidth"] == bits


@pytest.mark.parametrize("kind", ["limit", "sign"])
def test_from_qdq_limits_that_enlarge_x_stay(kind: str) -> None:
    """Keep a limit or a zero of more dimensions, which enlarges x."""
    before = [plain("Max", "x low", "l")]
    if kind == "sign":
        before = [plain("GreaterOrEqual", "x zero", "k"), plain("Where", "k plus minus", "l")]
    proto = pair(1, shape=(3,), output=(1, 1, 3))
    proto.graph.node[0].input[0] = "l"
    for item in reversed(before):
        proto.graph.node.insert(0, item)
    constants = {"low": [[[-127]]], "zero": [[[0]]], "plus": 1, "minus": -1}
    proto.graph.initializer.extend(tensor(name, value) for name, value in constants.items())
    lifted = check(proto, np.float32([-500, 0.3, 500]))
    assert kinds(lifted.model) == [*(kind.op_type for kind in before), "IntQuant"]


def test_from_qdq_other_limits_stay() -> None:
    for low, high in ((-1.0, 1.1), (-5 * 0.5, 5 * 0.5), (-np.inf, 0.2)):
        proto = pair(0.5)
        proto.graph.node[0].input[0] = "l"
        proto.graph.node.insert(0, plain("Clip", "x low high", "l"))
        proto.graph.initializer.extend([tensor("low", low), tensor("high", high)])
        lifted = check(proto, telling(0.5))
        assert kinds(lifted.model) == ["Clip", "IntQuant"]


def test_from_qdq_subgraphs() -> None:
    def branch(name: str, kind: str) -> onnx.GraphProto:
        output = helper.make_tensor_value_info("out", TensorProto.FLOAT, ["n"])
        nodes = [plain("DequantizeLinear", "q s z", "out", name=name)]
        if kind == "pair":
            nodes = [
                plain("DequantizeLinear", "q s z", "d", name=name),
                plain("QuantizeLinear", "d t z", "r", name=name + "_q"),
                plain("DequantizeLinear", "r t z", "out", name=name + "_d"),
            ]
        return helper.make_graph(nodes, name, [], [output])

    nodes = [
        plain("QuantizeLinear", "x s z", "q"),
        plain("Greater", "total zero", "yes"),
        helper.make_node(
            "If", ["yes"], ["y"], then_branch=branch("a", ""), else_branch=branch("b", "pair")
        ),
    ]
    nodes.insert(1, plain("ReduceSum", "x", "total", keepdims=0))
    tensors = [tensor("s", 0.5), tensor("t", 2), tensor("z", 0, TensorProto.INT8)]
    proto = qdq(nodes, [*tensors, tensor("zero", 0)])
    for x in (np.float32([1, 2.3, 9]), np.float32([-1, -2.3, -9])):
        lifted = check(proto, x)
        assert kinds(lifted.model).count("IntQuant") == 2
        assert "QuantizeLinear" not in kinds(lifted.model)


def test_from_qdq_running_it_again_changes_nothing() -> None:
    lifted = Lifted(pair(0.5, 3, "uint8"))
    before = lifted.proto.SerializeToString(deterministic=True)
    again = Lifted(ir.from_proto(lifted.proto))
    assert again.proto.SerializeToString(deterministic=True) == before
    assert not again.steps
