# SPDX-License-Identifier: Apache-2.0
"""Fixtures for all tests."""

import contextlib
import gc
import os
import random
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from backends import Backend, installed_backends, marks
from shell import Shell

import anybit
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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the parametrizations that the marker `sample` leaves out as slow."""
    tests: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and not item.get_closest_marker("slow"):
            tests[item.nodeid.partition("[")[0]].append(item)
    for parametrizations in tests.values():
        if marker := parametrizations[0].get_closest_marker("sample"):
            quick = sample(parametrizations, *marker.args)
            for item in parametrizations:
                if item not in quick:
                    item.add_marker("slow")


def sample(items: list[pytest.Function], count: int = 1) -> list[pytest.Function]:
    """Return at least `count` items, with every value of each parameter.

    The items of a single parameter are evenly spaced instead.
    """
    covering, covered = [], set()
    for may_overlap in (False, True):  # first the items whose values are all new
        for item in items:
            values = set(enumerate(item.callspec._idlist))
            if not values <= covered and (may_overlap or not values & covered):
                covering.append(item)
                covered |= values
    if len(covering) == len(items):
        return items[:: -(-len(items) // count)]
    others = [item for item in items if item not in covering]
    random.Random(0).shuffle(others)
    return covering + others[: max(0, count - len(covering))]


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
def set_threads() -> Iterator[Callable[[int], None]]:
    """Return a function that sets the number of threads until the end of the test."""
    threads = anybit.num_threads()
    yield anybit.set_num_threads
    anybit.set_num_threads(threads)


@pytest.fixture
def shell(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Shell:
    """Return a shell in an empty folder."""
    return Shell(capfd, monkeypatch, tmp_path)
