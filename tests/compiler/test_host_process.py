# SPDX-License-Identifier: Apache-2.0
"""Networks in host processes: forks, threads, denormals."""

import ctypes
import os
import platform
import subprocess
import sys
import threading

import numpy as np
import pytest

from anybit.compiler.program import program as p
from anybit.compiler.program import reference
from anybit.compiler.program.encoding import encode
from anybit.compiler.program.network import Network

X86_LINUX = sys.platform == "linux" and platform.machine() == "x86_64"


@pytest.fixture
def flushing():
    """Numbers below the normal ones are 0 in this thread, and in those that it starts."""
    if not X86_LINUX:
        pytest.skip("the floating-point environment is read as glibc has it on x86-64")
    libm = ctypes.CDLL("libm.so.6")
    before, after = (np.zeros(8, np.uint32) for _ in range(2))

    def call(name: str, environment: np.ndarray) -> None:
        assert getattr(libm, name)(ctypes.c_void_p(environment.ctypes.data)) == 0

    call("fegetenv", before)
    after[:] = before
    after[7] |= 0x8040  # MXCSR: flush to zero, denormals are zero
    call("fesetenv", after)
    yield lambda: (call("fegetenv", after), int(after[7]) & 0x8040 == 0x8040)[1]
    call("fesetenv", before)


def tiny(width: int) -> p.Program:
    """Thresholds and scales are subnormal."""
    window = p.Window(1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
    # As bits: the host would make them 0.
    thresholds, scale, step = (
        np.uint32(bits).view(np.float32) for bits in ([71362, 142725, 214087], [71362], [7136])
    )
    return p.Program(
        (p.Port(np.int32([width]), 1, 1, width, 0),),
        (p.Port(np.int32([1]), 1, 1, 1, 0),),
        (p.Tensor(1, 1, width, 0, 1, 4),),
        (
            p.Quantize(0, 0, np.int32([1]), thresholds, 0),
            p.Product(
                *(0, 0, window, 1, 1, np.full(-(-width // 8), 255, np.uint8), np.int32([0, 1])),
                p.Arithmetic(scale, (p.Step(p.Operation.ADD, step),)),
            ),
        ),
    )


@pytest.mark.parametrize(("width", "rows"), [(8, 1), (8, 5), (20_000, 50)])
def test_network_computes_subnormals_when_host_flushes_them(flushing, width, rows):
    choices = np.uint32([0, 1, 71361, 71362, 142725, 300000]).view(np.float32)
    x = np.random.default_rng(0).choice(choices, (rows, width))
    flushed = Network(tiny(width)).run([x])[0].view(np.uint32)
    assert flushing()
    desired = []
    worker = threading.Thread(target=lambda: desired.append(expected(tiny(width), x)))
    worker.start()
    worker.join()
    np.testing.assert_array_equal(flushed, desired[0])


def expected(program: p.Program, x: np.ndarray) -> np.ndarray:
    """Return the bits of the reference, computed in another environment."""
    default = np.zeros(8, np.uint32)
    libm = ctypes.CDLL("libm.so.6")
    libm.fegetenv(ctypes.c_void_p(default.ctypes.data))
    default[7] &= ~np.uint32(0x8040)
    libm.fesetenv(ctypes.c_void_p(default.ctypes.data))
    return reference.run(program, [x])[0].view(np.uint32)


FORKS = """
import os, signal, threading
import numpy as np
import anybit
from test_host_process import tiny
from anybit.compiler.program.network import Network

anybit.set_num_threads(2)
network = Network(tiny(20000))
x = np.full((40, 20000), 1, np.float32)
wanted = network.run([x])[0]
over = threading.Event()
def work():
    while not over.is_set():
        network.run([x])
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads: thread.start()
for _ in range(30):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(0 if np.array_equal(network.run([x])[0], wanted) else 1)
    assert os.waitpid(child, 0)[1] == 0
over.set()
for thread in threads: thread.join()
"""


def run_script(script: str) -> str:
    environment = {
        **os.environ,
        "PYTHONPATH": os.path.dirname(__file__),
        "PYTHONWARNINGS": "ignore",
    }
    environment.pop("ANYBIT_ISA", None)
    command = [sys.executable, "-c", script]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=200, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_network_runs_in_forked_children():
    run_script(FORKS)


TILES = """
import ctypes
import numpy as np
import anybit
from anybit._native import _core
from test_host_process import tiny
from anybit.compiler.program.network import Network

def has_tiles():
    mask = ctypes.c_uint64()
    assert ctypes.CDLL(None).syscall(158, 0x1022, ctypes.byref(mask)) == 0  # ARCH_GET_XCOMP_PERM
    return bool(mask.value >> 18 & 1)

anybit.int_quant(np.ones(10, np.float32), 0.5, 0, 4)
anybit.int_quant(np.ones(10**6, np.float32), 0.5, 0, 4)
print(_core.isa(), has_tiles())
Network(tiny(8))
print(has_tiles())
"""


@pytest.mark.skipif(not X86_LINUX, reason="only Linux on x86-64 is asked for tiles")
def test_network_requests_tiles_lazily():
    level, before, after = run_script(TILES).split()
    if level != "amx":
        pytest.skip("this processor has no tiles")
    assert (before, after) == ("False", "True")


def test_network_construction_releases_gil():
    rng = np.random.default_rng(0)
    width = 6000
    window = p.Window(1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
    weights = rng.integers(0, 256, width * width, np.uint8)
    program = p.Program(
        (p.Port(np.int32([width]), 1, 1, width, 0),),
        (p.Port(np.int32([width]), 1, 1, width, 0),),
        (p.Tensor(1, 1, width, 0, 1, 4),),
        (
            p.Quantize(0, 0, np.int32([1]), np.float32([1, 2, 3]), 0),
            p.Product(
                *(0, 0, window, 1, 8, weights, np.arange(-128, 128, dtype=np.int32)),
                p.Arithmetic(np.ones(width, np.float32), ()),
            ),
        ),
    )
    encoded = encode(program)
    started, done = threading.Event(), threading.Event()

    def work():
        started.set()
        Network(encoded)
        done.set()

    worker = threading.Thread(target=work)
    worker.start()
    started.wait()
    # Others go on many times meanwhile; where the interpreter is held, hardly once.
    turns = 0
    while not done.wait(0.001):
        turns += 1
    worker.join()
    assert turns > 50
