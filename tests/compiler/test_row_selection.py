# SPDX-License-Identifier: Apache-2.0
"""Rows that a graph selects by their numbers: programs compute row by row, so that it keeps these.

The number of rows is dynamic. What a node does with two rows says nothing about more of them.
"""

import numpy as np
import onnx
import pytest
from text_models import parse

import anybit
from anybit.compiler.compiled import CompiledModel
from anybit.compiler.prepare.heads import simplify_heads
from anybit.compiler.program import program as p
from anybit.onnx.preparation import prepare_for_analysis

CONSTANTS = {
    "w": np.float32(np.random.default_rng(0).integers(-7, 8, (4, 5)) / 8),
    "step": np.float32(1 / 32),
    "none": np.float32(0),
    "bits": np.float32(8),
    "first": np.int64([0, 1]),
    "twice": np.int64([2, 1]),
    "last": np.int64([-2]),
    "two": np.int64([2, 4]),
    "scales": np.float32([1.25, 1]),
    "largest": np.int64([2**31 - 1]),
    "same": np.int64([0, 0, 2, 2]),
    "many": np.arange(2**20 + 1) % 3,
    "heads": np.int64([0, 3, 2, 2]),
    **{f"n{number}": np.int64([number]) for number in (0, 1, 2, 3, 100)},
}


def build(move: str, sizes: str = "n, 4", result: str = "m, 5") -> onnx.ModelProto:
    text = f"""g (float[{sizes}] x) => (float[{result}] y) {{
        a = Q(x)
        {move}
        y = Q(c)
    }}"""
    for name in "xcb":
        text = text.replace(f"Q({name})", f"Quant <signed: int = 1> ({name}, step, none, bits)")
    return parse(text, CONSTANTS)


def compare(model: onnx.ModelProto, *sizes: int) -> CompiledModel:
    """Check that the compiled model gives the results of the graph."""
    compiled = anybit.compile(model)
    x = np.random.default_rng(1).normal(size=sizes).astype(np.float32)
    (expected,) = anybit.load(model).run({"x": x}).values()
    (actual,) = compiled.run({"x": x}).values()
    np.testing.assert_array_equal(actual, expected)
    return compiled


@pytest.mark.parametrize(
    ("move", "rows"),
    [
        ("Slice (a, n0, n100, n0)", 120),
        ("Slice (a, n0, n2)", 3),
        ("Slice (a, last, n100, n0)", 3),
        ("Gather <axis = 0> (a, first)", 3),
        ("Gather <axis = -2> (a, first)", 3),
        ("Expand (a, twice)", 1),
        ('Resize <mode = "nearest"> (a, , , two)', 3),
        ('Resize <mode = "nearest"> (a, , scales)', 4),
    ],
)
def test_selected_rows(move, rows):
    compare(build(f"b = {move}\nc = MatMul (b, w)"), rows, 4)


def test_rows_after_a_product():
    compare(build("b = MatMul (a, w)\nc = Slice (b, n0, n2, n0)"), 3, 4)


@pytest.mark.parametrize(
    "move", ["Slice (a, n0, largest, n0)", "Split <axis = 0> (a)", "Slice (a, n0, n100, n1)"]
)
def test_all_rows_stay_in_a_region(move):
    compiled = compare(build(f"b = {move}\nc = MatMul (b, w)"), 3, 4)
    (program,) = compiled.report.programs
    assert p.Gather in map(type, program.instructions)


HEADS = {
    "rows": "b = Slice (a, n0, n2, n0)\nr = Reshape (b, heads)\nt = Transpose <perm=[0,2,1,3]> (r)",
    "moved rows": """r = Reshape (a, heads)
        s = Transpose <perm = [1, 0, 2, 3]> (r)
        b = Slice (s, n0, n3, n1)
        t = Transpose <perm = [1, 2, 0, 3]> (b)""",
    "many elements": """g = Gather <axis = 1> (a, many)
        s = Slice (g, n0, n3, n1)
        r = Reshape (s, heads)
        t = Transpose <perm = [0, 2, 1, 3]> (r)""",
    "empty": """b = Slice (a, n0, n0, n1)
        r = Reshape (b, same)
        t = Transpose <perm = [0, 2, 1, 3]> (r)""",
}


@pytest.mark.parametrize("chain", HEADS)
def test_heads_of_other_selections_are_left_alone(chain):
    text = f"{HEADS[chain]}\nu = Transpose <perm = [0, 1, 3, 2]> (t)\nc = MatMul (t, u)"
    model = prepare_for_analysis(build(text, "n, 3, 4", "m, 2, k, l"))
    before = [node.op_type for node in model.graph]
    simplify_heads(model)
    assert [node.op_type for node in model.graph] == before
