# SPDX-License-Identifier: Apache-2.0
"""Specifications of quantized models: which layer gets which quantizers, in words."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

ROLES = ("weight", "bias", "activation", "output")
_KEYS = (*ROLES, "first/last", "layers", "skip")

Roles = dict[str, str]


def plan(spec: Mapping[str, Any], layers: Sequence[Sequence[str]]) -> list[Roles | None]:
    """For each layer the words for its quantizers by role; None for a layer that is skipped.

    `layers` are the layers in order, each with all names that it has in the model. The keys of
    the specification are those of `quantize_model`. ValueError for keys that are not known and
    for patterns that match no layer.
    """
    _check_keys(spec, _KEYS, "the specification")
    skipped = _matching(_patterns(spec.get("skip", ())), layers, "skip")
    kept = [index for index in range(len(layers)) if index not in skipped]
    if not kept:
        raise ValueError("every layer is skipped: nothing would be quantized")
    everywhere = _roles({role: spec[role] for role in ROLES if role in spec}, "the specification")
    found: list[Roles | None] = [
        None if index in skipped else dict(everywhere) for index in range(len(layers))
    ]
    rules = (
        [({kept[0], kept[-1]}, "first/last", spec["first/last"])] if "first/last" in spec else []
    )
    for pattern, value in _mapping(spec.get("layers", {}), '"layers"').items():
        rules.append((_matching([pattern], layers, "layers"), f"layers: {pattern}", value))
    for indices, where, value in rules:
        for index in indices:
            roles = found[index]
            if roles is None:
                raise ValueError(f"{where!r} is about {layers[index][0]!r}, which is skipped")
            roles |= _roles(value, where)
    return found


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


def _patterns(value: Any) -> list[str]:
    if isinstance(value, str) or not all(isinstance(each, str) for each in value):
        raise ValueError(f'"skip" must be a list of names or patterns, got {value!r}')
    return list(value)


def _check_keys(given: Iterable[str], known: Sequence[str], where: str) -> None:
    for key in given:
        if key not in known:
            hint = difflib.get_close_matches(str(key), known, n=1)
            meant = f", did you mean {hint[0]!r}?" if hint else ","
            raise ValueError(f"{where}: unknown key {key!r}{meant} known: {', '.join(known)}")


def _matching(patterns: Iterable[str], layers: Sequence[Sequence[str]], where: str) -> set[int]:
    """The layers of which a name matches one of the patterns."""
    found: set[int] = set()
    for pattern in patterns:
        matching = {
            index
            for index, names in enumerate(layers)
            if any(fnmatchcase(name, pattern) for name in names)
        }
        if not matching:
            known = [name for names in layers for name in names]
            close = difflib.get_close_matches(pattern, known, n=3) or known[:3]
            raise ValueError(f"{where}: no layer matches {pattern!r}; there are {', '.join(close)}")
        found |= matching
    return found
