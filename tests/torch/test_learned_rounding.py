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
from anybit.inputs import declared_inputs  # noqa: E402
from anybit.quantization import driver as quantizing  # noqa: E402
from anybit.quantization import samples as samples_module  # noqa: E402
from anybit.quantization.calibration import divided_samples  # noqa: E402
from anybit.quantization.driver import _prepared  # noqa: E402
from anybit.quantization.learned import driver  # noqa: E402
from anybit.quantization.learned.rounding import Neighbours, learned, neighbours_of  # noqa: E402
from anybit.quantization.learned.stretches import stretches_of  # noqa: E402
from anybit.quantization.placement import Weight, placement_of  # noqa: E402
from anybit.quantization.samples import Samples  # noqa: E402
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
    assert found.are_some
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
    found = neighbours_of(weights, rounded.values, rounded.grid)
    np.testing.assert_array_equal(found.low, rounded.values)
    np.testing.assert_array_equal(found.high, rounded.values)
    assert not found.are_some


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


@pytest.mark.parametrize("name", ["attention", "convolutions"])
def test_outputs_are_better(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the same bytes again; what was set in PyTorch is as it was."""
    monkeypatch.setattr(driver, "_STEPS", 100)
    threads = torch.get_num_threads()
    found = chosen(name)
    assert torch.get_num_threads() == threads
    assert not torch.are_deterministic_algorithms_enabled()
    assert bytes_of(found) == bytes_of(chosen(name))
    assert all("were dropped" in each for each in found.remarks)
    monkeypatch.setattr(quantizing, "find_spec", lambda name: None)
    bare = chosen(name)
    assert 'pip install "anybit[torch]"' in bare.remarks[0]
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


def quick(proto: onnx.ModelProto, data: Any, monkeypatch: pytest.MonkeyPatch) -> anybit.Quantized:
    """With weights of 3 bits, learned for some steps."""
    monkeypatch.setattr(driver, "_STEPS", 100)
    return anybit.quantize(proto, data, weights="int3", effort="best")


def bare(proto: onnx.ModelProto, data: Any, **words: Any) -> anybit.Quantized:
    """With nothing learned."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(quantizing, "find_spec", lambda name: None)
        return anybit.quantize(proto, data, effort="best", **words)


def test_signs_are_not_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a layer of 3 bits they stay; what moves is learned with them."""
    monkeypatch.setattr(driver, "_STEPS", 100)
    data = data_for("attention", 48)
    signs: dict[str, Any] = {"weights": "bipolar"}
    found = anybit.quantize(attention(), data, effort="best", **signs)
    assert found.remarks == ()
    assert bytes_of(found) == bytes_of(bare(attention(), data, **signs))
    mixed: dict[str, Any] = {"weights": "int3", "layers": {"wide": "bipolar"}}
    found = anybit.quantize(attention(), data, effort="best", **mixed)
    assert bytes_of(found) != bytes_of(bare(attention(), data, **mixed))


def test_outputs_may_be_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    proto = attention()
    proto.graph.node.append(node("Identity", "root", "version", domain="", name="version"))
    proto.graph.output.append(onnx.helper.make_tensor_value_info("version", 1, []))
    data = data_for("attention", 48)
    found = quick(proto, data, monkeypatch)
    assert bytes_of(found) != bytes_of(bare(proto, data, weights="int3"))


def test_what_is_set_in_pytorch_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    data = data_for("attention", 48)
    wanted = bytes_of(quick(attention(), data, monkeypatch))
    assert wanted != bytes_of(bare(attention(), data, weights="int3"))
    for off in (torch.no_grad(), torch.inference_mode()):
        with off:
            assert bytes_of(quick(attention(), data, monkeypatch)) == wanted
            assert not torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
    torch.set_default_dtype(torch.float64)
    try:
        assert bytes_of(quick(attention(), data, monkeypatch)) == wanted
    finally:
        torch.set_default_dtype(torch.float32)


def test_it_takes_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many there are would change the last bits of sums, and with them weights."""
    seen: list[int] = []

    def recorded(*arguments: Any) -> Any:
        seen.append(torch.get_num_threads())
        return learned(*arguments)

    monkeypatch.setattr(driver, "learned", recorded)
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        quick(attention(), data_for("attention", 8), monkeypatch)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)
    assert set(seen) == {1}


@pytest.mark.parametrize(("count", "learns"), [(7, False), (8, True)])
def test_few_samples_are_remarked(
    count: int, learns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of them can be set apart to decide."""
    found = quick(attention(), data_for("attention", count), monkeypatch)
    remarked = [each for each in found.remarks if "Rounding was not learned" in each]
    assert remarked == ([] if learns else [quantizing._TOO_FEW])


def test_what_is_held_in_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without reading more; what is learned from lies anywhere in the data."""
    data = np.stack([np.full((7, 16), number, np.float64) for number in range(240)])
    data += random(240, 7, 16, seed=1)
    samples = Samples(data, declared_inputs(_prepared(attention(), "m")[0].graph, "m"))
    samples.take_whole_unless(lambda *_: True)
    order, deciding = divided_samples(samples)
    asked: list[frozenset[int]] = []
    numbered = Samples.numbered

    def recorded(self: Samples, wanted: Any) -> Any:
        asked.append(frozenset(wanted))
        return numbered(self, wanted)

    monkeypatch.setattr(Samples, "numbered", recorded)
    row = 7 * 16 * 4  # as the model takes it, which is float32
    monkeypatch.setattr(samples_module, "_MEMORY", 40 * row + 5)
    found = samples.several(samples.fitting(order))
    assert sum(len(each["x"]) for each in found) == 40
    assert asked == [frozenset(order[:40])]
    monkeypatch.setattr(samples_module, "_MEMORY", 1)
    assert [len(each["x"]) for each in samples.several(samples.fitting(deciding))] == [1], (
        "one at least"
    )


def test_what_a_stretch_takes_lies_anywhere_in_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    x = random(400, 7, 16, seed=1) + np.arange(400, dtype=np.float32)[:, None, None]
    seen: list[list[int]] = []

    def recorded(lesson: driver._Lesson) -> dict[Any, Any]:
        seen.append([int(np.round(each["x"].mean())) for each in lesson.feeds if "x" in each])
        return {}

    monkeypatch.setattr(driver._Lesson, "learned", recorded)
    monkeypatch.setattr(driver._Lesson, "is_right", True)
    monkeypatch.setattr(driver, "_MEMORY", 250 * 7 * 16 * 4)
    quick(attention(), x, monkeypatch)
    assert seen[0] == sorted(seen[0])
    assert 1 < len(seen[0]) < 8, "there is no memory for all"
    assert seen[0][0] < 200 < seen[0][-1]


def test_samples_that_decide_are_for_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[np.ndarray]] = []
    several = Samples.several

    def recorded(self: Samples, *numbers: Any) -> list[dict[str, np.ndarray]]:
        found = several(self, *numbers)
        seen.append([row for each in found for row in each["x"]])
        return found

    monkeypatch.setattr(Samples, "several", recorded)
    monkeypatch.setattr(driver, "_STEPS", 2)
    chosen("attention")
    learning, deciding = ({row.tobytes() for row in part} for part in seen[-2:])
    assert len(deciding) == 6
    assert not learning & deciding


def stretches(proto: onnx.ModelProto) -> list[list[str]]:
    network = _prepared(proto, "m")[0]
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
