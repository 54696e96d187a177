# SPDX-License-Identifier: Apache-2.0
"""Integer-only quantization: quantizers also between layers."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import parallel_tasks
import pytest
from float_models import OPSETS, attention, data_for
from pass_checks import random
from small_models import kinds, model, node

import anybit
from anybit import OptionError
from anybit.ptq import pipeline as driver
from anybit.quant_types.layer_info import Guarantee

_SIZES = (3, 12, 12)


class _Network:
    """Builder of convolutional networks; methods return the name of their result."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}

    def op(self, kind: str, inputs: str, **options: object) -> str:
        y = f"v{len(self.nodes)}"
        self.nodes.append(node(kind, inputs, y, domain="", name=f"{kind}_{y}", **options))
        return y

    def constant(self, array: np.ndarray) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = array
        return name

    def conv(self, x: str, channels: int, outputs: int, size: int = 3, **options: object) -> str:
        group = int(options.get("group", 1))  # type: ignore[call-overload]
        shape = (outputs, channels // group, size, size)
        seed = len(self.nodes)
        weight = random(*shape, seed=seed) / np.sqrt(np.prod(shape[1:]), dtype=np.float32)
        w, b = self.constant(weight), self.constant(random(outputs, seed=seed + 100) / 10)
        pads = [size // 2] * 4
        return self.op("Conv", f"{x} {w} {b}", pads=pads, **options)

    def relu(self, x: str) -> str:
        return self.op("Relu", x)

    def head(self, x: str, channels: int, pooled: bool = False) -> onnx.ModelProto:
        flat = x if pooled else self.op("Flatten", self.op("GlobalAveragePool", x))
        w, b = self.constant(random(10, channels, seed=90)), self.constant(random(10, seed=91))
        self.nodes.append(node("Gemm", f"{flat} {w} {b}", domain="", name="the_head", transB=1))
        return model(self.nodes, self.constants, inputs={"x": ["rows", *_SIZES]}, opsets=OPSETS)


def residual() -> onnx.ModelProto:
    n = _Network()
    x = n.relu(n.conv("x", 3, 8))
    for _ in range(2):
        inner = n.conv(n.relu(n.conv(x, 8, 8)), 8, 8)
        x = n.relu(n.op("Add", f"{inner} {x}"))
    down = n.conv(x, 8, 12, 1, strides=[2, 2])
    inner = n.conv(n.relu(n.conv(x, 8, 12, strides=[2, 2])), 12, 12)
    return n.head(n.relu(n.op("Add", f"{inner} {down}")), 12)


def mobile() -> onnx.ModelProto:
    """Return a network with depthwise convolutions, HardSwish in two forms, Swish and gates."""
    n = _Network()
    x = n.op("HardSwish", n.conv("x", 3, 8, strides=[2, 2]))
    wide = n.conv(x, 8, 16, 1)
    clipped = n.op(
        "Clip",
        " ".join(
            [
                n.op("Add", f"{wide} {n.constant(np.float32(3))}"),
                n.constant(np.float32(0)),
                n.constant(np.float32(6)),
            ]
        ),
    )
    wide = n.op("Div", f"{n.op('Mul', f'{wide} {clipped}')} {n.constant(np.float32(6))}")
    deep = n.conv(wide, 16, 16, group=16)
    gate = n.relu(n.conv(n.op("GlobalAveragePool", deep), 16, 4, 1))
    gate = n.op("HardSigmoid", n.conv(gate, 4, 16, 1), alpha=1 / 6)
    x = n.op("Add", f"{n.conv(n.op('Mul', f'{deep} {gate}'), 16, 8, 1)} {x}")
    y = n.conv(x, 8, 16, 1)
    y = n.op("Mul", f"{y} {n.op('Sigmoid', y)}")
    return n.head(n.op("HardSwish", n.conv(y, 16, 16, group=16)), 16)


def inception() -> onnx.ModelProto:
    n = _Network()
    x = n.relu(n.conv("x", 3, 8))
    squeezed = n.relu(n.conv(x, 8, 4, 1))
    one, three = n.relu(n.conv(squeezed, 4, 6, 1)), n.relu(n.conv(squeezed, 4, 6))
    x = n.op("Concat", f"{one} {three}", axis=1)
    pooled = n.op("MaxPool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    branches = [n.conv(x, 12, 4, 1), n.conv(pooled, 12, 4, 1), n.relu(n.conv(x, 12, 4))]
    return n.head(n.op("Concat", " ".join(branches), axis=1), 12)


def computed() -> onnx.ModelProto:
    """Return a network whose head reshapes by computed int32 sizes, as PaddlePaddle exports it."""
    n = _Network()
    x = n.op("GlobalAveragePool", n.relu(n.conv("x", 3, 8)))
    ends = " ".join(n.constant(np.array([end])) for end in (0, 1))
    sizes = n.op("Cast", n.op("Shape", x), to=onnx.TensorProto.INT32)
    rows = n.op("Cast", n.op("Slice", f"{sizes} {ends}"), to=onnx.TensorProto.INT64)
    target = n.op("Concat", f"{rows} {n.constant(np.array([8]))}", axis=0)
    return n.head(n.op("Reshape", f"{x} {target}"), 8, pooled=True)


def dense() -> onnx.ModelProto:
    """Return a network in which every layer uses the outputs of all preceding ones."""
    n = _Network()
    x, channels = n.relu(n.conv("x", 3, 8)), 8
    for _ in range(3):
        more = n.relu(n.conv(x, channels, 4))
        x, channels = n.op("Concat", f"{x} {more}", axis=1), channels + 4
    x = n.op("AveragePool", n.relu(n.conv(x, channels, 8, 1)), kernel_shape=[2, 2], strides=[2, 2])
    return n.head(n.op("LeakyRelu", n.conv(x, 8, 8), alpha=0.1), 8)


NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    build.__name__: build for build in (residual, mobile, inception, computed, dense)
}


def _data(count: int = 8) -> list[dict[str, np.ndarray]]:
    return [{"x": random(2, *_SIZES, seed=seed)} for seed in range(count)]


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("scales", [None, "power-of-two"])
def test_integer_only_networks_compile_completely(name: str, scales: str | None) -> None:
    result = anybit.quantize(NETWORKS[name](), _data(), scales=scales, integer_only=True)
    assert result.verdict is not None
    assert result.verdict.sqnr > 15
    assert not result.skipped
    compiled = anybit.compile(result.model)
    assert kinds(compiled.model) == ["IntegerNetwork"]
    count = sum(layer.op_type in ("Conv", "Gemm") for layer in NETWORKS[name]().graph.node)
    assert compiled.report.coverage == f"{count} of {count} layers, 100 % of MACs"
    x = random(2, *_SIZES, seed=50)
    expected, actual = (network.run(x)["y"] for network in (anybit.load(result.model), compiled))
    if scales is None:
        np.testing.assert_allclose(actual, expected, rtol=0, atol=0.05 * np.abs(expected).max())
    else:
        assert set(compiled.report.guarantees) == {Guarantee.EXACT}
        np.testing.assert_array_equal(actual, expected)


def test_integer_only_quantizes_concatenated_tensors_once_on_one_grid() -> None:
    result = anybit.quantize(inception(), _data(), integer_only=True)
    producers = {node.outputs[0]: node for node in result.model.graph}
    for concat in result.model.graph:
        if concat.op_type == "Concat":
            quantizers = [producers[value] for value in concat.inputs]
            assert {quantizer.op_type for quantizer in quantizers} == {"IntQuant"}
            assert len({quantizer.inputs[1] for quantizer in quantizers}) == 1
    tensors = [node.inputs[0] for node in result.model.graph if node.op_type == "IntQuant"]
    assert len(tensors) == len(set(tensors))


def test_integer_only_skips_operators_without_an_integer_form() -> None:
    result = anybit.quantize(attention(), data_for("attention"), integer_only=True)
    assert result.skipped == {"softmax": "it has no integer form"}
    assert "residual" in [layer.name for layer in result.layers]


def test_integer_only_leaves_kept_sums_in_float32() -> None:
    result = anybit.quantize(residual(), _data(), integer_only=True, keep=["Add_*"])
    assert set(result.skipped.values()) == {"float was requested"}
    for add in result.model.graph:
        if add.op_type == "Add":
            assert "IntQuant" not in [value.producer().op_type for value in add.inputs]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activations": "float"}, "activations must be integers .*, not float"),
        ({"activations": "fp8_e4m3"}, "activations must be integers .*, not fp8_e4m3"),
        ({"activations": "mxfp8"}, "activations must be integers .*, not mxfp8"),
        ({"weights": "float"}, "weights must be integers .*, not float"),
        ({"weights": "int16"}, "weights must be integers .*, not int16"),
        ({"weights": "e4m3"}, "weights must be integers .*, not e4m3"),
        ({"weights": "mxfp4"}, "weights must be integers .*, not mxfp4"),
        ({"weights": "int4 per-block 2"}, "weights must be integers .*, not int4 per-block 2"),
        ({"activations": "uint16"}, "uint16"),
        ({"budget": "4MB"}, "more than 8 bits"),
    ],
)
def test_integer_only_rejects_other_formats(options: dict[str, str | None], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        anybit.quantize(residual(), _data(), integer_only=True, **options)


def test_integer_only_quantizes_the_argument_of_a_function_of_several_nodes() -> None:
    result = anybit.quantize(mobile(), _data(), integer_only=True)
    producers = {node.outputs[0]: node for node in result.model.graph}
    (sigmoid,) = [node for node in result.model.graph if node.op_type == "Sigmoid"]
    (swish,) = [reader for reader, _ in sigmoid.outputs[0].uses()]
    assert swish.inputs[0] is sigmoid.inputs[0]
    assert producers[sigmoid.inputs[0]].op_type == "IntQuant"


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["mobile", "dense"])
def test_integer_only_sensitivity_is_the_same_in_other_processes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = [anybit.quantize(NETWORKS[name](), _data(6), integer_only=True, sensitivity=True)]
    monkeypatch.setattr(driver, "open_executor", parallel_tasks.open_pickling_executor)
    results += [anybit.quantize(NETWORKS[name](), _data(6), integer_only=True, sensitivity=True)]
    sqnrs = [[layer.output_sqnr for layer in quantized.layers] for quantized in results]
    assert sqnrs[0] == sqnrs[1]
    assert all(sqnr is not None and sqnr > 15 for sqnr in sqnrs[0])


