# SPDX-License-Identifier: Apache-2.0
"""What Ctrl-C does to the command `anybit` while it is not at work: it ends it, and says nothing.

A short command spends most of its time importing modules, where an exception would show where
Python just was.
"""

import signal


def end_at_once() -> None:
    """Let Ctrl-C end the process, unless somebody has said what else it should do."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def raise_again() -> bool:
    """Let it raise KeyboardInterrupt, and give whether it ended the process so far."""
    ended = signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    if ended:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return ended
