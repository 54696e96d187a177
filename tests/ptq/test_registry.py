# SPDX-License-Identifier: Apache-2.0
"""Tests of the registry of PTQ algorithms."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from float_models import NETWORKS, data_for

import anybit
from anybit.ptq.algorithms import registry
from anybit.ptq.algorithms.layer_runner import LayerRunner
from anybit.ptq.algorithms.round_to_nearest import QuantizedWeight


def test_registry_weight_rounder_is_tried_on_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = []

    class NearestRounder:
        def __init__(self, *_: Any) -> None:
            pass

        def round(self, runner: LayerRunner) -> Sequence[QuantizedWeight]:
            layers.append(runner.layer.name)
            return runner.round_to_nearest(None)

    monkeypatch.setattr(registry, "WEIGHT_ROUNDERS", [NearestRounder])
    _quantize(weights="int4", activations="float")
    assert layers


def test_registry_factor_generator_is_tried_on_activations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    channels = []

    def generate(_: Any, weights: np.ndarray, __: Any) -> Iterator[np.ndarray]:
        channels.append(len(weights))
        yield np.full(len(weights), 2, np.float32)

    monkeypatch.setattr(registry, "FACTOR_GENERATORS", [generate])
    _quantize(weights="int8", activations="int8")
    assert channels


def _quantize(**specs: Any) -> anybit.QuantizationResult:
    return anybit.quantize(NETWORKS["convolutions"](), data_for("convolutions", 24), **specs)
