# SPDX-License-Identifier: Apache-2.0
"""Shapes that a file declares for values inside it are not taken for facts."""

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import parser
from onnx.reference import ReferenceEvaluator

import anybit
from anybit.onnx import read, reference_ops
from anybit.onnx.graph.shapes import get_proven_sizes
from anybit.onnx.passes import InferShapes

X = np.ones((5, 3), np.float32)

# Somebody freed the batch of x, and nothing else: a, or u, still has the old one.
STALE = """<ir_version: 8, opset_import: ["": 17, "qonnx.custom_op.general": 1]>
g (float[n, 3] x) => ({output} y)
<float s = {{0.5}}, float z = {{0}}, float b = {{8}}, int64 zero = {{0}} {declared}>
{{
  a = Relu(x)
  u = Transpose<perm = [0, 1]>(a)
  sizes = Shape{attributes}(u)
  rows = Gather(sizes, zero)
  factor = Cast<to = 1>(rows)
  t = Mul(a, factor)
  y = qonnx.custom_op.general.IntQuant(t, s, z, b)
}}"""
CASES = [", float[1, 3] a", ", float[1, 3] u", ", float[1, 3] a, float[1, 3] u"]


def stale(declared: str, output: str = "float[n, 3]", attributes: str = "") -> onnx.ModelProto:
    text = STALE.format(declared=declared, output=output, attributes=attributes)
    return parser.parse_model(text)


def reference(proto: onnx.ModelProto) -> np.ndarray:
    return ReferenceEvaluator(proto, new_ops=reference_ops()).run(None, {"x": X})[0]


@pytest.mark.parametrize("attributes", ["", "<start = 0, end = 1>"])
@pytest.mark.parametrize("declared", CASES)
def test_stale_shapes_results_are_those_of_the_evaluator(declared: str, attributes: str) -> None:
    proto = stale(declared, attributes=attributes)
    expected = reference(proto)
    assert expected[0, 0] == 5
    np.testing.assert_array_equal(anybit.load(proto).run(X)["y"], expected)
    cleaned = ir.to_proto(anybit.clean(proto).model)
    np.testing.assert_array_equal(reference(cleaned), expected)
    for form in ("qonnx", "standard", "portable", "qdq"):
        converted = anybit.convert(proto, to=form).model
        np.testing.assert_array_equal(anybit.load(converted).run(X)["y"], expected)


@pytest.mark.parametrize("declared", CASES)
def test_stale_shapes_inferred_shapes_are_written(declared: str) -> None:
    proto = ir.to_proto(anybit.clean(stale(declared)).model)
    for value in proto.graph.value_info:
        sizes = value.type.tensor_type.shape.dim
        assert not (value.name in "au" and sizes[0].dim_value == 1)


def codes(proto: onnx.ModelProto) -> list[tuple[str, str]]:
    return [(finding.code, finding.severity) for finding in anybit.check(proto)]


def test_stale_shapes_check_reports_contradictions() -> None:
    assert ("stale-shape", "warning") in codes(stale(CASES[0]))
    assert ("stale-shape", "error") in codes(stale(", float[n, 4] a"))
    assert ("stale-shape", "error") in codes(stale(", float[n, 3, 1] a"))
    assert ("stale-shape", "warning") in codes(stale("", "float[1, 3]"))
    actual = [finding for finding in anybit.check(stale(CASES[2])) if finding.code == "stale-shape"]
    assert len(actual) == 1
    assert "'a' is declared with the shape [1, 3]" in actual[0].problem
    assert "[n, 3]" in actual[0].problem


@pytest.mark.parametrize("declared", ["", ", float[n, 3] a", ", float[rows, 3] u"])
def test_stale_shapes_check_accepts_inferred_shapes(declared: str) -> None:
    assert all(code != "stale-shape" for code, _ in codes(stale(declared)))


def test_stale_shapes_declared_shapes_stay_without_inference() -> None:
    """Keep a shape after an unknown operator, but compute nothing from it."""
    proto = parser.parse_model("""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
    g (float[n, 3] x) => (int64[2] y) <float[4, 3] a> { a = com.microsoft.Mystery(x) y = Shape(a) }
    """)
    model = read(proto)
    InferShapes()(model)
    a = model.graph[0].outputs[0]
    assert a.shape == ir.Shape([4, 3])
    assert get_proven_sizes(a, model) is None
    cleaned = anybit.clean(proto).model
    assert [node.op_type for node in cleaned.graph] == ["Mystery", "Shape"]


