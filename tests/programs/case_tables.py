# SPDX-License-Identifier: Apache-2.0
"""Case tables of the compiled back-ends, without pytest, which is slow in emulation.

    python tests/programs/case_tables.py [--every NUMBER] [--start NUMBER]

Rows run natively at the best level of the processor, and in ONNX Runtime with parameters as
constants and as inputs. The exit code is 1 if any bit differs.
"""

import support_path  # noqa: F401

# isort: split
import argparse
import sys
import time
from collections.abc import Iterator

from backends import Backend, row_fault
from cases import every_case

from anybit._native import _core

BACKENDS = {_core.isa(): Backend.BASELINE, "ort": Backend.ORT, "ort-inputs": Backend.ORT_INPUTS}


def faults(every: int, start: int) -> Iterator[str | None]:
    """Yield the fault of each row on each back-end, or None."""
    for place, (operator, case) in enumerate(every_case()):
        if place % every == start:
            for name, backend in BACKENDS.items():
                fault = row_fault(backend, operator, case)
                yield None if fault is None else f"{name}: {operator}, {case.name}: {fault}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--start", type=int, default=0)
    arguments = parser.parse_args()
    began = time.monotonic()
    results = list(faults(arguments.every, arguments.start % arguments.every))
    wrong = [fault for fault in results if fault is not None]
    print(*wrong, sep="\n")
    print(f"{', '.join(BACKENDS)}: {time.monotonic() - began:.0f} s")
    print(f"{len(results) - len(wrong)} passed, {len(wrong)} failed")
    sys.exit(bool(wrong) or not results)


if __name__ == "__main__":
    main()
