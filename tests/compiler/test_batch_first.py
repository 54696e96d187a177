# SPDX-License-Identifier: Apache-2.0
"""Attention of files with tokens before the batch, as PyTorch exports it: one region."""

import itertools
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from text_models import parse

import anybit
from anybit.compiler.prepare import axis_factors
from anybit.compiler.prepare.batch_first import put_batch_first
from anybit.model import RuntimeEngine
from anybit.onnx.preparation import make_runnable, prepare_for_analysis

TOKENS, HEADS, WIDTH = 5, 2, 4
CHANNELS = HEADS * WIDTH
# Queries, keys and values are parts of one product; heads are an axis of batch x heads.
BODY = """
    a = Q(t)
    m = MatMul (a, w)
    l = Add (m, bias)
    c = Q(l)
    r = Reshape (c, parts)
    u = Transpose <perm = [2, 0, 1, 3]> (r)
    q3 = Gather <axis = 0> (u, n0)
    k3 = Gather <axis = 0> (u, n1)
    v3 = Gather <axis = 0> (u, n2)
    qr = Reshape (q3, rows)
    kr = Reshape (k3, rows)
    vr = Reshape (v3, rows)
    qt = Transpose <perm = [1, 0, 2]> (qr)
    kt = Transpose <perm = [1, 2, 0]> (kr)
    vt = Transpose <perm = [1, 0, 2]> (vr)
    q4 = Reshape (qt, heads)
    k4 = Reshape (kt, turned)
    v4 = Reshape (vt, heads)
    s = MatMul (q4, k4)
    d = Mul (s, scale)
    f = Softmax (d)
    e = U(f)
    o = MatMul (e, v4)
    h = Q(o)
    ot = Transpose <perm = [2, 0, 1, 3]> (h)
    om = Reshape (ot, merged)
    vq = Q(v)
    g = Gemm <transB = 1> (om, vq, offset)
    gq = Q(g)
    b = Reshape (gq, whole)
"""
TOKENS_FIRST = (
    "t = Identity (x)" + BODY + "k = Add (a, b) j = LayerNormalization (k, gain) y = Q(j)"
)
BATCH_FIRST = (
    "t = Transpose <perm = [1, 0, 2]> (x)"
    + BODY
    + "z = Transpose <perm = [1, 0, 2]> (b) p = Q(x) k = Add (p, z)"
    + "j = LayerNormalization (k, gain) y = Q(j)"
)
FORMS = {"tokens first": TOKENS_FIRST, "batch first": BATCH_FIRST}


def make_sizes(form: str, batch: int | str) -> list[int | str]:
    return [TOKENS, batch, CHANNELS] if form == "tokens first" else [batch, TOKENS, CHANNELS]


def make_attention(
    form: str,
    batch: int | str,
    text: str = "",
    outputs: str = "",
    places: np.ndarray | None = None,
) -> onnx.ModelProto:
    """Return attention with a residual sum and a normalization.

    Args:
        form: The order of the axes of input and output.
        batch: The number of samples, or its name.
        text: Further nodes.
        outputs: Further outputs.
        places: A position embedding, which is added to x.
    """
    rng = np.random.default_rng(0)
    inferred = batch if isinstance(batch, int) else -1
    grouped = batch * HEADS if isinstance(batch, int) else -1
    rows = TOKENS * batch if isinstance(batch, int) else -1
    arrays = {
        "w": rng.integers(-7, 8, (CHANNELS, 3 * CHANNELS)) / 16,
        "v": rng.integers(-7, 8, (CHANNELS, CHANNELS)) / 8,
        "bias": rng.normal(0, 0.3, 3 * CHANNELS),
        "offset": rng.normal(0, 0.3, CHANNELS),
        "gain": rng.normal(1, 0.2, CHANNELS),
        "scale": 0.5,
        "step": 1 / 32,
        "part": 1 / 255,
        "none": 0.0,
        "bits": 8,
    }
    numbers = {
        **{f"n{number}": number for number in range(3)},
        "parts": [TOKENS, inferred, 3, CHANNELS],
        "rows": [TOKENS, grouped, WIDTH],
        "heads": [inferred, HEADS, TOKENS, WIDTH],
        "turned": [inferred, HEADS, WIDTH, TOKENS],
        "merged": [rows, CHANNELS],
        "whole": [TOKENS, inferred, CHANNELS],
    }
    nodes = FORMS[form] + text
    if places is not None:
        arrays["places"] = places
        nodes = nodes.replace("t = Identity (x)", "t = Add (x, places)")
    for name in "xtlogjv":
        nodes = nodes.replace(f"Q({name})", f"Quant <signed: int = 1> ({name}, step, none, bits)")
    nodes = nodes.replace("U(f)", "Quant <signed: int = 0> (f, part, none, bits)")
    shape = ", ".join(map(str, make_sizes(form, batch)))
    return parse(
        f"g (float[{shape}] x) => (float[{shape}] y{outputs}) {{ {nodes} }}",
        {name: np.float32(array) for name, array in arrays.items()}
        | {name: np.array(sizes, np.int64) for name, sizes in numbers.items()},
    )


