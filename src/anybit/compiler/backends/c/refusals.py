# SPDX-License-Identifier: Apache-2.0
"""Errors for programs that have no C code: the layers, and the remedy."""

from collections.abc import Iterable

from anybit.compiler.backends.c.ports import SourceNames
from anybit.compiler.program import program as p
from anybit.compiler.program.open_bits import is_open
from anybit.errors import ModelError
from anybit.text import join_names, shorten_name

_REFUSALS = {
    "products of two computed tensors, as in attention, have no C code": (
        "leave the attention out of the model, and leave it to the caller"
    ),
    "scales of activations are computed at run time; C code has integers only": (
        "quantize the float model with data and static activations, as --integer-only does"
    ),
    "functions of floats such as Sigmoid have no C code": (
        "leave them out of the model, and leave them to the caller"
    ),
    "layers compute in floats; C code has integers only": (
        "quantize the model with --integer-only"
    ),
}
_PRODUCTS, _DYNAMIC, _OPEN, _FLOATS = _REFUSALS


def describe_dynamic_scales(layers: Iterable[str]) -> str:
    """Return the error for layers with scales that are computed at run time."""
    return f"{_DYNAMIC}: {join_names(map(shorten_name, layers))}; {_REFUSALS[_DYNAMIC]}"


def check_integers(program: p.Program, name: str, labels: SourceNames) -> None:
    """Check that a program multiplies constants, and computes in integers.

    Args:
        program: The program.
        name: Name of the network.
        labels: Names from the model, for the error.

    Raises:
        ModelError: It does not.
    """
    reasons = {
        number: reason
        for number, at in enumerate(program.instructions)
        if (reason := _find_reason(at, len(program.inputs)))
    }
    for reason, remedy in _REFUSALS.items():
        numbers = [number for number, other in reasons.items() if other == reason]
        if numbers or (reason == _FLOATS and program.floats):
            layers = dict.fromkeys(_find_layer(number, labels) for number in numbers)
            names = join_names(shorten_name(layer) for layer in layers if layer)
            raise ModelError(f"{name}: {reason}{names and f': {names}'}; {remedy}")


def _find_layer(number: int, labels: SourceNames) -> str:
    """Return the name of the layer of an instruction: scales come before their layer."""
    later = [other for other in labels.layers if other >= number]
    return labels.layers[min(later)] if later else ""


def _find_reason(at: p.Instruction, inputs: int) -> str:
    """Return why an instruction has no C code; empty if that depends on its epilogue."""
    match at:
        case p.MatMul():
            return _PRODUCTS
        case p.DynamicScale() | p.DynamicZero() | p.DynamicQuantize():
            return _DYNAMIC
        case p.BlockProduct() | p.AsymmetricBlockProduct():
            return _FLOATS
        case p.Quantize():
            return _FLOATS if at.source >= inputs else ""
    return _OPEN if is_open(at) else ""
