# SPDX-License-Identifier: Apache-2.0
"""Layers are named after the modules whose weights they multiply."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import anybit
from anybit.errors import OptionError
from anybit.onnx import read
from anybit.onnx.passes import NameLayers

EXPORTED = """
<ir_version: 8, opset_import: ["": 17]>
graph (float[n, 4] x) => (float[n, 4] y) {
  turned = Transpose <perm = [1, 0]> (w)
  [node_MatMul_497] a = MatMul(x, turned)
  [node_Relu_498] b = Relu(a)
  [node_Gemm_499] c = Gemm(b, v)
  [node_MatMul_500] d = MatMul(c, constant)
  [node_Gemm_501] y = Gemm(d, v)
}
"""
NAMES = {"w": "backbone.3.conv2.weight", "v": "head/dense/kernel", "constant": "val_7"}


def exported() -> onnx.ModelProto:
    model = parser.parse_model(EXPORTED)
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = NAMES.get(name, name)
    random = np.random.default_rng(0)
    for name in NAMES.values():
        array = random.standard_normal((4, 4), dtype=np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


DATA = np.random.default_rng(1).standard_normal((32, 4), dtype=np.float32)


def test_name_layers_uses_names_of_modules_once() -> None:
    model = read(exported())
    named = [node.name for node in NameLayers()(model).model.graph]
    expected = ["backbone.3.conv2", "node_Relu_498", "head/dense", "node_MatMul_500"]
    assert named[1:] == [*expected, "head/dense_1"]
    assert not NameLayers()(model).modified


def test_name_layers_ignores_weights_of_activations() -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    graph (float[n, 4] x) => (float[n, 4] y) {
      scaled = Mul(w, x)
      [node_MatMul_1] y = MatMul(scaled, constant)
    }"""
    proto = parser.parse_model(text)
    proto.graph.node[0].input[0] = "norm.weight"
    for name, shape in (("norm.weight", (4,)), ("constant", (4, 4))):
        array = np.ones(shape, np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    model = NameLayers()(read(proto)).model
    assert [node.name for node in model.graph][1] == "node_MatMul_1"


def test_name_layers_uses_scopes_of_torch_if_the_weight_has_no_name() -> None:
    proto = exported()
    scopes = {1: "['', 'mlp', 'mlp.up', 'linear']", 4: "['', 'mlp', 'mlp.down', 'linear_1']"}
    for index, value in scopes.items():
        proto.graph.node[index].metadata_props.add(key="pkg.torch.onnx.name_scopes", value=value)
    named = [node.name for node in NameLayers()(read(proto)).model.graph]
    assert named[1] == "backbone.3.conv2"
    assert named[4] == "mlp.down"


def test_name_layers_leaves_existing_names_unique() -> None:
    proto = exported()
    proto.graph.node[2].name = "backbone.3.conv2"
    model = read(proto)
    NameLayers()(model)
    assert [node.name for node in model.graph][1:3] == ["backbone.3.conv2_1", "backbone.3.conv2"]


@pytest.mark.parametrize("pattern", ["backbone.3.conv2", "node_MatMul_497", "backbone.*"])
def test_name_layers_layer_options_take_both_names(pattern: str) -> None:
    quantized = anybit.quantize(exported(), DATA, layers={pattern: "int4"}, effort="fast")
    assert {layer.name: layer.weights for layer in quantized.layers} == {
        "backbone.3.conv2": "int4",
        "head/dense": "int8",
        "node_MatMul_500": "int8",
        "head/dense_1": "int8",
    }
    kept = anybit.quantize(exported(), DATA, keep=[pattern], effort="fast")
    assert list(kept.skipped) == ["backbone.3.conv2"]


def test_name_layers_unknown_layer_names_are_refused_with_the_names_that_there_are() -> None:
    with pytest.raises(
        OptionError, match=r"backbone\.3\.conv3'\]: no layer matches; there are back"
    ):
        anybit.quantize(exported(), DATA, layers={"backbone.3.conv3": "int4"})


def test_compiled_layers_have_the_names_of_modules() -> None:
    quantized = anybit.quantize(exported(), DATA, effort="fast")
    names = [layer.name for layer in anybit.compile(quantized).report.layers]
    assert names[:2] == ["backbone.3.conv2", "head/dense"]
    assert [layer.name for layer in anybit.inspect(exported()).layers][:2] == names[:2]