def gated(mean: str, axes: list[int] | None, keepdims: int, as_input: bool) -> onnx.ModelProto:
    """Return a squeeze-and-excitation gate and a classifier with means in a form of exporters."""
    n = _Network()

    def pooled(x: str, keep: int) -> str:
        if mean == "GlobalAveragePool":
            y = n.op(mean, x)
            return y if keep else n.op("Flatten", y)
        if axes is None:
            return n.op(mean, x, keepdims=keep)
        if as_input:
            return n.op(mean, f"{x} {n.constant(np.array(axes, np.int64))}", keepdims=keep)
        return n.op(mean, x, axes=axes, keepdims=keep)

    x = n.op("HardSwish", n.conv("x", 3, 8, strides=[2, 2]))
    gate = n.relu(n.conv(pooled(x, 1), 8, 4, 1))
    gate = n.op("HardSigmoid", n.conv(gate, 4, 8, 1), alpha=1 / 6)
    x = n.op("Add", f"{n.conv(n.op('Mul', f'{x} {gate}'), 8, 8, 1)} {x}")
    y = pooled(x, keepdims)
    return n.head(n.op("Flatten", y) if keepdims else y, 8, pooled=True)


@pytest.mark.sample(4)
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize(
    ("mean", "axes", "as_input", "opset"),
    [
        ("GlobalAveragePool", None, False, 18),
        ("ReduceMean", [2, 3], False, 17),
        ("ReduceMean", [2, 3], True, 18),
        ("ReduceMean", [-1, -2], True, 18),
        ("ReduceMean", [-2, 3], True, 20),
        ("ReduceSum", [2, 3], True, 17),
        ("ReduceSum", [-1, 2], True, 18),
    ],
)
def test_integer_only_quantizes_means_in_every_form(
    mean: str, axes: list[int] | None, as_input: bool, opset: int, keepdims: int
) -> None:
    proto = gated(mean, axes, keepdims, as_input)
    proto.opset_import[0].version = opset
    result = anybit.quantize(
        proto, _data(), integer_only=True, scales="power-of-two", effort="fast"
    )
    assert not result.skipped
    assert [layer.operator for layer in result.layers].count(mean) == 2
    compiled = anybit.compile(result)
    assert kinds(compiled.model) == ["IntegerNetwork"]
    x = random(3, *_SIZES, seed=60)
    np.testing.assert_array_equal(compiled.run(x)["y"], anybit.load(result).run(x)["y"])