def make_input(form: str, batch: int) -> np.ndarray:
    sizes = [int(size) for size in make_sizes(form, batch)]
    return np.random.default_rng(1).normal(size=sizes).astype(np.float32)


def run(model: ir.Model, x: np.ndarray) -> dict[str, np.ndarray]:
    return dict(RuntimeEngine(make_runnable(model, "m"), "m").run({"x": x}))


@pytest.mark.parametrize("batch", [1, 3, "n"])
@pytest.mark.parametrize("form", FORMS)
def test_attention_is_one_region(form: str, batch: int | str) -> None:
    model = make_attention(form, batch)
    compiled = anybit.compile(model)
    assert len(compiled.report.programs) == 1
    assert compiled.report.coverage == "4 of 4 layers, 100 % of MACs"
    x = make_input(form, 2 if isinstance(batch, str) else batch)
    (expected,) = anybit.load(model).run({"x": x}).values()
    (actual,) = compiled.run({"x": x}).values()
    # Softmax and normalization may round otherwise, and a code may differ then.
    assert np.mean(expected != actual) < 0.01
    assert np.abs(expected - actual).max() <= 1 / 16
    assert np.ptp(expected) > 1


@pytest.mark.parametrize("batch", [1, 3, "n"])
@pytest.mark.parametrize("form", FORMS)
def test_every_value_is_the_same(form: str, batch: int | str) -> None:
    """Keep outputs between the nodes, readers of other axes, and the shapes without any rows."""
    text = "i = ReduceSum (g) i2 = Shape (l)"
    more = ", float[a, b, c] l, float[d, e] g, float[f, h] i, int64[3] i2, float[k, m, o, r] f"
    model = make_attention(form, batch, text, more)
    before, after = prepare_for_analysis(model), prepare_for_analysis(model)
    put_batch_first(after)
    (product,) = [node for node in after.graph if node.op_type == "MatMul" and "v" in _read(node)]
    assert len(product.inputs[0].shape) == 3
    for size in [2, 5, 1, 0] if isinstance(batch, str) else [batch]:
        x = make_input(form, size)
        actual = run(after, x)
        for name, expected in run(before, x).items():
            np.testing.assert_array_equal(actual[name], expected, strict=True)


def _read(node: ir.Node) -> str:
    value = node.inputs[1]
    source = value.producer()
    while source is not None:
        value = source.inputs[0]
        source = value.producer()
    return str(value.name)


def test_a_second_run_changes_nothing() -> None:
    model = prepare_for_analysis(make_attention("tokens first", "n"))
    put_batch_first(model)
    before = [node.name for node in model.graph]
    put_batch_first(model)
    assert [node.name for node in model.graph] == before


def test_constants_of_positions_follow() -> None:
    """Transpose a position embedding, which has a vector per token."""
    places = np.arange(TOKENS * CHANNELS).reshape(TOKENS, 1, CHANNELS) / 50
    model = make_attention("tokens first", "n", places=places)
    before, after = prepare_for_analysis(model), prepare_for_analysis(model)
    put_batch_first(after)
    (node,) = [node for node in after.graph if node.outputs[0].name == "t_batch_first"]
    assert list(node.inputs[1].shape) == [1, TOKENS, CHANNELS]
    x = make_input("tokens first", 3)
    np.testing.assert_array_equal(run(after, x)["y"], run(before, x)["y"], strict=True)


