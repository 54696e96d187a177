# SPDX-License-Identifier: Apache-2.0
"""Less frequent garbage collection while models are processed."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_OBJECTS = 20_000


@contextmanager
def seldom_collected() -> Iterator[None]:
    """Collect after thousands of new objects instead of hundreds.

    A long model consists of many reachable objects. Searching them for garbage took a quarter of
    the time.
    """
    before = gc.get_threshold()
    raised = 0 < before[0] < _OBJECTS  # 0: the collector is off
    if raised:
        gc.set_threshold(_OBJECTS, *before[1:])
    try:
        yield
    finally:
        if raised:
            gc.set_threshold(*before)
