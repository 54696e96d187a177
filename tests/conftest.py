# SPDX-License-Identifier: Apache-2.0
"""Fixtures for all tests."""

import contextlib
import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from backends import Backend, installed_backends, marks
from shell import Shell

from anybit._native import _core
from anybit.onnx import runtime

# pytest-xdist sets it, and tables would be cut to that width.
os.environ.pop("COLUMNS", None)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays: to look for garbage in it took a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Modules and tests stay until the end. Without this Python asks again and again which of these
    millions of objects can go, a sixth of the time of some tests.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def idle_threads_sleep() -> Iterator[None]:
    """Threads of a session wait for the next run on a core that other tests could have."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(runtime._EXACT, "session.intra_op.allow_spinning", "0")
        yield


@pytest.fixture(params=[pytest.param(each, marks=marks(each)) for each in installed_backends()])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """Each back-end in turn; native ones select their instruction set."""
    chosen: Backend = request.param
    before = _core.isa()
    if chosen.startswith("native-"):
        try:
            _core.set_isa(chosen.removeprefix("native-"))
        except ValueError as error:
            pytest.skip(str(error))
    yield chosen
    _core.set_isa(before)


@pytest.fixture
def isas() -> Iterator[list[str]]:
    """The instruction sets of this processor that element-wise kernels are compiled for."""
    before = _core.isa()
    available = []
    for isa in ("baseline", "avx2", "avx512"):
        with contextlib.suppress(ValueError):  # not on this processor
            _core.set_isa(isa)
            available.append(isa)
    yield available
    _core.set_isa(before)


@pytest.fixture
def shell(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Shell:
    return Shell(capfd, monkeypatch, tmp_path)
