# SPDX-License-Identifier: Apache-2.0
"""Which ranges are tried."""

import numpy as np
import pytest
from passes import random
from small_models import model, node

import anybit
from anybit.quantization.ranges import within


@pytest.mark.parametrize(
    ("fraction", "low", "high", "wanted"),
    [
        (1.0, -3.0, 2.0, (-3.0, 2.0)),
        (0.5, -3.0, 2.0, (-1.5, 1.5)),
        (0.5, -0.17, 24.0, (-0.17, 12.0)),
        (0.5, -8.0, 0.0, (-4.0, 0.0)),
        (0.5, 0.0, 0.0, (0.0, 0.0)),
    ],
)
def test_the_longer_side_is_cut_first(
    fraction: float, low: float, high: float, wanted: tuple[float, float]
) -> None:
    assert within(fraction, low, high) == wanted


def test_an_outlier_is_brought_back_and_nothing_else_is_scaled() -> None:
    """Weights whose rows differ in no regular way would lose by what makes all channels alike."""
    sizes = np.exp2(np.random.default_rng(1).uniform(-3, 3, (64, 32))).astype(np.float32)
    x = random(400, 64, seed=3)
    x[::5, 5] = 200
    proto = model(
        [node("MatMul", "x w", domain="", name="head")],
        {"w": random(64, 32, seed=1) * sizes},
        inputs={"x": ["rows", 64]},
        opsets={"": 17},
    )
    found = anybit.quantize(proto, x, weights="int16")
    (factor,) = [each for each in found.model.graph if each.op_type == "Mul"]
    values = factor.inputs[1].const_value.numpy().ravel()
    assert np.flatnonzero(values != 1).tolist() == [5]
