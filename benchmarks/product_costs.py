# SPDX-License-Identifier: Apache-2.0
"""Measure the table of costs by which products choose their kernels.

    cmake --build build --target products && python benchmarks/product_costs.py build/products

Prints the rows of `cost_of` in `_native/lowbit/packed_weights.cpp` for this processor; those of
levels that it lacks stay as they are. The program counts cycles, the least of several runs.
"""

import argparse
import re
import subprocess
from pathlib import Path

from _measure import machine

SOURCE = Path(__file__).parents[1] / "src/anybit/_native/lowbit/packed_weights.cpp"
ROW = re.compile(r"case Level::(\w+):\n\s+return ({.*?});")


def rows_of(source: str) -> dict[str, str]:
    """Return the costs of each level in the source."""
    return dict(ROW.findall(source))


def least(runs: list[str]) -> str:
    """Return the row of the least cost of each kind; `runs` are rows."""
    numbers = [[float(text) for text in run.strip("{}").split(",")] for run in runs]
    return "{" + ", ".join(f"{min(column):g}" for column in zip(*numbers, strict=True)) + "}"


def measured(program: Path, level: str, runs: int) -> str | None:
    """Return the row of a level, or None where the processor lacks it."""
    rows = []
    for _ in range(runs):
        words = [str(program), "costs", level]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            return None
        rows.append(done.stdout.splitlines()[-1].partition(": ")[2])
    return least(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("products", type=Path, help="the program tests/programs/products")
    parser.add_argument("--runs", type=int, default=7, help="runs per level (default: %(default)s)")
    options = parser.parse_args()
    print(f"{machine()}; cycles per 32 values and 16 channels")
    for level, before in rows_of(SOURCE.read_text()).items():
        row = measured(options.products, level, options.runs)
        remark = f"was {before}" if row else "kept, does not run here"
        print(f"{level:<14} {row or before:<18} {remark}")


if __name__ == "__main__":
    main()
