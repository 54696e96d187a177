# SPDX-License-Identifier: Apache-2.0
"""The command line: `anybit COMMAND`. One file per command."""

import atexit
import gc
import logging
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

import anybit
from anybit.cli import (
    check,
    clean,
    compile,
    convert,
    diff,
    evaluate,
    inspect,
    quantize,
    run,
)
from anybit.errors import ModelError
from anybit.interrupts import end_at_once, raise_again
from anybit.onnx.process import relaxed_gc
from anybit.text import problem, shown


class _Command(TyperCommand):
    """A command whose help shows no type of a value for what takes none."""

    def get_params(self, ctx: Any) -> Any:
        return _without_types_of_flags(super().get_params(ctx))


class _Commands(TyperGroup):
    """The same of all of them."""

    def get_params(self, ctx: Any) -> Any:
        return _without_types_of_flags(super().get_params(ctx))


def _without_types_of_flags(parameters: list[Any]) -> list[Any]:
    # Newer versions of typer write `--json <bool>`, as if a word had to follow.
    for each in parameters:
        if getattr(each, "is_flag", False) and each.metavar is None:
            each.metavar = ""
    return parameters


app = typer.Typer(
    cls=_Commands,
    help="Quantize ONNX models, and run, check, convert, compile and compare quantized ones, "
    "exactly and fast.",
    epilog="Exit status: 0 for success; 1 if the command ran and its answer is no (models differ, "
    "a target refuses the model, a quality check fails); 2 for bad input or usage; 130 if "
    "interrupted.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="markdown",
)
app.command(cls=_Command)(run.run)
app.command(cls=_Command)(inspect.inspect)
app.command(cls=_Command)(check.check)
app.command(cls=_Command)(clean.clean)
app.command(cls=_Command)(convert.convert)
app.command(cls=_Command)(diff.diff)
app.command(cls=_Command)(compile.compile)
app.command(cls=_Command)(quantize.quantize)
app.command(cls=_Command)(evaluate.evaluate)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"anybit {anybit.__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_show_version, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Options that stand before the command."""


def _leave() -> None:
    """Python would look through all that is left, which takes a second behind a long model."""
    # With PyTorch it has to: Triton lists some hundred parts of its own that it finds left behind.
    if "torch" not in sys.modules:
        gc.freeze()


def main() -> None:
    """Run a command. Bad input gives one line on stderr and exit status 2, never a traceback.

    Commands that ran and whose answer is no, such as `diff`, raise `typer.Exit(1)`.
    """
    # Python prints the warnings of loggers that nobody listens to; the errors say the same.
    logging.getLogger("onnx_ir").addHandler(logging.NullHandler())
    atexit.register(_leave)
    ended = raise_again()
    try:
        with relaxed_gc():
            code = app(prog_name="anybit", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except BrokenPipeError:
        # The reader of our output has gone; Python would complain again when it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except Exception as error:
        message = _message(error)
        if message is None:
            raise
        if message:
            print("error:", shown(" ".join(message.split())), file=sys.stderr)
        code = 2
    if ended:
        end_at_once()
    sys.exit(code if isinstance(code, int) else 0)


def _message(error: Exception) -> str | None:
    """What to tell the user, or None for a bug of ours."""
    # Usage errors are classes of click in older versions of typer, and of typer in newer ones.
    usage = getattr(error, "format_message", None)
    if usage is not None:
        context = getattr(error, "ctx", None)
        command = "anybit" if context is None else context.command_path
        # It is empty where the help has been shown for want of a command.
        # Newer versions of typer let a word of their validation through.
        message = usage().replace("Value error, ", "")
        return message and f"{message.removesuffix('.')} (see {command} --help)"
    if isinstance(error, OSError):
        return problem(error)
    if isinstance(error, MemoryError):
        return f"not enough memory: {error}"
    return str(error) if isinstance(error, ModelError) else None
