# SPDX-License-Identifier: Apache-2.0
"""Memory that nobody uses any more."""

import ctypes
import sys


def give_back() -> None:
    """Let the C library return what is free to the system, as far as it can.

    That of Linux keeps blocks of up to 32 MB for later, once one such was free. They lie between
    those in use, where arrays of another size do not fit: a session of a model of 200 MB leaves
    as much behind.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
        if trim is not None:
            trim(0)
