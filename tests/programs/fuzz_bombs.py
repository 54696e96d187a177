# SPDX-License-Identifier: Apache-2.0
"""Small files that ask for much, and long honest ones: everything ends, within bounds.

    python tests/programs/fuzz_bombs.py                every bomb and every chain of 10 000 nodes
    python tests/programs/fuzz_bombs.py doubled        one of them

Each runs in a process of its own. The bounds are generous: nobody is to wait for them on a busy
machine, and what grows faster than its file passes them by far.
"""

import resource
import signal
import subprocess
import sys
from functools import partial

import support_path  # noqa: F401
from bombs import BOMBS, CHAINS

NODES = 10_000
SECONDS = 300
"""For all that is done with one file."""
MEMORY = 1500 * 2**20
"""Bytes in use, the interpreter and its libraries included."""
WRITTEN = 2**26
"""Bytes of constants in what a small file becomes."""


def attack(kind: str) -> None:
    """Do with one file all that is done with files. ModelErrors are an answer."""
    import anybit
    from anybit.errors import ModelError
    from anybit.onnx.conversion import Form
    from anybit.onnx.graph.walk import tensors_in
    from anybit.onnx.summary import info

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(SECONDS)
    make, count = BOMBS[kind] if kind in BOMBS else (CHAINS[kind], NODES)
    file = make(count).SerializeToString()
    actions = [
        anybit.load,
        info,
        anybit.check,
        anybit.analyze,
        anybit.clean,
        partial(anybit.clean, batch="dynamic"),
    ]
    actions += [partial(anybit.convert, to=form) for form in Form]
    for action in actions:
        try:
            made = getattr(action(file), "model", None)
        except ModelError as error:
            print(f"  refused: {error}")
            continue
        written = 0 if made is None else sum(tensor.nbytes for tensor in tensors_in(made))
        if written > WRITTEN + 5 * len(file):
            raise AssertionError(f"holds {written} bytes of constants")
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if used > MEMORY:
        raise AssertionError(f"took {used / 2**20:.0f} MiB")


def fault(kind: str) -> str:
    """What went wrong with one file; "" if nothing did."""
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
