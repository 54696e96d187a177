# SPDX-License-Identifier: Apache-2.0
"""A real Ray cluster, of this machine: the same bytes, also when its workers are killed."""

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

import doomed
import errands
import onnx_ir as ir
import pytest
from float_models import convolutions, data_for
from places import ROOT

import anybit
from anybit import ModelError
from anybit.evaluation import driver as evaluation
from anybit.quantization import attempts, calibration, judging, sensitivity
from anybit.workers import cluster as cluster_module
from anybit.workers.cluster import Cluster

pytestmark = [
    pytest.mark.skipif(not find_spec("ray"), reason="the extra anybit[ray] is not installed"),
    # Ray leaves sockets to the garbage collector, here and there.
    pytest.mark.filterwarnings("default::ResourceWarning", "default::FutureWarning"),
]


@pytest.fixture(scope="module")
def marks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where workers leave marks before they are killed."""
    return tmp_path_factory.mktemp("marks")


@pytest.fixture(scope="module")
def address(marks: Path) -> Iterator[str]:
    """The address of a cluster with two cores; its workers know what stands in tests/support."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # The cluster asks for a token, which both sides find there. Ray reads it when it is imported.
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
        env=os.environ | {"PYTHONPATH": paths, doomed.FOLDER: str(marks)},
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
def cluster(address: str) -> Iterator[Cluster]:
    with Cluster(address) as found:
        yield found


def test_order(cluster: Cluster) -> None:
    found = [each for each, _ in cluster.map(errands.adder, 5, range(30))]
    assert found == list(range(5, 35))


def test_errors_are_those_of_the_work(cluster: Cluster) -> None:
    # Often: while they were cancelled, Ray ended this process where one was done at that moment.
    for _ in range(50):
        with pytest.raises(ModelError, match=r"^not today$"):
            list(cluster.map(errands.refusing, "not today", range(3)))


def test_who_stops_early_can_go_on(cluster: Cluster) -> None:
    for _ in range(20):
        found = cluster.map(errands.adder, 5, range(30))
        assert next(found)[0] == 5
        found.close()
    assert [each for each, _ in cluster.map(errands.adder, 7, range(30))] == list(range(7, 37))


@pytest.mark.parametrize("address", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "nowhere.invalid:{}"])
def test_nobody_answers(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "_PATIENCE", 1.0)
    monkeypatch.setattr("ray.is_initialized", lambda: False)  # as it may be, by other tests
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(ModelError, match=rf"no cluster answers at .*:{port}: "):
        Cluster(address.format(port))


@pytest.mark.parametrize("host", ["a..b", "a" * 70])
def test_what_is_no_host(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with pytest.raises(ModelError, match=rf"no cluster answers at {host}:80: "):
        Cluster(f"{host}:80")


def test_workers_that_end_on_every_piece(cluster: Cluster) -> None:
    with pytest.raises(ChildProcessError, match="the cluster lost work"):
        list(cluster.map(errands.ending, None, range(1)))


def test_the_same_though_a_worker_is_killed_in_every_step(
    cluster: Cluster, address: str, marks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(data: object, **options: object) -> object:
        found = anybit.quantize(convolutions(), data, weights="int4", sensitivity=True, **options)
        return ir.to_proto(found.model).SerializeToString(), found.to_json()

    data = data_for("convolutions", 100)
    wanted = made(data, workers=1)
    monkeypatch.setattr(calibration, "surveyor", doomed.surveyor)
    monkeypatch.setattr(attempts, "chooser", doomed.chooser)
    monkeypatch.setattr(sensitivity, "prober", doomed.prober)
    monkeypatch.setattr(judging, "comparer", doomed.comparer)
    assert made(iter(data), cluster=address) == wanted
    assert {each.name for each in marks.iterdir()} >= {"surveyor", "chooser", "prober", "comparer"}


def test_the_same_figures_though_a_worker_is_killed(
    cluster: Cluster, address: str, marks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def figures(**options: Any) -> object:
        models = convolutions(), convolutions()
        found = anybit.evaluate(*models, data=data_for("convolutions", 50), **options).to_json()
        return [each | {"seconds": 0} for each in found["models"]], found["rows"]

    wanted = figures(workers=1)
    monkeypatch.setattr(evaluation, "scorer", doomed.scorer)
    assert figures(cluster=address) == wanted
    assert (marks / "scorer").exists()
