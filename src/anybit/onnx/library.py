# SPDX-License-Identifier: Apache-2.0
"""The operator library for ONNX Runtime, and its registration with session options."""

import onnxruntime  # type: ignore[import-untyped]

from anybit._native import FOLDER
from anybit.onnx.operators import integer_network
from anybit.onnx.operators.registry import CANONICAL_DOMAINS
from anybit.ops import OPERATORS

_DOMAINS = {
    *CANONICAL_DOMAINS,
    *(operator.onnx_domain for operator in OPERATORS),
    integer_network.DOMAIN,
}


def library_path() -> str:
    """Return the file for `register_custom_ops_library` of ONNX Runtime, in any language."""
    for suffix in (".so", ".dylib", ".dll"):
        path = FOLDER / f"anybit_onnxruntime{suffix}"
        if path.exists():
            return str(path)
    raise FileNotFoundError(f"no anybit_onnxruntime library in {FOLDER}; reinstall anybit")


def register(session_options: onnxruntime.SessionOptions) -> None:
    """Add the operators to session options. Doing it again has no effect.

    Models in the form `compact`, and others with DequantizeLinear, also need the entry
    `session.disable_quant_qdq` = 1: by default ONNX Runtime fuses it to MatMulNBits, which rounds
    activations to 8 bits.
    """
    session_options.register_custom_ops_library(library_path())


def register_domains(options: onnxruntime.SessionOptions, message: bytes) -> None:
    """Add the operators whose domains occur in a message, unless options have them.

    The runtime creates the schemas of all added operators for each session. That takes
    milliseconds, the rest of a small session half a millisecond.
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
