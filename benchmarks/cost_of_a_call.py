# SPDX-License-Identifier: Apache-2.0
"""What does one call on a tiny array cost, and what does the import?"""

import subprocess
import sys
import time

import numpy as np
from _measure import arguments, best_times, machine, show, versions

import anybit


def import_seconds(module: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
    return time.perf_counter() - start


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    x = np.ones(16, np.float32)
    array = np.float32([0.1])
    times = best_times(
        {
            "int_quant, scalar parameters": lambda: anybit.int_quant(x, 0.1, 0, 4),
            "int_quant, scale an array": lambda: anybit.int_quant(x, array, 0, 4),
            "float_quant, scalar parameters": lambda: anybit.float_quant(x, 0.1, 4, 3, 7, 448.0),
            "np.multiply": lambda: np.multiply(x, 0.1),
        },
        options.rounds,
    )
    rows = [(name, f"{1e6 * seconds:.2f} us") for name, seconds in times.items()]
    best = {
        module: min(import_seconds(module) for _ in range(options.rounds))
        for module in ("numpy", "anybit")
    }
    rows.append(("import anybit, beyond numpy", f"{1e3 * (best['anybit'] - best['numpy']):.0f} ms"))
    print(f"{machine()}; {versions('numpy')}")
    show("16 float32 elements, one call", ("call", "time"), rows, options.markdown)


if __name__ == "__main__":
    main()
