# SPDX-License-Identifier: Apache-2.0
"""Keep the libraries below from logging what is raised here, or is harmless."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

_LIBRARIES = ("onnx_ir", "onnxscript")


@contextmanager
def quiet() -> Iterator[None]:
    """No lines of onnx_ir and onnxscript: they log doubts, tracebacks included, on stderr.

    Nothing is done where it is quiet already: a level that is set makes all loggers of a program
    forget what they know of theirs, which took a tenth of a conversion.
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
