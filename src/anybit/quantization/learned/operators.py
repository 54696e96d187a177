# SPDX-License-Identifier: Apache-2.0
"""The standard operators that networks have between the layers, in PyTorch, to be differentiated.

Each is a function of its node and of its inputs, None for what is left out; it gives the first
output, or all of them. What is not a float is not differentiated, and has been computed elsewhere.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import onnx_ir as ir
import torch
from torch.nn import functional

from anybit.onnx.graph.attributes import attribute_of

Inputs: TypeAlias = Sequence[Any]
Operator: TypeAlias = Callable[[ir.Node, Inputs], Any]


# The opset from which on Softmax is along one axis, and not along all from one on.
_SOFTMAX_OF_ONE_AXIS = 13


def operator_for(node: ir.Node, opset: int) -> Operator | None:
    """What a node computes in a model of some version; None if that is not known here."""
    if node.domain or attribute_of(node, "auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return None
    if attribute_of(node, "ceil_mode", 0) or attribute_of(node, "storage_order", 0):
        return None
    if node.op_type == "Softmax" and opset < _SOFTMAX_OF_ONE_AXIS:
        return _flat_softmax
    return _OPERATORS.get(node.op_type)


def _plain(function: Callable[..., Any]) -> Operator:
    return lambda node, inputs: function(*inputs)


def _folded(function: Callable[[Any, Any], Any]) -> Operator:
    """Of any number of inputs."""

    def result(node: ir.Node, inputs: Inputs) -> Any:
        found = inputs[0]
        for each in inputs[1:]:
            found = function(found, each)
        return found

    return result


def _numbers(node: ir.Node, inputs: Inputs, index: int, name: str) -> list[int] | None:
    """What was an attribute, and is an input since some version."""
    if len(inputs) > index and inputs[index] is not None:
        return [int(each) for each in inputs[index].reshape(-1).tolist()]
    return list(attribute_of(node, name, ())) or None


def _bounds(node: ir.Node, inputs: Inputs, index: int, name: str, default: float) -> Any:
    if len(inputs) > index and inputs[index] is not None:
        return inputs[index]
    return torch.tensor(attribute_of(node, name, default))


def _clip(node: ir.Node, inputs: Inputs) -> Any:
    low = _bounds(node, inputs, 1, "min", -math.inf)
    high = _bounds(node, inputs, 2, "max", math.inf)
    return torch.minimum(torch.maximum(inputs[0], low), high)


def _pads(node: ir.Node, rank: int) -> tuple[list[int], list[int]]:
    """Before and behind each axis."""
    pads = list(attribute_of(node, "pads", ())) or [0] * (2 * rank)
    return pads[:rank], pads[rank:]


def _padded(node: ir.Node, x: Any, value: float) -> Any:
    before, behind = _pads(node, x.ndim - 2)
    if not any((*before, *behind)):
        return x
    pairs = [each for pair in zip(before[::-1], behind[::-1], strict=True) for each in pair]
    return functional.pad(x, pairs, value=value)


def _conv(node: ir.Node, inputs: Inputs) -> Any:
    x, weight, bias = (*inputs, None)[:3]
    rank = x.ndim - 2
    function = (functional.conv1d, functional.conv2d, functional.conv3d)[rank - 1]
    return function(
        _padded(node, x, 0.0),
        weight,
        bias,
        attribute_of(node, "strides", ()) or (1,) * rank,
        0,
        attribute_of(node, "dilations", ()) or (1,) * rank,
        attribute_of(node, "group", 1),
    )


def _conv_transpose(node: ir.Node, inputs: Inputs) -> Any:
    x, weight, bias = (*inputs, None)[:3]
    rank = x.ndim - 2
    functions = functional.conv_transpose1d, functional.conv_transpose2d
    function = (*functions, functional.conv_transpose3d)[rank - 1]
    found = function(
        x,
        weight,
        bias,
        attribute_of(node, "strides", ()) or (1,) * rank,
        0,
        attribute_of(node, "output_padding", ()) or (0,) * rank,
        attribute_of(node, "group", 1),
        attribute_of(node, "dilations", ()) or (1,) * rank,
    )
    for axis, (before, behind) in enumerate(zip(*_pads(node, rank), strict=True), 2):
        found = found.narrow(axis, before, found.shape[axis] - before - behind)
    return found


def _gemm(node: ir.Node, inputs: Inputs) -> Any:
    a, b, c = (*inputs, None)[:3]
    a = a.mT if attribute_of(node, "transA", 0) else a
    b = b.mT if attribute_of(node, "transB", 0) else b
    found = attribute_of(node, "alpha", 1.0) * (a @ b)
    return found if c is None else found + attribute_of(node, "beta", 1.0) * c


def _windows(node: ir.Node, x: Any) -> tuple[Any, ...]:
    kernel = attribute_of(node, "kernel_shape", ())
    return kernel, attribute_of(node, "strides", ()) or (1,) * len(kernel)


def _max_pool(node: ir.Node, inputs: Inputs) -> Any:
    x = _padded(node, inputs[0], -math.inf)
    kernel, strides = _windows(node, x)
    functions = functional.max_pool1d, functional.max_pool2d, functional.max_pool3d
    dilations = attribute_of(node, "dilations", ()) or (1,) * len(kernel)
    return functions[len(kernel) - 1](x, kernel, strides, 0, dilations)


def _average_pool(node: ir.Node, inputs: Inputs) -> Any:
    kernel, strides = _windows(node, inputs[0])
    functions = functional.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d
    mean = functions[len(kernel) - 1]
    found = mean(_padded(node, inputs[0], 0.0), kernel, strides)
    if attribute_of(node, "count_include_pad", 0):
        return found
    return found / mean(_padded(node, torch.ones_like(inputs[0]), 0.0), kernel, strides)


def _over_places(function: Callable[..., Any]) -> Operator:
    return lambda node, inputs: function(inputs[0], tuple(range(2, inputs[0].ndim)), keepdim=True)


def _reduced(function: Callable[..., Any]) -> Operator:
    def result(node: ir.Node, inputs: Inputs) -> Any:
        x, axes = inputs[0], _numbers(node, inputs, 1, "axes")
        if axes is None:
            if attribute_of(node, "noop_with_empty_axes", 0):
                return x
            axes = list(range(x.ndim))
        return function(x, tuple(axes), keepdim=bool(attribute_of(node, "keepdims", 1)))

    return result


def _softmax(node: ir.Node, inputs: Inputs) -> Any:
    return functional.softmax(inputs[0], attribute_of(node, "axis", -1))


def _flat_softmax(node: ir.Node, inputs: Inputs) -> Any:
    x = inputs[0]
    axis = attribute_of(node, "axis", 1) % max(x.ndim, 1)
    flat = x.reshape(math.prod(x.shape[:axis]), -1)
    return functional.softmax(flat, -1).reshape(x.shape)


def _layer_normalization(node: ir.Node, inputs: Inputs) -> Any:
    x, scale, bias = (*inputs, None)[:3]
    shape = x.shape[attribute_of(node, "axis", -1) % x.ndim :]
    found = functional.layer_norm(x, shape, eps=attribute_of(node, "epsilon", 1e-5)) * scale
    return found if bias is None else found + bias


def _gelu(node: ir.Node, inputs: Inputs) -> Any:
    return functional.gelu(inputs[0], approximate=attribute_of(node, "approximate", "none"))


def _hard_sigmoid(node: ir.Node, inputs: Inputs) -> Any:
    alpha, beta = attribute_of(node, "alpha", 0.2), attribute_of(node, "beta", 0.5)
    return (alpha * inputs[0] + beta).clamp(0, 1)


def _reshape(node: ir.Node, inputs: Inputs) -> Any:
    x, sizes = inputs[0], [int(each) for each in inputs[1].tolist()]
    if not attribute_of(node, "allowzero", 0):
        sizes = [x.shape[axis] if each == 0 else each for axis, each in enumerate(sizes)]
    return x.reshape(sizes)


def _flatten(node: ir.Node, inputs: Inputs) -> Any:
    x, axis = inputs[0], attribute_of(node, "axis", 1)
    return x.reshape(math.prod(x.shape[: axis if axis >= 0 else axis + x.ndim]), -1)


def _transpose(node: ir.Node, inputs: Inputs) -> Any:
    x = inputs[0]
    return x.permute(attribute_of(node, "perm", ()) or tuple(reversed(range(x.ndim))))


def _squeeze(node: ir.Node, inputs: Inputs) -> Any:
    axes = _numbers(node, inputs, 1, "axes")
    return inputs[0].squeeze() if axes is None else inputs[0].squeeze(tuple(axes))


def _unsqueeze(node: ir.Node, inputs: Inputs) -> Any:
    found, axes = inputs[0], _numbers(node, inputs, 1, "axes") or []
    rank = found.ndim + len(axes)
    for axis in sorted(each % rank for each in axes):
        found = found.unsqueeze(axis)
    return found


def _split(node: ir.Node, inputs: Inputs) -> Any:
    axis, sizes = attribute_of(node, "axis", 0), _numbers(node, inputs, 1, "split")
    even = -(-inputs[0].shape[axis] // len(node.outputs))
    return inputs[0].split(even if sizes is None else sizes, axis)


def _slice(node: ir.Node, inputs: Inputs) -> Any:
    x = inputs[0]
    starts, ends = (_numbers(node, inputs, at, name) for at, name in ((1, "starts"), (2, "ends")))
    axes = _numbers(node, inputs, 3, "axes") or list(range(len(starts or ())))
    steps = _numbers(node, inputs, 4, "steps") or [1] * len(axes)
    for start, end, axis, step in zip(starts or (), ends or (), axes, steps, strict=True):
        places = range(x.shape[axis])[start:end:step]
        x = x.index_select(axis, torch.tensor(places, dtype=torch.int64))
    return x


def _gather(node: ir.Node, inputs: Inputs) -> Any:
    x, places = inputs
    axis = attribute_of(node, "axis", 0) % x.ndim
    flat = torch.where(places < 0, places + x.shape[axis], places).reshape(-1)
    found = x.index_select(axis, flat)
    return found.reshape(*x.shape[:axis], *places.shape, *x.shape[axis + 1 :])


def _pow(node: ir.Node, inputs: Inputs) -> Any:
    x, exponent = inputs
    # The general power has no derivative at 0.
    return x * x if exponent.numel() == 1 and float(exponent) == 2 else torch.pow(x, exponent)


_NAMED_ALIKE = "Abs Add Div Erf Exp MatMul Mul Neg Reciprocal Relu Sigmoid Sqrt Sub Tanh Where"

_OPERATORS: dict[str, Operator] = {
    **{name: _plain(getattr(torch, name.lower())) for name in _NAMED_ALIKE.split()},
    "AveragePool": _average_pool,
    "Clip": _clip,
    "Concat": lambda node, inputs: torch.cat(list(inputs), attribute_of(node, "axis", 0)),
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Elu": lambda node, inputs: functional.elu(inputs[0], attribute_of(node, "alpha", 1.0)),
    "Expand": lambda node, inputs: inputs[0] * torch.ones(inputs[1].tolist()),
    "Flatten": _flatten,
    "Gather": _gather,
    "Gelu": _gelu,
    "Gemm": _gemm,
    "GlobalAveragePool": _over_places(torch.mean),
    "GlobalMaxPool": _over_places(torch.amax),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _plain(functional.hardswish),
    "Identity": _plain(lambda x: x),
    "LayerNormalization": _layer_normalization,
    "LeakyRelu": lambda node, inputs: functional.leaky_relu(
        inputs[0], attribute_of(node, "alpha", 0.01)
    ),
    "Max": _folded(torch.maximum),
    "MaxPool": _max_pool,
    "Min": _folded(torch.minimum),
    "Mish": _plain(functional.mish),
    "Pow": _pow,
    "PRelu": _plain(lambda x, slope: torch.where(x < 0, x * slope, x)),
    "ReduceL2": _reduced(lambda x, axes, keepdim: torch.linalg.vector_norm(x, 2, axes, keepdim)),
    "ReduceMax": _reduced(torch.amax),
    "ReduceMean": _reduced(torch.mean),
    "ReduceMin": _reduced(torch.amin),
    "ReduceSum": _reduced(torch.sum),
    "Reshape": _reshape,
    "Slice": _slice,
    "Softmax": _softmax,
    "Softplus": _plain(functional.softplus),
    "Split": _split,
    "Squeeze": _squeeze,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
