# SPDX-License-Identifier: Apache-2.0
"""Channels last: there, back, and as QONNX's own executor computes it."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from clean_checks import assert_array_bits, clean
from pass_checks import apply_passes, assert_same_outputs, random
from small_models import kinds, model, node

import anybit
from anybit.errors import ModelError
from anybit.model import load
from anybit.onnx.checks.checking import check
from anybit.onnx.passes import ChannelsLast, MoveTransposes, StandardLayout

LAST = "qonnx.custom_op.channels_last"
IMPORTS = {"qonnx.custom_op.general": 1, "": 14}


def network(rank: int = 4, *, residual: bool = False) -> onnx.ModelProto:
    """Two quantized convolutions with pooling, followed by a layer."""
    spatial = rank - 2
    written = {"kernel_shape": [3] * spatial, "pads": [1] * 2 * spatial, "group": 1}
    written |= {"strides": [1] * spatial, "dilations": [1] * spatial}
    nodes = [
        node("IntQuant", "x half zero eight", "xq", name="xq"),
        node("IntQuant", "w1 s1 zero eight", "w1q", name="w1q"),
        node("Conv", "xq w1q b1", "c1", domain="", name="c1", **written),
        node("Relu", "c1", "r1", domain="", name="r1"),
        node("MaxPool", "r1", "p1", domain="", name="p1", kernel_shape=[2] * spatial,
             strides=[2] * spatial, pads=[0] * 2 * spatial),
        node("IntQuant", "p1 half zero eight", "a1", name="a1"),
        node("Conv", "a1 w2", "c2", domain="", name="c2", **written),
        node("Add", "c2 a1" if residual else "c2 b2", "d2", domain="", name="d2"),
        node("Flatten", "d2", "f", domain="", name="f"),
        node("MatMul", "f w3", domain="", name="m"),
    ]  # fmt: skip
    constants = {
        "half": 0.5,
        "zero": 0,
        "eight": 8,
        "b1": random(4, seed=3),
        "s1": np.float32([0.25, 0.5, 1, 0.125]).reshape(4, *[1] * (rank - 1)),
        "w1": random(4, 3, *[3] * spatial, seed=1),
        "w2": np.rint(random(4, 4, *[3] * spatial, seed=2) * 4),
        "b2": np.rint(random(4, *[1] * spatial, seed=4)),
        "w3": np.rint(random(4 * 3**spatial, 5, seed=5) * 4),
    }
    used = {name for item in nodes for name in item.input}
    constants = {name: array for name, array in constants.items() if name in used}
    return model(nodes, constants, inputs={"x": [1, 3, *[6] * spatial]}, opsets=IMPORTS)


def last(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


@pytest.mark.parametrize(
    "proto",
    [network(), network(3), network(residual=True)],
    ids=["images", "signals", "residual"],
)
def test_networks_with_channels_last(proto: onnx.ModelProto) -> None:
    changed = apply_passes(proto, ChannelsLast(), MoveTransposes())
    names = kinds(changed)
    assert names.count("Transpose") == 1
    assert names.index("Transpose") == names.index("Flatten") - 1
    assert [item.domain for item in changed.graph if item.op_type in ("Conv", "MaxPool")] == [
        LAST, LAST, LAST
    ]  # fmt: skip
    x = random(*[dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim])
    assert tuple(changed.graph.inputs[0].shape) == last(x).shape
    assert_same_outputs(proto, changed, x, last(x))


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"])
@pytest.mark.parametrize("size", [6, 7])
@pytest.mark.parametrize("options", [{"strides": [2, 3]}, {"dilations": [2, 1]}, {"group": 3}])
def test_channels_last_paddings_are_written_out(
    mode: str, size: int, options: dict[str, Any]
) -> None:
    if "dilations" in options and mode.startswith("SAME"):
        options = {}  # which ONNX Runtime does not compute
    nodes = [node("Conv", "x w", domain="", name="c", auto_pad=mode, **options)]
    weight = random(6, 3 // options.get("group", 1), 3, 2)
    proto = model(nodes, {"w": weight}, inputs={"x": [2, 3, size, size]})
    changed = apply_passes(proto, ChannelsLast(), MoveTransposes())
    (conv,) = (item for item in changed.graph if item.op_type == "Conv")
    assert set(conv.attributes) == {"kernel_shape", "strides", "dilations", "pads", "group"}
    x = random(2, 3, size, size, seed=1)
    assert_same_outputs(proto, changed, x, last(x))


def test_channels_last_leaves_unsupported_nodes() -> None:
    pool = {"kernel_shape": [2, 2]}
    proto = model([node("AveragePool", "x", domain="", **pool)], inputs={"x": [1, 3, 6, 6]})
    assert kinds(apply_passes(proto, ChannelsLast())) == ["AveragePool"]
    proto = model([node("MaxPool", "x", "y i", domain="", **pool)], inputs={"x": [1, 3, 6, 6]},
                  outputs=["y"])  # fmt: skip
    changed = apply_passes(proto, ChannelsLast())
    assert [item.domain for item in changed.graph] == [""]


def test_a_file_with_channels_last_is_understood_everywhere(tmp_path: Path) -> None:
    proto = network()
    path = tmp_path / "last.onnx"
    onnx.save(ir.to_proto(clean(proto, target="hls4ml")), path)
    assert [item.op_type for item in onnx.load(path).graph.node if item.domain == LAST]
    x = random(1, 3, 6, 6)
    (expected,) = load(proto).run(x).values()
    assert_array_bits(load(path).run(last(x))["y"], expected)
    assert not [finding for finding in check(path) if finding.severity == "error"]
    cleaned = clean(path)
    assert {item.domain for item in cleaned.graph} <= {"", "qonnx.custom_op.general"}
    assert kinds(cleaned).count("Transpose") <= 3
    assert_array_bits(load(ir.to_proto(cleaned)).run(last(x))["y"], expected)
    assert anybit.diff(path, path, last(x)).equal
    converted = anybit.convert(path, to="qdq").model
    assert_array_bits(load(ir.to_proto(converted)).run(last(x))["y"], expected)


@pytest.mark.filterwarnings("ignore")  # of QONNX, about opsets
@pytest.mark.parametrize("residual", [False, True])
def test_channels_last_qonnx_computes_the_same(
    residual: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare QONNX's executor on our file, and our session on QONNX's file."""
    execution = pytest.importorskip("qonnx.core.onnx_exec")
    monkeypatch.setattr(onnx, "IR_VERSION", 8)  # it asks the runtime for the newest
    from qonnx.core.modelwrapper import ModelWrapper
    from qonnx.transformation.channels_last import ConvertToChannelsLastAndClean
    from qonnx.transformation.infer_shapes import InferShapes

    proto = ir.to_proto(clean(network(residual=residual), target="finn"))
    x = random(1, 3, 6, 6)
    (expected,) = load(proto).run(x).values()
    ours = ir.to_proto(clean(proto, target="hls4ml"))
    for item in ours.graph.node:  # the only name that QONNX 1.0.0 knows
        item.op_type = item.op_type.replace("IntQuant", "Quant")
    got = execution.execute_onnx(ModelWrapper(ours), {"x": last(x)})
    assert_array_bits(got["y"], expected)
    peer = ModelWrapper(proto).transform(InferShapes())
    peer = peer.transform(ConvertToChannelsLastAndClean(make_input_channels_last=True))
    assert_array_bits(load(peer.model).run(last(x))["y"], expected)
    count = sum(item.op_type == "Transpose" for item in peer.graph.node)
    assert sum(item.op_type == "Transpose" for item in ours.graph.node) <= count + 1


