# SPDX-License-Identifier: Apache-2.0
"""Bodies of local functions stand in the place of their calls, and compute what they did."""

from itertools import pairwise

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, parser
from onnx.reference import ReferenceEvaluator

import anybit
from anybit.errors import ModelError
from anybit.onnx import prepare, read, reference_ops
from anybit.onnx.passes import InlineFunctions

X = np.array([[-1.5, 0.25, 2, 3]], np.float32)

MODEL = """<ir_version: 8, opset_import: ["": {model}, "mine": 1 {ours}]>
g (float[1, 4] x) => (float[1, 4] y) <float s = {{0.5}}> {{
  a = mine.Block<width = 3>(x, s)
  b = mine.Block<width = 5>(a, s)
  y = mine.Either(b, a)
}}
<domain: "mine", opset_import: ["": {function}, "qonnx.custom_op.general": 1]>
Block <width> (value, scale) => (b)
{{
  zero = Constant<value = float {{0}}>()
  bits = Constant<value_int: int = @width>()
  wide = Cast<to = 1>(bits)
  b = qonnx.custom_op.general.Quant<signed = 1>(value, scale, zero, wide)
}}
<domain: "mine", opset_import: ["": {function}, "mine": 1]>
Either (value, other) => (b)
{{
  zero = Constant<value = float {{0}}>()
  sum = ReduceSum<keepdims = 0>(other)
  go = Greater(sum, zero)
  q = mine.Block<width = 2>(value, sum)
  b = If(go) <
    then_branch = g1 () => (t) {{ t = mine.Block<width = 4>(value, sum) }},
    else_branch = g2 () => (e) {{ e = Neg(q) }}
  >
}}"""


def functions(model: int, function: int, ours: str = "") -> onnx.ModelProto:
    return parser.parse_model(MODEL.format(model=model, function=function, ours=ours))


def expected_output() -> np.ndarray:
    a = anybit.int_quant(X, 0.5, 0, 3)
    b = anybit.int_quant(a, 0.5, 0, 5)
    assert a.sum() > 0
    return anybit.int_quant(b, a.sum(), 0, 4)


def test_inline_functions_attributes_names_and_branches() -> None:
    proto = functions(17, 17)
    model = read(proto)
    InlineFunctions()(model)
    assert not model.functions
    assert {node.domain for node in model.graph.all_nodes()} == {"", "qonnx.custom_op.general"}
    names = [value.name for node in model.graph.all_nodes() for value in node.outputs]
    assert len(set(names)) == len(names)
    assert {"a", "b", "y"} <= set(names)
    plain = ir.to_proto(model)
    onnx.checker.check_model(plain)
    actual = ReferenceEvaluator(plain, new_ops=reference_ops()).run(None, {"x": X})[0]
    np.testing.assert_array_equal(actual, expected_output())
    np.testing.assert_array_equal(anybit.load(proto).run(X)["y"], expected_output())


@pytest.mark.parametrize(
    ("model", "function"), [(17, 13), (13, 17), (17, 18), (18, 17), (21, 13), (13, 21)]
)
def test_inline_functions_versions_that_differ(model: int, function: int) -> None:
    proto = functions(model, function, ', "qonnx.custom_op.general": 1')
    np.testing.assert_array_equal(anybit.load(proto).run(X)["y"], expected_output())
    for form in ("qonnx", "standard"):
        converted = anybit.convert(proto, to=form).model
        assert converted.graph.opset_imports[""] >= max(model, function)
        np.testing.assert_array_equal(anybit.load(converted).run(X)["y"], expected_output())
    assert all(finding.severity != "error" for finding in anybit.check(proto))


@pytest.mark.parametrize(
    ("call", "opset", "function", "message"),
    [
        # Hardmax looked at all axes behind its own before opset 13.
        ("One(x)", 11, "Hardmax<axis = 1>(a)", "Hardmax"),
        ("One(x, x)", 13, "Neg(a)", r"node 'y' \(One\): .* takes 1 inputs"),
    ],
)
def test_inline_functions_refuses(call: str, opset: int, function: str, message: str) -> None:
    proto = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 13, "mine": 1]>
    g (float[2, 3, 4] x) => (float[2, 3, 4] y) {{ y = mine.{call} }}
    <domain: "mine", opset_import: ["": {opset}]>
    One (a) => (b) {{ b = {function} }}""")
    with pytest.raises(ModelError, match=message):
        anybit.load(proto)


def test_inline_functions_results_that_are_inputs() -> None:
    proto = parser.parse_model("""<ir_version: 8, opset_import: ["": 17, "mine": 1]>
    g (float[2] x) => (float[2] y, float[2] z, float[2] w) { y, z, w = mine.Copy(x) }
    <domain: "mine", opset_import: ["": 17]>
    Copy (a) => (a, b, b) { b = Neg(a) }""")
    result = anybit.load(proto).run(np.array([1, -2], np.float32))
    assert {name: list(array) for name, array in result.items()} == {
        "y": [1, -2],
        "z": [-1, 2],
        "w": [-1, 2],
    }


def test_inline_functions_inputs_and_attributes_that_are_left_out() -> None:
    proto = parser.parse_model("""<ir_version: 8, opset_import: ["": 17, "mine": 1]>
    g (float[3] x) => (float[3] y) { y = mine.Limit(x) }
    <domain: "mine", opset_import: ["": 17]>
    Limit <slope> (a, low) => (b) {
      c = Clip(a, low)
      b = LeakyRelu<alpha: float = @slope>(c)
    }""")
    result = anybit.load(proto).run(np.array([-100, 0, 5], np.float32))["y"]
    np.testing.assert_array_equal(result, [-1, 0, 5])


def doubling(levels: int) -> onnx.ModelProto:
    """Functions that each call the one before twice."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("m", 1)]
    bodies = [[helper.make_node("Neg", ["a"], ["b"])]]
    for level in range(levels):
        first = helper.make_node(f"f{level}", ["a"], ["t"], domain="m")
        bodies.append([first, helper.make_node(f"f{level}", ["t"], ["b"], domain="m")])
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy")
    call = helper.make_node(f"f{levels}", ["x"], ["y"], domain="m")
    return helper.make_model(
        helper.make_graph([call], "g", [x], [y]),
        opset_imports=imports,
        ir_version=8,
        functions=[
            helper.make_function("m", f"f{level}", ["a"], ["b"], nodes, imports)
            for level, nodes in enumerate(bodies)
        ],
    )


def test_inline_functions_many_calls() -> None:
    assert len(prepare(doubling(10)).graph) == 1024


def test_inline_functions_too_many_calls() -> None:
    with pytest.raises(ModelError, match="expand to 65536 nodes, more than the 32768"):
        anybit.load(doubling(16))


def chain(nodes: int) -> onnx.ModelProto:
    """Return a model of that many nodes in a row, without local functions."""
    names = ["x", *(f"v{index}" for index in range(nodes - 1)), "y"]
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy")
    relus = [helper.make_node("Relu", [a], [b]) for a, b in pairwise(names)]
    imports = [helper.make_opsetid("", 17)]
    return helper.make_model(
        helper.make_graph(relus, "g", [x], [y]), opset_imports=imports, ir_version=8
    )


def test_too_many_nodes_without_functions_are_refused_as_nodes() -> None:
    message = "it has 32769 nodes, more than the 32768 that are taken"
    with pytest.raises(ModelError, match=message):
        read(chain(32769))
    assert len(read(chain(32768)).graph) == 32768
