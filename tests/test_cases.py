# SPDX-License-Identifier: Apache-2.0
"""Every row of every case table on every back-end, bit for bit."""

from itertools import groupby
from typing import Any

import pytest
from backends import COMPILED, Backend, installed_backends, marks
from cases import Case, answer, assert_same_bits, every_case

# Programs of many more take longer per row: compilers are not linear.
ROWS = 15


def single_rows() -> list[Any]:
    """Rows that run one by one; where they are compiled, those that are refused and must say so.

    A row's back-ends stand together, so that one process asks the oracle once for all of them.
    """
    backends = [(backend, marks(backend)) for backend in installed_backends()]
    return [
        pytest.param(backend, name, case, marks=marked, id=f"{backend}-{name}-{case.name}")
        for name, case in every_case()
        for backend, marked in backends
        if backend not in COMPILED or case.raises is not None
    ]


def programs() -> list[Any]:
    """All other rows, some to a program."""
    found = []
    for name, rows in groupby(every_case(), lambda row: row[0]):
        cases = [case for _, case in rows if case.raises is None]
        for first in range(0, len(cases), ROWS):
            some = cases[first : first + ROWS]
            found += [
                pytest.param(
                    backend, name, some, marks=marks(backend), id=f"{backend}-{name}-{first}"
                )
                for backend in installed_backends()
                if backend in COMPILED
            ]
    return found


@pytest.mark.parametrize(("backend", "operator", "case"), single_rows(), indirect=["backend"])
def test_case(backend: Backend, operator: str, case: Case) -> None:
    if case.raises is not None:
        error, pattern = case.raises
        with pytest.raises(error, match=pattern):
            backend.apply(operator, *case.inputs, **case.attributes)
        return
    actual = backend.apply(operator, *case.inputs, **case.attributes)
    assert_same_bits(actual, answer(operator, case), case)


@pytest.mark.parametrize(("backend", "operator", "cases"), programs(), indirect=["backend"])
def test_program(backend: Backend, operator: str, cases: list[Case]) -> None:
    for case, actual in zip(cases, backend.apply_all(operator, cases), strict=True):
        assert_same_bits(actual, answer(operator, case), case)
