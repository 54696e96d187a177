# SPDX-License-Identifier: Apache-2.0
"""Whether a compiled model is worth it, at a glance."""

from anybit.compilation import Compiled, NetworkEngine
from anybit.errors import ModelError
from anybit.lowbit.speed import Speed
from anybit.onnx import Source
from anybit.onnx.runtime import FAILURES
from anybit.speed import measured

_GLANCE = 0.3
_FAILURES: tuple[type[Exception], ...] = (ModelError, *FAILURES)


def slower(source: Source, compiled: Compiled) -> Speed | None:
    """How fast both are, if the compiled model is clearly slower than the float graph.

    A model that is integer throughout is not looked at, nor one that does not run on random inputs.
    """
    if isinstance(compiled.engine, NetworkEngine) or not compiled.report.programs:
        return None
    try:
        found = measured(source, compiled, _GLANCE)
    except _FAILURES:
        return None
    return found if found.is_slower else None
