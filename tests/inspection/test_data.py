# SPDX-License-Identifier: Apache-2.0
"""Statistics of activations on data, and advice from them."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from float_models import NETWORKS, data_for
from small_models import model, node

import anybit
from anybit import DataError
from anybit.inspection.pages import render_report


def exposed(quantized: ir.Model, names: list[str]) -> onnx.ModelProto:
    """Return the model with some of its tensors as outputs."""
    copy = quantized.clone()
    made = {value.name: value for item in copy.graph for value in item.outputs}
    copy.graph.outputs[:] = [made[name] for name in names]
    return ir.to_proto(copy)


@pytest.mark.parametrize("name", ["convolutions", "attention"])
def test_activation_statistics_match_exposed_tensors(name: str) -> None:
    data = data_for(name, 6)
    quantized = anybit.quantize(NETWORKS[name](), data, weights="int8", activations="uint4")
    report = anybit.inspect(quantized, data)
    nodes = {item.name: item for item in quantized.model.graph}
    compared = 0
    for layer in report.layers:
        for tensor in layer.tensors:
            if tensor.role != "activations" or tensor.name == "x":
                continue
            after = next(
                item.producer()
                for item in nodes[layer.name].inputs
                if item.producer() is not None and item.producer().inputs[0].name == tensor.name
            )
            runner = anybit.load(exposed(quantized.model, [tensor.name, after.outputs[0].name]))
            runs = [list(runner.run(item).values()) for item in data]
            x, y = (np.concatenate([np.ravel(item[at]) for item in runs]) for at in (0, 1))
            assert sum(tensor.histogram.counts) == x.size
            assert (tensor.histogram.lowest, tensor.histogram.highest) == (x.min(), x.max())
            noise = np.square(x.astype(np.float64) - y).sum() / np.square(x, dtype="d").sum()
            assert tensor.sqnr == pytest.approx(-10 * np.log10(noise), abs=1e-4)
            step = tensor.values[1] - tensor.values[0]
            beyond = (x > tensor.highest + step / 2) | (x < tensor.lowest - step / 2)
            assert tensor.clipped == np.mean(beyond)
            assert tensor.kind == "uint4"
            compared += 1
    assert compared >= 3


def test_outlier_channel_of_activations() -> None:
    constants = {"w": np.ones((2, 3, 1, 1), "f"), "one": 1, "zero": 0, "eight": 8}
    nodes = [
        node("IntQuant", "x one zero eight", "q", name="q"),
        node("Conv", "q w", domain="", name="conv"),
    ]
    proto = model(nodes, constants, inputs={"x": ["n", 3, 4, 4]})
    data = np.random.default_rng(0).normal(size=(5, 3, 4, 4)).astype(np.float32)
    data[:, 1] *= 50
    (layer,) = anybit.inspect(proto, data).layers
    (tensor,) = layer.tensors
    reach = np.abs(data).max(axis=(0, 2, 3))
    np.testing.assert_array_equal(tensor.channel_max, reach)
    channel, alone = tensor.outlier
    assert (channel, tensor.channels) == (1, 3)
    assert alone == pytest.approx(1 - max(reach[0], reach[2]) / reach[1])


def quantized_input() -> onnx.ModelProto:
    """x -> -8 .. 7, times a matrix."""
    constants = {"w": np.eye(4, dtype="f"), "one": 1, "zero": 0, "four": 4}
    nodes = [node("IntQuant", "x one zero four", "q"), node("MatMul", "q w", domain="", name="m")]
    return model(nodes, constants, inputs={"x": ["n", 4]})


def test_advice_on_activations() -> None:
    proto = quantized_input()

    def texts(x: np.ndarray) -> str:
        report = anybit.inspect(proto, np.float32(x)).advice
        assert all(item.remedy for item in report)
        return "\n".join(item.text for item in report)

    quiet = texts(np.linspace(-8, 7, 64).reshape(16, 4))
    assert quiet == ""
    assert "25 % of the activations of m are clipped" in texts([[1, 2, 3, 20], [-3, -5, 7, 30]])
    assert "The data use 6.67 % of the range of the activations of m" in texts([[0, 1, 0, 1]])
    assert "All values of the activations of m are 3." in texts([[3, 3, 3, 3]])
    alone = texts([[0.1, 7, 0.2, 0.3], [0.1, -8, 0.2, 0.4]])
    assert "Channel 1 alone uses 95 % of the range of the activations of m" in alone


def test_data_that_do_not_fit_are_refused() -> None:
    with pytest.raises(DataError, match="must have shape"):
        anybit.inspect(quantized_input(), np.ones((2, 5), np.float32))
    with pytest.raises(DataError, match="NaN or infinity"):
        anybit.inspect(quantized_input(), np.full((2, 4), np.nan, np.float32))


def test_advice_names_float_layers() -> None:
    constants = {"w": np.eye(4, dtype="f"), "one": 1, "zero": 0, "four": 4}
    constants["v"] = np.float32(np.random.default_rng(0).normal(size=(4, 4)))
    nodes = [
        node("MatMul", "x v", "y", domain="", name="first"),
        node("IntQuant", "w one zero four", "q"),
        node("MatMul", "y q", "z", domain="", name="second"),
    ]
    proto = model(nodes, constants, inputs={"x": ["n", 4]}, outputs=["z"])
    (advice,) = anybit.inspect(proto).advice
    assert advice.text == "1 layer stays float: first."
    del proto.graph.node[1:]
    proto.graph.output[0].name = "y"
    assert anybit.inspect(proto).advice == (), "a float model needs no advice"


def test_computed_scales_are_not_described() -> None:
    nodes = [
        node("ReduceMax", "x", "top", domain="", name="top"),
        node("IntQuant", "x top zero four", "q"),
        node("MatMul", "q w", domain="", name="m"),
    ]
    constants = {"w": np.eye(4, dtype="f"), "zero": 0, "four": 4}
    report = anybit.inspect(model(nodes, constants, inputs={"x": ["n", 4]}), np.ones((3, 4), "f"))
    assert report.layers[0].tensors == ()
    assert "No quantizer with a constant grid" in render_report(report)


BRANCHES = """
<ir_version: 8, opset_import: ["": 13, "qonnx.custom_op.general": 1]>
graph (float[N, 4] x, bool c) => (float[N, 4] y)
<float one = {1}, float none = {0}, float four = {4}>
{
  y = If (c) <
    then_branch = t () => (float[N, 4] a) {
      xq = qonnx.custom_op.general.IntQuant(x, one, none, four)
      a = MatMul(xq, w)
    },
    else_branch = e () => (float[N, 4] b) { b = Identity(x) }
  >
}"""


def test_layers_inside_branches_are_described_but_not_observed() -> None:
    """Run both branches: a branch that is not taken has no values."""
    proto = onnx.parser.parse_model(BRANCHES)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(4, dtype="f"), "w"))
    x = np.full((1, 4), 3, np.float32)
    data = [{"x": x, "c": np.array(taken)} for taken in (True, False)]
    (row,) = anybit.inspect(proto, data).layers
    assert (row.layer.input_codes, row.observed) == ((-8, 7), None)
    assert [tensor.role for tensor in row.tensors] == ["activations"]
