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

# pytest-xdist sets it; tables would be cut to that width.
os.environ.pop("COLUMNS", None)


MOST_PROCESSES = 8


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Run the whole suite on all cores: `pytest` without paths means `pytest -n auto`.

    Options keep their meaning: `-n 0`, `--pdb`, `-s` and `-p no:xdist` use this process.
    """
    option = config.option
    if (
        getattr(option, "numprocesses", 0) is None  # 0: without pytest-xdist
        and not hasattr(config, "workerinput")
        and config.args_source is pytest.Config.ArgsSource.TESTPATHS
        and option.capture != "no"
    ):
        option.numprocesses = "auto"
        option.maxprocesses = option.maxprocesses or MOST_PROCESSES
        option.dist = "worksteal" if option.dist == "no" else option.dist


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Pause garbage collection, which takes a third of the time here and frees nothing."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Exempt modules and tests, which stay until the end, from garbage collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def idle_threads_sleep() -> Iterator[None]:
    """Let idle threads of sessions sleep: other tests need the cores."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(runtime._EXACT, "session.intra_op.allow_spinning", "0")
        yield


@pytest.fixture(params=[pytest.param(name, marks=marks(name)) for name in installed_backends()])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """Yield the name of a back-end; for native ones their instruction set is selected."""
    name: Backend = request.param
    default = _core.isa()
    if name.startswith("native-"):
        try:
            _core.set_isa(name.removeprefix("native-"))
        except ValueError as error:
            pytest.skip(str(error))
    yield name
    _core.set_isa(default)


@pytest.fixture
def isas() -> Iterator[list[str]]:
    """Yield the instruction sets of elementwise kernels that this processor supports."""
    default = _core.isa()
    available = []
    for isa in ("baseline", "avx2", "avx512"):
        with contextlib.suppress(ValueError):  # not on this processor
            _core.set_isa(isa)
            available.append(isa)
    yield available
    _core.set_isa(default)


@pytest.fixture
def shell(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Shell:
    """Return a shell in an empty folder."""
    return Shell(capfd, monkeypatch, tmp_path)
