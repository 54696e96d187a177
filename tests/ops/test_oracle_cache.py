# SPDX-License-Identifier: Apache-2.0
"""The cache of the oracle's results that processes share."""

from collections.abc import Iterator

import numpy as np
import oracle
import oracle_cache
import pytest
from cases import OPERATORS, Case, every_case
from oracle_cache import cached_oracle


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(oracle_cache.VARIABLE, str(tmp_path))
    return tmp_path


def some_cases(operator: str) -> Iterator[Case]:
    valid = [case for name, case in every_case() if name == operator and case.raises is None]
    yield from valid[::29]


@pytest.mark.parametrize("operator", OPERATORS)
def test_cached_oracle_returns_the_same_bits(operator, folder, monkeypatch):
    calls = [
        (operator, some_case.inputs, some_case.attributes) for some_case in some_cases(operator)
    ]
    actual = [cached_oracle(*call) for call in calls]
    assert len(list(folder.iterdir())) > 1
    monkeypatch.setattr(oracle, operator, lambda *_, **__: pytest.fail("is asked again"))
    for call, requested in zip(calls, actual, strict=True):
        kept = cached_oracle(*call)
        assert (kept.dtype, kept.shape) == (requested.dtype, requested.shape)
        assert kept.tobytes() == requested.tobytes()


def test_cached_oracle_separates_calls(folder):
    x, swapped = np.float32([0.0, 0.3]), np.float32([-0.0, 0.3])
    calls = [
        ("int_quant", (x, 0.1, 0.0, 4), {}),
        ("int_quant", (swapped, 0.1, 0.0, 4), {}),
        ("int_quant", (x.astype(np.float64), 0.1, 0.0, 4), {}),
        ("int_quant", (x, 0.1, 0.0, 5), {}),
        ("int_quant", (x, 0.1, 0.0, 4), {"rounding_mode": "UP"}),
    ]
    for call in calls:
        cached_oracle(*call)
    assert len(list(folder.iterdir())) == len(calls)


def test_cached_oracle_depends_on_source_of_oracle(folder, monkeypatch):
    question = "bipolar_quant", (np.float32([1]), 0.5), {}
    assert cached_oracle(*question) == 0.5
    monkeypatch.setattr(oracle_cache, "hash_oracle", lambda: b"changed")
    monkeypatch.setattr(oracle, "bipolar_quant", lambda x, scale: x - scale - 2)
    assert cached_oracle(*question) == -1.5


def test_cached_oracle_without_folder_stores_nothing(folder, monkeypatch):
    monkeypatch.delenv(oracle_cache.VARIABLE)
    assert cached_oracle("bipolar_quant", (np.float32([-1]), 0.5), {}) == -0.5
    assert not list(folder.iterdir())
