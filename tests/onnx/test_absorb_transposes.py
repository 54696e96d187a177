# SPDX-License-Identifier: Apache-2.0
"""A Transpose before a Flatten is absorbed by the next weight if no bit changes."""

from typing import Any

import numpy as np
import onnx
import pytest
from pass_checks import apply_passes, assert_same_outputs, random
from small_models import kinds, model, node

from anybit.onnx.passes import AbsorbTransposes

SHAPE = (1, 5, 7, 3)


def flattened(
    order: tuple[int, ...] = (0, 3, 1, 2),
    *,
    flatten: str = "Reshape",
    scale: Any = 0.5,
    step: float = 0.25,
    inner: tuple[str, ...] = ("Relu", "IntQuant"),
) -> onnx.ModelProto:
    """Images with channels last, transposed, flattened, quantized and multiplied."""
    size = int(np.prod(SHAPE[1:]))
    constants: dict[str, Any] = {
        "step": step,
        "zero": 0,
        "eight": 8,
        "scale": scale,
        "target": np.array([1, -1], np.int64),
        "row": random(size, seed=3),
        "w": np.rint(random(size, 4, seed=1) * 4).astype(np.float32),
    }
    nodes = [node("Transpose", "x", "t", domain="", name="t", perm=order)]
    target = "t target" if flatten == "Reshape" else "t"
    nodes.append(node(flatten, target, "v0", domain="", name="flatten"))
    inputs = {"IntQuant": "step zero eight", "Relu": "", "Mul": "row"}
    for at, kind in enumerate(inner):
        domain = {} if kind == "IntQuant" else {"domain": ""}
        others = f"v{at} {inputs[kind]}"
        nodes.append(node(kind, others, f"v{at + 1}", name=f"{kind}{at}", **domain))
    nodes.append(node("IntQuant", "w scale zero eight", "wq", name="wq"))
    last = f"v{len(inner)}"
    nodes.append(node("MatMul", f"{last} wq", domain="", name="product"))
    used = {name for item in nodes for name in item.input}
    constants = {name: array for name, array in constants.items() if name in used}
    return model(nodes, constants, inputs={"x": SHAPE})


PER_COLUMN = np.float32([[0.5, 0.25, 1, 0.125]])


@pytest.mark.parametrize(
    "proto",
    [
        flattened(),
        flattened((0, 2, 3, 1)),
        flattened((0, 3, 2, 1)),
        flattened(flatten="Flatten"),
        flattened(inner=("IntQuant",)),
        flattened(scale=PER_COLUMN),
        flattened(scale=PER_COLUMN[0]),
    ],
)
def test_absorb_transposes_weights_take_the_order(proto: onnx.ModelProto) -> None:
    changed = apply_passes(proto, AbsorbTransposes())
    assert "Transpose" not in kinds(changed)
    assert len(changed.graph) == len(proto.graph.node) - 1
    assert_same_outputs(proto, changed, 8 * random(*SHAPE, seed=2))


@pytest.mark.parametrize(
    "proto",
    [
        flattened(inner=()),  # x is any float: another order is another sum
        flattened(step=0.3),
        flattened(scale=0.3),
        flattened(inner=("Mul", "IntQuant")),  # one factor for each element
        flattened((1, 0, 2, 3)),
    ],
)
def test_other_transposes_stay(proto: onnx.ModelProto) -> None:
    changed = apply_passes(proto, AbsorbTransposes())
    assert kinds(changed) == [item.op_type for item in proto.graph.node]
    assert_same_outputs(proto, changed, 8 * random(*SHAPE, seed=2))


@pytest.mark.parametrize("value", ["t", "v0", "v1", "v2"])
def test_absorb_transposes_keeps_order_of_other_readers(value: str) -> None:
    proto = flattened()
    proto.graph.output.add().CopyFrom(
        onnx.helper.make_tensor_value_info(value, onnx.TensorProto.FLOAT, None)
    )
    changed = apply_passes(proto, AbsorbTransposes())
    assert "Transpose" in kinds(changed)
    assert_same_outputs(proto, changed, 8 * random(*SHAPE, seed=2))


def test_absorb_transposes_weight_of_two_readers_is_copied() -> None:
    proto = flattened()
    proto.graph.node.append(node("Neg", "wq", "n", domain="", name="neg"))
    proto.graph.output.add().CopyFrom(
        onnx.helper.make_tensor_value_info("n", onnx.TensorProto.FLOAT, None)
    )
    changed = apply_passes(proto, AbsorbTransposes())
    assert "Transpose" not in kinds(changed)
    assert_same_outputs(proto, changed, 8 * random(*SHAPE, seed=2))
