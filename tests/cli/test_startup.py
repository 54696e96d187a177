# SPDX-License-Identifier: Apache-2.0
"""The modules that commands import before they work."""

import subprocess
import sys

import pytest
from shell import Shell

from anybit.cli._table import COMMANDS

HEAVY = {"numpy", "onnx", "onnx_ir", "onnxruntime", "sympy", "torch", "typer.rich_utils"}
SCRIPT = """
import sys
from anybit.cli import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


def modules_of(*arguments: str) -> set[str]:
    """Return the modules that are imported when a command ends."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], capture_output=True, text=True, check=True
    )
    return set(done.stderr.split())


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_top_level_options_import_no_command(option: str) -> None:
    modules = modules_of(option)
    assert not modules & {*HEAVY, "typer"}
    assert not modules & {f"anybit.cli.{command}" for command in COMMANDS}


@pytest.mark.parametrize("command", COMMANDS)
def test_command_help_imports_options_only(command: str) -> None:
    modules = modules_of(command, "--help")
    assert not modules & HEAVY
    others = {name for name in COMMANDS if name != command}
    assert not modules & {f"anybit.cli.{other}" for other in others - {"convert", "diff"}}


def test_help_lists_the_commands_with_their_own_first_lines(shell: Shell) -> None:
    _, out, _ = shell("--help")
    text = " ".join(out.replace("│", " ").split())
    for command, line in COMMANDS.items():
        assert f"{command} {line}" in text
        _, out, _ = shell(command, "--help")
        assert line in " ".join(out.split())


def test_model_command_imports_no_other_command(shell: Shell) -> None:
    modules = modules_of("inspect", "model.onnx")
    assert "onnx_ir" in modules
    assert not modules & {"torch", "onnxscript", "anybit.ptq", "anybit.comparison"}


def test_unknown_command_suggests_another(shell: Shell) -> None:
    assert shell.fails("quantise") == (
        "no such command 'quantise'; did you mean 'quantize'? (see anybit --help)"
    )
    assert shell.fails("frobnicate") == "no such command 'frobnicate' (see anybit --help)"


def test_no_arguments_print_help_and_exit_with_2(shell: Shell) -> None:
    code, out, err = shell()
    assert (code, err) == (2, "")
    assert "Usage: anybit COMMAND" in out


def test_completion_lists_commands() -> None:
    """Completion by typer, for bash."""
    script = "from anybit.cli import main; main()"
    environment = {
        "_ANYBIT_COMPLETE": "complete_bash",
        "COMP_WORDS": "anybit co",
        "COMP_CWORD": "1",
        "_TYPER_COMPLETE_ARGS": "anybit co",
    }
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True
    )
    assert done.stdout.split() == ["convert", "compile"]
