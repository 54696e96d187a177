# SPDX-License-Identifier: Apache-2.0
"""States: outputs of a step that are inputs of the next one, and have one grid with these."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import onnx_ir as ir

from anybit.errors import OptionError
from anybit.ptq.graph.outputs import find_output_targets
from anybit.ptq.graph.targets import ActivationTensor, NodeInput
from anybit.quant_types.suggestions import describe_unknown


def tie_states(
    model: ir.Model, tensors: Iterable[ActivationTensor], states: Mapping[str, str]
) -> tuple[ActivationTensor, ...]:
    """Return the activations, one for both ends of each state.

    It is calibrated on the output, or on the concatenation of the input with other tensors.

    Args:
        model: The model, with the nodes of outputs.
        tensors: The activations of all layers and outputs.
        states: Names of outputs, by names of the inputs that take them in the next step.

    Raises:
        OptionError: There is no such input or output, or it is not quantized.
    """
    inputs = {str(value.name): value for value in model.graph.inputs}
    outputs = {str(target.node.outputs[0].name): target for target in find_output_targets(model)}
    tied = list(tensors)
    for name, output in states.items():
        if name not in inputs:
            raise OptionError(f"states[{name!r}]: {describe_unknown('input', name, list(inputs))}")
        if output not in outputs:
            raise OptionError(
                f"states[{name!r}]: {describe_unknown('output', output, list(outputs))}"
            )
        value, target = inputs[name], outputs[output]
        first = next((tensor for tensor in tied if value in dict(_get_sites(tensor))), None)
        second = next(t for t in tied if any(layer == target for layer, _ in t.readers))
        if first is None:
            raise OptionError(
                f"states[{name!r}]: the input has no quantizer of its own; add integer_only=True"
            )
        if first is not second:
            tied = [tensor for tensor in tied if tensor not in (first, second)]
            is_concatenated = len(first.sites) > 1
            tied.append(_join(first, second) if is_concatenated else _join(second, first))
    return tuple(tied)


def _join(whole: ActivationTensor, other: ActivationTensor) -> ActivationTensor:
    sites = (*_get_sites(whole), *_get_sites(other))
    return replace(whole, readers=[*whole.readers, *other.readers], sites=sites)


def _get_sites(tensor: ActivationTensor) -> tuple[tuple[ir.Value, tuple[NodeInput, ...]], ...]:
    return tensor.sites or ((tensor.value, tensor.uses),)
