# SPDX-License-Identifier: Apache-2.0
"""Files as ONNX Runtime's own tools write them: every use gives what the nodes say."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from qdq_models import outputs

import anybit

quantization = pytest.importorskip("onnxruntime.quantization")
SHAPES = {"mlp": (16, 24), "cnn": (3, 3, 8, 8)}


class Networks:
    """Float networks with random weights."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(5)

    def _tensor(self, name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(np.float32(self._random.normal(0.02, 0.3, shape)), name)

    def model(self, kind: str, opset: int) -> onnx.ModelProto:
        nodes, tensors = self._mlp() if kind == "mlp" else self._cnn()
        value = helper.make_tensor_value_info
        graph = helper.make_graph(
            [helper.make_node(*node[:3], **node[3], name=node[2][0]) for node in nodes],
            kind,
            [value("x", TensorProto.FLOAT, ["n", *SHAPES[kind][1:]])],
            [value("y", TensorProto.FLOAT, ["n", 5])],
            tensors,
        )
        imports = [helper.make_opsetid("", opset)]
        ir_version = 10 if opset >= 21 else 8
        return helper.make_model(graph, opset_imports=imports, ir_version=ir_version)

    def _mlp(self) -> tuple[list, list[onnx.TensorProto]]:
        nodes = [
            ("Gemm", ["x", "w0", "b0"], ["g"], {}),
            ("Relu", ["g"], ["r"], {}),
            ("MatMul", ["r", "w1"], ["y"], {}),
        ]
        tensors = [self._tensor("w0", 24, 16), self._tensor("b0", 16), self._tensor("w1", 16, 5)]
        return nodes, tensors

    def _cnn(self) -> tuple[list, list[onnx.TensorProto]]:
        """Two convolutions; the second is added to its input."""
        nodes = [
            ("Conv", ["x", "w0", "b0"], ["c"], {"pads": [1] * 4}),
            ("Relu", ["c"], ["r"], {}),
            ("Conv", ["r", "w1", "b1"], ["d"], {"pads": [1] * 4}),
            ("Add", ["d", "r"], ["a"], {}),
            ("GlobalAveragePool", ["a"], ["p"], {}),
            ("Flatten", ["p"], ["f"], {}),
            ("Gemm", ["f", "w2", "b2"], ["y"], {}),
        ]
        tensors = [
            *(self._tensor("w0", 6, 3, 3, 3), self._tensor("b0", 6)),
            *(self._tensor("w1", 6, 6, 3, 3), self._tensor("b1", 6)),
            *(self._tensor("w2", 6, 5), self._tensor("b2", 5)),
        ]
        return nodes, tensors


class Samples(quantization.CalibrationDataReader):
    """Random calibration data."""

    def __init__(self, kind: str) -> None:
        random = np.random.default_rng(1)
        self._samples: Iterator[np.ndarray] = iter(
            [random.normal(0.3, 1, SHAPES[kind]).astype(np.float32) for _ in range(3)]
        )

    def get_next(self) -> dict[str, np.ndarray] | None:
        sample = next(self._samples, None)
        return None if sample is None else {"x": sample}


TYPES = [
    ("QUInt8", "QInt8"),
    ("QUInt8", "QInt4"),
    ("QUInt8", "QUInt8"),
    ("QInt16", "QUInt4"),
]
COMBINATIONS = [
    {},
    {"AddQDQPairToWeight": True},
    {"AddQDQPairToWeight": True, "UseQDQContribOps": True, "WeightSymmetric": False},
    {"UseQDQContribOps": True, "ActivationSymmetric": True},
]


def compiled_layers(path: Path, x: np.ndarray, expected: np.ndarray) -> int:
    """Return the numbers of compiled layers, equal for the file and its QONNX form."""
    compiled, again = anybit.compile(path), anybit.compile(anybit.convert(path, to="qonnx"))
    taken, taken_again = (
        [layer.output for layer in item.report.layers if layer.guarantee is not None]
        for item in (compiled, again)
    )
    assert taken == taken_again
    for item in (compiled, again):
        differing = np.count_nonzero(item.run(x)["y"] != expected)
        assert differing <= 1, "more than a sum at risk of rounding"
    return len(taken)


@pytest.mark.sample(12)
@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("types", TYPES, ids="-".join)
@pytest.mark.parametrize("extra", COMBINATIONS, ids=lambda item: "+".join(item) or "plain")
@pytest.mark.parametrize(("opset", "per_channel"), [(17, True), (21, False)])
def test_onnxruntime_tools_files_of_quantize_static_keep_their_values_everywhere(
    kind: str,
    types: tuple[str, str],
    extra: dict[str, bool],
    opset: int,
    per_channel: bool,
    tmp_path: Path,
) -> None:
    source, path = tmp_path / "float.onnx", tmp_path / "qdq.onnx"
    onnx.save(Networks().model(kind, opset), source)
    activation, weight = (quantization.QuantType[name] for name in types)
    quantization.quantize_static(
        *(source, path, Samples(kind)),
        quant_format=quantization.QuantFormat.QDQ,
        per_channel=per_channel,
        activation_type=activation,
        weight_type=weight,
        extra_options=extra,
    )
    x = np.random.default_rng(7).normal(0.3, 1.2, SHAPES[kind]).astype(np.float32)
    (expected,) = outputs(onnx.load(path), {"x": x})
    np.testing.assert_array_equal(anybit.load(path).run(x)["y"], expected)
    for to in ("qonnx", "qdq", "standard"):
        converted = anybit.convert(path, to=to)
        np.testing.assert_array_equal(anybit.load(converted).run(x)["y"], expected)
        assert not any(node.domain == "com.microsoft" for node in converted.model.graph)
    count = compiled_layers(path, x, expected)
    if kind == "mlp" and types in TYPES[:2] and extra.get("WeightSymmetric", True):
        assert count == 2
    if "16" in types[0]:
        assert count == 0, "there are kernels for it now: say so in the documentation"
    anybit.check(path)
    weights = [
        quantizer
        for quantizer in anybit.inspect(path, layers=False).summary.quantizers
        if quantizer.role == "weight"
    ]
    assert [weight.constant for weight in weights] == [True] * (2 if kind == "mlp" else 3)
