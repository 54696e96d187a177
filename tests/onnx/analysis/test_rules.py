# SPDX-License-Identifier: Apache-2.0
"""One case per operator: what is known of its result, and that a run keeps to it."""

from typing import Any

import numpy as np
import onnx
import pytest
from analysis_cases import CASES, CHANNELS, SHAPE, Case, build_model
from analysis_checks import analyze_and_compare
from hypothesis import given, settings
from hypothesis import strategies as st

from anybit.onnx.analysis.abstract_values import AbstractValue
from anybit.onnx.analysis.rules.table import RULES


def result(case: Case, proto: onnx.ModelProto, seed: int = 0) -> AbstractValue | None:
    x = np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32) * 4
    x.flat[:4] = [100, -100, 0, -0.0]
    analysis = analyze_and_compare(proto, {"x": x})
    named = {str(value.name): abstract for value, abstract in analysis.values.items()}
    return named.get("y")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_analysis_rules_known_values(case: Case) -> None:
    actual = result(case, build_model(case, np.float32(0.5)))
    if case.codes is None:
        assert actual is None or actual.codes is None or actual.codes.bits > 8
        names = () if actual is None else tuple(value.name for value in actual.sources)
        assert names == (case.sources or names)
        return
    assert actual is not None
    assert actual.codes is not None
    if case.scale is not None:
        centered = [code - int(actual.codes.zeropt.flat[0]) for code in actual.codes.hull]
        values = {code * float(actual.codes.scale.flat[0]) for code in centered}
        shift = 1.5 * (case.name == "Add a constant") - 1.5 * (case.name == "Sub a constant")
        assert values == {code * case.scale + shift for code in case.codes}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_analysis_rules_channels(case: Case) -> None:
    actual = result(case, build_model(case, CHANNELS))
    if case.axis is not None and case.codes is not None:
        assert actual is not None
        assert actual.axis == case.axis


@pytest.mark.parametrize("case", CASES, ids=str)
def test_analysis_rules_run_keeps_to_it(case: Case) -> None:
    """Whatever the scales and zero-points."""
    scales = st.sampled_from([0.1, 1 / 3, 0.75, 2.0**-20, 3e4, 0.0, -0.5]).map(np.float32)
    several = st.lists(scales, min_size=4, max_size=4).map(lambda s: np.float32(s).reshape(4, 1, 1))
    zeropts = st.sampled_from([0.0, 3.0, 0.5])

    @settings(max_examples=8, deadline=None)
    @given(scales | several, zeropts, st.booleans(), st.integers(0, 99))
    def check(scale: Any, zeropt: float, signed: bool, seed: int) -> None:
        result(case, build_model(case, scale, zeropt, int(signed)), seed)

    check()


def test_analysis_rules_every_rule_has_a_case() -> None:
    covered = {made.op_type for case in CASES for made in case.nodes} | {"Squeeze"}
    assert not RULES.keys() - covered
    assert not covered - RULES.keys()
