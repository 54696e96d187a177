# SPDX-License-Identifier: Apache-2.0
"""Settings of the process while models are processed: garbage collector, heap and logs."""

import ctypes
import gc
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_GC_THRESHOLD = 20_000
# Bytes worth trimming.
_TRIMMED = 2**25
_LIBRARIES = ("onnx_ir", "onnxscript")


@contextmanager
def relax_gc() -> Iterator[None]:
    """Collect garbage after 20 000 new objects instead of some hundred.

    A model consists of many objects that stay reachable, so the default collects in vain: `convert`
    of a model with 860 nodes takes 6 % more CPU time, and `compile` 9 %. A higher threshold stays.
    """
    threshold = gc.get_threshold()
    is_lower = 0 < threshold[0] < _GC_THRESHOLD  # 0: the collector is off
    if is_lower:
        gc.set_threshold(_GC_THRESHOLD, *threshold[1:])
    try:
        yield
    finally:
        if is_lower:
            gc.set_threshold(*threshold)


def trim_heap(freed: int) -> None:
    """Return free memory of the C library to the system, on Linux with glibc.

    glibc keeps freed blocks of up to 32 MB between those in use. A session leaves about
    the size of its model behind: for 200 MB, `quantize` peaks at 0.8 GB instead
    of 1.1 GB. Small models gain nothing and take 8 % more CPU time.

    Args:
        freed: The bytes of the model whose session was freed.
    """
    if freed >= _TRIMMED and sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl does not have it
        if trim is not None:
            trim(0)


@contextmanager
def silence_onnx_logs() -> Iterator[None]:
    """Silence onnx_ir and onnxscript, which log warnings with tracebacks to stderr.

    Loggers that are silent already are not touched: setting a level clears the caches of all
    loggers of a program.
    """
    loggers = [logging.getLogger(name) for name in _LIBRARIES]
    levels = [(logger, logger.level) for logger in loggers if logger.level < logging.CRITICAL]
    for logger, _ in levels:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in levels:
            logger.setLevel(level)