def test_integer_only_drops_a_mean_over_no_axes() -> None:
    n = _Network()
    x = n.relu(n.conv("x", 3, 8))
    none = n.constant(np.array([], np.int64))
    y = n.op("ReduceMean", f"{x} {none}", noop_with_empty_axes=1)
    proto = n.head(n.conv(y, 8, 8), 8)
    proto.opset_import[0].version = 18
    result = anybit.quantize(
        proto, _data(), integer_only=True, scales="power-of-two", effort="fast"
    )
    compiled = anybit.compile(result)
    assert kinds(compiled.model) == ["IntegerNetwork"]
    x = random(3, *_SIZES, seed=61)
    np.testing.assert_array_equal(compiled.run(x)["y"], anybit.load(result).run(x)["y"])
    np.testing.assert_allclose(
        anybit.load(result).run(x)["y"], anybit.load(proto).run(x)["y"], rtol=0, atol=0.5
    )


@pytest.mark.parametrize("form", [None, "qcdq"])
def test_compile_reports_integer_only_models(form: str | None, tmp_path: Path) -> None:
    """Check also models from files, and without quantizers between layers."""
    n = _Network()
    y = n.op("Softmax", n.conv("x", 3, 8), axis=1)
    plain = n.head(n.op("MaxPool", y, kernel_shape=[12, 12]), 8)
    for proto, integer_only in ((plain, True), (plain, False), (residual(), True)):
        result = anybit.quantize(proto, _data(), integer_only=integer_only, effort="fast")
        (result if form is None else anybit.convert(result, to=form)).save(tmp_path / "q.onnx")
        report = anybit.compile(tmp_path / "q.onnx").report
        assert report.is_integer_only == integer_only
