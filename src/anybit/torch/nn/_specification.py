# SPDX-License-Identifier: Apache-2.0
"""Specifications of quantized models: which layer gets which quantizers, in words."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from anybit.words.meant import unknown
from anybit.words.patterns import matching

ROLES = ("weight", "bias", "activation", "output")
_KEYS = (*ROLES, "functions", "first/last", "layers", "skip")

Roles = dict[str, str]


def plan(
    spec: Mapping[str, Any],
    layers: Sequence[Sequence[str]],
    functions: Mapping[str, str],
    others: Sequence[Sequence[str]],
) -> tuple[list[Roles | None], list[int]]:
    """For each layer the words for its quantizers by role; None for a layer that is skipped.

    `layers` are the layers in order, each with all names that it has in the model. `functions`
    follow them, in the result too: by name, the words for what they read. `others` are what else
    can be skipped, and the second result says which of them are not. The keys of the specification
    are those of `quantize_model`. ValueError for keys that are not known and for patterns that
    match no layer, or none that is not skipped.
    """
    _check_keys(spec, _KEYS, "the specification")
    skip = spec.get("skip", ())
    if not (isinstance(skip, list | tuple) and all(isinstance(each, str) for each in skip)):
        raise ValueError(f'"skip" must be a list of names or patterns, got {skip!r}')
    quantizable = [*layers, *([name] for name in functions)]
    every = [*quantizable, *others]
    skipped = {index for pattern in skip for index in matching(pattern, every, "skip")}
    kept = [index for index in range(len(layers)) if index not in skipped]
    if layers and skipped.issuperset(range(len(quantizable))):
        raise ValueError("every layer is skipped: nothing would be quantized")
    everywhere = _roles({role: spec[role] for role in ROLES if role in spec}, "the specification")
    found = {index: dict(everywhere) for index in kept}
    for index, words in enumerate(functions.values(), len(layers)):
        if index not in skipped:
            found[index] = {"activation": words}
    if "first/last" in spec and kept:
        roles = _roles(spec["first/last"], "first/last")
        found[kept[0]] |= roles
        found[kept[-1]] |= roles
    for pattern, value in _mapping(spec.get("layers", {}), '"layers"').items():
        roles = _roles(value, f"layers: {pattern}")
        these = matching(pattern, quantizable, "layers")
        if these <= skipped:
            raise ValueError(f"layers: all that {pattern!r} matches is skipped")
        for index in these - skipped:
            found[index] |= roles
    left = [index for index in range(len(others)) if index + len(quantizable) not in skipped]
    return [found.get(index) for index in range(len(quantizable))], left


def _roles(value: Any, where: str) -> Roles:
    """Words by role. Words alone are for weight and activation."""
    if isinstance(value, str):
        return {"weight": value, "activation": value}
    roles = _mapping(value, where)
    _check_keys(roles, ROLES, where)
    for role, words in roles.items():
        if not isinstance(words, str):
            raise ValueError(
                f'{where}: {role} must be words like "int4 per-channel", got {words!r}'
            )
    return dict(roles)


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} must be a mapping, got {value!r}")
    return value


def _check_keys(given: Iterable[str], known: Sequence[str], where: str) -> None:
    for key in given:
        if key not in known:
            raise ValueError(f"{where}: {unknown('key', str(key), known)}")
