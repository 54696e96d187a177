# SPDX-License-Identifier: Apache-2.0
"""The garbage collector waits for more objects while a model is worked on, and not after."""

import gc
from collections.abc import Iterator

import pytest

import anybit
from anybit.errors import ModelError
from anybit.onnx.files.collection import seldom_collected


@pytest.fixture(autouse=True)
def usual_threshold() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def test_collection_it_waits_inside_and_is_as_before_behind() -> None:
    with seldom_collected():
        assert gc.get_threshold() == (20_000, 10, 10)
        with seldom_collected():
            pass
        assert gc.get_threshold() == (20_000, 10, 10)
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("chosen", [(0, 10, 10), (50_000, 5, 5)])
def test_collection_keeps_higher_thresholds(
    chosen: tuple[int, int, int],
) -> None:
    gc.set_threshold(*chosen)
    with seldom_collected():
        assert gc.get_threshold() == chosen
    assert gc.get_threshold() == chosen


def test_collection_it_is_as_before_after_an_error() -> None:
    with pytest.raises(ModelError):
        anybit.convert(b"no model", to="qdq")
    assert gc.get_threshold() == (700, 10, 10)


def test_collection_work_in_two_threads_ends_in_any_order() -> None:
    first, second = seldom_collected(), seldom_collected()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold() == (700, 10, 10)
    second.__exit__(None, None, None)
    assert gc.get_threshold() == (700, 10, 10)