def test_channels_last_unknown_rank_is_an_error() -> None:
    nodes = [
        node("Mystery", "x", "t", domain="", name="t"),
        node("BatchNormalization", "t s s s s", domain=LAST, name="n"),
    ]
    proto = model(nodes, {"s": np.ones(3, np.float32)}, opsets={LAST: 14})
    with pytest.raises(ModelError, match=r"node 'n' .*unknown rank; declare the shapes"):
        StandardLayout()(ir.from_proto(proto))


def test_channels_last_transposes_cancel_and_move() -> None:
    def transposed(x: str, y: str, *order: int) -> onnx.NodeProto:
        return node("Transpose", x, y, domain="", name=f"t_{y}", perm=order)

    nodes = [
        transposed("x", "a", 0, 2, 1),
        node("Mul", "a c", "b", domain="", name="mul"),
        node("IntQuant", "b s z n", "q", name="q"),
        transposed("q", "d", 0, 2, 1),
        node("Add", "d d", "e", domain="", name="add"),
        transposed("e", "f", 0, 1, 2),
        node("Relu", "f", domain="", name="relu"),
    ]
    constants = {"c": random(4), "s": np.float32([[0.5], [1], [2]]), "z": 0, "n": 4}
    constants["s"] = np.float32([0.5, 1, 2, 4])
    proto = model(nodes, constants, inputs={"x": [2, 4, 3]}, opsets=IMPORTS)
    changed = apply_passes(proto, MoveTransposes())
    assert kinds(changed) == ["Mul", "IntQuant", "Add", "Relu"]
    assert list(changed.graph.initializers["c"].shape) == [1, 4, 1]
    assert_same_outputs(proto, changed, random(2, 4, 3))


@pytest.mark.parametrize("first", [(0, 2, 1), (1, 0, 2), (2, 0, 1)])
@pytest.mark.parametrize("second", [(0, 2, 1), (2, 1, 0), (1, 2, 0)])
def test_channels_last_transposes_in_a_row(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    nodes = [
        node("Transpose", "x", "a", domain="", name="a", perm=first),
        node("Exp", "a", "b", domain="", name="exp"),
        node("Transpose", "b", "c", domain="", name="c", perm=second),
    ]
    proto = model(nodes, inputs={"x": [2, 3, 4]}, outputs=["a", "b", "c"])
    assert_same_outputs(proto, apply_passes(proto, MoveTransposes()), random(2, 3, 4))
