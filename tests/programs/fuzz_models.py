# SPDX-License-Identifier: Apache-2.0
"""Fuzz test with damaged models: all actions succeed or raise AnybitError.

    python tests/programs/fuzz_models.py --seconds 120     new cases until the time is up
    python tests/programs/fuzz_models.py --cases 0 200     the first 200
    python tests/programs/fuzz_models.py --case 17         one case in this process, for a debugger

A case is a seed: it selects a sound model, the damages, and an action. Cases run in worker
processes with limited memory and time, so that crashes and hangs count as faults, as exceptions of
other types do. The exit code is 1 if there are faults.
"""

import support_path  # noqa: F401

# isort: split
import argparse
import contextlib
import faulthandler
import logging
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Any

import fuzz_seeds
import onnx
from fuzz_mutations import damaged, mutated

MEMORY = 8 * 2**30
"""Address space of a worker in bytes, including memory that the runtime only reserves."""
PATIENCE = 30
"""Time limit of a case in seconds; it usually takes a hundredth of a second."""
WORKERS = 2
CHUNK = 500
"""Cases per process."""


@dataclass(frozen=True)
class Case:
    """Damaged model in two files, and the action on it."""

    action: str
    damages: list[str]
    model: bytes
    data: bytes


def case(number: int) -> Case:
    random = Random(number)
    sound, data = random.choice(fuzz_seeds.seeds())
    proto = onnx.ModelProto()
    proto.CopyFrom(sound)
    action = random.choice(list(actions()))
    damages = mutated(proto, random)
    try:
        model = proto.SerializeToString()
    except ValueError:  # text that is not UTF-8
        model = b""
    if random.random() < 0.1:
        model = damaged(model, random)
        damages.append("bytes of the file")
    if data and random.random() < 0.2:
        data = damaged(data, random)
        damages.append("bytes of the external data")
    return Case(action, damages, model, data)


@cache
def actions() -> dict[str, Callable[[Path], object]]:
    """Return all actions that read a model, by name."""
    import anybit
    from anybit.onnx.checks.checking import TARGETS
    from anybit.onnx.forms import Form

    def conversion(path: Path, form: Form, **options: Any) -> None:
        anybit.convert(path, to=form, **options).save(path.with_name("result.onnx"))

    acts: dict[str, Callable[[Path], object]] = {
        "load": anybit.load,
        "inspect": anybit.inspect,
        "check": anybit.check,
        "compile": anybit.compile,
        "clean": anybit.clean,
        "clean for any batch": partial(anybit.clean, batch="dynamic", keep_quantizers=True),
    }
    for target in TARGETS:
        acts[f"check for {target}"] = partial(anybit.check, target=target)
    for form in Form:
        acts[f"convert to {form}"] = partial(conversion, form=form)
        acts[f"convert nearly to {form}"] = partial(
            conversion, form=form, allow_approximate=True, opset_limit=20
        )
    return acts


def run(number: int) -> None:
    """Run a case; raise exceptions other than AnybitError, and an error for logged warnings."""
    from anybit.errors import AnybitError

    chosen = case(number)
    collector = WarningCollector()
    logging.getLogger().addHandler(collector)
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            path.write_bytes(chosen.model)
            path.with_name(fuzz_seeds.DATA).write_bytes(chosen.data)
            with contextlib.suppress(AnybitError):
                actions()[chosen.action](path)
    finally:
        logging.getLogger().removeHandler(collector)
    if collector.lines:
        raise AssertionError(f"logged: {collector.lines[0]}")


class WarningCollector(logging.Handler):
    """Collector of logged warnings, which would appear in a user's terminal."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.name}:{record.lineno}: {record.getMessage()[:200]}")


def work(first: int, end: int, deadline: float) -> None:
    """Run cases in this process; print the number of a case before it, and its fault after it."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()
    for number in range(first, end):
        if time.time() > deadline:
            return
        print(f"begin {number}", flush=True)
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        try:
            run(number)
        except Exception:
            lines = traceback.format_exc().splitlines()
            print(*(f"  {line}" for line in lines[-9:]), sep="\n", flush=True)
    faulthandler.cancel_dump_traceback_later()


@dataclass(frozen=True)
class Fault:
    """Failed case, with the messages of Python or the system."""

    number: int
    lines: list[str]

    def __str__(self) -> str:
        chosen = case(self.number)
        damages = f"{chosen.action} with {', '.join(chosen.damages)}"
        command = f"python tests/programs/fuzz_models.py --case {self.number}"
        return "\n".join([command, f"  {damages}", *self.lines])


def supervise(first: int, end: int, deadline: float) -> tuple[int, list[Fault]]:
    """Run cases in worker processes, and return their number and faults.

    After a crash, another worker continues with the next case.
    """
    faults: list[Fault] = []
    done = 0
    while first < end and time.time() < deadline:
        command = [sys.executable, __file__, "--work", str(first), str(end), str(deadline)]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        for line in process.stdout.splitlines():
            if line.startswith("begin "):
                first = int(line.split()[1])
                done += 1
                lines: list[str] = []
            else:
                if not lines:
                    faults.append(Fault(first, lines))
                lines.append(line)
        if process.returncode == 0:
            break
        if "begin" not in process.stdout:
            raise RuntimeError(process.stderr)
        messages = [f"  {line}" for line in process.stderr.splitlines()[-9:]]
        faults.append(Fault(first, [f"  the process ended with {process.returncode}", *messages]))
        first += 1
    return done, faults


def search(begins: range, deadline: float) -> int:
    """Print the faults of cases, and return their number."""
    ends = [min(begin + CHUNK, begins.stop) for begin in begins]
    done = count = 0
    with ThreadPoolExecutor(WORKERS) as pool:
        for cases, faults in pool.map(lambda *limits: supervise(*limits, deadline), begins, ends):
            done += cases
            count += len(faults)
            for fault in faults:
                print(fault, flush=True)
    print(f"{done} cases, {count} faults")
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, help="first case (default: derived from the time)")
    parser.add_argument("--cases", type=int, nargs=2)
    parser.add_argument("--case", type=int)
    parser.add_argument("--work", type=float, nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(int(options.work[0]), int(options.work[1]), options.work[2])
    elif options.case is not None:
        print(case(options.case))
        run(options.case)
    elif options.cases:
        sys.exit(search(range(*options.cases, CHUNK), float("inf")) > 0)
    else:
        first = int(time.time()) * 1000 if options.seed is None else options.seed
        sys.exit(search(range(first, first + 10**6, CHUNK), time.time() + options.seconds) > 0)


if __name__ == "__main__":
    main()
