# SPDX-License-Identifier: Apache-2.0
"""Release of unused memory."""

import ctypes
import sys


def give_back() -> None:
    """Return free memory of the C library to the system.

    glibc keeps free blocks of up to 32 MB, once one such block was freed. They are fragmented, and
    arrays of other sizes do not fit: a session of a 200 MB model leaves as much.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
        if trim is not None:
            trim(0)
