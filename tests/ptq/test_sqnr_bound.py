# SPDX-License-Identifier: Apache-2.0
"""The SQNR bound on unseen data, in quality metrics and in remarks of a budget."""

import numpy as np
import pytest
from float_models import convolutions, data_for
from pass_checks import random
from small_models import model, node

import anybit
from anybit.data.splits import is_held_out

# One of four is held out.
SAMPLES = 128


def quantize_layer(
    data: np.ndarray, *extra_outputs: str, **options: object
) -> anybit.QuantizationResult:
    """Quantize a MatMul; an extra output is written as "Sub x x"."""
    nodes = [node("MatMul", "x w", "y", domain="", name="layer")]
    for number, output in enumerate(extra_outputs):
        operator, _, inputs = output.partition(" ")
        nodes.append(node(operator, inputs, f"z{number}", domain="", name=f"other{number}"))
    constants = {"w": random(8, 8, seed=3), "zero": np.float32(0)}
    names = ["y", *(f"z{number}" for number in range(len(extra_outputs)))]
    inputs = {"x": ["rows", 8]}
    proto = model(nodes, constants, inputs=inputs, outputs=names, opsets={"": 17})
    return anybit.quantize(proto, data, **options)


def bound_remarks(result: anybit.QuantizationResult) -> list[str]:
    return [remark for remark in result.remarks if "not certain on new data" in remark]


@pytest.mark.parametrize(
    ("samples", "reason"),
    [
        (16, "there are only 4 held-out samples"),
        (92, "there are only 23 held-out samples"),
        (400, None),
    ],
)
def test_budget_reports_a_sqnr_without_bound(samples: int, reason: str | None) -> None:
    result = anybit.quantize(convolutions(), data_for("convolutions", samples), budget="30dB")
    remarks = bound_remarks(result)
    assert len(remarks) == (reason is not None)
    assert reason is None or remarks[0].startswith(f"30dB is not certain on new data: {reason}")
    assert result.to_json()["verdict"]["sqnr_bound"] == result.verdict.sqnr_bound
    assert (result.verdict.sqnr_bound is None) == (samples < 96)
    if reason is None:
        assert 30 <= result.verdict.sqnr_bound < result.verdict.sqnr


def test_sqnr_bound_falls_with_one_noisy_held_out_sample() -> None:
    data = np.array(random(SAMPLES, 8, seed=2))
    held_out = [index for index in range(SAMPLES) if is_held_out(index)]
    data[held_out[3]] *= 8
    result = quantize_layer(data, layers={"layer": "int8/uint8"})
    assert result.verdict.sqnr_bound < result.verdict.sqnr - 2


def test_sqnr_bound_ignores_an_output_of_zeros() -> None:
    data = random(SAMPLES, 8, seed=2)
    alone = quantize_layer(data, budget="30dB")
    result = quantize_layer(data, "Sub x x", budget="30dB")
    assert result.verdict.sqnr_bound == alone.verdict.sqnr_bound > 30
    assert not bound_remarks(result)


def test_sqnr_bound_is_undefined_for_an_output_that_is_rarely_nonzero() -> None:
    # The number of samples is not the reason, and is not reported.
    data = np.array(random(SAMPLES, 8, seed=2))
    loud = next(index for index in range(SAMPLES) if is_held_out(index))
    data[:, 0], data[loud, 0] = -1, 1
    weight = np.eye(8, 1, dtype=np.float32)
    nodes = [
        node("MatMul", "x w", "y", domain="", name="layer"),
        node("MatMul", "x first", "a", domain="", name="first"),
        node("Relu", "a", "z", domain="", name="rare"),
    ]
    constants = {"w": random(8, 8, seed=3), "first": weight * np.float32(0.7)}
    inputs = {"x": ["rows", 8]}
    proto = model(nodes, constants, inputs=inputs, outputs=["y", "z"], opsets={"": 17})
    result = anybit.quantize(proto, data, budget="30dB")
    assert result.verdict.sqnr_bound is None
    (remark,) = bound_remarks(result)
    assert "an output is 0 for nearly all of the 32 held-out samples" in remark
    assert "there are only" not in remark


def test_budget_reports_that_the_only_sample_is_used_for_calibration() -> None:
    result = quantize_layer(random(1, 8, seed=2), budget="30dB")
    assert result.verdict.seen
    (remark,) = bound_remarks(result)
    assert remark.startswith("30dB is not certain on new data: the only sample is used for")
    assert "held-out" not in remark


def test_budget_reports_rows_that_are_a_single_sample() -> None:
    # The number of rows differs between two inputs.
    nodes = [
        node("MatMul", "x w", "y", domain="", name="layer"),
        node("MatMul", "u w", "z", domain="", name="other"),
    ]
    inputs = {"x": ["rows", 8], "u": ["others", 8]}
    constants = {"w": random(8, 8, seed=3)}
    proto = model(nodes, constants, inputs=inputs, outputs=["y", "z"], opsets={"": 17})
    data = {"x": random(40, 8, seed=1), "u": random(30, 8, seed=2)}
    result = anybit.quantize(proto, data, budget="30dB")
    assert result.verdict.seen
    (remark,) = bound_remarks(result)
    assert "held-out" not in remark
