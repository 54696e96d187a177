# SPDX-License-Identifier: Apache-2.0
"""What of a model's weights no quantizer reads."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from anybit.torch.nn._layers import QuantizedLayer
from anybit.torch.nn._quantizer import Quantizer


@dataclass(frozen=True)
class FloatWeights:
    """The weights of one module that stay in float.

    Attributes:
        name: The module's.
        module: The module.
        parameters: The weights by name in the module: parameters of two axes or more.
    """

    name: str
    module: torch.nn.Module
    parameters: dict[str, torch.nn.Parameter]

    @property
    def names(self) -> list[str]:
        """The module's name and those of the parameters in the model."""
        return [self.name, *(f"{self.name}.{each}".lstrip(".") for each in self.parameters)]

    def __str__(self) -> str:
        if any(True for _ in self.module.children()) or not self.name:
            return ", ".join(self.names[1:])
        return f"{self.name} ({type(self.module).__name__})"


def in_float(model: torch.nn.Module) -> Iterator[FloatWeights]:
    """All weights that are read without a quantizer, in the order of the model's modules."""
    for name, module in model.named_modules():
        found = {each: weight for each, weight in _weights(module) if not _rounded(module, each)}
        if found:
            yield FloatWeights(name, module, found)


def share_in_float(model: torch.nn.Module) -> float:
    """The share of the weights, by elements, that something reads without a quantizer."""
    weights = {weight for module in model.modules() for _, weight in _weights(module)}
    floats = {weight for each in in_float(model) for weight in each.parameters.values()}
    return _count(floats) / max(_count(weights), 1)


def percentage(share: float) -> str:
    """In per cent; neither 0 nor 100 unless it is."""
    text = f"{100 * share:.1f}".removesuffix(".0")
    edge = {"0": "less than 0.1", "100": "more than 99.9"}
    return f"{edge.get(text, text) if 0 < share < 1 else text} %"


def _weights(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Scales are not weights, and neither is what has one number per channel."""
    for name, parameter in module.named_parameters(recurse=False):
        if parameter.ndim >= 2:
            yield name, parameter


def _rounded(module: torch.nn.Module, name: str) -> bool:
    return isinstance(module, QuantizedLayer) and isinstance(
        getattr(module, f"{name}_quantizer", None), Quantizer
    )


def _count(weights: set[torch.nn.Parameter]) -> int:
    return sum(weight.numel() for weight in weights)
