# SPDX-License-Identifier: Apache-2.0
"""Every row of every case table on every back-end, bit for bit."""

from itertools import groupby
from typing import Any

import numpy as np
import pytest
from backends import COMPILED, Backend, installed_backends, marks, row_faults, supports
from cases import Case, assert_same_bits, every_case, expected_result

# Rows per compiled program; compile time grows faster than the number of rows.
ROWS = 15
TABLES = {
    name: [case for _, case in rows] for name, rows in groupby(every_case(), lambda row: row[0])
}


def tables() -> list[Any]:
    """Return (back-end, operator, rows); compiling back-ends run only rows that must be refused.

    The back-ends of an operator stand together: one process asks the oracle once for all of them.
    """
    return [
        pytest.param(backend, name, rows, marks=marks(backend), id=f"{backend}-{name}")
        for name, cases in TABLES.items()
        for backend in installed_backends()
        if supports(backend, name)
        if (rows := [case for case in cases if backend not in COMPILED or case.raises is not None])
    ]


def traced_form(case: Case) -> tuple[Any, ...]:
    """Return what a trace depends on: attributes, and types, shapes and strides of inputs."""
    arrays = [(type(value), np.asarray(value)) for value in case.inputs]
    return *((kind, x.dtype, x.shape, x.strides) for kind, x in arrays), repr(case.attributes)


def programs() -> list[Any]:
    """Return (back-end, operator, rows) of compiling back-ends, some rows per program.

    Of rows that differ in values alone one is compiled: the kernels meet all values elsewhere.
    """
    return [
        pytest.param(
            backend, name, valid[at : at + ROWS], marks=marks(backend), id=f"{backend}-{name}-{at}"
        )
        for name, cases in TABLES.items()
        if (valid := list({traced_form(case): case for case in cases if not case.raises}.values()))
        for at in range(0, len(valid), ROWS)
        for backend in installed_backends()
        if backend in COMPILED
    ]


@pytest.mark.parametrize(("backend", "operator", "cases"), tables(), indirect=["backend"])
def test_operator_matches_case_table(backend: Backend, operator: str, cases: list[Case]) -> None:
    """Run all rows, and report those that fail by name with what is wrong."""
    faults = row_faults(backend, operator, cases)
    assert not faults, f"{len(faults)} of {len(cases)} rows fail:\n" + "\n".join(faults[:20])


@pytest.mark.parametrize(("backend", "operator", "cases"), programs(), indirect=["backend"])
def test_jitted_program_matches_case_table(
    backend: Backend, operator: str, cases: list[Case]
) -> None:
    for case, actual in zip(cases, backend.apply_all(operator, cases), strict=True):
        assert_same_bits(actual, expected_result(operator, case), case)
