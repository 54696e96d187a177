# SPDX-License-Identifier: Apache-2.0
"""Sizes that are proven equal, and residual sums in the regions of the products before them."""

from itertools import product

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import anybit
from anybit.compiler.prepare.name_sizes import name_sizes
from anybit.errors import ModelError
from anybit.onnx.graph.shapes import get_named_sizes
from anybit.onnx.passes import InferShapes

HEAD = '<ir_version: 9, opset_import: ["": 20]> g '
CONSTANTS = """int64[1] zero = {0}, int64[1] one = {1}, int64[1] four = {4}, int64[1] last = {-1},
    int64[1] two = {2}"""
SIZES = "n = Shape<start: int = 0, end: int = 1>(x) t = Shape<start: int = 1, end: int = 2>(x)"
PROVEN = {
    "Reshape to computed sizes": (
        "s = Concat<axis: int = 0>(n, t, four) y = Reshape(k, s)",
        ["n", "t", 4],
    ),
    "Reshape to a computed and an open size": (
        "s = Concat<axis: int = 0>(n, last, four) y = Reshape(k, s)",
        ["n", None, 4],
    ),
    "Expand of one row": (
        "s = Concat<axis: int = 0>(n, t, four) r = Slice(table, zero, one, zero) y = Expand(r, s)",
        ["n", "t", 4],
    ),
    "Expand of another size": (
        "s = Concat<axis: int = 0>(n, t, one) y = Expand(k, s)",
        ["n", None, 4],
    ),
    "sum of equal sizes": (
        "s = Concat<axis: int = 0>(n, t, four) r = Reshape(k, s) y = Add(x, r)",
        ["n", "t", 4],
    ),
    "sum of other sizes": ("y = Add(x, k)", ["n", None, 4]),
    "sum with a computed size": (
        "s = Concat<axis: int = 0>(n, size, four) r = Reshape(k, s) y = Add(x, r)",
        ["n", None, 4],
    ),
    "first positions": ("p = Slice(table, zero, t, zero) y = Add(x, p)", ["n", "t", 4]),
    "first positions of steps": (
        "p = Slice(table, zero, t, zero, one) y = Add(x, p)",
        ["n", "t", 4],
    ),
    "other positions": ("p = Slice(table, one, t, zero) y = Add(x, p)", ["n", None, 4]),
    "every second position": ("p = Slice(table, zero, t, zero, two) y = Add(x, p)", ["n", None, 4]),
    "positions of another size": (
        "p = Slice(table, zero, size, zero) y = Add(x, p)",
        ["n", None, 4],
    ),
    "positions of a row": (
        "p = Slice(table, zero, n, zero) y = Add(x, p)",
        ["n", None, 4],
    ),
    "other axes of a slice": (
        "p = Slice(k, zero, size, one) y = Add(k, p)",
        ["n", None, 4],
    ),
}


def make_model(body):
    text = f"(float[n,t,4] x, float[n,s,4] k, int64[1] size) => (float y) <{CONSTANTS}>"
    proto = onnx.parser.parse_model(
        f"{HEAD}{text} {{ {SIZES} {body} }}".replace(", float[6,4] table", "")
    )
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((6, 4), np.float32), "table"))
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    return proto


def infer(body):
    """Return the sizes of y; None for those with generated names."""
    model = ir.from_proto(make_model(body))
    InferShapes()(model)
    name_sizes(model)
    sizes = get_named_sizes(model.graph.outputs[0], model)
    return [None if str(size).startswith("unk__") else size for size in sizes]


@pytest.mark.parametrize(("body", "sizes"), PROVEN.values(), ids=PROVEN)
def test_sizes_are_named_where_they_are_proven(body, sizes):
    assert infer(body) == sizes


