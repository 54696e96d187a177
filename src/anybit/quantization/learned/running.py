# SPDX-License-Identifier: Apache-2.0
"""A stretch of a network in PyTorch, with the quantizers of what its layers read."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from anybit.onnx.graph.constants import array_of, is_constant
from anybit.quantization.choices import Choice
from anybit.quantization.dynamic import DynamicGrid
from anybit.quantization.learned.operators import operator_for
from anybit.quantization.learned.stretches import Stretch
from anybit.quantization.pieces import along_channels
from anybit.quantization.placement import Layer, Source
from anybit.quantization.schemes import quantized


class Runner:
    """Runs a stretch, with what is learned in the place of weights and biases.

    Args:
        stretch: The stretch.
        choices: What becomes of the tensors that layers read.
        opset: The version of the model's operators.
    """

    def __init__(self, stretch: Stretch, choices: Mapping[Source, Choice], opset: int) -> None:
        self._stretch = stretch
        self._operators = [operator_for(node, opset) for node in stretch.nodes]
        self._read: dict[tuple[ir.Node, int], tuple[Layer, Choice]] = {
            (layer.node, index): (layer, choice)
            for source, choice in choices.items()
            for layer, index in source.readers
        }
        constants = {
            value
            for node in stretch.nodes
            for value in node.inputs
            if value is not None and is_constant(value)
        }
        self._constants = {value: tensor_of(array_of(value)) for value in constants}

    def run(self, feeds: Mapping[str, Any], changed: Mapping[tuple[ir.Node, int], Any]) -> Any:
        """The output, for inputs by name, and other numbers for some constants."""
        values = dict(self._constants)
        values |= {each: feeds[str(each.name)] for each in self._stretch.inputs}
        for node, operator in zip(self._stretch.nodes, self._operators, strict=True):
            inputs = []
            for index, value in enumerate(node.inputs):
                x = changed.get((node, index))
                if x is None and value is not None:
                    x = self._quantized(node, index, values[value])
                inputs.append(x)
            assert operator is not None, "asked before"
            found = operator(node, inputs)
            results = found if isinstance(found, list | tuple) else [found]
            values |= zip(node.outputs, results, strict=False)
        return values[self._stretch.output]

    def _quantized(self, node: ir.Node, index: int, x: Any) -> Any:
        """What a layer multiplies; with derivatives as if nothing were rounded, and 0 where
        something is cut off."""
        if (node, index) not in self._read:
            return x
        layer, choice = self._read[node, index]
        if choice.smoothing is not None:
            x = x * tensor_of(along_channels(1 / choice.smoothing, layer))
        if choice.grid is None:
            return x
        y = tensor_of(quantized(np.asarray(x.detach().numpy(), order="C"), choice.grid))
        inside = x if isinstance(choice.grid, DynamicGrid) else x.clamp(*choice.grid.ends)
        return inside + (y - inside).detach()


def tensor_of(array: Any) -> Any:
    """An array as a tensor of its own."""
    return torch.from_numpy(np.array(array, order="C"))
