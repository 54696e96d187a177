# SPDX-License-Identifier: Apache-2.0
"""ONNX's inference on models of onnx_ir: what it gives, and that it leaves the rest alone."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from small_models import model, node

from anybit.onnx.graph import inference
from anybit.onnx.graph.inference import infer_types


def inferred(proto: onnx.ModelProto, *, propagate: bool = True) -> ir.Model:
    made = ir.from_proto(proto)
    infer_types(made, propagate=propagate)
    return made


def described(made: ir.Model) -> dict[str, str]:
    nodes = made.graph.all_nodes()
    return {value.name: f"{value.type} {value.shape}" for item in nodes for value in item.outputs}


def test_inference_branches_and_loops() -> None:
    """Both branches have a value of one name."""
    made = inferred(
        onnx.parser.parse_model(
            """<ir_version: 8, opset_import: ["": 17]>
            graph (bool c, float[2, 3] x) => (y, z) <int64 n = {4}> {
                y = If(c) <
                    then_branch = t () => (a) { v = Transpose(x) a = Relu(v) },
                    else_branch = e () => (b) { v = Cast<to = 10>(x) b = Cast<to = 1>(v) }>
                z = Loop(n, , x) <body = l (int64 i, bool go, p) => (on, r)
                    { on = Identity(go) r = Neg(p) }>
            }"""
        )
    )
    choice, loop = made.graph
    actual = [
        [f"{value.dtype.name} {list(value.shape)}" for node in graph for value in node.outputs]
        for graph in (choice.attributes[name].value for name in ("then_branch", "else_branch"))
    ]
    assert actual == [["FLOAT [3, 2]", "FLOAT [3, 2]"], ["FLOAT16 [2, 3]", "FLOAT [2, 3]"]]
    body = loop.attributes["body"].value
    assert body.inputs[2].dtype == ir.DataType.FLOAT
    assert body[1].outputs[0].dtype == ir.DataType.FLOAT
    assert loop.outputs[0].dtype == ir.DataType.FLOAT


def test_inference_of_sequences() -> None:
    proto = model([node("SplitToSequence", "x", "y", domain="", axis=1)], opsets={})
    proto.graph.output[0].ClearField("type")
    (result,) = inferred(proto).graph.outputs
    assert isinstance(result.type, ir.SequenceType)


def test_inference_only_small_tensors_are_handed_over() -> None:
    """Keep all inputs in order, without further ones."""
    large = np.zeros((3, 1000), np.float32)
    constants = {"w": large, "sizes": np.array([2, 2]), "b": np.zeros(1000, np.float32)}
    nodes = [
        node("Reshape", "x sizes", "r", domain=""),
        node("MatMul", "v w", "p", domain=""),
        node("Add", "p b", "y", domain=""),
    ]
    made = inferred(model(nodes, constants, inputs={"x": [1, 4], "v": ["n", 3]}, opsets={}))
    assert list(made.graph.initializers) == list(constants)
    assert [value.name for value in made.graph.inputs] == ["x", "v"]
    assert made.graph.initializers["w"].const_value is not None
    assert described(made)["r"] == "FLOAT [2,2]"
    assert described(made)["y"] == "FLOAT [n,1000]"


def test_inference_integers_are_followed_if_asked_for() -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        graph (float[2, 3] x) => (y) <int64 first = {0}> {
            s = Shape(x)
            n = Gather(s, first)
            m = Unsqueeze(n, axes)
            y = ConstantOfShape(m)
        }"""
    )
    axes = onnx.numpy_helper.from_array(np.array([0]), "axes")
    proto.graph.initializer.append(axes)
    assert described(inferred(proto))["y"] == "FLOAT [2]"
    assert described(inferred(proto, propagate=False))["y"] != "FLOAT [2]"


def test_inference_failure_changes_nothing() -> None:
    proto = model([node("Relu", "x", domain=""), node("Own", "x", "z", domain="own")], opsets={})
    made = inferred(proto)  # a domain without an import
    assert made.graph.outputs[0].shape is None
    assert [value.name for value in made.graph.inputs] == ["x"]


@pytest.mark.parametrize(("opset", "scales"), [(18, 2), (21, 4)])
def test_inference_group_normalization_keeps_the_shape(opset: int, scales: int) -> None:
    """ONNX infers nothing for it, in branches neither."""
    made = inferred(
        onnx.parser.parse_model(
            f"""<ir_version: 8, opset_import: ["": {opset}]>
            graph (bool c, float[N, 4, 8, 8] x, float[{scales}] s, float[{scales}] b) => (y) {{
                a = GroupNormalization<num_groups = 2>(x, s, b)
                y = If(c) <
                    then_branch = t () => (v) {{ v = GroupNormalization<num_groups = 2>(a, s, b) }},
                    else_branch = e () => (w) {{ w = Relu(a) }}>
            }}"""
        )
    )
    assert described(made) == dict.fromkeys("ayvw", "FLOAT [N,4,8,8]")
    assert {node.op_type for node in made.graph} == {"GroupNormalization", "If"}


def test_inference_faults_of_our_own_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what onnx and onnx_ir raise is taken for their having no answer."""

    def faulty(graph: onnx.GraphProto, like_first: object) -> None:
        raise KeyError("ours")

    monkeypatch.setattr(inference, "_replace_uninferable", faulty)
    with pytest.raises(KeyError, match="ours"):
        inferred(model([node("Relu", "x", "y", domain="")], opsets={}))
