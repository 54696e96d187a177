# SPDX-License-Identifier: Apache-2.0
"""Write random programs with inputs and the outputs of the reference, for networks.cpp.

python tests/programs/networks/write_networks.py FILE [--cases FIRST LAST]
"""

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[1]))
import support_path  # noqa: F401

# isort: split
import programs as made

from anybit.compiler.program import reference
from anybit.compiler.program.encoding import encode

ROWS = (1, 5, 200)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--cases", nargs=2, type=int, default=(0, 40), metavar=("FIRST", "LAST"))
    options = parser.parse_args()
    with options.file.open("wb") as file:

        def number(value: int) -> None:
            file.write(np.int64(value).tobytes())

        def array(values: np.ndarray) -> None:
            number(values.size)
            file.write(np.ascontiguousarray(values).tobytes())

        def arrays(values: list[np.ndarray]) -> None:
            number(len(values))
            for item in values:
                array(item)

        number(options.cases[1] - options.cases[0])
        for case in range(*options.cases):
            program = made.make_program(made.FromGenerator(np.random.default_rng(case)))
            rows = ROWS[case % len(ROWS)]
            inputs = made.inputs_for(program, rows, case)
            encoded = encode(program)
            for part in (encoded.words, encoded.bytes, encoded.integers, encoded.floats):
                array(part)
            number(rows)
            arrays(inputs)
            arrays(reference.run(program, inputs))


if __name__ == "__main__":
    main()
