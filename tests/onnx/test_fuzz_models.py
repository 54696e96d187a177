# SPDX-License-Identifier: Apache-2.0
"""A sample of the fuzzer's cases, always the same; the program itself tries others."""

import fuzz_models
import pytest


def test_fuzz_models_sample(capsys: pytest.CaptureFixture[str]) -> None:
    actual = fuzz_models.search(range(0, 150, fuzz_models.CHUNK), float("inf"))
    message = capsys.readouterr().out
    assert actual == 0, message
    assert message == "150 cases, 0 faults\n"


def test_fuzz_models_case_is_its_number() -> None:
    assert fuzz_models.case(17) == fuzz_models.case(17)
    assert fuzz_models.case(17) != fuzz_models.case(18)
