# SPDX-License-Identifier: Apache-2.0
"""The case tables on what is compiled, without pytest, which takes minutes to collect in emulation.

    python tests/programs/case_tables.py [--every NUMBER] [--start NUMBER]

Rows run natively at the best level of the processor, and in ONNX Runtime with parameters as
constants and as inputs. The exit code says whether a bit was wrong.
"""

import support_path  # noqa: F401

# isort: split
import argparse
import re
import sys
import time
from collections.abc import Iterator

from backends import Backend
from cases import Case, answer, assert_same_bits, every_case

from anybit._native import _core

BACKENDS = {_core.isa(): Backend.BASELINE, "ort": Backend.ORT, "ort-inputs": Backend.ORT_INPUTS}


def fault(backend: Backend, operator: str, case: Case) -> str | None:
    """What is wrong, if anything."""
    try:
        actual = backend.apply(operator, *case.inputs, **case.attributes)
    except Exception as error:
        if case.raises is None or not isinstance(error, case.raises[0]):
            return f"{type(error).__name__}: {error}"
        return None if re.search(case.raises[1], str(error)) else f"says {error}"
    if case.raises is not None:
        return "was not refused"
    try:
        assert_same_bits(actual, answer(operator, case), case)
    except AssertionError as error:
        return str(error)
    return None


def faults(every: int, start: int) -> Iterator[str | None]:
    for place, (operator, case) in enumerate(every_case()):
        if place % every == start:
            for name, backend in BACKENDS.items():
                found = fault(backend, operator, case)
                yield None if found is None else f"{name}: {operator}, {case.name}: {found}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--start", type=int, default=0)
    arguments = parser.parse_args()
    began = time.monotonic()
    found = list(faults(arguments.every, arguments.start % arguments.every))
    wrong = [each for each in found if each is not None]
    print(*wrong, sep="\n")
    print(f"{', '.join(BACKENDS)}: {time.monotonic() - began:.0f} s")
    print(f"{len(found) - len(wrong)} passed, {len(wrong)} failed")
    sys.exit(bool(wrong) or not found)


if __name__ == "__main__":
    main()
