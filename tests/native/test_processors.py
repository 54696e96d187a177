# SPDX-License-Identifier: Apache-2.0
"""Processors of the process: CPU quotas of control groups, in folders that stand for /."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from anybit._native import _core

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's")

V2 = "30 23 0:26 {root} /cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"
V1 = "31 23 0:27 {root} /cg\\040cpu rw - cgroup cgroup rw,cpu,cpuacct\n"


def read_quota(folder: Path, groups: str, mounts: str, files: Mapping[str, str]) -> float | None:
    """Return the quota of a process whose root is a folder with these files."""
    for name, text in {"proc/self/cgroup": groups, "proc/self/mountinfo": mounts, **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return _core.read_cpu_quota(str(folder))


@pytest.mark.parametrize(
    ("root", "group", "files", "quota"),
    [
        ("/", "/", {"cpu.max": "150000 100000\n"}, 1.5),
        ("/", "/", {"cpu.max": "max 100000\n"}, None),
        ("/", "/a/b", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "300000 100000\n"}, 3),
        ("/", "/a/b", {"a/b/cpu.max": "800000 100000\n", "a/cpu.max": "50000 100000\n"}, 0.5),
        ("/pod", "/pod/a", {"a/cpu.max": "200000 100000\n", "cpu.max": "max 100000\n"}, 2),
        ("/pod", "/elsewhere", {"cpu.max": "200000 100000\n"}, 2),
        ("/", "/../../x", {"cpu.max": "200000 100000\n"}, 2),
        ("/", "/gone", {}, None),
        *(("/", "/", {"cpu.max": text}, None) for text in ("", "\0", "1", "-1 -1", "1 0", "9 9 9")),
        ("/", "/", {"cpu.max": "9" * 5000 + " 100000"}, None),
    ],
)
def test_read_cpu_quota_of_cgroup_v2(
    tmp_path: Path, root: str, group: str, files: dict[str, str], quota: float | None
) -> None:
    placed = {f"cgroup/{name}": text for name, text in files.items()}
    assert read_quota(tmp_path, f"0::{group}\n", V2.format(root=root), placed) == quota


@pytest.mark.parametrize(
    ("microseconds", "period", "quota"),
    [("250000\n", "100000\n", 2.5), ("-1\n", "100000\n", None), ("x", "100000\n", None)],
)
def test_read_cpu_quota_of_cgroup_v1_beside_v2(
    tmp_path: Path, microseconds: str, period: str, quota: float | None
) -> None:
    files = {
        "cg cpu/a/cpu.cfs_quota_us": microseconds,
        "cg cpu/a/cpu.cfs_period_us": period,
        "cgroup/cpu.max": "900000 100000\n",
    }
    groups = "4:memory:/m\n3:cpu,cpuacct:/a\n0::/\n"
    mounts = "malformed\n" + V1.format(root="/") + V2.format(root="/")
    assert read_quota(tmp_path, groups, mounts, files) == (quota or 9)


def test_read_cpu_quota_ignores_missing_files_and_pipes(tmp_path: Path) -> None:
    assert _core.read_cpu_quota(str(tmp_path / "gone")) is None
    (tmp_path / "cgroup").mkdir()
    os.mkfifo(tmp_path / "cgroup" / "cpu.max")
    assert read_quota(tmp_path, "0::/\n", V2.format(root="/"), {}) is None


def test_find_processors_rounds_threads_up_and_spinning_threads_down() -> None:
    processors = len(os.sched_getaffinity(0))
    for quota in (None, 1e-9, 0.5, 1.0, 1.5, 2.0, 1e300):
        count, whole = _core.find_processors(quota)
        limit = processors if quota is None else min(max(quota, 1), processors)
        assert (count, whole) == (-int(-limit // 1), int(limit))


def test_threads_and_sessions_follow_affinity_and_the_variable() -> None:
    show = """
import os
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
import anybit
from anybit.onnx.runtime import exact_session_options, set_threads
options = exact_session_options()
set_threads(options)
print(anybit.num_threads(), options.intra_op_num_threads)
try:
    print(options.get_session_config_entry("session.intra_op.allow_spinning"))
except RuntimeError:
    print("spins")
"""
    count = os.cpu_count() or 1
    alone = "1 1" if count > 1 else "1 0"
    every = "spins" if count == 1 else "0"
    for variable, expected in (
        ("", f"{alone}\nspins\n"),
        (str(count + 1), f"{count + 1} {count + 1}\n0\n"),
        (str(count), f"{count} 0\n{every}\n"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", show],
            env={**os.environ, "ANYBIT_NUM_THREADS": variable},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout == expected
