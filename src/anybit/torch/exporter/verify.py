# SPDX-License-Identifier: Apache-2.0
"""Comparison of an exported model with the module."""

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from onnx_ir.tensor_adapters import TorchTensor
from torch.utils import _pytree

from anybit.comparison import Difference, diff
from anybit.onnx.operators.registry import find_operator
from anybit.torch.exporter.fold import is_call

_CALL = "anybit.torch.call"


def number_calls(model: ir.Model) -> None:
    """Store in the nodes of our operators the index of the call in the program.

    This is done after the translation, because passes may remove nodes.
    """
    for number, node in enumerate(_iterate_calls(model)):
        node.meta[_CALL] = number


def compare_with_module(
    model: ir.Model,
    program: torch.export.ExportedProgram,
    bound: inspect.BoundArguments,
    outputs: Any,
) -> Difference:
    """Run the model, and compare outputs and results of quantizers with those of the module.

    Raises:
        ModelError: The model cannot be run.
    """
    inputs = _convert_to_arrays(dict(bound.arguments))
    feeds = {_get_name(value): x for value, x in zip(model.graph.inputs, inputs, strict=True)}
    outputs = _convert_to_arrays(outputs)
    expected = {_get_name(value): y for value, y in zip(model.graph.outputs, outputs, strict=True)}
    results = _record(program, bound)
    for node in _iterate_calls(model):
        expected.setdefault(_get_name(node.outputs[0]), results[node.meta[_CALL]])
    return diff(model, expected, feeds)


def _iterate_calls(model: ir.Model) -> Iterator[ir.Node]:
    return (node for node in model.graph if find_operator(node) is not None)


def _get_name(value: ir.Value) -> str:
    return str(value.name)


def _convert_to_arrays(values: Any) -> list[np.ndarray[Any, Any]]:
    leaves = _pytree.tree_leaves(values)
    return [TorchTensor(leaf.detach()).numpy() for leaf in leaves if isinstance(leaf, torch.Tensor)]


class _Recorder(torch.fx.Interpreter):
    """Interpreter of a graph that keeps the results of our operators by index of the call."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.results: dict[int, Any] = {}
        self._numbers = {
            node: number for number, node in enumerate(filter(is_call, module.graph.nodes))
        }

    def run_node(self, n: torch.fx.Node) -> Any:
        result = super().run_node(n)
        if n in self._numbers:
            self.results[self._numbers[n]] = _convert_to_arrays(result)[0]
        return result


def _record(program: torch.export.ExportedProgram, bound: inspect.BoundArguments) -> dict[int, Any]:
    recorder = _Recorder(program.module())
    leaves = _pytree.tree_leaves((bound.args, bound.kwargs))
    with torch.no_grad():
        recorder.run(*leaves, enable_io_processing=False)
    return recorder.results
