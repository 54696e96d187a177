# SPDX-License-Identifier: Apache-2.0
"""`anybit compile --verify` of models with dynamic activations."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest
from onnx import helper
from onnx.numpy_helper import from_array
from shell import Shell

import anybit
from anybit import Model

ARGUMENTS = ("compile", "d.onnx", "-o", "f.onnx", "--verify", "rows.npy")
Change = Callable[[npt.NDArray[np.float32]], npt.NDArray[np.float32]]


@pytest.fixture
def shell(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Shell:
    made = Shell(capfd, monkeypatch, tmp_path)
    rows = np.random.default_rng(1).standard_normal((4, 5, 16)).astype(np.float32)
    np.save("rows.npy", rows)
    return made


def make_layers(count: int, activations: str) -> onnx.ModelProto:
    """Return products of x[n, t, 16], with Relu between them."""
    random = np.random.default_rng(0)
    shape = ["n", "t", 16]
    value = helper.make_tensor_value_info
    names = ["x", *(f"m{place}" for place in range(1, count)), "y"]
    nodes, constants = [], []
    for place in range(count):
        last = place == count - 1
        sums = names[place + 1] if last else f"sum{place}"
        nodes.append(helper.make_node("MatMul", [names[place], f"w{place}"], [sums]))
        if not last:
            nodes.append(helper.make_node("Relu", [sums], [names[place + 1]]))
        weights = random.normal(size=(16, 16)).astype(np.float32)
        constants.append(from_array(weights, f"w{place}"))
    x, y = (value(name, onnx.TensorProto.FLOAT, shape) for name in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return ir.to_proto(anybit.quantize(model, weights="int8", activations=activations).model)


def end_in_codes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Quantize the output to codes, which a Softmax reads."""
    for node in model.graph.node:
        node.output[:] = ["s" if name == "y" else name for name in node.output]
    scale = [from_array(np.float32(1), "one"), from_array(np.int8(0), "zero")]
    model.graph.initializer.extend(scale)
    nodes = [
        helper.make_node("QuantizeLinear", ["s", "one", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "one", "zero"], ["d"]),
        helper.make_node("Softmax", ["d"], ["y"]),
    ]
    model.graph.node.extend(nodes)
    return model


def change_results(monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
    """Let the written file, which alone gives more than y, compute other values of y."""
    run = Model.run

    def run_changed(self, inputs, **more):
        results = run(self, inputs, **more)
        return results | {"y": change(results["y"])}

    monkeypatch.setattr(Model, "run", run_changed)


def test_outputs_of_products_are_verified(shell: Shell) -> None:
    onnx.save(make_layers(1, "int8 dynamic"), "d.onnx")
    code, out, _ = shell(*ARGUMENTS)
    assert code == 0
    assert "y differs in the last bits" in out


def test_codes_with_merged_axes_are_verified(shell: Shell) -> None:
    onnx.save(end_in_codes(make_layers(2, "int8 dynamic")), "d.onnx")
    code, out, _ = shell(*ARGUMENTS)
    assert code == 0
    assert "Verified: 1 of 1 tensor of codes compared, all equal; all else is equal" in out


def test_equal_codes_end_the_tolerance(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(end_in_codes(make_layers(2, "int8 dynamic")), "d.onnx")
    change_results(monkeypatch, lambda y: y * np.float32(1.002))
    code, out, _ = shell(*ARGUMENTS)
    assert code == 1
    assert "1 of 1 tensor of codes compared, all equal; y differs" in out


def test_other_values_are_no_steps(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    onnx.save(make_layers(2, "int2 dynamic"), "d.onnx")
    assert shell(*ARGUMENTS)[0] == 0
    for factor in (0, 0.6):
        with monkeypatch.context() as patch:
            change_results(patch, lambda y, factor=factor: y * np.float32(factor))
            code, out, _ = shell(*ARGUMENTS)
        assert code == 1
        assert "y differs" in out


@pytest.mark.parametrize(("factor", "verified"), [(1.0, True), (1.05, False)])
def test_exact_layers_after_open_functions_have_steps(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, factor: float, verified: bool
) -> None:
    """Allow steps of codes of last bits that a Sigmoid leaves open, before integer operators."""
    random = np.random.default_rng(0)
    constants, nodes = [from_array(np.float32(0.01), "k")], []
    for place, (x, y, shape) in enumerate([("x", "m", (16, 3, 1, 1)), ("a", "y", (2, 16, 1, 1))]):
        weights = random.integers(-128, 128, shape).astype(np.int8)
        constants.append(from_array(weights, f"w{place}"))
        q, s, z, sums, floats, scaled = (f"{name}{place}" for name in "qszifp")
        nodes += [
            helper.make_node("DynamicQuantizeLinear", [x], [q, s, z]),
            helper.make_node("ConvInteger", [q, f"w{place}", z], [sums]),
            helper.make_node("Cast", [sums], [floats], to=onnx.TensorProto.FLOAT),
            helper.make_node("Mul", [floats, s], [scaled]),
            helper.make_node("Mul", [scaled, "k"], [y]),
        ]
        if not place:
            nodes.append(helper.make_node("Sigmoid", ["m"], ["a"]))
    x, y = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", channels, 32, 32])
        for name, channels in (("x", 3), ("y", 2))
    )
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), "d.onnx")
    np.save("rows.npy", random.standard_normal((16, 3, 32, 32)).astype(np.float32))
    change_results(monkeypatch, lambda y: y * np.float32(factor))
    code, out, _ = shell(*ARGUMENTS)
    assert (code == 0) is verified, out
    if verified:
        assert "by steps of activations whose scales are computed" in " ".join(out.split())
