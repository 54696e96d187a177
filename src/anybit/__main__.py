# SPDX-License-Identifier: Apache-2.0
"""The command `anybit`, also as `python -m anybit`."""

import gc


def main() -> None:
    """Run a command.

    What is imported for all of them stays to the end: looking for garbage in it, while it comes and
    later, took a fifth of the time to start.
    """
    was_on = gc.isenabled()
    gc.disable()
    from anybit.cli import main as run

    gc.freeze()
    if was_on:
        gc.enable()
    run()


if __name__ == "__main__":
    main()
