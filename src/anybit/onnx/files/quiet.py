# SPDX-License-Identifier: Apache-2.0
"""Keep the libraries below from logging what is raised here, or is harmless."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

_LIBRARIES = ("onnx_ir", "onnxscript")


@contextmanager
def quiet() -> Iterator[None]:
    """No lines of onnx_ir and onnxscript: they log doubts, tracebacks included, on stderr."""
    loggers = [logging.getLogger(name) for name in _LIBRARIES]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)
