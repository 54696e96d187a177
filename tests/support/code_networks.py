# SPDX-License-Identifier: Apache-2.0
"""Random networks of ONNX Runtime's operators on codes, and their codes in the runtime."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

import anybit
from anybit.compiler.compiled import CompiledModel

RUNTIME = "com.microsoft"
# ONNX Runtime saturates sums of two products of uint8 and int8 on CPUs without VNNI.
REDUCED = range(-64, 64)


class CodeNetwork:
    """A network of operators on codes, with random scales and zero-points.

    Attributes:
        codes: Names, types and parameters of tensors of codes, by name.
    """

    def __init__(self, seed: int, dtype: Any = np.uint8, opset: int = 17) -> None:
        self.random = np.random.default_rng(seed)
        self.dtype, self.opset = np.dtype(dtype), opset
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.parameters: dict[str, list[str]] = {}

    def constant(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def scale(self, least: float = 0.01, most: float = 0.1, size: int | None = None) -> Any:
        scales = np.exp(self.random.uniform(np.log(least), np.log(most), size))
        return np.asarray(scales, np.float32)

    def zeropt(self, dtype: Any = None, size: int | None = None) -> Any:
        info = np.iinfo(self.dtype if dtype is None else dtype)
        return np.asarray(self.random.integers(info.min, info.max + 1, size), info.dtype)

    def add_parameters(self, name: str, scale: Any = None, zeropt: Any = None) -> list[str]:
        scale = self.scale() if scale is None else np.float32(scale)
        zeropt = self.zeropt() if zeropt is None else np.asarray(zeropt, self.dtype)
        self.parameters[name] = [self.constant(scale), self.constant(zeropt)]
        return self.parameters[name]

    def input(self, *shape: int | str, **parameters: Any) -> str:
        name = f"x{len(self.inputs)}"
        dtype = helper.np_dtype_to_tensor_dtype(self.dtype)
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        self.add_parameters(name, **parameters)
        return name

    def triple(self, name: str) -> list[str]:
        return [name, *self.parameters[name]]

    def node(self, kind: str, inputs: Sequence[str], domain: str = "", **attributes: Any) -> str:
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(kind, inputs, [name], name=name, domain=domain, **attributes)
        )
        return name

    def weights(self, shape: Sequence[int], axis: int, dtype: Any, per_channel: bool) -> list[str]:
        codes = self.random.integers(REDUCED[0], REDUCED[-1] + 1, shape)
        size = shape[axis] if per_channel else None
        zeropt = np.zeros(size or (), np.int64) + (128 if dtype is np.uint8 else 0)
        zeropt += self.random.integers(-20, 21, zeropt.shape)
        codes = (codes + (128 if dtype is np.uint8 else 0)).astype(dtype)
        scales = self.scale(0.002, 0.01, size)
        return [self.constant(codes), self.constant(scales), self.constant(zeropt.astype(dtype))]

    def conv(
        self,
        x: str,
        shape: Sequence[int],
        dtype: Any = np.int8,
        per_channel: bool = True,
        bias: bool = True,
        **attributes: Any,
    ) -> str:
        inputs = [*self.triple(x), *self.weights(shape, 0, dtype, per_channel)]
        result = f"QLinearConv_{len(self.nodes)}"
        inputs += self.add_parameters(result)
        if bias:
            inputs.append(
                self.constant(self.random.integers(-9000, 9000, shape[0]).astype(np.int32))
            )
        return self.node("QLinearConv", inputs, **attributes)

    def binary(self, kind: str, first: str, second: str) -> str:
        result = f"{kind}_{len(self.nodes)}"
        inputs = [*self.triple(first), *self.triple(second), *self.add_parameters(result)]
        return self.node(kind, inputs, RUNTIME)

    def unary(self, kind: str, x: str, **attributes: Any) -> str:
        result = f"{kind}_{len(self.nodes)}"
        return self.node(
            kind, [*self.triple(x), *self.add_parameters(result)], RUNTIME, **attributes
        )

    def move(self, kind: str, x: str, *more: str, **attributes: Any) -> str:
        result = self.node(kind, [x, *more], **attributes)
        self.parameters[result] = self.parameters[x]
        return result

    def model(self, *outputs: str, floats: bool = False) -> onnx.ModelProto:
        results, dtype = list(outputs), helper.np_dtype_to_tensor_dtype(self.dtype)
        if floats:
            results = [self.node("DequantizeLinear", self.triple(name)) for name in outputs]
            dtype = TensorProto.FLOAT
        infos = [helper.make_tensor_value_info(name, dtype, None) for name in results]
        graph = helper.make_graph(self.nodes, "g", self.inputs, infos, self.constants)
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid(RUNTIME, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def run_plain(
    model: onnx.ModelProto, feeds: dict[str, np.ndarray], optimize: bool = True
) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return [np.asarray(array) for array in session.run(None, feeds)]


def make_feeds(model: onnx.ModelProto, seed: int, rows: int = 3) -> dict[str, np.ndarray]:
    random, feeds = np.random.default_rng(seed), {}
    for value in model.graph.input:
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        sizes = [d.dim_value or rows for d in value.type.tensor_type.shape.dim]
        info = np.iinfo(dtype)
        feeds[value.name] = random.integers(info.min, info.max + 1, sizes).astype(dtype)
    return feeds


def compare(
    model: onnx.ModelProto,
    feeds: dict[str, np.ndarray] | None = None,
    regions: int = 1,
    optimize: bool = True,
) -> CompiledModel:
    """Compare a compiled model with ONNX Runtime; all of its layers are in regions."""
    compiled = anybit.compile(model)
    report = compiled.report
    assert len(report.programs) == regions, [layer.reason for layer in report.layers]
    assert all(layer.guarantee for layer in report.layers), [x.reason for x in report.layers]
    for seed in range(1 if feeds else 3):
        own = feeds or make_feeds(model, seed)
        results = compiled.run(own)
        arrays = list(results.values()) if isinstance(results, dict) else [results]
        for actual, expected in zip(arrays, run_plain(model, own, optimize), strict=True):
            np.testing.assert_array_equal(actual, expected)
    return compiled


def add_product(network: CodeNetwork, x: str, channels: int = 1) -> str:
    """Add a layer that returns the codes of x: a model without layers is not compiled."""
    scale, zeropt = network.parameters[x]
    one = [network.constant(np.ones((channels, 1, 1, 1), np.int8)), network.constant(np.float32(1))]
    inputs = [x, scale, zeropt, *one, network.constant(np.int8(0)), scale, zeropt]
    result = network.node("QLinearConv", inputs, group=channels)
    network.parameters[result] = network.parameters[x]
    return result
