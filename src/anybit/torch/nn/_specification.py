# SPDX-License-Identifier: Apache-2.0
"""Specifications of quantized models: quantizers in words for names of layers."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from anybit.name_patterns import match_names
from anybit.quant_types.suggestions import describe_unknown

ROLES = ("weight", "bias", "activation", "output")
_KEYS = (*ROLES, "first/last", "layers", "skip")

Roles = dict[str, str]
"""The words for the quantizers of a layer, by role."""


def plan(
    spec: Mapping[str, Any], layers: Sequence[Sequence[str]], others: Sequence[Sequence[str]]
) -> tuple[list[Roles | None], list[int]]:
    """Return the words for each layer, None if it is skipped, and the others not skipped.

    Args:
        spec: A specification with the keys of `quantize_model`.
        layers: The layers in order, each with all names that it has in the model.
        others: Names of other parts of the model to skip; the second result has their indices.

    Raises:
        ValueError: Unknown keys, and patterns that match no layer, or only skipped ones.
    """
    _check_keys(spec, _KEYS, "the specification")
    skip = spec.get("skip", ())
    if not (isinstance(skip, list | tuple) and all(isinstance(name, str) for name in skip)):
        raise ValueError(f'"skip" must be a list of names or patterns, got {skip!r}')
    every = [*layers, *others]
    skipped = {
        index for pattern in skip for index in match_names(pattern, every, f"skip={pattern!r}")
    }
    kept = [index for index in range(len(layers)) if index not in skipped]
    if not kept:
        raise ValueError("every layer is skipped: nothing would be quantized")
    everywhere = _parse_roles(
        {role: spec[role] for role in ROLES if role in spec}, "the specification"
    )
    plans = {index: dict(everywhere) for index in kept}
    if "first/last" in spec:
        roles = _parse_roles(spec["first/last"], "first/last")
        plans[kept[0]] |= roles
        plans[kept[-1]] |= roles
    for pattern, value in _check_mapping(spec.get("layers", {}), '"layers"').items():
        roles = _parse_roles(value, f"layers: {pattern}")
        matches = match_names(pattern, layers, f"layers[{pattern!r}]")
        if matches <= skipped:
            raise ValueError(f"layers: every match of {pattern!r} is skipped")
        for index in matches - skipped:
            plans[index] |= roles
    unskipped = [index for index in range(len(others)) if index + len(layers) not in skipped]
    return [plans.get(index) for index in range(len(layers))], unskipped


def _parse_roles(value: Any, where: str) -> Roles:
    """Return the words by role; a string is for weight and activation."""
    if isinstance(value, str):
        return {"weight": value, "activation": value}
    roles = _check_mapping(value, where)
    _check_keys(roles, ROLES, where)
    for role, words in roles.items():
        if not isinstance(words, str):
            raise ValueError(
                f'{where}: {role} must be words like "int4 per-channel", got {words!r}'
            )
    return dict(roles)


def _check_mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} must be a mapping, got {value!r}")
    return value


def _check_keys(keys: Iterable[str], allowed: Sequence[str], where: str) -> None:
    for key in keys:
        if key not in allowed:
            raise ValueError(f"{where}: {describe_unknown('key', str(key), allowed)}")
