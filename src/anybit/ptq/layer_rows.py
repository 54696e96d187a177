# SPDX-License-Identifier: Apache-2.0
"""What is said of each layer of a quantized model, and what its constants take."""

import math
from collections.abc import Mapping

import onnx_ir as ir

from anybit.metrics.sqnr import noise_to_sqnr
from anybit.onnx.graph.walk import nodes_in, tensors_in
from anybit.ptq.algorithms.round_to_nearest import stored_bytes
from anybit.ptq.algorithms.shared_weights import bytes_of
from anybit.ptq.graph.targets import TargetNode
from anybit.ptq.mixed_precision.noise_model import FLOAT_BITS, NoiseTable
from anybit.ptq.plan import Plan
from anybit.ptq.result import QuantizedLayer
from anybit.ptq.search.candidates import QuantizedCandidate
from anybit.text import listed, shown


class Sizes:
    """What the constants of a model take, with weights in as many bits as a plan gives them."""

    def __init__(self, model: ir.Model) -> None:
        self.whole = sum(tensor.nbytes for tensor in tensors_in(model))
        self._readers: dict[ir.Value, set[tuple[ir.Node, int]]] = {}
        for node in nodes_in(model.graph):
            for index, value in enumerate(node.inputs):
                if value is not None and value.is_initializer():
                    self._readers.setdefault(value, set()).add((node, index))

    def __call__(self, plan: Plan) -> int:
        """Bytes. A constant that is read in several ways is stored once for each of them, and in
        floats, too, if a node reads these."""
        placed = {(layer.node, each.index) for layer in plan.weights for each in layer.weights}
        gone = sum(
            value.const_value.nbytes
            for value, readers in self._readers.items()
            if value.const_value and readers <= placed and not value.is_graph_output()
        )
        return self.whole - gone + bytes_of(plan.weights)


def row(
    layer: TargetNode,
    found: QuantizedCandidate,
    macs: Mapping[TargetNode, int],
    noises: NoiseTable | None,
    judged: bool,
) -> QuantizedLayer:
    """What became of a layer.

    Args:
        layer: The layer.
        found: What the model became.
        macs: How many multiplications layers take.
        noises: What each does to the outputs; None if that was not measured.
        judged: Whether errors are those on samples that choices were not made by.
    """
    read = {source: each for source, each in found.choices.items() if layer in dict(source.readers)}
    schemes = [
        found.plan.activations[source]
        for source, choice in read.items()
        if source in found.plan.activations and choice.grid is not None
    ]
    errors = [each.errors[layer] for each in read.values() if layer in each.errors]
    scheme = found.plan.weights.get(layer)
    sizes = [array.shape for _, array in layer.constants]
    parameters = sum(math.prod(shape) for shape in sizes)
    return QuantizedLayer(
        name=layer.name,
        operator=layer.node.op_type,
        weights="" if scheme is None else scheme.describe(default="per-channel"),
        activations=", ".join(
            dict.fromkeys(each.describe(default="per-tensor") for each in schemes)
        ),
        weight_bits=scheme.bits if scheme else FLOAT_BITS if layer.weights else 0,
        activation_bits=max((each.bits for each in schemes), default=FLOAT_BITS),
        shape=sizes[0] if sizes else (),
        parameters=parameters,
        bytes=sum(stored_bytes(array, weight, scheme) for weight, array in layer.constants),
        macs=macs.get(layer),
        sqnr=noise_to_sqnr(max(errors)) if errors and judged else None,
        output_sqnr=None if noises is None else noise_to_sqnr(noises.of(layer, found.plan)),
        smoothed=any(choice.smoothing is not None for choice in read.values()),
        tried=tuple(each for choice in read.values() for each in choice.tried),
    )


def idle(found: QuantizedCandidate) -> tuple[str, ...]:
    """What is to be said of layers in branches that no sample took."""
    names = {
        layer.name: None
        for source in found.plan.activations
        if found.choices[source].grid is None
        for layer, _ in source.readers
    }
    if not names:
        return ()
    did = "layers read" if len(names) > 1 else "layer reads"
    return (
        f"{len(names)} {did} floats, since no sample runs a branch: {listed(map(shown, names))}. "
        "Give data that do.",
    )
