# SPDX-License-Identifier: Apache-2.0
"""Constant results of computations with known sizes, next to dynamic sizes."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper
from small_models import kinds, model, node

from anybit.onnx import read
from anybit.onnx.graph import shapes
from anybit.onnx.graph import sizes as sizes_module
from anybit.onnx.graph.sizes import SizePropagator
from anybit.onnx.passes import FoldConstants, Normalize

INT32, INT64 = onnx.TensorProto.INT32, onnx.TensorProto.INT64


def sizes_of(value: ir.Value) -> list[int | None] | None:
    """Return the declared sizes of a value."""
    if value.shape is None:
        return None
    return [size if isinstance(size, int) else None for size in value.shape]


def integers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def standard(kind: str, inputs: str, output: str, **options: Any) -> onnx.NodeProto:
    return node(kind, inputs, output, domain="", name=f"{kind} {output}", **options)


# Of x of shape [batch, 5, 3]: the last node of each gives the expected sizes.
FOUND: dict[str, tuple[list[onnx.NodeProto], list[int | None] | int | None]] = {
    "all": ([standard("Shape", "x", "y")], [None, 5, 3]),
    "from": ([standard("Shape", "x", "y", start=1)], [5, 3]),
    "until": ([standard("Shape", "x", "y", end=-1)], [None, 5]),
    "beyond": ([standard("Shape", "x", "y", start=-9, end=9)], [None, 5, 3]),
    "none": ([standard("Shape", "x", "y", start=2, end=1)], []),
    "slice": ([standard("Shape", "x", "s"), standard("Slice", "s one three", "y")], [5, 3]),
    "slice of an axis": (
        [standard("Shape", "x", "s"), standard("Slice", "s one three zero one", "y")],
        [5, 3],
    ),
    "gather": ([standard("Shape", "x", "s"), standard("Gather", "s one", "y")], [5]),
    "gather one": ([standard("Shape", "x", "s"), standard("Gather", "s last", "y")], 3),
    "join": (
        [
            standard("Shape", "x", "s", start=1),
            standard("ReduceProd", "s", "p"),
            standard("Unsqueeze", "p zero", "u"),
            standard("Concat", "s three u", "y", axis=0),
        ],
        None,
    ),
    "product": (
        [
            standard("Shape", "x", "s"),
            standard("Gather", "s last", "a"),
            standard("Gather", "s one", "b"),
            standard("Squeeze", "b", "c"),
            standard("Mul", "a c", "m"),
            standard("Unsqueeze", "m zero", "u"),
            standard("Identity", "u", "i"),
            standard("Concat", "i three", "y", axis=0),
        ],
        [15, 3],
    ),
    "dynamic product": (
        [standard("Shape", "x", "s"), standard("Add", "s three", "y")],
        [None, 8, 6],
    ),
    "quotient": ([standard("Shape", "x", "s"), standard("Div", "s three", "y")], [None, 1, 1]),
    "difference": ([standard("Shape", "x", "s"), standard("Sub", "s three", "y")], [None, 2, 0]),
    "reshape": (
        [standard("Shape", "x", "s", end=2, start=1), standard("Reshape", "s minus", "y")],
        [5],
    ),
    "cast": ([standard("Shape", "x", "s"), standard("Cast", "s", "y", to=INT64)], [None, 5, 3]),
    "cast to int32 and back": (
        [
            standard("Shape", "x", "s"),
            standard("Cast", "s", "c", to=INT32),
            standard("Slice", "c one three", "d"),
            standard("Cast", "d", "y", to=INT64),
        ],
        [5, 3],
    ),
    "too long for int32": (
        [
            standard("Shape", "x", "s"),
            standard("Mul", "s huge", "m"),
            standard("Cast", "m", "c", to=INT32),
            standard("Cast", "c", "y", to=INT64),
        ],
        [None] * 3,
    ),
    "cast away": ([standard("Shape", "x", "s"), standard("Cast", "s", "y", to=1)], None),
    "backwards": (
        [standard("Shape", "x", "s"), standard("Slice", "s three zero zero minus", "y")],
        None,
    ),
    "not a size": ([standard("Abs", "x", "y")], None),
    "quotient by zero": ([standard("Shape", "x", "s"), standard("Div", "s zero", "y")], [None] * 3),
}
# What no runtime takes: it says so.
INVALID = {
    "gather beyond": standard("Gather", "s three", "y"),
    "gather before": standard("Gather", "s before", "y"),
    "gather nothing": standard("Gather", "s", "y"),
    "reshape to another size": standard("Reshape", "s last", "y"),
    "reshape to a number": standard("Reshape", "s none", "y"),
    "reshape to nothing": standard("Reshape", "s", "y"),
    "slice from nowhere": standard("Slice", "s none none", "y"),
    "sizes apart": standard("Add", "s two", "y"),
    "one number": standard("Add", "s", "y"),
    "no input": standard("Add", "", "y"),
    "nothing to join": standard("Concat", "", "y", axis=0),
    "cast to a word": standard("Cast", "s", "y", to="int64"),
}
FOUND |= {case: ([standard("Shape", "x", "s"), bad], None) for case, bad in INVALID.items()}
CONSTANTS = {
    "before": integers(-4),
    "none": integers(),
    "two": integers(1, 2),
    "zero": integers(0),
    "one": integers(1),
    "three": integers(3),
    "minus": integers(-1),
    "huge": integers(2**30),
    "last": np.array(2, np.int64),
}


@pytest.mark.parametrize("case", FOUND)
def test_sizes_known_values(case: str) -> None:
    nodes, expected = FOUND[case]
    constants = {
        name: CONSTANTS[name] for item in nodes for name in item.input if name in CONSTANTS
    }
    graph = read(model(nodes, constants, inputs={"x": ["batch", 5, 3]}, opsets={"": 18})).graph
    sizes = SizePropagator(sizes_of)
    results = [sizes.evaluate(item) for item in graph]
    actual = sizes.get(graph.outputs[0])
    assert (actual if actual is None else actual.tolist()) == expected
    known_values = isinstance(expected, int) or (expected is not None and None not in expected)
    assert (results[-1] is not None) == known_values
    if known_values:
        assert results[-1].dtype == np.int64


def test_sizes_int32_stays_int32() -> None:
    """Keep types: a runtime refuses constants of another type."""
    nodes = [
        standard("Shape", "x", "s"),
        standard("Cast", "s", "c", to=INT32),
        standard("Slice", "c one three", "d"),
        standard("Add", "d many", "a"),
        standard("Mul", "a many", "y"),
    ]
    constants = {
        **{name: CONSTANTS[name] for name in ("one", "three")},
        "many": np.array([2**20], np.int32),
    }
    graph = read(model(nodes, constants, inputs={"x": ["batch", 5, 3]}, opsets={"": 18})).graph
    sizes = SizePropagator(sizes_of)
    _, _, sliced, added, beyond = [sizes.evaluate(item) for item in graph]
    assert sliced is not None
    assert added is not None
    assert beyond is None
    assert sliced.dtype == added.dtype == np.int32
    assert added.tolist() == [2**20 + 5, 2**20 + 3]


def test_names_of_free_sizes_stay_until_something_is_computed_from_them() -> None:
    nodes = [
        standard("Shape", "x", "s"),
        standard("Cast", "s", "c", to=INT32),
        standard("Add", "c one", "a"),
        standard("Concat", "c a", "y", axis=0),
    ]
    constants = {"one": np.array([1], np.int32)}
    graph = read(model(nodes, constants, inputs={"x": ["batch", 5]}, opsets={"": 18})).graph
    sizes = SizePropagator(
        lambda value: None if value.shape is None else shapes.get_sizes(value.shape)
    )
    assert [sizes.evaluate(item) for item in graph] == [None] * 4
    assert sizes.get(graph.outputs[0]).tolist() == ["batch", 5, None, 6]


def test_sizes_faults_of_ours_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sizes_module._RULES, "Identity", lambda sizes, node: [][0])
    with pytest.raises(IndexError):
        SizePropagator(sizes_of).evaluate(ir.Node("", "Identity", [ir.Value(name="x")]))


def test_sizes_whole_numbers_beyond_int64_are_not_known() -> None:
    """Limit integers: a chain of squares could have any length."""
    nodes = [standard("Shape", "x", "v0", start=1, end=2)]
    nodes += [standard("Mul", f"v{index} v{index}", f"v{index + 1}") for index in range(60)]
    graph = read(model(nodes, inputs={"x": ["batch", 5]}, outputs=["v60"])).graph
    sizes = SizePropagator(sizes_of)
    for item in graph:
        sizes.evaluate(item)
    assert sizes.get(graph.outputs[0]).tolist() == [None]


def test_long_arrays_are_not_sizes() -> None:
    nodes = [standard("Shape", "x", "v0")]
    nodes += [standard("Concat", f"v{i} v{i}", f"v{i + 1}", axis=0) for i in range(60)]
    graph = read(model(nodes, inputs={"x": ["batch", 5]}, outputs=["v60"])).graph
    sizes = SizePropagator(sizes_of)
    assert all(sizes.evaluate(item) is None for item in graph)
    assert sizes.get(graph.outputs[0]) is None


@pytest.mark.parametrize("attribute", [{"start": "a"}, {"start": 1.5}, {"end": [1]}])
def test_sizes_attributes_of_other_types(attribute: dict[str, Any]) -> None:
    graph = read(model([standard("Shape", "x", "y", **attribute)])).graph
    assert SizePropagator(sizes_of).evaluate(graph[0]) is None


def folded(nodes: list[onnx.NodeProto], constants: dict[str, Any], **options: Any) -> ir.Model:
    result = read(model(nodes, constants, **options)).clone()
    Normalize()(result)
    FoldConstants()(result)
    return result


def test_sizes_weights_cut_by_a_size_are_constant() -> None:
    """Split as in exported recurrent layers, with a length from another tensor."""
    nodes = [
        standard("Shape", "x", "size", start=1, end=2),
        standard("Mul", "size three", "end"),
        standard("Slice", "w size end zero", "part"),
        standard("MatMul", "x part", "y"),
    ]
    weight = np.arange(20 * 2, dtype=np.float32).reshape(20, 2)
    constants = {"w": weight, "three": integers(3), "zero": integers(0)}
    result = folded(nodes, constants, inputs={"x": ["batch", 5]}, opsets={"": 18})
    assert kinds(result) == ["MatMul"]
    part = result.graph.initializers["part"].const_value.numpy()
    assert part.tobytes() == weight[5:15].tobytes()


@pytest.mark.parametrize("like", ["x", "a"])
def test_sizes_constant_cast_like_a_value_is_constant(like: str) -> None:
    """Only the type of that value matters."""
    nodes = [
        standard("Abs", "x", "a"),
        standard("CastLike", f"number {like}", "like"),
        standard("Expand", "like shape", "bias"),
        standard("Add", "x bias", "y"),
    ]
    constants = {"number": np.array(2, np.int64), "shape": integers(4)}
    proto = model(nodes, constants, opsets={"": 18})
    proto.graph.value_info.append(helper.make_tensor_value_info("a", onnx.TensorProto.FLOAT, None))
    result = read(proto).clone()
    FoldConstants()(result)
    assert kinds(result) == ["Add"]
    bias = result.graph.initializers["bias"].const_value.numpy()
    assert bias.dtype == np.float32
    assert bias.tolist() == [2, 2, 2, 2]


def test_sizes_cast_like_something_without_a_type_stays() -> None:
    nodes = [
        standard("Abs", "x", "a"),
        standard("CastLike", "number a", "like"),
        standard("Add", "a like", "y"),
    ]
    proto = model(nodes, {"number": np.array(2, np.int64)}, opsets={"": 18})
    result = folded(list(proto.graph.node), {"number": np.array(2, np.int64)}, opsets={"": 18})
    assert kinds(result) == ["Abs", "CastLike", "Add"]
