# SPDX-License-Identifier: Apache-2.0
"""A short timing of a compiled model and its float model."""

from pathlib import Path

from anybit.compiler.compiled import CompiledModel
from anybit.compiler.report import Speed
from anybit.compiler.timing import measure_speed
from anybit.errors import AnybitError
from anybit.onnx import Source
from anybit.onnx.runtime import FAILURES

_GLANCE = 0.15
_FAILURES: tuple[type[Exception], ...] = (AnybitError, *FAILURES)


def measure_if_slower(
    source: Source, compiled: CompiledModel, float_model: Path | None
) -> Speed | None:
    """Return the times if the compiled model is clearly slower than the float model, else None.

    A model that is integer throughout is not measured, nor one that does not run on random inputs.
    """
    model = compiled.session_model
    if model is None or not compiled.report.programs:
        return None
    try:
        speed = measure_speed(
            source, compiled, model, float_model=float_model, seconds=_GLANCE, int8=False
        )
    except _FAILURES:
        return None
    return speed if speed.is_slower else None
