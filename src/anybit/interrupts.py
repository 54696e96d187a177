# SPDX-License-Identifier: Apache-2.0
"""What Ctrl-C does to the command `anybit` while it is not at work: it ends it, and says nothing.

A short command spends most of its time importing modules, where an exception would show where
Python just was.
"""

import signal
import sys
import threading
from os.path import isfile


def is_command() -> bool:
    """Whether this process is the command, whose name others' folders may have, too."""
    program = "".join(sys.argv[:1])
    return sys.orig_argv[1:3] == ["-m", "anybit"] or (
        program.endswith(("/anybit", "\\anybit.exe")) and isfile(program)
    )


def end_at_once() -> None:
    """Let Ctrl-C end the process, unless somebody has said what else it should do."""
    if threading.current_thread() is not threading.main_thread():
        return  # which no other may say
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def raise_again() -> bool:
    """Let it raise KeyboardInterrupt, and give whether it ended the process so far."""
    ended = signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    if ended:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return ended
