# SPDX-License-Identifier: Apache-2.0
"""A graph computed in float64, and how far its quantizers are from rounding otherwise.

Where no quantizer of a row is near a boundary, every way to sum in float32 gives the same codes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

import anybit
from anybit.onnx.operators.reference_ops import reference_ops

# In steps, and of the number of steps: far more than float32 loses in a small network.
NEAR = 2e-5
QUANTIZERS = {"Quant", "IntQuant", "QuantizeLinear", "Trunc", "BipolarQuant"}
LARGEST_CODE = 2.0**10
LARGEST = 1e6
# Below its normal numbers float32 loses signs that float64 keeps.
LEAST = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class Evaluated:
    """The output y, and for which rows every float32 evaluation rounds as this one does."""

    y: np.ndarray
    clear: np.ndarray


class DoubleGraph:
    """A graph in float64; the quantizers of its weights and of x are in its own type."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        clean = ir.to_proto(anybit.clean(proto).model)
        first = [node for node in clean.graph.node if _reads_x(node)]
        self._quantizers = anybit.load(_only(clean, first)) if first else None
        self._double = _in_double(clean, first)
        self._names = [output.name for output in self._double.graph.output]
        self._constants = {
            tensor.name: numpy_helper.to_array(tensor) for tensor in self._double.graph.initializer
        }
        self._runner = ReferenceEvaluator(self._double, new_ops=[*reference_ops(), Conv, MaxPool])

    def evaluated(self, x: np.ndarray) -> Evaluated:
        feeds = {"x": x.astype(np.float64), **self._quantized(x)}
        with np.errstate(all="ignore"):
            results = dict(zip(self._names, self._runner.run(None, feeds), strict=True))
            values = feeds | results | self._constants
            clear = ~_extreme(x) if self._quantizers is None else np.ones(len(x), bool)
            for name in self._names:
                value = values[name]
                clear &= ~_extreme(value) if value.shape[:1] == (len(x),) else True
            for node in self._double.graph.node:
                if node.op_type in QUANTIZERS:
                    clear &= ~_near(node, values).reshape(len(x), -1).any(axis=1)
        return Evaluated(values["y"], clear)

    def _quantized(self, x: np.ndarray) -> dict[str, np.ndarray]:
        if self._quantizers is None:
            return {}
        return {
            name: value if value.dtype.kind in "iu" else value.astype(np.float64)
            for name, value in self._quantizers.run(x).items()
        }


def _extreme(x: np.ndarray) -> np.ndarray:
    """Rows with numbers beside which float32 loses others, and their squares."""
    return (np.abs(x) > LARGEST).reshape(len(x), -1).any(axis=1)


def _reads_x(node: onnx.NodeProto) -> bool:
    """Return whether a node quantizes x itself, so that no sum comes before it."""
    return node.op_type in QUANTIZERS and node.input[0] == "x"


def _only(proto: onnx.ModelProto, first: list[onnx.NodeProto]) -> onnx.ModelProto:
    """Return the model with the results of these nodes as outputs."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    made.graph.ClearField("output")
    for node in first:
        declared = [value for value in proto.graph.value_info if value.name == node.output[0]]
        made.graph.output.extend(declared or proto.graph.output)
    return made


class Conv(OpRun):
    """In float64; the evaluator of onnx takes no dilations for one dimension."""

    def _run(self, x, w, b=None, **options):
        spatial = x.ndim - 2
        taken = _windows(x, w.shape[2:], options, 0.0)
        groups = options["group"] or 1
        rows, sizes = len(x), taken.shape[2 : 2 + spatial]
        taken = taken.reshape(rows, groups, w.shape[1], *taken.shape[2:])
        w = w.reshape(groups, -1, *w.shape[1:])
        letters = "ijk"[:spatial], "pqr"[:spatial]
        y = np.einsum(f"ngc{''.join(letters)},gdc{letters[1]}->ngd{letters[0]}", taken, w)
        y = y.reshape(rows, -1, *sizes)
        return (y if b is None else y + b.reshape(-1, *(1,) * spatial),)


class MaxPool(OpRun):
    """In float64; that of onnx takes no windows that begin outside."""

    def _run(self, x, **options):
        taken = _windows(x, options["kernel_shape"], options, -np.inf)
        return (taken.max(axis=tuple(range(x.ndim, taken.ndim))),)


def _windows(x, kernel, options, fill):
    """x with an axis more for each dimension of a window."""
    spatial = x.ndim - 2
    pads = options["pads"] or [0] * 2 * spatial
    strides, dilations = options["strides"] or [1] * spatial, options["dilations"] or [1] * spatial
    pairs = [(0, 0), (0, 0), *zip(pads[:spatial], pads[spatial:], strict=True)]
    padded = np.pad(x, pairs, constant_values=fill)
    reach = [(size - 1) * step + 1 for size, step in zip(kernel, dilations, strict=True)]
    taken = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=range(2, x.ndim))
    outer = [slice(None, None, stride) for stride in strides]
    return taken[(slice(None), slice(None), *outer, *(slice(None, None, d) for d in dilations))]


def _near(node: onnx.NodeProto, values: Mapping[str, np.ndarray]) -> np.ndarray:
    x, scale = values[node.input[0]], values[node.input[1]]
    if node.op_type == "BipolarQuant":
        return np.abs(x) <= max(NEAR * np.abs(x).max(initial=0), LEAST)
    options = {
        attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute
    }
    if node.op_type == "QuantizeLinear" and np.ndim(scale):
        shape = [1] * x.ndim
        shape[options.get("axis", 1)] = -1
        scale = np.reshape(scale, shape)
    code = x / scale
    mode = options.get("rounding_mode", b"ROUND")
    if node.op_type == "Trunc":
        code = np.concatenate([code + 0.5, x / values[node.input[4]]], axis=-1)
    if mode in (b"FLOOR", b"CEIL", b"UP", b"DOWN"):
        # An integer is a boundary, and so is a half for what Trunc rounds before.
        distance = np.abs(code * 2 - np.rint(code * 2)) / 2
    else:
        distance = np.abs(code - np.floor(code) - 0.5)
    near = distance <= NEAR * (1 + np.abs(code))
    return near & (np.abs(code) < LARGEST_CODE) | np.isnan(code)


def _in_double(proto: onnx.ModelProto, first: list[onnx.NodeProto]) -> onnx.ModelProto:
    """Return the model in float64, with the results of the first nodes as inputs."""
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    graph = made.graph
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    graph.input[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    for node in first:
        graph.node.remove(node)
        graph.input.append(helper.make_tensor_value_info(node.output[0], TensorProto.DOUBLE, None))
    graph.ClearField("output")
    graph.ClearField("value_info")
    names = [name for node in graph.node for name in node.output if name]
    graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.DOUBLE, None) for name in names
    )
    return made
