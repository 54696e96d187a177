# SPDX-License-Identifier: Apache-2.0
"""The estimate of what other data have, in verdicts, and what a budget in decibels says of it."""

import numpy as np
import pytest
from float_models import convolutions, data_for
from pass_checks import random
from small_models import model, node

import anybit
from anybit.data.splits import is_held_out

# One of four is held back.
SAMPLES = 128


def quantized(data: np.ndarray, *others: str, **words: object) -> anybit.QuantizationResult:
    """A layer, and other outputs: "Sub x x" is one of them."""
    nodes = [node("MatMul", "x w", "y", domain="", name="layer")]
    for at, each in enumerate(others):
        operator, _, inputs = each.partition(" ")
        nodes.append(node(operator, inputs, f"z{at}", domain="", name=f"other{at}"))
    constants = {"w": random(8, 8, seed=3), "zero": np.float32(0)}
    names = ["y", *(f"z{at}" for at in range(len(others)))]
    inputs = {"x": ["rows", 8]}
    proto = model(nodes, constants, inputs=inputs, outputs=names, opsets={"": 17})
    return anybit.quantize(proto, data, **words)


def promises(found: anybit.QuantizationResult) -> list[str]:
    return [each for each in found.remarks if "promise" in each]


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        (16, "4 samples held back: too few to promise 30dB"),
        (92, "23 samples held back: too few to promise 30dB"),
        (400, None),
    ],
)
def test_what_is_not_promised_is_said(samples: int, said: str | None) -> None:
    found = anybit.quantize(convolutions(), data_for("convolutions", samples), budget="30dB")
    assert len(promises(found)) == (said is not None)
    assert said is None or promises(found)[0].startswith(said)
    assert found.to_json()["verdict"]["sqnr_bound"] == found.verdict.sqnr_bound
    assert (found.verdict.sqnr_bound is None) == (samples < 96)
    if said is None:
        assert 30 <= found.verdict.sqnr_bound < found.verdict.sqnr


def test_one_bad_sample_is_no_promise() -> None:
    """One of those that are held back goes far beyond what the others show."""
    data = np.array(random(SAMPLES, 8, seed=2))
    held = [each for each in range(SAMPLES) if is_held_out(each)]
    data[held[3]] *= 8
    found = quantized(data, layers={"layer": "int8/uint8"})
    assert found.verdict.sqnr_bound < found.verdict.sqnr - 2


def test_an_output_that_always_is_zero_takes_no_part() -> None:
    data = random(SAMPLES, 8, seed=2)
    alone = quantized(data, budget="30dB")
    found = quantized(data, "Sub x x", budget="30dB")
    assert found.verdict.sqnr_bound == alone.verdict.sqnr_bound > 30
    assert not promises(found)


def test_an_output_that_nearly_always_is_zero_proves_nothing() -> None:
    """Not for want of samples, and so that is not said."""
    data = np.array(random(SAMPLES, 8, seed=2))
    loud = next(each for each in range(SAMPLES) if is_held_out(each))
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
    found = anybit.quantize(proto, data, budget="30dB")
    assert found.verdict.sqnr_bound is None
    (said,) = promises(found)
    assert "an output is 0 for nearly all of the 32 samples held back" in said
    assert "too few" not in said


def test_a_single_sample_is_not_held_back() -> None:
    found = quantized(random(1, 8, seed=2), budget="30dB")
    assert found.verdict.seen
    (said,) = promises(found)
    assert said.startswith("30dB is not promised for other data: the one sample that there is")
    assert "held back" not in said


def test_rows_that_are_one_sample_are_not_held_back() -> None:
    """Two inputs with other rows each."""
    nodes = [
        node("MatMul", "x w", "y", domain="", name="layer"),
        node("MatMul", "u w", "z", domain="", name="other"),
    ]
    inputs = {"x": ["rows", 8], "u": ["others", 8]}
    constants = {"w": random(8, 8, seed=3)}
    proto = model(nodes, constants, inputs=inputs, outputs=["y", "z"], opsets={"": 17})
    data = {"x": random(40, 8, seed=1), "u": random(30, 8, seed=2)}
    found = anybit.quantize(proto, data, budget="30dB")
    assert found.verdict.seen
    (said,) = promises(found)
    assert "held back" not in said
