# SPDX-License-Identifier: Apache-2.0
"""Who does work in pieces: the order of what comes back, and what happens when workers end."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import errands
import pytest

from anybit import ModelError
from anybit.workers import Here, Processes, Workers, chosen


def test_who_is_chosen() -> None:
    assert isinstance(chosen(None), Here)
    assert isinstance(chosen(1), Here)
    with chosen(2) as workers:
        assert isinstance(workers, Processes)
    for count, cluster, message in ((0, None, "at least 1, got 0"), (2, "auto", "of its own")):
        with pytest.raises(ModelError, match=message):
            chosen(count, cluster)


@pytest.mark.parametrize("workers", [Here(1), Here(3)])
def test_order_and_how_many_are_taken(workers: Workers) -> None:
    taken = []

    def pieces() -> Iterator[int]:
        for piece in range(40):
            taken.append(piece)
            yield piece

    found = workers.map(errands.adder, 5, pieces())
    assert next(found)[0] == 5
    assert len(taken) <= 6
    assert [each for each, _ in found] == list(range(6, 45))


def test_processes() -> None:
    with Processes(2) as workers:
        found = list(workers.map(errands.adder, 5, range(20)))
        assert [each for each, _ in found] == list(range(5, 25))
        pids = {pid for _, pid in found}
        assert os.getpid() not in pids
        with pytest.raises(ModelError, match=r"^not today$"):
            list(workers.map(errands.refusing, "not today", range(3)))
        again = list(workers.map(errands.adder, 1, range(9)))
        assert [each for each, _ in again] == list(range(1, 10))
        pids |= {pid for _, pid in again}
        assert len(pids) <= 2, "the same processes, of which one may have started late"
    assert not any(is_alive(pid) for pid in pids)


def test_the_shared_folder_is_removed_by_somebody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As what cleans /tmp does: work that is done is not lost by it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Processes(1) as workers:
        ((found, pid),) = workers.map(errands.adder, 5, range(1))
        (folder,) = tmp_path.iterdir()
        shutil.rmtree(folder)
    assert found == 5
    assert not is_alive(pid)


def test_what_a_worker_leaves_is_done_by_others(tmp_path: Path) -> None:
    with Processes(1) as workers:
        assert list(workers.map(errands.doomed, tmp_path, range(4))) == [0, 1, 2, 3]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["1", "3"]


def test_workers_that_end_on_every_piece() -> None:
    with Processes(1) as workers, pytest.raises(ChildProcessError, match="ended 3 times"):
        list(workers.map(errands.ending, None, range(3)))


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left(tmp_path: Path, stop: signal.Signals) -> None:
    seen, temporary = tmp_path / "seen", tmp_path / "temporary"
    for folder in (seen, temporary):
        folder.mkdir()
    parent = subprocess.Popen(
        [sys.executable, errands.__file__, seen],
        env=os.environ | {"TMPDIR": str(temporary)},
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: len(list(seen.iterdir())) == 2)
    parent.send_signal(stop)
    _, errors = parent.communicate(timeout=60)
    assert parent.returncode != 0
    workers = [int(each.name) for each in seen.iterdir()]
    wait_for(lambda: not any(map(is_alive, workers)))
    if stop is signal.SIGINT:
        assert errors.count("KeyboardInterrupt") == 1
    assert not list(temporary.glob("anybit-*"))


def wait_for(condition: Callable[[], bool]) -> None:
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not come to that")


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has asked about yet does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
