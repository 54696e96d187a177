# SPDX-License-Identifier: Apache-2.0
"""Quantizers of many floats in C: equal steps are a line, others a search."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from c_batches import make_case, run_batch
from c_targets import SANITIZERS, WARNINGS

from anybit.compiler.backends.integer_steps import fit_equal_steps
from anybit.compiler.backends.integer_thresholds import HIGHEST_KEY, order_floats, unorder_floats
from anybit.compiler.program import program as p

RANDOM = np.random.default_rng(0)
HALVES = np.arange(-128, 127) + 0.5
EQUAL = {
    **{f"scale {scale}": HALVES * scale for scale in (1, 0.0123, 1e-36, 1e36)},
    "unsigned": (HALVES + 128) * 0.003,
    "negative": (HALVES - 127.6) * 0.7,
    "asymmetric": (HALVES + 77.3) * 0.04,
    "few": HALVES[:33],
    "whole": np.arange(-20, 200) - 0.0,
}
OTHERS = {
    "powers of two": np.sort([sign * 2.0**i for i in range(-20, 21) for sign in (-1, 1)]),
    "random": np.sort(RANDOM.normal(0, 1, 63)),
    "equal": np.ones(40),
    "subnormal steps": HALVES * 2.0**-130,
    "one jump": np.concatenate([HALVES[:200], HALVES[200:] + 3]),
    "infinite ends": np.concatenate([[-np.inf], HALVES[2:], [np.inf]]),
}


def select_keys(thresholds: np.ndarray) -> np.ndarray:
    """Return keys around all thresholds, random ones between them, and the ends."""
    near = thresholds[:, None] + np.arange(-3, 4)
    within = RANDOM.integers(thresholds[0], thresholds[-1] + 1, 20_000)
    ends = [-HIGHEST_KEY, -1, 0, 1, HIGHEST_KEY]
    return np.clip(np.concatenate([near.ravel(), within, ends]), -HIGHEST_KEY, HIGHEST_KEY)


@pytest.mark.parametrize("name", EQUAL)
def test_line_is_the_number_of_reached_thresholds_or_one_less(name: str) -> None:
    thresholds = order_floats(EQUAL[name])
    line = fit_equal_steps(thresholds)
    assert line is not None
    keys = select_keys(thresholds)
    keys = keys[(keys >= thresholds[0]) & (keys < thresholds[-1])]
    reached = np.searchsorted(thresholds, keys, side="right")
    values = line.evaluate(keys)
    assert values.min() >= 0
    assert max(values.max(), np.abs(values - line.term).max()) < 2**31
    assert set(reached - (values >> line.shift)) <= {0, 1}


@pytest.mark.parametrize("name", OTHERS)
def test_other_thresholds_have_no_line(name: str) -> None:
    assert fit_equal_steps(order_floats(OTHERS[name])) is None


def make_quantizer(values: np.ndarray, count: int) -> p.Program:
    port = p.Port(np.int32([count]), 1, 1, count, 0)
    tensor = p.Tensor(1, 1, count, -9, 1, len(values) + 1)
    quantize = p.Quantize(0, 0, np.int32([1]), values.astype(np.float32), -1)
    dequantize = p.Dequantize(0, 0, np.arange(len(values) + 1, dtype=np.float32))
    return p.Program((port,), (port,), (tensor,), (quantize, dequantize))


@pytest.mark.skipif(not shutil.which("gcc"), reason="gcc is not installed")
def test_quantizers_of_many_floats_match_reference(tmp_path: Path) -> None:
    cases = []
    for number, values in enumerate([*EQUAL.values(), *OTHERS.values()]):
        x = unorder_floats(select_keys(order_floats(values)))[None]
        case = make_case(make_quantizer(values, x.size), f"n{number}", [x])
        assert ("count_steps" in case.source.files[f"n{number}.c"]) == (number < len(EQUAL))
        cases.append(case)
    command = ("gcc", "-std=c99", "-O0", *WARNINGS, *SANITIZERS)
    assert run_batch(cases, command, tmp_path) == []
