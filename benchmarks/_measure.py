# SPDX-License-Identifier: Apache-2.0
"""Measuring side by side: contestants take turns in one run, the best time of each counts."""

import argparse
import os
import platform
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from rich.console import Console
from rich.table import Table

Call = Callable[[], object]


def best_times(
    calls: Mapping[str, Call], rounds: int = 7, at_least: float = 0.01
) -> dict[str, float]:
    """Seconds per call. Every round times every contestant once, so that noise hits all alike;
    short calls are repeated until a round lasts `at_least` seconds."""
    repeats = {name: _repeats(call, at_least) for name, call in calls.items()}
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            _seconds(call, repeats[name] // 8)  # other contestants have emptied the caches
            best[name] = min(best[name], _seconds(call, repeats[name]) / repeats[name])
    return best


def _repeats(call: Call, at_least: float) -> int:
    """How many calls last so long: found by doubling, because the first calls are slow ones."""
    call()
    repeats = 1
    while (seconds := min(_seconds(call, repeats) for _ in range(2))) < at_least / 2:
        repeats *= 2
    return max(1, int(repeats * at_least / seconds))


def _seconds(call: Call, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return time.perf_counter() - start


def models_folder() -> Path:
    """Return the folder of networks that ANYBIT_TEST_MODELS names."""
    if not (folder := os.environ.get("ANYBIT_TEST_MODELS")):
        raise SystemExit("no models: set ANYBIT_TEST_MODELS to a folder of NAME.onnx and NAME.npz")
    return Path(folder)


def machine() -> str:
    """The processor's name, without which no figure means anything."""
    for line in (
        Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    ):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def versions(*packages: str) -> str:
    found = []
    for package in packages:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"no {package}")
    return ", ".join(found)


def show(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]], markdown: bool) -> None:
    """A table for the terminal, or as Markdown for the documentation."""
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


def arguments(question: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=question)
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")
    parser.add_argument("--rounds", type=int, default=7, help="how often each contestant is timed")
    return parser
