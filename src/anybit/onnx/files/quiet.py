# SPDX-License-Identifier: Apache-2.0
"""Silenced logging of libraries."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

_LIBRARIES = ("onnx_ir", "onnxscript")


@contextmanager
def quiet() -> Iterator[None]:
    """Silence onnx_ir and onnxscript, which log warnings with tracebacks to stderr.

    Levels are set only if necessary: setting one clears the caches of all loggers, which took a
    tenth of a conversion.
    """
    loggers = [logging.getLogger(name) for name in _LIBRARIES]
    loud = [(logger, logger.level) for logger in loggers if logger.level < logging.CRITICAL]
    for logger, _ in loud:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in loud:
            logger.setLevel(level)
