# SPDX-License-Identifier: Apache-2.0
"""The library of our operators for ONNX Runtime, and adding it to the options of sessions."""

import onnxruntime  # type: ignore[import-untyped]

from anybit._native import FOLDER
from anybit.onnx.operators import integer_network
from anybit.onnx.operators.registry import CANONICAL_DOMAINS
from anybit.ops import OPERATORS

_DOMAINS = {*CANONICAL_DOMAINS, *(each.onnx_domain for each in OPERATORS), integer_network.DOMAIN}


def library_path() -> str:
    """The file to give to `register_custom_ops_library` of any language's ONNX Runtime."""
    for suffix in (".so", ".dylib", ".dll"):
        path = FOLDER / f"anybit_onnxruntime{suffix}"
        if path.exists():
            return str(path)
    raise FileNotFoundError(f"no anybit_onnxruntime library in {FOLDER}; reinstall anybit")


def register(session_options: onnxruntime.SessionOptions) -> None:
    """Add the operators to session options. Doing it again changes nothing."""
    session_options.register_custom_ops_library(library_path())


def register_named(options: onnxruntime.SessionOptions, message: bytes) -> None:
    """Add the operators of the domains that a message names, unless options have all.

    The runtime makes schemas for all that are added, for each session anew: milliseconds, where the
    rest of a small session takes half of one.
    """
    named = [domain for domain in _DOMAINS if domain.encode() in message]
    if named and not has_entry(options, "anybit.registered"):
        options.add_session_config_entry("anybit.domains", "named")
        for domain in named:
            options.add_session_config_entry(f"anybit.domains.{domain}", "1")
        register(options)


def has_entry(options: onnxruntime.SessionOptions, key: str) -> bool:
    try:
        options.get_session_config_entry(key)
    except RuntimeError:
        return False
    return True
