# SPDX-License-Identifier: Apache-2.0
"""The command `anybit`, also as `python -m anybit`."""

import sys


def main() -> None:
    """Run a command. Ctrl-C ends it without a traceback, also while modules are imported."""
    try:
        from anybit.cli import main as run_command

        run_command()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
