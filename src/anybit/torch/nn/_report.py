# SPDX-License-Identifier: Apache-2.0
"""Report of a model's quantizers, and of the weights and operations without one."""

import inspect
import io
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional
from torch.utils import _pytree

from anybit.torch.nn._functions import QuantizedFunction
from anybit.torch.nn._layers import QUANTIZERS, QuantizedLayer
from anybit.torch.nn._quantizers import Quantizer
from anybit.torch.nn._tracing import StrictTracer, trace
from anybit.torch.nn._words import format_spec

_MODULES: dict[Any, str] = {
    **dict.fromkeys((operator.add, operator.iadd, torch.add, "add", "add_"), "QuantAdd"),
    **dict.fromkeys((torch.cat, torch.concat, torch.concatenate), "QuantConcat"),
    **dict.fromkeys((operator.matmul, torch.matmul, torch.bmm, "matmul", "bmm"), "QuantMatMul"),
    functional.scaled_dot_product_attention: "QuantScaledDotProductAttention",
}
_SIZE_METHODS = {"size", "dim", "numel", "nelement", "item", "tolist", "stride", "ndimension"}
_SIZE_ATTRIBUTES = {"shape", "ndim", "dtype", "device"}


def describe(model: torch.nn.Module) -> str:
    """Return a table of the model's layers and their quantizers; "-" stands for none.

    Modules with weights in floating point are listed too, and the share of all weights that they
    have. A weight is a parameter with two axes or more.
    """
    table = Table(box=None, pad_edge=False)
    headings = [keyword.removesuffix("_quantizer") for keyword in QUANTIZERS]
    for heading in ("layer", "type", *headings):
        table.add_column(heading, no_wrap=True)
    floats = {weights.module for weights in find_float_weights(model)}
    for name, module in model.named_modules():
        if isinstance(module, QuantizedLayer | QuantizedFunction) or module in floats:
            quantizers = (getattr(module, keyword, None) for keyword in QUANTIZERS)
            cells = (
                "-" if quantizer is None else format_spec(quantizer) for quantizer in quantizers
            )
            table.add_row(name or "(model)", type(module).__name__, *cells)
    text = io.StringIO()
    Console(file=text, width=1000, markup=False).print(table)
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    return "\n".join(
        [*lines, f"in float: {format_percentage(_compute_float_share(model))} of the weights"]
    )


@dataclass(frozen=True)
class FloatWeights:
    """Weights of one module without a quantizer.

    Attributes:
        name: The module's name in the model.
        module: The module.
        parameters: The weights by name in the module: parameters of two axes or more.
    """

    name: str
    module: torch.nn.Module
    parameters: dict[str, torch.nn.Parameter]

    @property
    def names(self) -> list[str]:
        """The module's name and those of the parameters in the model."""
        return [self.name, *(_join(self.name, parameter) for parameter in self.parameters)]

    def __str__(self) -> str:
        if any(True for _ in self.module.children()) or not self.name:
            return ", ".join(self.names[1:])
        return f"{self.name} ({type(self.module).__name__})"


@dataclass(frozen=True)
class FloatOperation:
    """A functional operation on activations in the forward pass of a module.

    Attributes:
        module: The name of the module whose `forward` computes it.
        name: Its name in the model: that of the module, and the function: "blocks.0.add".
        replacement: The module of `anybit.torch.nn` to call instead.
    """

    module: str
    name: str
    replacement: str

    @property
    def names(self) -> list[str]:
        """The names by which it can be skipped."""
        return [self.name, self.module]


def find_float_weights(model: torch.nn.Module) -> Iterator[FloatWeights]:
    """Yield the weights that are read without a quantizer, in the order of the modules."""
    for name, module in model.named_modules():
        weights = {
            weight_name: weight
            for weight_name, weight in _iterate_weights(module)
            if not _is_quantized(module, weight_name)
        }
        if weights:
            yield FloatWeights(name, module, weights)


def find_float_operations(model: torch.nn.Module) -> Iterator[FloatOperation]:
    """Yield the functional operations that a module of `anybit.torch.nn` could compute.

    The forward pass of each module outside of PyTorch is traced with default arguments. Nothing is
    yielded for modules that cannot be traced.
    """
    for name, module in model.named_modules():
        is_library = type(module).__module__.startswith(("torch.", "anybit."))
        if is_library and not isinstance(module, torch.fx.GraphModule):
            continue
        try:
            graph = trace(module, _CallTracer(), module.training, _get_default_switches(module))
        except Exception:  # whatever the user's forward raises when it is called with proxies
            continue
        for node in _iterate_operations(graph):
            yield FloatOperation(name, _join(name, node.name), _MODULES[node.target])


class _CallTracer(StrictTracer):
    """A tracer that enters no module."""

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        return True


def _get_default_switches(module: torch.nn.Module) -> dict[str, Any]:
    """Return the optional arguments and flags of forward with their defaults."""
    parameters = inspect.signature(module.forward).parameters
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    return {
        name: default
        for name, default in defaults.items()
        if default is None or isinstance(default, bool)
    }


def _iterate_operations(graph: torch.fx.Graph) -> Iterator[torch.fx.Node]:
    """Yield the nodes that combine several activations, sizes and masks aside."""
    activations: set[torch.fx.Node] = set()
    for node in graph.nodes:
        leaves = _pytree.tree_leaves((node.args, node.kwargs))
        operands = sum(leaf in activations for leaf in leaves if isinstance(leaf, torch.fx.Node))
        if node.op == "placeholder":
            is_activation = "mask" not in node.name.lower()
        elif node.op == "call_module":
            is_activation = True
        else:
            is_activation = operands > 0 and not _is_size(node)
            if operands >= 2 and node.target in _MODULES:
                yield node
        if is_activation:
            activations.add(node)


def _is_size(node: torch.fx.Node) -> bool:
    """Return whether a node is a shape, a number or a dtype."""
    if node.op == "call_method":
        return node.target in _SIZE_METHODS
    return node.target is getattr and node.args[1] in _SIZE_ATTRIBUTES


def format_percentage(share: float) -> str:
    """Return a share in per cent; neither 0 nor 100 unless it is."""
    text = f"{100 * share:.1f}".removesuffix(".0")
    edge = {"0": "less than 0.1", "100": "more than 99.9"}
    return f"{edge.get(text, text) if 0 < share < 1 else text} %"


def _compute_float_share(model: torch.nn.Module) -> float:
    """Return the share of the weights, by elements, that are read without a quantizer."""
    every = {weight for module in model.modules() for _, weight in _iterate_weights(module)}
    floats = {
        weight for module in find_float_weights(model) for weight in module.parameters.values()
    }
    return _count(floats) / max(_count(every), 1)


def _iterate_weights(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Yield the module's own weights: neither scales nor vectors with one number per channel."""
    for name, parameter in module.named_parameters(recurse=False):
        if parameter.ndim >= 2:
            yield name, parameter


def _is_quantized(module: torch.nn.Module, name: str) -> bool:
    return isinstance(module, QuantizedLayer) and isinstance(
        getattr(module, f"{name}_quantizer", None), Quantizer
    )


def _count(weights: set[torch.nn.Parameter]) -> int:
    return sum(weight.numel() for weight in weights)


def _join(module: str, name: str) -> str:
    return f"{module}.{name}".lstrip(".")
