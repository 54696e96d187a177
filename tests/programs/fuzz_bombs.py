# SPDX-License-Identifier: Apache-2.0
"""Small files that ask for much, and long honest ones: everything ends, within bounds.

    python tests/programs/fuzz_bombs.py                every bomb and every chain
    python tests/programs/fuzz_bombs.py doubled        one of them

Each runs in a process of its own. The bounds are generous: nobody is to wait for them on a busy
machine, and what grows faster than its file passes them by far.
"""

import contextlib
import gc
import io
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import support_path  # noqa: F401
from bombs import BOMBS, CHAINS, multiplied

SECONDS = 300
"""For all that is done with one file."""
MEMORY = 1500 * 2**20
"""Bytes in use, the interpreter and its libraries included."""
WRITTEN = 2**26
"""Bytes of constants in what a small file becomes."""
CHAIN_MEMORY = 400 * 2**20
"""The same for chains, whose files are small."""
COMPARED = ("constants", "scaled", "moved_codes", "foreign_codes", "weights")
"""The chains that are also run and compared with themselves: not all, because it takes long."""
LENGTHS = (24, 400, 3200)
"""Nodes of each chain: the first is for what is done once, the others are compared."""
GROWTH = 24
"""How much more processor time the longest may take than the one before. In linear time it is 8
times as much, in quadratic 64 times; a busy machine may double either."""
NODES = 10_000
BUDGET = {"load": 3.0, "compile": 40.0}
"""Seconds of processor time for chains of so many nodes, on a machine of today; else `REST`.
Compiling evaluates what stands between sums, node by node."""
REST = 10.0
SLOWER = 4
"""How much longer a slow or busy machine may take."""
LEAST = 0.05
"""Seconds of processor time that are too few to be compared."""


def attack(kind: str) -> None:
    """Do with one file, or with chains of several lengths, all that is done with files."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(SECONDS)
    if kind in BOMBS:
        make, count = BOMBS[kind]
        spent(make(count).SerializeToString())
    else:
        # The trial of the short ones in ONNX Runtime is not what is compared.
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
            raise AssertionError(f"more than linear time: {steep}")
        late = overdue(long, LENGTHS[-1])
        if late:
            raise AssertionError(f"over the budget: {late}")
    used = most_resident()
    if used > (MEMORY if kind in BOMBS else CHAIN_MEMORY):
        raise AssertionError(f"took {used / 2**20:.0f} MiB")


def most_resident() -> int:
    """Bytes that this program had in memory at most.

    `ru_maxrss` would not do: it begins with what the parent had when it started this process.
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
) -> dict[str, float]:
    """Processor time of all that is done with a file. AnybitErrors are an answer.

    `compared` says that it is run, too, and compared with itself; `product` is another, which is
    checked.
    """
    import anybit
    from anybit.errors import AnybitError
    from anybit.onnx.conversion import Form
    from anybit.onnx.graph.walk import tensors_in

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
    seconds = {}
    for name, action in actions.items():
        gc.collect()  # models refer to themselves: what one action left is not the next one's
        made, began = None, time.process_time()
        try:
            made = getattr(action(file), "model", None)
        except AnybitError as error:
            print(f"  refused: {error}")
        seconds[name] = time.process_time() - began
        written = 0 if made is None else sum(tensor.nbytes for tensor in tensors_in(made))
        if written > WRITTEN + 5 * len(file):
            raise AssertionError(f"holds {written} bytes of constants")
    return seconds


def printed(file: bytes) -> None:
    """Print the output of `anybit inspect`."""
    from anybit.cli.inspect import inspect

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        path = Path(folder) / "model.onnx"
        path.write_bytes(file)
        inspect(path)


def grown(short: Mapping[str, float], long: Mapping[str, float]) -> str:
    """Return the steps that take too long for the longer file, or ""."""
    steep = [name for name in short if long[name] > GROWTH * max(short[name], LEAST)]
    return ", ".join(f"{name} {short[name]:.2f} s, then {long[name]:.2f} s" for name in steep)


def overdue(seconds: Mapping[str, float], nodes: int) -> str:
    """Return the steps that exceed their share of the time budget, or ""."""
    limits = {name: SLOWER * BUDGET.get(name, REST) * nodes / NODES for name in seconds}
    late = [name for name in seconds if seconds[name] > limits[name]]
    return ", ".join(f"{name} {seconds[name]:.2f} s of {limits[name]:.2f} s" for name in late)


def fault(kind: str) -> str:
    """Return what went wrong with one file, or ""."""
    command = [sys.executable, __file__, "--attack", kind]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == -signal.SIGALRM:
        return f"{kind}: did not end within {SECONDS} s"
    said = (done.stderr.splitlines() or ["nothing"])[-1]
    return f"{kind}: ended with {done.returncode}: {said}" if done.returncode else ""


def main() -> None:
    if sys.argv[1:2] == ["--attack"]:
        attack(sys.argv[2])
        return
    kinds = sys.argv[1:] or [*BOMBS, *CHAINS]
    faults = [said for said in map(fault, kinds) if said]
    print(*faults, f"{len(kinds)} files, {len(faults)} faults", sep="\n")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