def test_exact_layers_keep_gemm() -> None:
    """Leave sums that round in the order of the file where the user asks for exactness."""
    model = make_attention("tokens first", "n")
    compiled = anybit.compile(model, guarantee="exact")
    x = make_input("tokens first", 2)
    (expected,) = anybit.load(model).run({"x": x}).values()
    np.testing.assert_array_equal(compiled.run({"x": x})["y"], expected, strict=True)


@pytest.mark.parametrize("form", FORMS)
def test_codes_have_the_axes_of_the_file(form: str, tmp_path: Path) -> None:
    model, path = make_attention(form, 3), tmp_path / "compiled.onnx"
    compiled = anybit.compile(model)
    compiled.save(path)
    x = make_input(form, 3)
    codes = compiled.saved(path).run({"x": x})
    names = sorted(compiled.codes & {"a", "c", "e", "h"})
    assert len(names) >= 3
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    expected = run(prepare_for_analysis(model), x)
    for name in names:
        assert codes[name].shape == expected[name].shape
        assert np.mean(codes[name] != expected[name]) < 0.01


def test_reports_have_the_names_of_the_file() -> None:
    report = anybit.compile(make_attention("tokens first", "n")).report
    assert {layer.layer.output for layer in report.layers} == {"m", "s", "f", "o", "g", "j"}


@pytest.mark.parametrize("seed", range(60))
def test_moves_between_layouts_match_numpy(seed: int) -> None:
    """Plan the moves from one arrangement of factors to another, with sizes of 1."""
    rng = np.random.default_rng(seed)
    sizes = [int(size) for size in rng.integers(1, 5, rng.integers(1, 6))]
    factors = axis_factors.make_layout(sizes)
    source, target = (_arrange(axis_factors.flatten(factors), rng) for _ in range(2))
    x = np.arange(np.prod(sizes), dtype=np.int64).reshape(_get_shape(source))
    moves = axis_factors.plan_moves(source, target)
    assert moves is not None
    order = axis_factors.flatten(source)
    split = x.reshape([factor.size for factor in order])
    turned = split.transpose([order.index(factor) for factor in axis_factors.flatten(target)])
    y = x
    for move in moves:
        if move.operator == "Transpose":
            y = y.transpose(move.numbers)
        else:
            y = y.reshape([y.shape[at] if n == 0 else n for at, n in enumerate(move.numbers)])
    np.testing.assert_array_equal(y, turned.reshape(_get_shape(target)), strict=True)


def _arrange(factors: axis_factors.Axis, rng: np.random.Generator) -> axis_factors.AxisLayout:
    order = [factors[at] for at in rng.permutation(len(factors))]
    cuts = sorted(rng.integers(0, len(order) + 1, rng.integers(1, 4)).tolist())
    return tuple(tuple(order[a:b]) for a, b in itertools.pairwise([0, *cuts, len(order)]))


def _get_shape(layout: axis_factors.AxisLayout) -> list[int]:
    return [axis_factors.get_axis_size(axis) or 0 for axis in layout]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([6, 4], [2, 3, 4], [[2], [3], [4]]),
        (["n", 12], ["n", 3, 4], [["n"], [3], [4]]),
        (["n", 12], [None, 4], [["n", 3], [4]]),
        ([5, "n", 8], [5, None, 4], [[5], ["n", 2], [4]]),
        (["n", "m", 8], [None, 8], [["n", "m"], [8]]),
        (["n", 1, 8], [1, "n", 8, 1], [[], ["n"], [8], []]),
    ],
)
def test_regroup_splits_axes(before: list, after: list, expected: list) -> None:
    layout = axis_factors.regroup(axis_factors.make_layout(before), after)
    assert layout is not None
    assert [[factor.size for factor in axis] for axis in layout] == expected


@pytest.mark.parametrize(
    ("before", "after"),
    [([6, 4], [4, 6]), (["n", 8], [4, None]), (["n", "m"], [None, None]), ([0, 4], [4, 0])],
)
def test_regroup_knows_no_other_layouts(before: list, after: list) -> None:
    assert axis_factors.regroup(axis_factors.make_layout(before), after) is None


def test_two_open_sizes_are_not_reshaped() -> None:
    """Leave a tensor alone that a Reshape cannot give two dynamic sizes."""
    (layout,) = (axis_factors.make_layout(["n", "m", 8]),)
    merged = ((*layout[0], *layout[1]), layout[2])
    assert axis_factors.plan_moves(merged, layout) is None
    assert axis_factors.plan_moves(layout, merged) is not None
