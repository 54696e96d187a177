# SPDX-License-Identifier: Apache-2.0
"""The garbage collector and loggers are as before after a model was processed."""

import gc
import logging
from collections.abc import Iterator

import pytest

import anybit
from anybit.errors import ModelError
from anybit.onnx.process import relax_gc, silence_onnx_logs


@pytest.fixture(autouse=True)
def default_threshold() -> Iterator[None]:
    threshold = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*threshold)


def test_relaxed_gc_raises_the_threshold_and_restores_it() -> None:
    with relax_gc():
        assert gc.get_threshold() == (20_000, 10, 10)
        with relax_gc():
            pass
        assert gc.get_threshold() == (20_000, 10, 10)
    assert gc.get_threshold() == (700, 10, 10)


@pytest.mark.parametrize("threshold", [(0, 10, 10), (50_000, 5, 5)])
def test_relaxed_gc_leaves_higher_thresholds(threshold: tuple[int, int, int]) -> None:
    gc.set_threshold(*threshold)
    with relax_gc():
        assert gc.get_threshold() == threshold
    assert gc.get_threshold() == threshold


def test_relaxed_gc_restores_the_threshold_after_an_error() -> None:
    with pytest.raises(ModelError):
        anybit.convert(b"no model", to="qdq")
    assert gc.get_threshold() == (700, 10, 10)


def test_relaxed_gc_restores_the_threshold_in_any_order_of_threads() -> None:
    first, second = relax_gc(), relax_gc()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold() == (700, 10, 10)
    second.__exit__(None, None, None)
    assert gc.get_threshold() == (700, 10, 10)


def test_silence_onnx_logs_restores_levels_in_any_order_of_threads() -> None:
    logger = logging.getLogger("onnx_ir")
    level = logger.level
    first, second = silence_onnx_logs(), silence_onnx_logs()
    first.__enter__()
    second.__enter__()
    assert not logger.isEnabledFor(logging.ERROR)
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert logger.level == level
