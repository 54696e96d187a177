# SPDX-License-Identifier: Apache-2.0
"""Timing of contestants in turns, in one process; the shortest time of each counts."""

import argparse
import os
import platform
import time
from collections.abc import Callable, Hashable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.table import Table

Call = Callable[[], object]
Clock = Callable[[], float]
Name = TypeVar("Name", bound=Hashable)


def best_times(
    calls: Mapping[Name, Call],
    rounds: int = 7,
    at_least: float = 0.01,
    clock: Clock = time.perf_counter,
) -> dict[Name, float]:
    """Return the shortest time per call of each contestant, in seconds.

    Every round times every contestant once, so that noise affects all alike. Short calls are
    repeated until a round lasts `at_least` seconds.
    """
    repeats = {name: _repeats(call, at_least, clock) for name, call in calls.items()}
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            _seconds(
                call, repeats[name] // 8, clock
            )  # warm-up: other contestants evicted the caches
            best[name] = min(best[name], _seconds(call, repeats[name], clock) / repeats[name])
    return best


def _repeats(call: Call, at_least: float, clock: Clock) -> int:
    """Return the number of calls that last `at_least` seconds.

    It is doubled until it is near, because the first calls are slow.
    """
    call()
    repeats = 1
    while (seconds := min(_seconds(call, repeats, clock) for _ in range(2))) < at_least / 2:
        repeats *= 2
    return max(1, int(repeats * at_least / seconds))


def _seconds(call: Call, repeats: int, clock: Clock) -> float:
    start = clock()
    for _ in range(repeats):
        call()
    return clock() - start


def models_folder() -> Path:
    """Return the folder of zoo networks named by ANYBIT_TEST_MODELS."""
    if not (folder := os.environ.get("ANYBIT_TEST_MODELS")):
        raise SystemExit("no models: set ANYBIT_TEST_MODELS to a folder of NAME.onnx and NAME.npz")
    return Path(folder)


def machine() -> str:
    """Return the name of the processor."""
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def versions(*packages: str) -> str:
    """Return the versions of packages as one line; those that are missing are named."""
    parts = []
    for package in packages:
        try:
            parts.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            parts.append(f"no {package}")
    return ", ".join(parts)


def show(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]], markdown: bool) -> None:
    """Print a table: Markdown for the documentation, else one for the terminal."""
    if markdown:
        print(f"\n{title}\n")
        print("| " + " | ".join(columns) + " |")
        print("|" + "---|" * len(columns))
        for row in rows:
            print("| " + " | ".join(row) + " |")
        return
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index else "left")
    for row in rows:
        table.add_row(*row)
    console = Console()
    # Piped tables must not be cut at 80 columns.
    (console if console.is_terminal else Console(width=200)).print(table)


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of all benchmarks.

    Args:
        description: The docstring of the program; its first line describes it in `--help`.
    """
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    parser.add_argument(
        "--rounds", type=int, default=7, help="timings per contestant (default: %(default)s)"
    )
    return parser
