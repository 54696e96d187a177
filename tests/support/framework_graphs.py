# SPDX-License-Identifier: Apache-2.0
"""Graphs of a few operators, run node by node on tensors of PyTorch or JAX."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Functions = Mapping[str, Callable[..., Any]]


def run_graph(graph: onnx.GraphProto, x: Any, functions: Functions, convert: Any) -> Any:
    """Return the output of a graph with one input.

    Args:
        graph: The graph.
        x: The input, a tensor of the framework.
        functions: A function of inputs and attributes per operator.
        convert: Function from NumPy to the framework.
    """
    values = {graph.input[0].name: x}
    values |= {tensor.name: convert(numpy_helper.to_array(tensor)) for tensor in graph.initializer}
    for node in graph.node:
        attributes = {item.name: helper.get_attribute_value(item) for item in node.attribute}
        inputs = [values[name] for name in node.input]
        values[node.output[0]] = functions[node.op_type](*inputs, **attributes)
    return values[graph.output[0].name]


def run_torch(graph: onnx.GraphProto, x: np.ndarray) -> np.ndarray:
    """Run a graph in PyTorch, eagerly."""
    import torch

    import anybit.torch

    functional = torch.nn.functional

    def convolve(x: Any, w: Any, b: Any, **options: Any) -> Any:
        return functional.conv2d(
            x, w, b, options["strides"], options["pads"][:2], groups=options["group"]
        )

    functions = {
        **_share_functions(anybit.torch),
        "Conv": convolve,
        "Relu": torch.relu,
        "MaxPool": lambda x, kernel_shape, strides: functional.max_pool2d(x, kernel_shape, strides),
    }
    with torch.no_grad():
        return run_graph(graph, torch.tensor(x), functions, torch.tensor).numpy()


def run_jax(graph: onnx.GraphProto, x: np.ndarray) -> np.ndarray:
    """Run a graph in JAX, as one compiled function."""
    import jax
    import jax.numpy as jnp

    import anybit.jax

    def convolve(x: Any, w: Any, b: Any, **options: Any) -> Any:
        pads, groups = options["pads"], options["group"]
        padding = [(pads[0], pads[2]), (pads[1], pads[3])]
        y = jax.lax.conv_general_dilated(
            x, w, options["strides"], padding, feature_group_count=groups
        )
        return y + b[:, None, None]

    def pool(x: Any, kernel_shape: list[int], strides: list[int]) -> Any:
        window, steps = (1, 1, *kernel_shape), (1, 1, *strides)
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, steps, "VALID")

    functions = {
        **_share_functions(anybit.jax),
        "Conv": convolve,
        "Relu": jax.nn.relu,
        "MaxPool": pool,
    }
    return np.asarray(jax.jit(lambda x: run_graph(graph, x, functions, np.asarray))(x))


def _share_functions(operators: Any) -> dict[str, Callable[..., Any]]:
    """Return the functions that PyTorch and JAX spell the same way."""

    def quantize(*inputs: Any, signed: int, narrow: int, rounding_mode: bytes) -> Any:
        flags = {"signed": bool(signed), "narrow": bool(narrow)}
        return operators.int_quant(*inputs, **flags, rounding_mode=rounding_mode.decode())

    return {
        "IntQuant": quantize,
        "BipolarQuant": operators.bipolar_quant,
        "Add": lambda x, y: x + y,
        "Gemm": lambda x, w, b, transB=0: x @ (w.T if transB else w) + b,
        "Flatten": lambda x, axis=1: x.reshape(x.shape[0], -1),
        "Reshape": lambda x, sizes: x.reshape([int(size) for size in sizes]),
    }
