# SPDX-License-Identifier: Apache-2.0
"""One case per operator: what is known of its result, and that a run keeps to it."""

from typing import Any

import numpy as np
import onnx
import pytest
from carried import followed
from carrier_cases import CASES, CHANNELS, SHAPE, Case, built
from hypothesis import given, settings
from hypothesis import strategies as st

from anybit.onnx.analysis.abstract_values import AbstractValue
from anybit.onnx.analysis.rules.table import RULES


def result(each: Case, proto: onnx.ModelProto, seed: int = 0) -> AbstractValue | None:
    x = np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32) * 4
    x.flat[:4] = [100, -100, 0, -0.0]
    analysis = followed(proto, {"x": x})
    named = {str(value.name): abstract for value, abstract in analysis.values.items()}
    return named.get("y")


@pytest.mark.parametrize("each", CASES, ids=str)
def test_what_is_known(each: Case) -> None:
    found = result(each, built(each, np.float32(0.5)))
    if each.codes is None:
        assert found is None or found.codes is None or found.codes.bits > 8
        names = () if found is None else tuple(value.name for value in found.sources)
        assert names == (each.sources or names)
        return
    assert found is not None
    assert found.codes is not None
    if each.scale is not None:
        centered = [code - int(found.codes.zeropt.flat[0]) for code in found.codes.hull]
        values = {code * float(found.codes.scale.flat[0]) for code in centered}
        shift = 1.5 * (each.name == "Add a constant") - 1.5 * (each.name == "Sub a constant")
        assert values == {code * each.scale + shift for code in each.codes}


@pytest.mark.parametrize("each", CASES, ids=str)
def test_channels(each: Case) -> None:
    found = result(each, built(each, CHANNELS))
    if each.axis is not None and each.codes is not None:
        assert found is not None
        assert found.axis == each.axis


@pytest.mark.parametrize("each", CASES, ids=str)
def test_a_run_keeps_to_it(each: Case) -> None:
    """Whatever the scales and zero-points."""
    scales = st.sampled_from([0.1, 1 / 3, 0.75, 2.0**-20, 3e4, 0.0, -0.5]).map(np.float32)
    several = st.lists(scales, min_size=4, max_size=4).map(lambda s: np.float32(s).reshape(4, 1, 1))
    zeropts = st.sampled_from([0.0, 3.0, 0.5])

    @settings(max_examples=8, deadline=None)
    @given(scales | several, zeropts, st.booleans(), st.integers(0, 99))
    def check(scale: Any, zeropt: float, signed: bool, seed: int) -> None:
        result(each, built(each, scale, zeropt, int(signed)), seed)

    check()


def test_every_rule_has_a_case() -> None:
    covered = {made.op_type for each in CASES for made in each.nodes} | {"Squeeze"}
    assert not RULES.keys() - covered
    assert not covered - RULES.keys()
