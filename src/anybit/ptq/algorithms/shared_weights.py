# SPDX-License-Identifier: Apache-2.0
"""Weights shared by several layers: rounded and stored once.

Layers with scales and sums along the same axes of a weight share one rounded copy. Layers with
other axes have another one.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import onnx_ir as ir

from anybit.ptq.algorithms.gptq import is_wide, split_terms
from anybit.ptq.algorithms.round_to_nearest import count_weight_bytes
from anybit.ptq.config import GptqConfig
from anybit.ptq.graph.matmul_form import MatMulForm, find_matmul_form
from anybit.ptq.graph.targets import TargetNode, WeightInput
from anybit.quant_types.spec import QuantSpec

_Item = TypeVar("_Item")


def group_linked(
    items: Iterable[_Item], of: Callable[[_Item], Iterable[object]]
) -> list[list[_Item]]:
    """Group items that share a key, directly or through other items; the order stays."""
    groups: list[tuple[set[object], list[int]]] = []
    entries = list(items)
    for at, item in enumerate(entries):
        own, members = set(of(item)), [at]
        others = []
        for group in groups:
            if group[0] & own:
                own |= group[0]
                members += group[1]
            else:
                others.append(group)
        groups = [*others, (own, members)]
    return [[entries[at] for at in members] for members in sorted(sorted(of) for _, of in groups)]


def get_weight_values(layer: TargetNode) -> list[ir.Value]:
    """Return the constant weights of a layer."""
    values = (layer.node.inputs[weight.index] for weight in layer.weights)
    return [value for value in values if value is not None]


def make_copy_key(
    layer: TargetNode, weight: WeightInput, spec: QuantSpec, config: GptqConfig
) -> Hashable:
    """Return a key that is equal for weights that share one stored copy."""
    value = layer.node.inputs[weight.index]
    if is_wide(spec, config) and not (spec.per_channel or spec.block_size):
        return value
    product = find_matmul_form(layer) if weight is layer.weights[0] else None
    form = product and (product.groups, product.windows)
    return value, weight.channel_axes, weight.input_axis, weight.repeats, form


def count_bytes(specs: Mapping[TargetNode, QuantSpec], config: GptqConfig) -> int:
    """Return the bytes of the weights of layers, each stored copy once."""
    sizes = {
        make_copy_key(layer, weight, spec, config): count_weight_bytes(array, weight, spec)
        for layer, spec in specs.items()
        for weight, array in layer.constants
    }
    return sum(sizes.values())


@dataclass(frozen=True, eq=False)
class SharedWeight:
    """A first weight that several layers share, with one rounding.

    Attributes:
        products: The layers, each as a matrix product with the weight.
        parts: Slices of the terms of their sums, rounded independently.
    """

    products: Mapping[TargetNode, MatMulForm]
    parts: tuple[slice, ...]

    @property
    def layers(self) -> tuple[TargetNode, ...]:
        """The layers that share the weight."""
        return tuple(self.products)


class SharedWeights:
    """Weights that several layers share.

    Args:
        weights: The specs of the weights of all layers.
        config: The thresholds of GPTQ.

    Attributes:
        rounded: The layers whose weight is rounded on the inputs of several layers.
        apart: Layers that share a weight with layers of other activations. SmoothQuant does not
            scale it against one activation.
    """

    def __init__(self, weights: Mapping[TargetNode, QuantSpec], config: GptqConfig) -> None:
        self.rounded: dict[TargetNode, SharedWeight] = {}
        self.apart: set[TargetNode] = set()
        readers: dict[Hashable, list[tuple[TargetNode, WeightInput]]] = {}
        for layer, spec in weights.items():
            for weight in layer.weights:
                key = make_copy_key(layer, weight, spec, config)
                readers.setdefault(key, []).append((layer, weight))
        for several in readers.values():
            layers = tuple(layer for layer, _ in several)
            if len(layers) == 1:
                continue
            if len({layer.node.inputs[layer.activations[0]] for layer in layers}) > 1:
                self.apart.update(layers)
            layer, weight = several[0]
            product = find_matmul_form(layer)
            if product and weight is product.weight and not is_wide(weights[layer], config):
                (_, array), *_ = layer.constants
                products = {layer: form for layer in layers if (form := find_matmul_form(layer))}
                parts = split_terms(product.to_matrix(array).shape[2], config)
                shared = SharedWeight(products, tuple(parts))
                self.rounded.update(dict.fromkeys(layers, shared))
