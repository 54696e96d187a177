# SPDX-License-Identifier: Apache-2.0
"""Only cpuid instructions are replaced in the copy of ONNX Runtime that sees an older CPU."""

import ctypes
import subprocess
from pathlib import Path

import older_cpu
import pytest

# The two bytes of cpuid also stand in an immediate operand and in data.
CODE = """
#include <cpuid.h>
const unsigned char bytes[4] = {0x0f, 0xa2, 0x0f, 0xa2};
unsigned immediate(unsigned x) { return x ^ 0x5aa20f5au; }
unsigned features(void) { unsigned a, b, c, d; __cpuid(1, a, b, c, d); return d; }
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    if reason := older_cpu.reason_to_skip():
        pytest.skip(reason)
    path = tmp_path / "code.so"
    command = ["gcc", "-O1", "-shared", "-fPIC", "-x", "c", "-", "-o", path]
    subprocess.run(command, input=CODE, text=True, check=True)
    return path


def test_older_cpu_replace_cpuid_leaves_other_instructions_and_data(library: Path) -> None:
    before = library.read_bytes()
    assert before.count(older_cpu.CPUID) >= 3
    assert older_cpu.replace_cpuid(library) == 1
    after = library.read_bytes()
    changed = [index for index in range(len(before)) if before[index] != after[index]]
    assert changed == [changed[0], changed[0] + 1]
    assert after[changed[0] :][:2] == older_cpu.INT3_NOP
    assert ctypes.CDLL(str(library)).immediate(0) == 0x5AA20F5A
