# SPDX-License-Identifier: Apache-2.0
"""Damaged programs of integer regions: a program is refused with a message, or it runs.

    python tests/programs/fuzz_programs.py [--cases FIRST LAST] [--damages NUMBER]
    python tests/programs/fuzz_programs.py --bombs [NAME ...]

Each case is a random program. Its outputs must equal those of the reference. Then its words and
stores are damaged at random, and programs that still verify are run. Crashes end the process: run
it under a sanitizer. Bombs, small programs that expand to much, run in processes of their own, with
limited time and memory. The exit code is 1 if there are faults.
"""

import support_path  # noqa: F401

# isort: split
import argparse
import subprocess
import sys

import numpy as np
import programs as made
from program_bombs import BOMBS

from anybit.compiler.program import reference
from anybit.compiler.program.encoding import Encoded, encode
from anybit.compiler.program.network import Network

EXTREMES = (0, 1, 2, 3, -1, -2, 255, 256, 1 << 20, 1 << 28, 1 << 31, 1 << 32, 1 << 62, -(1 << 63))
# Programs above these limits are not run: slow is not a fault.
MOST_WORK = 1 << 22
MOST_MEMORY = 1 << 26
BOMB_SECONDS = 40  # of processor time
BOMB_MEMORY = 1500 * 2**20


def damaged(encoded: Encoded, rng: np.random.Generator) -> Encoded:
    """Return a program with a few words or elements changed, moved or removed."""
    words = encoded.words.copy()
    stores = [encoded.bytes.copy(), encoded.integers.copy(), encoded.floats.copy()]
    for _ in range(rng.integers(1, 4)):
        match rng.integers(0, 8):
            case 0 | 1 | 2:
                words[rng.integers(len(words))] = rng.choice(EXTREMES)
            case 3 | 4:
                words[rng.integers(len(words))] += rng.choice([-8, -1, 1, 2, 64])
            case 5:
                words[rng.integers(len(words))] = rng.choice(words)
            case 6:
                store = stores[rng.integers(3)]
                if store.size:
                    store[rng.integers(store.size)] = _element(store.dtype, rng)
            case _:
                which = rng.integers(4)
                if which == 3:
                    words = words[: rng.integers(1, len(words) + 1)]
                else:
                    stores[which] = stores[which][: rng.integers(0, stores[which].size + 1)]
    return Encoded(words, *stores)


def _element(dtype: np.dtype, rng: np.random.Generator) -> float | int:
    if dtype == np.float32:
        return float(rng.choice([np.nan, np.inf, -np.inf, 0, 1e38, -3]))
    limits = np.iinfo(dtype)
    return int(rng.choice([limits.min, limits.max, rng.integers(limits.min, limits.max)]))


def run_if_small(encoded: Encoded, inputs: list[np.ndarray]) -> str:
    """Run a program, and return `run`, `refused` or `large`."""
    try:
        network = Network(encoded)
        described = network.describe()
        work = sum(stage["multiplications"] for stage in described["stages"])
        if work * len(inputs[0]) > MOST_WORK or described["memory"] > MOST_MEMORY:
            return "large"
        network.run(inputs)
    except (ValueError, MemoryError):
        return "refused"
    return "run"


def load(bomb: str) -> None:
    """Load a bomb; raise an error for a wrong outcome or too much memory."""
    import resource

    from fuzz_bombs import most_resident

    make, size, loads = BOMBS[bomb]
    encoded = encode(make(size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (BOMB_SECONDS, BOMB_SECONDS))
    try:
        Network(encoded)
        loaded = True
    except ValueError:
        loaded = False
    if loaded != loads:
        raise AssertionError("loaded" if loaded else "refused")
    if most_resident() > BOMB_MEMORY:
        raise AssertionError(f"took {most_resident() / 2**20:.0f} MiB")


def load_each(bombs: list[str]) -> int:
    """Load bombs in processes of their own, and return the number of faults."""
    faults = 0
    for bomb in bombs:
        command = [sys.executable, __file__, "--load", bomb]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            last_line = (done.stderr.splitlines() or ["nothing"])[-1]
            print(f"{bomb}: ended with {done.returncode}: {last_line}")
            faults += 1
    print(f"{len(bombs)} bombs, {faults} faults")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cases", nargs=2, type=int, default=(0, 200), metavar=("FIRST", "LAST"))
    parser.add_argument("--damages", type=int, default=50, help="per program")
    parser.add_argument("--bombs", nargs="*", metavar="NAME", help="bombs to load (default: all)")
    parser.add_argument("--load", choices=BOMBS, help="load one bomb in this process")
    options = parser.parse_args()
    if options.load:
        load(options.load)
        return 0
    if options.bombs is not None:
        return int(load_each(options.bombs or list(BOMBS)) > 0)
    counts = {"refused": 0, "run": 0, "large": 0}
    wrong = 0
    for case in range(*options.cases):
        rng = np.random.default_rng(case)
        program = made.make_program(made.FromGenerator(rng))
        rows = int(rng.integers(0, 4))
        inputs = made.inputs_for(program, rows, case)
        encoded = encode(program)
        for actual, expected in zip(
            Network(encoded).run(inputs), reference.run(program, inputs), strict=True
        ):
            if not np.array_equal(actual, expected, equal_nan=True):
                print(f"case {case} differs from the reference")
                wrong += 1
        for _ in range(options.damages):
            counts[run_if_small(damaged(encoded, rng), inputs)] += 1
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()), f", {wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
