# SPDX-License-Identifier: Apache-2.0
"""Networks report failed allocations, in every thread."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import resource
import numpy as np
import anybit
from anybit.compiler.program import program as p
from anybit.compiler.program.network import Network

def wide(side):
    "Each row takes side * side * 64 bytes between an input and an output of one element."
    one, many = p.Tensor(1, 1, 1, 0, 1, 2), p.Tensor(side, side, 64, 0, 1, 2)
    zero, zeros = np.zeros(1, np.int32), np.zeros(side, np.int32)
    port = p.Port(np.int32([1]), 1, 1, 1, 0)
    return Network(p.Program((port,), (port,), (one, many, one), (
        p.Quantize(0, 0, np.int32([1]), np.float32([0.5]), 0),
        p.Gather(0, 1, zeros, zeros, np.zeros(64, np.int32), 0, 0),
        p.Gather(1, 2, zero, zero, zero, 0, 0),
        p.Dequantize(2, 0, np.float32([0, 1])),
    )))

anybit.set_num_threads(3)
x = np.float32(np.arange(24) % 2)[:, None]
small, large = wide(64), wide(1024)
assert np.array_equal(small.run([x])[0], x)
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
before = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (used + 100 * 2**20, before[1]))
for _ in range(3):
    try:
        large.run([x])
        print("nothing")
    except MemoryError:
        print("MemoryError")
resource.setrlimit(resource.RLIMIT_AS, before)
assert np.array_equal(large.run([x])[0], x)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the size of a process is Linux's to tell")
@pytest.mark.skipif(
    "libasan" in os.environ.get("LD_PRELOAD", ""),
    reason="AddressSanitizer ends a process without memory",
)
def test_network_reports_failed_allocation_in_threads():
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["MemoryError"] * 3), done.stderr
