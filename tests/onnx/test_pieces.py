# SPDX-License-Identifier: Apache-2.0
"""Constant pieces of a graph are cut out, evaluated whole, and shared."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import parser
from small_models import model, node

import anybit
from anybit.onnx import prepare, read
from anybit.onnx.folding import pieces
from anybit.onnx.graph.cut import extract_subgraph
from anybit.onnx.library import register
from anybit.onnx.runtime import FAILURES, evaluate

NAMED = 'opset_import: ["": 17, "qonnx.custom_op.general": 1]'


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collect the sizes of the evaluated subgraphs."""
    seen: list[int] = []

    def counting(fragment: ir.Model, feeds: Any) -> dict[str, np.ndarray]:
        seen.append(len(fragment.graph))
        return evaluate(fragment, feeds)

    monkeypatch.setattr(pieces, "evaluate", counting)
    return seen


def weights(count: int) -> onnx.ModelProto:
    """Quantized weights with computed scales, each followed by a Transpose."""
    nodes, arguments = [], {"half": 0.5, "zeropt": 0, "bits": 4}
    for at in range(count):
        arguments[f"w{at}"] = np.full((4, 4), at + 0.3, np.float32)
        nodes += [
            node("Mul", "half half", f"s{at}", domain="", name=f"m{at}"),
            node("Quant", f"w{at} s{at} zeropt bits", f"q{at}", name=f"q{at}"),
            node("Transpose", f"q{at}", f"t{at}", domain="", name=f"t{at}"),
            node("MatMul", f"x{at} t{at}", f"x{at + 1}", domain="", name=f"p{at}"),
        ]
    return model(nodes, arguments, inputs={"x0": [1, 4]}, outputs=[f"x{count}"])


def test_fold_pieces_not_nodes_make_sessions(sessions: list[int]) -> None:
    result = prepare(weights(20))
    assert [item.op_type for item in result.graph] == ["MatMul"] * 20
    assert sessions == [20, 20]


def test_fold_piece_that_fails_is_evaluated_node_by_node(sessions: list[int]) -> None:
    proto = parser.parse_model(f"""<ir_version: 8, {NAMED}>
    g (float[2] x) => (float[2] y, float[2] v) <float[2] w = {{1, 2}}, float[3] u = {{1, 2, 3}},
     int64[1] five = {{5}}> {{
      a = Neg(w)
      bad = Reshape(u, five)
      c = Neg(a)
      y = Add(x, c)
      d = Add(x, bad)
      v = Add(d, c)
    }}""")
    result = prepare(proto)
    assert [item.op_type for item in result.graph] == ["Reshape", "Add", "Add", "Add"]
    assert sessions == [3, 1, 1, 1]


def test_fold_large_results_are_computed_one_by_one(
    sessions: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("anybit.onnx.passes.fold_constants._LARGEST_PIECE", 20)
    prepare(weights(3))
    assert sessions == [3, 1, 1, 1]


BRANCHES = """<ir_version: 8, {named}>
g (float[1, 20] x, bool c) => (float[1, 20] y)
<float[20, 20] w, float s = {{0.5}}, float z = {{0}}, float b = {{4}}> {{
  y = If(c) <
    then_branch = g1 () => (float[1, 20] t) {{
      q = qonnx.custom_op.general.Quant(w, s, z, b)
      n = Neg(q)
      t = MatMul(x, n)
    }},
    else_branch = g2 () => (float[1, 20] e) {{
      q = qonnx.custom_op.general.Quant(w, s, z, b)
      n = Neg(q)
      m = MatMul(x, n)
      e = Neg(m)
    }}
  >
}}"""


def test_fold_branches_share_large_constants() -> None:
    proto = parser.parse_model(BRANCHES.format(named=NAMED))
    weight = np.random.default_rng(0).standard_normal((20, 20), dtype=np.float32)
    del proto.graph.value_info[:]
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    cleaned = ir.to_proto(anybit.clean(proto).model)
    assert cleaned.ByteSize() < proto.ByteSize() + 200
    x = np.ones((1, 20), np.float32)
    expected = x @ -anybit.int_quant(weight, 0.5, 0, 4)
    for source in (proto, cleaned):
        loaded = anybit.load(source)
        for c, sign in ((True, 1), (False, -1)):
            result = loaded.run({"x": x, "c": np.array(c)})["y"]
            np.testing.assert_array_equal(result, sign * expected)


def test_fold_loop_is_never_run() -> None:
    """Never run a Loop; constants in its body stay."""
    proto = parser.parse_model(f"""<ir_version: 8, {NAMED}>
    g (float[1] x) => (float[1] y) <bool go = {{1}}, float[1] k = {{1}}> {{
      l = Loop(, go, k) <body = b (int64 i, bool c, float[1] p) => (bool on, float[1] r) {{
        on = Identity(c)
        r = Neg(p)
      }}>
      y = Mul(x, l)
    }}""")
    for prepared in (prepare(proto), anybit.clean(proto).model):
        assert [item.op_type for item in prepared.graph] == ["Loop", "Mul"]


def test_fold_piece_as_a_model() -> None:
    """Use an inner graph that reads outer values, and inputs without a type."""
    whole = read(
        parser.parse_model(f"""<ir_version: 8, {NAMED}>
    g (float[2] x, bool c) => (float[2] y) <float[2] w = {{1, 2}}> {{
      a = Relu(x)
      b = Add(a, w)
      d = If(c) <
        then_branch = g1 () => (float[2] o) {{ o = Add(b, a) }},
        else_branch = g2 () => (float[2] p) {{ p = Neg(w) }}
      >
      y = Neg(d)
    }}""")
    )
    nodes = list(whole.graph)[1:3]
    piece = extract_subgraph(whole, nodes, [node.outputs[0] for node in nodes])
    assert sorted(value.name for value in piece.graph.inputs) == ["a", "c", "w"]
    a, w = np.ones(2, np.float32), np.full(2, 3, np.float32)
    result = evaluate(piece, {"a": a, "w": w, "c": np.array(True)})
    np.testing.assert_array_equal(result["d"], [5, 5])
    np.testing.assert_array_equal(result["b"], [4, 4])
    assert len(whole.graph) == 4, "the model has its nodes still"


def test_fold_nodes_of_one_name_are_reported_apart() -> None:
    nodes = [
        node("Neg", "x", "a", domain="", name="n"),
        node("Quant", "a scale zeropt bits", "b", name="n"),
        node("Neg", "b", domain="", name="n_1"),
    ]
    proto = model(nodes, {"scale": 0.5, "zeropt": 0, "bits": 4}, inputs={"x": [2]})
    options = ort.SessionOptions()
    register(options)
    with pytest.raises(FAILURES, match="node name"):
        ort.InferenceSession(proto.SerializeToString(), options)
    x = np.array([0.3, 1.4], np.float32)
    np.testing.assert_array_equal(anybit.load(proto).run(x)["y"], [0.5, 1.5])
    converted = anybit.convert(proto, to="standard").model
    names = [item.name for item in converted.graph]
    assert len(set(names)) == len(names)
    np.testing.assert_array_equal(anybit.load(converted).run(x)["y"], [0.5, 1.5])
    assert [item.name for item in prepare(proto).graph] == ["n", "n_2", "n_1"]