@pytest.mark.parametrize(("body", "sizes"), PROVEN.values(), ids=PROVEN)
def test_named_sizes_are_those_of_runs(body, sizes):
    """Run with all combinations of small sizes. Some are errors."""
    engine, runs = anybit.load(make_model(body)).engine, 0
    for n, t, s, size in product((1, 2, 7), repeat=4):
        arrays = {"x": np.ones((n, t, 4), np.float32), "k": np.ones((n, s, 4), np.float32)}
        try:
            shape = engine.run(arrays | {"size": np.array([size])})["y"].shape
        except ModelError:
            continue
        runs += 1
        values = {"n": n, "t": t}
        for expected, actual in zip(sizes, shape, strict=True):
            assert expected is None or values.get(expected, expected) == actual
    assert runs


ATTENTION = f"""(float[n,t,8] x, float[n,t,8] z, int64[3] sizes) => (float[n,t,5] y)
    <int64[2] heads = {{2,4}}, float[8] gain = {{1,2,1,2,1,2,1,2}}, int64[1] last = {{-1}}> {{
    {SIZES} a = MatMul(x, u)
    split = Concat<axis: int = 0>(n, t, heads) h = Reshape(a, split)
    turned = Transpose<perm: ints = [0, 2, 1, 3]>(h) k = Softmax(turned)
    back = Transpose<perm: ints = [0, 2, 1, 3]>(k)
    join = Concat<axis: int = 0>(n, t, last) m = Reshape(back, JOIN)
    b = MatMul(m, v) c = Add(b, RESIDUAL) l = LayerNormalization(c, gain) y = MatMul(l, w) }}"""


def quantize(join, residual):
    text = HEAD + ATTENTION.replace("JOIN", join).replace("RESIDUAL", residual)
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, columns in (("u", 8), ("v", 8), ("w", 5)):
        weights = rng.normal(size=(8, columns)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weights, name))
    return ir.to_proto(anybit.quantize(model, weights="int8", activations="int8 dynamic").model)


def make_feeds(rows, tokens):
    rng = np.random.default_rng(rows)
    arrays = {name: rng.normal(size=(2, 3, 8)).astype(np.float32) for name in "xz"}
    return arrays | {"sizes": np.array([rows, tokens, 8])}


def assert_near(compiled, model, feeds):
    expected, actual = anybit.load(model).run(feeds)["y"], compiled.run(feeds)["y"]
    assert actual.shape == expected.shape
    np.testing.assert_allclose(actual, expected, rtol=0, atol=0.02 * np.abs(expected).max())


def list_operators(compiled):
    return [node.op_type for node in compiled.model.graph]


@pytest.mark.parametrize("residual", ["x", "z"])
def test_residual_sums_are_in_regions(residual):
    """Compute the sum of a product of joined heads and an input of the same sizes in its region."""
    model = quantize("join", residual)
    compiled = anybit.compile(model)
    operators = list_operators(compiled)
    assert operators.count("IntegerNetwork") == 2
    assert not {"Add", "LayerNormalization"} & {*operators}
    assert_near(compiled, model, make_feeds(2, 3))


@pytest.mark.parametrize("sizes", [(2, 1), (1, 3), (2, 3)])
def test_sums_of_declared_sizes_are_broadcast(sizes):
    """Do not believe that a file declares two sizes as equal."""
    model = quantize("sizes", "z")
    for name in ("m", "b", "c"):
        value = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["r", "p", 8])
        model.graph.value_info.append(value)
    for axis, name in enumerate("rp"):
        model.graph.input[1].type.tensor_type.shape.dim[axis].dim_param = name
        model.graph.output[0].type.tensor_type.shape.dim[axis].dim_param = name
    compiled = anybit.compile(model)
    assert "Add" in list_operators(compiled)
    feeds = make_feeds(2, 3) | {"sizes": np.array([*sizes, 8])}
    feeds["x"] = np.ascontiguousarray(feeds["x"][: sizes[0], : sizes[1]])
    assert_near(compiled, model, feeds)


def test_equal_names_of_unequal_sizes_fail():
    """Refuse what a runtime does not compare: the sizes of two inputs."""
    compiled = anybit.compile(quantize("join", "z"))
    feeds = make_feeds(2, 3)
    feeds["z"] = feeds["z"].reshape(3, 2, 8)
    with pytest.raises(Exception, match=r"must be float32 of shape \(2, 3, 8\), got \(3, 2, 8\)"):
        compiled.engine.run(feeds)
