# SPDX-License-Identifier: Apache-2.0
"""What is kept of the oracle between processes is what it answers, to the same question only."""

from collections.abc import Iterator

import kept_answers
import numpy as np
import oracle
import pytest
from cases import OPERATORS, Case, every_case
from kept_answers import oracles_answer


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(kept_answers.VARIABLE, str(tmp_path))
    return tmp_path


def some_cases(operator: str) -> Iterator[Case]:
    valid = [case for name, case in every_case() if name == operator and case.raises is None]
    yield from valid[::29]


@pytest.mark.parametrize("operator", OPERATORS)
def test_what_is_kept_are_the_same_bits(operator, folder, monkeypatch):
    calls = [
        (operator, some_case.inputs, some_case.attributes) for some_case in some_cases(operator)
    ]
    actual = [oracles_answer(*call) for call in calls]
    assert len(list(folder.iterdir())) > 1
    monkeypatch.setattr(oracle, operator, lambda *_, **__: pytest.fail("is asked again"))
    for call, requested in zip(calls, actual, strict=True):
        kept = oracles_answer(*call)
        assert (kept.dtype, kept.shape) == (requested.dtype, requested.shape)
        assert kept.tobytes() == requested.tobytes()


def test_other_questions_have_answers_of_their_own(folder):
    x, swapped = np.float32([0.0, 0.3]), np.float32([-0.0, 0.3])
    calls = [
        ("int_quant", (x, 0.1, 0.0, 4), {}),
        ("int_quant", (swapped, 0.1, 0.0, 4), {}),
        ("int_quant", (x.astype(np.float64), 0.1, 0.0, 4), {}),
        ("int_quant", (x, 0.1, 0.0, 5), {}),
        ("int_quant", (x, 0.1, 0.0, 4), {"rounding_mode": "UP"}),
    ]
    for call in calls:
        oracles_answer(*call)
    assert len(list(folder.iterdir())) == len(calls)


def test_another_oracle_is_asked_again(folder, monkeypatch):
    question = "bipolar_quant", (np.float32([1]), 0.5), {}
    assert oracles_answer(*question) == 0.5
    monkeypatch.setattr(kept_answers, "source_of_the_oracle", lambda: b"changed")
    monkeypatch.setattr(oracle, "bipolar_quant", lambda x, scale: x - scale - 2)
    assert oracles_answer(*question) == -1.5


def test_without_a_folder_nothing_is_kept(folder, monkeypatch):
    monkeypatch.delenv(kept_answers.VARIABLE)
    assert oracles_answer("bipolar_quant", (np.float32([-1]), 0.5), {}) == -0.5
    assert not list(folder.iterdir())