def test_stale_shapes_bodies_of_loops_are_not_believed() -> None:
    """Distrust declared inputs of a body like other declarations."""
    proto = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    g (float[n, 3] x) => (float[n, 3] y) <int64 two = {2}, int64 zero = {0}> {
      y = Loop(two, , x) <body = b (int64 i, bool go, float[1, 3] p) => (bool on, float[m, 3] r) {
        on = Identity(go)
        sizes = Shape(p)
        rows = Gather(sizes, zero)
        factor = Cast<to = 1>(rows)
        r = Mul(p, factor)
      }>
    }""")
    assert anybit.load(proto).run(X)["y"][0, 0] == 25


def test_stale_shapes_sizes_that_are_known_are_constants() -> None:
    """Shapes after a Transpose are inferred without a declaration."""
    proto: Any = stale("")
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 5
    kinds = [node.op_type for node in anybit.clean(proto).model.graph]
    assert kinds == ["Relu", "Mul", "IntQuant"]
    np.testing.assert_array_equal(anybit.load(proto).run(X)["y"], reference(proto))


# How many numbers are not 0 follows from no shape; whoever wrote the file had one of them.
DEPENDENT = """<ir_version: 8, opset_import: ["": 17 {imports}]>
g (float[2, 3] x) => (int64[2] sizes, int64[2, 1] places, float[1] y)
<int64[2, 1] found, bool[2, 3] above, float[1] chosen, float zero = {{0}}>
{{
  found = {operator}(x)
  places = Identity(found)
  sizes = Shape(places)
  above = Greater(x, zero)
  chosen = Compress(x, above)
  y = Neg(chosen)
}}"""


def dependent(operator: str = "NonZero", imports: str = "") -> onnx.ModelProto:
    return parser.parse_model(DEPENDENT.format(operator=operator, imports=imports))


def sizes(model: ir.Model) -> dict[str, list[int | None]]:
    values = (value for node in model.graph for value in node.outputs)
    return {
        str(value.name): [size if isinstance(size, int) else None for size in value.shape]
        for value in values
    }


@pytest.mark.parametrize("form", ["", "qonnx", "standard", "qdq"])
def test_stale_shapes_sizes_that_depend_on_data_are_free(form: str) -> None:
    made = anybit.convert(dependent(), to=form) if form else anybit.clean(dependent())
    actual = sizes(made.model)
    assert [actual[name] for name in ("places", "above", "chosen", "y")] == [
        [2, None],
        [2, 3],
        [None],
        [None],
    ]
    (remark,) = [remark for remark in made.remarks if "depend on the data" in remark]
    assert "sizes that depend on the data are dynamic, not fixed: " in remark
    assert all(name in remark for name in ("places", "chosen", "y"))
    plain = ort.InferenceSession(ir.to_proto(made.model).SerializeToString())
    ones = np.ones((2, 3), np.float32)
    assert plain.run(["sizes"], {"x": ones})[0].tolist() == [2, 6]
    again = anybit.clean(made.model)
    assert sizes(again.model).items() <= actual.items()
    assert again.remarks == ()


def test_stale_shapes_declarations_after_other_operators_stay() -> None:
    actual = sizes(anybit.clean(dependent("mine.Found", ', "mine": 1')).model)
    assert (actual["places"], actual["chosen"]) == ([2, 1], [None])


def test_stale_shapes_names_of_an_earlier_inference_are_dropped() -> None:
    """Do not give two sizes one name: ONNX Runtime then reuses the memory of one for the other."""
    model = ir.from_proto(
        parser.parse_model("""<ir_version: 8, opset_import: ["": 17, "mine": 1]>
        g (float[n, t, 4] x, float[n, s, 4] m) => (float[k, 4] y, float z)
        <int64[2] rows = {-1, 4}, float[unk__0, 4] q> {
          a = Reshape(m, rows)
          b = Reshape(x, rows)
          q = mine.Moved(b)
          z = ReduceSum<keepdims = 0>(a)
          y = Neg(q)
        }""")
    )
    for _ in range(2):
        InferShapes()(model)
        values = {value.name: value for node in model.graph for value in node.outputs}
        names = [values[name].shape[0].value for name in "abq"]
        assert names[0] != names[1]
        assert names[2] is None


def test_a_model_that_cannot_be_inferred_keeps_its_shapes() -> None:
    proto = dependent()
    proto.graph.node[-1].op_type = "Not"  # of floats, at which inference ends
    cleaned = anybit.clean(proto)
    assert sizes(cleaned.model)["y"] == [1]
    assert cleaned.remarks == ()


def test_stale_shapes_state_of_a_loop_has_free_sizes() -> None:
    loop = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
    g (int64 n, float[1] x) => (float[1] y) <bool yes = {1}, float[1] y> {
      y = Loop <body = body (int64 i, bool go, float[1] v) => (bool on, float[1] w) {
        on = Identity(go)
        w = Concat<axis = 0>(v, v)
      }> (n, yes, x)
    }""")
    cleaned = anybit.clean(loop)
    assert sizes(cleaned.model)["y"] == [None]
    body = cleaned.model.graph[0].attributes["body"].as_graph()
    assert [isinstance(size, int) for value in body.inputs for size in value.shape] == [False]
    assert cleaned.remarks
