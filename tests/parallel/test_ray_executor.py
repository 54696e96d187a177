# SPDX-License-Identifier: Apache-2.0
"""A Ray cluster on this machine: the same bytes, also if its processes are killed."""

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import killed_workers
import onnx_ir as ir
import parallel_tasks
import pytest
from float_models import convolutions, data_for
from places import ROOT

import anybit
from anybit import ModelError
from anybit.evaluation import driver as evaluation
from anybit.parallel import ray_executor
from anybit.parallel.ray_executor import RayExecutor
from anybit.ptq.calibration import collect as calibration
from anybit.ptq.mixed_precision import sensitivity
from anybit.ptq.search import choose
from anybit.ptq.search import evaluate as judging

pytestmark = [
    pytest.mark.skipif(not find_spec("ray"), reason="the extra anybit[ray] is not installed"),
    # Ray leaves sockets to the garbage collector, here and there.
    pytest.mark.filterwarnings("default::ResourceWarning", "default::FutureWarning"),
]


@pytest.fixture(scope="module")
def marks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that gets a file per killed worker."""
    return tmp_path_factory.mktemp("marks")


@pytest.fixture(scope="module")
def address(marks: Path) -> Iterator[str]:
    """Yield the address of a cluster with two cores, whose processes can import tests/support."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Ray reads the token of the cluster from there when it is imported, on both sides.
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex()}
    folder = Path(tempfile.mkdtemp(prefix="ray", dir="/tmp"))  # a socket's path must be short
    paths = os.pathsep.join([str(ROOT / "tests" / "support"), *sys.path])
    head = subprocess.Popen(
        [
            *(Path(sys.executable).with_name("ray"), "start", "--head", "--block"),
            *("--num-cpus=2", "--node-ip-address=127.0.0.1", f"--port={port}"),
            *("--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={folder}"),
            f"--object-store-memory={100 * 2**20}",
        ],
        env=os.environ | {"PYTHONPATH": paths, killed_workers.FOLDER: str(marks)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"127.0.0.1:{port}"
    finally:
        head.terminate()
        head.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def executor(address: str) -> Iterator[RayExecutor]:
    with RayExecutor(address) as connected:
        yield connected


def test_map_yields_in_order(executor: RayExecutor) -> None:
    results = executor.map(parallel_tasks.make_adder, 5, range(30))
    assert list(results) == list(range(5, 35))


def test_map_raises_the_exception_of_a_task(executor: RayExecutor) -> None:
    # Often: when tasks were cancelled, Ray ended this process if one ended at that moment.
    for _ in range(50):
        with pytest.raises(ModelError, match=r"^not today$"):
            list(executor.map(parallel_tasks.raise_model_error, "not today", range(3)))


def test_map_works_after_another_was_closed(executor: RayExecutor) -> None:
    for _ in range(20):
        results = executor.map(parallel_tasks.make_adder, 5, range(30))
        assert next(results) == 5
        results.close()
    assert list(executor.map(parallel_tasks.make_adder, 7, range(30))) == list(range(7, 37))


@pytest.mark.parametrize("address", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "nowhere.invalid:{}"])
def test_address_that_does_not_answer_is_refused(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_executor, "_TIMEOUT", 1.0)
    monkeypatch.setattr("ray.is_initialized", lambda: False)  # other tests may have
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ModelError, match=rf"no cluster answers at .*:{port}: "):
        RayExecutor(address.format(port))


@pytest.mark.parametrize("host", ["a..b", "a" * 70])
def test_invalid_host_is_refused(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with pytest.raises(ModelError, match=rf"no cluster answers at {host}:80: "):
        RayExecutor(f"{host}:80")


def test_task_that_kills_every_process_is_an_error(executor: RayExecutor) -> None:
    with pytest.raises(ChildProcessError, match="the cluster lost a task"):
        list(executor.map(parallel_tasks.make_killer, None, range(1)))


def test_quantize_gives_the_same_bytes_if_a_worker_of_every_step_is_killed(
    executor: RayExecutor, address: str, marks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def quantized(data: object, **options: object) -> object:
        result = anybit.quantize(convolutions(), data, weights="int4", sensitivity=True, **options)
        return ir.to_proto(result.model).SerializeToString(), result.to_json()

    data = data_for("convolutions", 100)
    expected = quantized(data)
    monkeypatch.setattr(calibration, "make_stats_collector", killed_workers.make_stats_collector)
    monkeypatch.setattr(choose, "make_chooser", killed_workers.make_chooser)
    monkeypatch.setattr(sensitivity, "make_probe_worker", killed_workers.make_probe_worker)
    monkeypatch.setattr(judging, "make_comparer", killed_workers.make_comparer)
    assert quantized(iter(data), cluster=address) == expected
    assert {mark.name for mark in marks.iterdir()} >= {
        *("make_stats_collector", "make_chooser", "make_probe_worker", "make_comparer"),
    }


def test_evaluate_gives_the_same_figures_if_a_worker_is_killed(
    executor: RayExecutor, address: str, marks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def figures(**options: Any) -> object:
        models = convolutions(), convolutions()
        result = anybit.evaluate(*models, data=data_for("convolutions", 50), **options).to_json()
        return [row | {"seconds": 0} for row in result["models"]], result["rows"]

    expected = figures()
    monkeypatch.setattr(evaluation, "make_shard_scorer", killed_workers.make_shard_scorer)
    assert figures(cluster=address) == expected
    assert (marks / "make_shard_scorer").exists()


def test_quantize_starts_a_cluster_on_this_machine(tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "anybit", "quantize", ROOT / "examples" / "digits_float.onnx"),
        *("--data", ROOT / "examples" / "digits.npz", "--effort", "fast", "-o"),
    ]
    environment = {name: text for name, text in os.environ.items() if "RAY_" not in name}
    subprocess.run([*command, tmp_path / "threads.onnx"], check=True, env=environment)
    call = [*command, tmp_path / "ray.onnx", "--cluster", "local"]
    for _ in range(5):  # Ray gives up after 30 s on a busy machine
        result = subprocess.run(call, capture_output=True, text=True, check=False, env=environment)
        if "timed out during startup" not in result.stderr:
            break
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "ray.onnx").read_bytes() == (tmp_path / "threads.onnx").read_bytes()
