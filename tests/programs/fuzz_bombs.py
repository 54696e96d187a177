# SPDX-License-Identifier: Apache-2.0
"""Resource tests: small files that expand to much, and long sound ones, stay within bounds.

    python tests/programs/fuzz_bombs.py                all bombs and all chains
    python tests/programs/fuzz_bombs.py doubled        one of them

Each file runs in a process of its own. Work is measured in calls of functions, also of built-in
ones: their number is the same on a busy machine. The limit of time is wide enough for one.
"""

import contextlib
import cProfile
import gc
import io
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import support_path  # noqa: F401
from bombs import BOMBS, CHAINS, multiplied

SECONDS = 300
"""Time limit for all actions on one file."""
MEMORY = 1500 * 2**20
"""Limit of resident bytes, the interpreter and its libraries included."""
WRITTEN = 2**26
"""Limit of the bytes of constants in the result for a small file."""
CHAIN_MEMORY = 400 * 2**20
"""Limit of resident bytes for chains, whose files are small."""
COMPARED = ("constants", "scaled", "moved_codes", "foreign_codes", "weights")
"""Chains that are also run by `anybit.diff`: only some, because it is slow."""
RECURSION = 500
"""Python's limit of recursion while chains are read: less than by default, so that chains can be
short."""
LENGTHS = (24, 100, 560)
"""Nodes of the chains: the first is a warm-up, the other two are compared. The longest is longer
than RECURSION."""
GROWTH = 12
"""Largest ratio of the calls for the two longest chains. Linear work has a ratio of 5.6, quadratic
work of 31. Shorter chains of sums are one expression, which takes fewer calls per node."""
BUDGET = {"compile": 10_000}
"""Calls per node and action; `REST` for other actions. Compiling evaluates the functions between
accumulators node by node."""
REST = 6_000
LEAST = 20_000
"""Numbers of calls below this are too small to compare."""


def attack(kind: str) -> None:
    """Run all actions on one file, or on chains of several lengths."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(SECONDS)
    if kind in BOMBS:
        make, count = BOMBS[kind]
        spent(make(count).SerializeToString())
    else:
        sys.setrecursionlimit(RECURSION)
        # Without a runtime, conversion skips its trial run of short chains.
        _, short, long = (
            spent(
                CHAINS[kind](count).SerializeToString(),
                runtime="any",
                compared=kind in COMPARED,
                product=multiplied(CHAINS[kind](count)).SerializeToString(),
            )
            for count in LENGTHS
        )
        steep = grown(short, long)
        if steep:
            raise AssertionError(f"more than linear work: {steep}")
        costly = list_costly(long, LENGTHS[-1])
        if costly:
            raise AssertionError(f"over the budget: {costly}")
    used = most_resident()
    if used > (MEMORY if kind in BOMBS else CHAIN_MEMORY):
        raise AssertionError(f"took {used / 2**20:.0f} MiB")


def most_resident() -> int:
    """Return the largest number of resident bytes of this process.

    `ru_maxrss` includes the memory of the parent at the time it started this process.
    """
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    (kibibytes,) = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(kibibytes) * 1024


def spent(
    file: bytes,
    runtime: str = "onnxruntime",
    *,
    compared: bool = False,
    product: bytes = b"",
) -> dict[str, int]:
    """Return the number of calls of each action on a file. An AnybitError is a valid result.

    Args:
        file: The model.
        runtime: Target of conversions.
        compared: Whether to compare the model with itself by `anybit.diff`.
        product: Another model, which is only checked.
    """
    import anybit
    from anybit.errors import AnybitError
    from anybit.onnx.conversion import Form
    from anybit.onnx.graph.walk import iter_tensors

    actions: dict[str, Callable[[bytes], object]] = {
        "load": anybit.load,
        "inspect": printed,
        "check": anybit.check,
        "inspect layers": anybit.inspect,
        "compile": partial(anybit.compile, guarantee="exact"),
        "clean": anybit.clean,
        "clean the batch": partial(anybit.clean, batch="dynamic"),
    }
    for form in Form:
        actions[f"convert to {form}"] = partial(anybit.convert, to=form, runtime=runtime)
    if compared:
        actions["diff"] = lambda file: anybit.diff(file, file)
    if product:
        actions["check the product"] = lambda file: anybit.check(product)
    calls = {}
    for name, action in actions.items():
        gc.collect()  # models have reference cycles; do not charge the next action for them
        made = None
        with cProfile.Profile() as profile:
            try:
                made = getattr(action(file), "model", None)
            except AnybitError as error:
                print(f"  refused: {error}")
        calls[name] = sum(entry.callcount for entry in profile.getstats())
        written = 0 if made is None else sum(tensor.nbytes for tensor in iter_tensors(made))
        if written > WRITTEN + 5 * len(file):
            raise AssertionError(f"holds {written} bytes of constants")
    return calls


def printed(file: bytes) -> None:
    """Print the output of `anybit inspect`."""
    from anybit.cli.inspect import inspect

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        path = Path(folder) / "model.onnx"
        path.write_bytes(file)
        inspect(path)


def grown(short: Mapping[str, int], long: Mapping[str, int]) -> str:
    """Return the actions whose calls grew faster than GROWTH, as text; "" if none."""
    steep = [name for name in short if long[name] > GROWTH * max(short[name], LEAST)]
    return ", ".join(f"{name} {short[name]} calls, then {long[name]}" for name in steep)


def list_costly(calls: Mapping[str, int], nodes: int) -> str:
    """Return the actions that exceed their budget of calls, as text; "" if none."""
    limits = {name: BUDGET.get(name, REST) * nodes for name in calls}
    over = [name for name in calls if calls[name] > limits[name]]
    return ", ".join(f"{name} {calls[name]} calls of {limits[name]}" for name in over)


def fault(kind: str) -> str:
    """Return the fault of one file, as text; "" if it passed."""
    command = [sys.executable, __file__, "--attack", kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == -signal.SIGALRM:
        return f"{kind}: did not end within {SECONDS} s"
    last_line = (done.stderr.splitlines() or ["nothing"])[-1]
    return f"{kind}: ended with {done.returncode}: {last_line}" if done.returncode else ""


def main() -> None:
    if sys.argv[1:2] == ["--attack"]:
        attack(sys.argv[2])
        return
    kinds = sys.argv[1:] or [*BOMBS, *CHAINS]
    faults = [text for text in map(fault, kinds) if text]
    print(*faults, f"{len(kinds)} files, {len(faults)} faults", sep="\n")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
