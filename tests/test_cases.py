# SPDX-License-Identifier: Apache-2.0
"""Every row of every case table on every back-end, bit for bit."""

import pytest
from backends import Backend
from cases import Case, answer, assert_same_bits, every_case


@pytest.mark.parametrize(
    ("operator", "case"),
    [pytest.param(name, case, id=f"{name}-{case.name}") for name, case in every_case()],
)
def test_case(backend: Backend, operator: str, case: Case) -> None:
    if case.raises is not None:
        error, pattern = case.raises
        with pytest.raises(error, match=pattern):
            backend.apply(operator, *case.inputs, **case.attributes)
        return
    actual = backend.apply(operator, *case.inputs, **case.attributes)
    assert_same_bits(actual, answer(operator, case), case)
