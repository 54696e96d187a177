# SPDX-License-Identifier: Apache-2.0
"""Learned rounding: near the best of all roundings, and never worse than what it starts from."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

torch = pytest.importorskip("torch")

from float_models import NETWORKS, attention, convolutions, data_for  # noqa: E402
from passes import random  # noqa: E402
from small_models import model, node  # noqa: E402

import anybit  # noqa: E402
from anybit.quantization import driver as quantizing  # noqa: E402
from anybit.quantization.driver import _prepared  # noqa: E402
from anybit.quantization.learned import driver  # noqa: E402
from anybit.quantization.learned.rounding import Neighbours, learned, neighbours_of  # noqa: E402
from anybit.quantization.learned.stretches import stretches_of  # noqa: E402
from anybit.quantization.placement import Weight, placement_of  # noqa: E402
from anybit.quantization.schemes import quantized, scheme  # noqa: E402
from anybit.quantization.weights import nearest  # noqa: E402

WORDS = ("int4", "int2", "uint3", "ternary", "fp4_e2m1", "e3m2", "e2m3", "int3 per-block 4")


def bytes_of(found: anybit.Quantized) -> bytes:
    return ir.to_proto(found.model).SerializeToString(deterministic=True)


@pytest.mark.parametrize("words", WORDS)
def test_neighbours(words: str) -> None:
    weights = random(12, 8, seed=1)
    rounded = nearest(weights, Weight(1, (1,), 0), scheme(words, "weights"))
    # As GPTQ does it: some are not rounded to nearest.
    start = quantized(rounded.values + random(12, 8, seed=2) / 4, rounded.grid)
    found = neighbours_of(weights, start, rounded.grid)
    assert found is not None
    np.testing.assert_array_equal(found.rounded(found.share), start)
    steps = np.linspace(-1.2, 1.2, 3001, dtype=np.float32)[:, None, None] * np.abs(weights).max()
    every = quantized(np.broadcast_to(steps, (3001, 12, 8)).copy(), rounded.grid)
    above = np.where(every > start, every, np.inf).min(axis=0)
    below = np.where(every < start, every, -np.inf).max(axis=0)
    upwards = weights >= start
    high = np.where(upwards, np.where(np.isinf(above), start, above), start)
    low = np.where(upwards, start, np.where(np.isinf(below), start, below))
    np.testing.assert_array_equal(found.high, high)
    np.testing.assert_array_equal(found.low, low)


def test_signs_have_no_neighbours() -> None:
    weights = random(4, 4)
    rounded = nearest(weights, Weight(1, (1,), 0), scheme("bipolar", "weights"))
    assert neighbours_of(weights, rounded.values, rounded.grid) is None


@pytest.mark.parametrize("seed", range(3))
def test_near_the_best_of_all(seed: int) -> None:
    """Inputs that go together, so that roundings have to."""
    x = random(64, 8, seed=seed) @ random(8, 8, seed=seed + 10) + random(64, 1, seed=seed + 20)
    weights = random(8, seed=seed + 30)
    low = np.floor(weights * 2) / 2
    share = (weights - low) * 2
    choice = Neighbours(low.astype(np.float32), (low + 0.5).astype(np.float32), share)
    feeds = torch.from_numpy(x)
    wanted = feeds @ torch.from_numpy(weights)

    def outputs(item: int, soft: Sequence[Any], added: Sequence[Any]) -> tuple[Any, Any]:
        return feeds @ soft[0], wanted

    ((found,), _) = learned([choice], [], 1, outputs, 500)
    assert set(np.unique((found - low) * 2)) <= {0, 1}

    def error(values: np.ndarray) -> float:
        return float(np.square(x @ (values - weights)).sum())

    every = sorted(error(low + np.array(bits) / 2) for bits in product((0, 1), repeat=8))
    assert error(found) <= every[7], "of 256"
    assert error(found) <= error(choice.rounded(share))


def test_biases_are_learned_too() -> None:
    one = np.ones(3, np.float32)
    fixed = Neighbours(one, one, one)

    def outputs(item: int, soft: Sequence[Any], added: Sequence[Any]) -> tuple[Any, Any]:
        return soft[0] + added[0], soft[0] + 0.3

    ((found,), (bias,)) = learned([fixed], [one], 1, outputs, 500)
    np.testing.assert_array_equal(found, one)
    np.testing.assert_allclose(bias, 0.3, atol=0.02)


def chosen(name: str, **words: Any) -> anybit.Quantized:
    data = data_for(name, 48)
    return anybit.quantize(NETWORKS[name](), data, weights="int3", effort="best", **words)


@pytest.mark.parametrize(
    "name", ["attention", pytest.param("convolutions", marks=pytest.mark.slow)]
)
def test_outputs_are_better(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the same bytes again; what was set in PyTorch is as it was."""
    monkeypatch.setattr(driver, "_STEPS", 100)
    threads = torch.get_num_threads()
    found = chosen(name)
    assert torch.get_num_threads() == threads
    assert not torch.are_deterministic_algorithms_enabled()
    assert bytes_of(found) == bytes_of(chosen(name))
    assert found.remarks == ()
    monkeypatch.setattr(quantizing, "find_spec", lambda name: None)
    bare = chosen(name)
    (remark,) = bare.remarks
    assert 'pip install "anybit[torch]"' in remark
    assert found.verdict is not None
    assert bare.verdict is not None
    assert found.verdict.sqnr > bare.verdict.sqnr
    assert all(each.sqnr is not None for each in found.layers)


def test_what_is_worse_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoiled(
        weights: Sequence[Neighbours], biases: Sequence[np.ndarray], *_: object
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        wrong = [each.rounded(1 - each.share) for each in weights]
        return wrong, [np.zeros(each.shape, np.float32) for each in biases]

    monkeypatch.setattr(driver, "learned", spoiled)
    found = chosen("attention")
    monkeypatch.setattr(quantizing, "find_spec", lambda name: None)
    assert bytes_of(found) == bytes_of(chosen("attention"))


def test_samples_that_decide_are_for_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[np.ndarray]] = []
    together = driver._together

    def recorded(*arguments: Any) -> Any:
        found = list(together(*arguments))
        seen.append([row for each in found for row in each["x"]])
        return found

    monkeypatch.setattr(driver, "_together", recorded)
    monkeypatch.setattr(driver, "_STEPS", 2)
    chosen("attention")
    learning, deciding = ({row.tobytes() for row in part} for part in seen)
    assert len(deciding) == 6
    assert not learning & deciding


def stretches(proto: onnx.ModelProto) -> list[list[str]]:
    network, _ = _prepared(proto, "m")
    layers = placement_of(network).layers
    found = stretches_of(network, {each.node for each in layers}, layers)
    return [[layer.name for layer in each.layers] for each in found]


def test_stretches_end_where_all_goes_through_one_tensor() -> None:
    assert stretches(convolutions()) == [["first", "depthwise", "pointwise", "up", "head"]]
    # Eight layers in three parts: up to the residual sum, and the two behind it.
    assert stretches(attention())[-1] == ["wide", "narrow"]


def test_layers_beside_what_is_not_known_are_learned_alone() -> None:
    constants = {"w": random(4, 4), "v": random(4, 4)}
    nodes = [
        node("MatMul", "x w", "a", domain="", name="one"),
        node("Cos", "a", "c", domain="", name="cos"),
        node("Add", "c a", "b", domain="", name="sum"),
        node("MatMul", "b v", "y", domain="", name="two"),
    ]
    proto = model(nodes, constants, inputs={"x": ["rows", 4]}, opsets={"": 17})
    assert stretches(proto) == [["one"], ["two"]]
