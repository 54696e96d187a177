# SPDX-License-Identifier: Apache-2.0
"""Files that ask for much get an answer: in bounded time and memory, and from every command."""

import subprocess
import sys
from pathlib import Path

import fuzz_bombs
import numpy as np
import pytest
from bombs import BOMBS, CHAINS


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", BOMBS)
def test_hostile_files_bombs(kind: str) -> None:
    assert fuzz_bombs.fault(kind) == ""


@pytest.mark.slow
@pytest.mark.parametrize("kind", CHAINS)
def test_hostile_files_long_chains(kind: str) -> None:
    assert fuzz_bombs.fault(kind) == ""


def test_hostile_files_fault_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz_bombs, "fault", lambda kind: f"{kind}: did not end")
    monkeypatch.setattr("sys.argv", ["fuzz_bombs.py", "nested"])
    with pytest.raises(SystemExit, match="True"):
        fuzz_bombs.main()
    assert "ended with 1: KeyError" in _unpatched("no such bomb")


def test_hostile_files_memory_of_the_parent_does_not_count() -> None:
    kept = np.ones(fuzz_bombs.CHAIN_MEMORY // 8 + 2**24)
    command = "import fuzz_bombs; print(fuzz_bombs.most_resident())"
    programs = Path(fuzz_bombs.__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", command], cwd=programs, capture_output=True, text=True, check=True
    )
    assert 2**20 < int(done.stdout) < kept.nbytes // 2


def test_hostile_files_quadratic_work_is_a_fault() -> None:
    short = {"load": 100_000, "check": 200_000, "info": 300}
    linear = {name: 8 * calls for name, calls in short.items()}
    assert fuzz_bombs.grown(short, linear) == ""
    quadratic = linear | {"check": 64 * 200_000}
    assert fuzz_bombs.grown(short, quadratic) == "check 200000 calls, then 12800000"
    assert "info" not in fuzz_bombs.grown(short, linear | {"info": 64 * 300})


def test_hostile_files_nodes_have_a_budget_of_calls() -> None:
    met = {"load": 100 * fuzz_bombs.REST, "compile": 100 * fuzz_bombs.BUDGET["compile"]}
    assert fuzz_bombs.list_costly(met, 100) == ""
    assert fuzz_bombs.list_costly(met, 90) == (
        "load 600000 calls of 540000, compile 1000000 calls of 900000"
    )


_unpatched = fuzz_bombs.fault
