# SPDX-License-Identifier: Apache-2.0
"""What a report says of activations, which are seen on data."""

from hashlib import sha256

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from float_models import NETWORKS, data_for
from small_models import model, node

import anybit
from anybit import DataError
from anybit.reporting import page


def exposed(quantized: ir.Model, names: list[str]) -> onnx.ModelProto:
    """The model with some of its tensors for outputs."""
    copy = quantized.clone()
    made = {value.name: value for each in copy.graph for value in each.outputs}
    copy.graph.outputs[:] = [made[name] for name in names]
    return ir.to_proto(copy)


@pytest.mark.parametrize("name", ["convolutions", "attention"])
def test_activations_are_measured(name: str) -> None:
    """Against plain sums over what a model gives whose tensors are outputs."""
    data = data_for(name, 6)
    quantized = anybit.quantize(NETWORKS[name](), data, weights="int8", activations="uint4")
    found = anybit.report(quantized, data)
    nodes = {each.name: each for each in quantized.model.graph}
    compared = 0
    for layer in found.layers:
        for tensor in layer.tensors:
            if tensor.role != "activations" or tensor.name == "x":
                continue
            after = next(
                each.producer()
                for each in nodes[layer.name].inputs
                if each.producer() is not None and each.producer().inputs[0].name == tensor.name
            )
            runner = anybit.load(exposed(quantized.model, [tensor.name, after.outputs[0].name]))
            runs = [list(runner.run(each).values()) for each in data]
            x, y = (np.concatenate([np.ravel(each[at]) for each in runs]) for at in (0, 1))
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


def test_channels_of_activations() -> None:
    constants = {"w": np.ones((2, 3, 1, 1), "f"), "one": 1, "zero": 0, "eight": 8}
    nodes = [
        node("IntQuant", "x one zero eight", "q", name="q"),
        node("Conv", "q w", domain="", name="conv"),
    ]
    proto = model(nodes, constants, inputs={"x": ["n", 3, 4, 4]})
    data = np.random.default_rng(0).normal(size=(5, 3, 4, 4)).astype(np.float32)
    data[:, 1] *= 50
    (layer,) = anybit.report(proto, data).layers
    (tensor,) = layer.tensors
    reach = np.abs(data).max(axis=(0, 2, 3))
    np.testing.assert_array_equal(tensor.reach, reach)
    channel, alone = tensor.alone
    assert (channel, tensor.channels) == (1, 3)
    assert alone == pytest.approx(1 - max(reach[0], reach[2]) / reach[1])


def test_the_hash_is_that_of_the_data() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    proto = quantized_input()
    digest = anybit.report(proto, x).ran.digest
    expected = sha256()
    for row in x:
        expected.update(repr(("x", "float32", (1, 4))).encode() + row.tobytes())
    assert digest == expected.hexdigest()
    assert anybit.report(proto, [{"x": row[None]} for row in x]).ran.digest == digest
    assert anybit.report(proto, x[::-1]).ran.digest != digest
    assert digest in page(anybit.report(proto, x))


def quantized_input() -> onnx.ModelProto:
    """x -> -8 .. 7, times a matrix."""
    constants = {"w": np.eye(4, dtype="f"), "one": 1, "zero": 0, "four": 4}
    nodes = [node("IntQuant", "x one zero four", "q"), node("MatMul", "q w", domain="", name="m")]
    return model(nodes, constants, inputs={"x": ["n", 4]})


def test_what_is_striking() -> None:
    proto = quantized_input()

    def said(x: np.ndarray) -> str:
        found = anybit.report(proto, np.float32(x)).findings
        assert all(each.remedy for each in found)
        return "\n".join(each.text for each in found)

    quiet = said(np.linspace(-8, 7, 64).reshape(16, 4))
    assert quiet == ""
    assert "25 % of the activations of m are cut off" in said([[1, 2, 3, 20], [-3, -5, 7, 30]])
    assert "Only 6.67 % of the range for the activations of m" in said([[0, 1, 0, 1]])
    assert "Nothing but 3 was seen of the activations of m" in said([[3, 3, 3, 3]])
    alone = said([[0.1, 7, 0.2, 0.3], [0.1, -8, 0.2, 0.4]])
    assert "One channel, number 1, carries 95 % of the range of the activations of m" in alone


def test_data_that_do_not_fit() -> None:
    with pytest.raises(DataError, match="must have shape"):
        anybit.report(quantized_input(), np.ones((2, 5), np.float32))
    with pytest.raises(DataError, match="NaN or infinity"):
        anybit.report(quantized_input(), np.full((2, 4), np.nan, np.float32))


def test_float_layers_are_named() -> None:
    proto = model(
        [node("MatMul", "x w", domain="", name="m")],
        {"w": np.float32(np.random.default_rng(0).normal(size=(4, 4)))},
        inputs={"x": ["n", 4]},
    )
    (finding,) = anybit.report(proto).findings
    assert finding.text == "1 layer computes in floats: m."
