# SPDX-License-Identifier: Apache-2.0
"""Commands as typer has them: built from their functions, which are imported when needed."""

import atexit
import gc
import logging
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from anybit.cli._help import print_command_help
from anybit.cli._table import COMMANDS

_SETTINGS = {"help_option_names": ["-h", "--help"]}
_OBJECTS = 20_000


class _Command(TyperCommand):
    """A command with help in our layout. The layout of typer takes 0.1 s to import."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        print_command_help(self, ctx)


class _Commands(TyperGroup):
    """All commands, for shell completion and for options before the command."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return _load(cmd_name) if cmd_name in COMMANDS else None


def run(arguments: list[str]) -> int:
    """Run a command, or handle an option that stands before it, and return the exit status."""
    # Python prints the warnings of loggers without handlers; the errors say the same.
    logging.getLogger("onnx_ir").addHandler(logging.NullHandler())
    atexit.register(_skip_last_collection)
    # A model is many objects that live to the end: collecting rarely saves a quarter of the time.
    thresholds = gc.get_threshold()
    gc.set_threshold(_OBJECTS, *thresholds[1:])
    name, *rest = arguments
    try:
        if name in COMMANDS:
            status = _load(name).main(rest, prog_name=f"anybit {name}", standalone_mode=False)
        else:
            status = get_command(app).main(arguments, prog_name="anybit", standalone_mode=False)
    except typer.Abort:
        return 130
    finally:
        gc.set_threshold(*thresholds)
    return status if isinstance(status, int) else 0


def _load(name: str) -> Any:
    module = import_module(f"anybit.cli.{name}")
    command = typer.Typer(add_completion=False, rich_markup_mode=None)
    command.command(cls=_Command, context_settings=_SETTINGS)(getattr(module, name))
    return get_command(command)


app = typer.Typer(cls=_Commands, context_settings=_SETTINGS, rich_markup_mode=None)


@app.callback()
def _declare_options(version: Annotated[bool, typer.Option("--version")] = False) -> None:
    """Declare the options that stand before the command."""


def _skip_last_collection() -> None:
    """Keep Python from collecting at exit, which takes a second after a large model.

    PyTorch needs it: Triton reports some hundred leaked objects otherwise.
    """
    if "torch" not in sys.modules:
        gc.freeze()
