# SPDX-License-Identifier: Apache-2.0
"""A check that a call releases the GIL."""

import sys
import threading
import time
from collections.abc import Callable

SECONDS = 60
# No thread is asked to give way within the test: what else runs was let in by the call itself.
NEVER = 1000.0


def releases_gil(call: Callable[[], object], seconds: float = SECONDS) -> bool:
    """Return whether another thread counted during a call.

    The call is repeated for up to `seconds`, because a busy machine may starve the thread.
    """
    interval = sys.getswitchinterval()
    stop = threading.Event()
    counted = [0]

    def count() -> None:
        while not stop.is_set():
            counted[0] += 1
            time.sleep(1e-5)  # after it the GIL is wanted, and got only where it is released

    thread = threading.Thread(target=count)
    end = time.monotonic() + seconds
    # First of all: who has begun to wait for the GIL asks for it after the interval of that time.
    sys.setswitchinterval(NEVER)
    thread.start()
    try:
        while time.monotonic() < end:
            before = counted[0]
            call()
            if counted[0] > before:
                return True
            time.sleep(1e-3)
        return False
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        thread.join()
