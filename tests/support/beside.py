# SPDX-License-Identifier: Apache-2.0
"""Whether a call lets Python go on beside it, that is, whether it releases the GIL."""

import sys
import threading
import time
from collections.abc import Callable

SECONDS = 60
# No thread is asked to give way within the test: what else runs was let in by the call itself.
NEVER = 1000.0


def python_runs_beside(call: Callable[[], object], seconds: float = SECONDS) -> bool:
    """Whether another thread counted during a call; asked again, as a busy machine starves it."""
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
