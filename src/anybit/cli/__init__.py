# SPDX-License-Identifier: Apache-2.0
"""The command line: `anybit COMMAND`. One file per command, imported when the command runs.

Exit status: 0 for success; 1 for a negative answer; 2 for bad input or usage; 130 if interrupted.
Errors that a user can fix (`anybit.errors`, OSError, MemoryError) are one line on stderr.
"""

import os
import sys

from anybit.cli._table import COMMANDS
from anybit.errors import AnybitError, OptionError
from anybit.text import describe_os_error, escape_name

_DESCRIPTION = (
    "Quantize ONNX models, and run, check, convert, compile and compare quantized ones, exactly "
    "and fast."
)
_OPTIONS = {
    "--version": "Show the version and exit.",
    "--install-completion": "Install completion for the current shell.",
    "--show-completion": "Show completion for the current shell, to copy or customize it.",
    "-h, --help": "Show this message and exit.",
}
_EXIT_STATUS = (
    "Exit status: 0 for success; 1 if the answer is negative (models differ, a target "
    "does not support the model, a quality check fails); 2 for bad input or usage; 130 if "
    "interrupted."
)


def main() -> None:
    """Run the command that `sys.argv` names, and exit with its status."""
    try:
        status = _run(sys.argv[1:])
    except KeyboardInterrupt:
        status = 130
    except BrokenPipeError:
        _discard_output()
        status = 0
    except Exception as error:
        message = _describe_error(error)
        if message is None:
            raise
        if message:
            print("error:", escape_name(" ".join(message.split())), file=sys.stderr)
        status = 2
    sys.exit(status)


def _run(arguments: list[str]) -> int:
    """Run a command and return its exit status. The answers here need no typer."""
    if "_ANYBIT_COMPLETE" in os.environ:  # the shell asks for completions
        arguments = ["--show-completion"]
    elif arguments == ["--version"]:
        import anybit

        print(f"anybit {anybit.__version__}")
        return 0
    elif not arguments or arguments[0] in ("-h", "--help"):
        from anybit.cli._help import print_help

        sections = {"Commands": list(COMMANDS.items()), "Options": list(_OPTIONS.items())}
        print_help("anybit COMMAND [ARGUMENTS]", _DESCRIPTION, sections, _EXIT_STATUS)
        return 0 if arguments else 2
    name = arguments[0]
    if not name.startswith("-") and name not in COMMANDS:
        raise OptionError(f"no such command {name!r}{_suggest_command(name)} (see anybit --help)")
    from anybit.cli._commands import run

    return run(arguments)


def _suggest_command(name: str) -> str:
    from difflib import get_close_matches

    matches = get_close_matches(name, COMMANDS)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def _discard_output() -> None:
    """Redirect stdout, whose reader has gone: Python would fail again when it flushes."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _describe_error(error: Exception) -> str | None:
    """Return what to tell the user, or None for a bug."""
    # Usage errors are classes of click in older versions of typer, and of typer in newer ones.
    usage = getattr(error, "format_message", None)
    if usage is not None:
        context = getattr(error, "ctx", None)
        command = "anybit" if context is None else context.command_path
        # Newer versions of typer keep the prefix of their validation.
        message = usage().replace("Value error, ", "")
        if "unexpected extra argument" in message and command == "anybit quantize":
            message += '; quote a value with spaces, such as --weights "int4 per-channel"'
        return f"{message.removesuffix('.')} (see {command} --help)"
    if isinstance(error, OSError):
        return describe_os_error(error)
    if isinstance(error, MemoryError):
        return f"not enough memory: {error}"
    if not isinstance(error, AnybitError):
        return None
    from anybit.cli._parameters import name_options

    return name_options(str(error))
