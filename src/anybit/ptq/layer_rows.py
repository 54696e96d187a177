# SPDX-License-Identifier: Apache-2.0
"""Description of the layers of a quantized model, and the size of its constants."""

import math
from collections.abc import Mapping

import onnx_ir as ir

from anybit.metrics.sqnr import noise_to_sqnr
from anybit.onnx.graph.walk import iter_nodes, iter_tensors
from anybit.ptq.algorithms.round_to_nearest import count_weight_bytes
from anybit.ptq.algorithms.shared_weights import count_bytes
from anybit.ptq.config import GptqConfig
from anybit.ptq.graph.outputs import is_output_node
from anybit.ptq.graph.stored_weights import describe_stored_weight
from anybit.ptq.graph.targets import TargetNode
from anybit.ptq.mixed_precision.noise_model import NoiseTable
from anybit.ptq.mixed_precision.widths import FLOAT_BITS
from anybit.ptq.plan import QuantPlan
from anybit.ptq.result import LayerResult
from anybit.ptq.search.candidates import QuantizedCandidate


class ConstantSizes:
    """Sizes of the constants of a model, with weights at the widths of a plan.

    Args:
        model: The float model.
        config: The thresholds of GPTQ, on which the copies of shared weights depend.

    Attributes:
        total: The size of the constants of the float model, in bytes.
    """

    def __init__(self, model: ir.Model, config: GptqConfig) -> None:
        self._config = config
        self.total = sum(tensor.nbytes for tensor in iter_tensors(model))
        self._readers: dict[ir.Value, set[tuple[ir.Node, int]]] = {}
        for node in iter_nodes(model.graph):
            for index, value in enumerate(node.inputs):
                if value is not None and value.is_initializer():
                    self._readers.setdefault(value, set()).add((node, index))

    def __call__(self, plan: QuantPlan) -> int:
        """Return the size in bytes.

        A constant that layers read along different axes is stored once for each. It is stored as
        float, too, if a node reads it so.
        """
        quantized = {
            (layer.node, weight.index) for layer in plan.weights for weight in layer.weights
        }
        removed = sum(
            value.const_value.nbytes
            for value, readers in self._readers.items()
            if value.const_value and readers <= quantized and not value.is_graph_output()
        )
        return self.total - removed + count_bytes(plan.weights, self._config)


def describe_layer(
    layer: TargetNode,
    candidate: QuantizedCandidate,
    macs: Mapping[TargetNode, int],
    noises: NoiseTable | None,
    confirmed: bool,
) -> LayerResult:
    """Return the description of a layer.

    Args:
        layer: The layer.
        candidate: The quantized model.
        macs: Multiplications of each layer.
        noises: The noise that each layer adds to the outputs; None if it was not measured.
        confirmed: Whether errors are measured on samples that the choices do not depend on.
    """
    params = {
        activation: chosen
        for activation, chosen in candidate.params.items()
        if layer in dict(activation.readers)
    }
    activations = [
        candidate.plan.activations[activation]
        for activation, chosen in params.items()
        if activation in candidate.plan.activations and chosen.grid is not None
    ]
    errors = [chosen.errors[layer] for chosen in params.values() if layer in chosen.errors]
    weights = candidate.plan.weights.get(layer)
    stored = [describe_stored_weight(layer.node, index) for index in layer.stored]
    kept = [weight for weight in stored if weight is not None]
    shapes = [array.shape for _, array in layer.constants] + [weight.shape for weight in kept]
    bits = max((weight.bits for weight in kept), default=FLOAT_BITS if layer.weights else 0)
    size = sum(count_weight_bytes(array, weight, weights) for weight, array in layer.constants)
    return LayerResult(
        name=layer.name,
        operator="output" if is_output_node(layer.node) else layer.node.op_type,
        weights=", ".join(weight.text for weight in kept)
        if weights is None
        else weights.describe(default="per-channel"),
        activations=", ".join(
            dict.fromkeys(spec.describe(default="per-tensor") for spec in activations)
        ),
        weight_bits=weights.bits if weights else bits,
        activation_bits=max((spec.bits for spec in activations), default=FLOAT_BITS),
        shape=shapes[0] if shapes else (),
        parameters=sum(math.prod(shape) for shape in shapes),
        bytes=size + sum(weight.bytes for weight in kept),
        macs=macs.get(layer),
        sqnr=noise_to_sqnr(max(errors)) if errors and confirmed else None,
        output_sqnr=None
        if noises is None
        else noise_to_sqnr(noises.predict_layer(layer, candidate.plan)),
        smoothed=any(chosen.smoothing is not None for chosen in params.values()),
        tried=tuple(grid for chosen in params.values() for grid in chosen.tried),
    )
