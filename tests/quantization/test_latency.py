# SPDX-License-Identifier: Apache-2.0
"""Budgets of time: mixes are those that were timed, and no slower than was asked for."""

import re

import onnx_ir as ir
import pytest
from float_models import NETWORKS, data_for

import anybit
from anybit import ModelError
from anybit.compiler.compiled import Compiled
from anybit.quantization import latency as timing
from anybit.quantization.latency import Clock, Latency

_SLOWEST = 12.0


def test_widths_that_are_stored_alike_take_the_same_time() -> None:
    found = Latency({"layer": {8: 3.0, 4: 2.0, 2: 1.0, float("inf"): 9.0}}, 0.5)
    assert [found.of("layer", bits) for bits in (1, 2, 3, 4, 5, 7, 8, 16, 32)] == [
        *(1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 3.0),
        *(9.0, 9.0),
    ]


def test_a_clock_runs_what_is_compiled_for_its_sample() -> None:
    data = data_for("convolutions", 1)[0]
    quantized = anybit.quantize(NETWORKS["convolutions"](), data)
    clock = Clock({"x": data["x"][:1]})
    compiled, source = clock.compiled(quantized.model)
    assert [list(value.shape)[1:] for value in source.graph.inputs] == [[3, 8, 8]]
    assert list(quantized.model.graph.inputs[0].shape)[1:] == [3, 8, 8]
    assert 0 < clock.seconds(compiled) < 1
    assert "x of [1, 3, 8, 8]" in clock.remark(2e-3)
    assert "2 ms" in clock.remark(2e-3)


@pytest.fixture
def slow_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which a layer takes a second for each bit of its weights, and another one at
    the least: what it is told of layers alone is a tenth too little."""

    def seconds(self: Clock, compiled: Compiled) -> float:
        return sum(_bits(compiled.model).values())

    def measured(model: object, plans: dict, choices: object, clock: Clock) -> Latency:
        layers = next(iter(plans.values())).layers
        stored = {bits: 0.9 * (bits + 1) for bits in plans}
        return Latency(dict.fromkeys(layers, stored | {float("inf"): 40.0}), 0.0)

    monkeypatch.setattr(Clock, "compiled", lambda self, model: (_Kept(model), model))
    monkeypatch.setattr(Clock, "seconds", seconds)
    monkeypatch.setattr("anybit.quantization.budget.latency", measured)


class _Kept:
    def __init__(self, model: ir.Model) -> None:
        self.model = model


def _bits(model: ir.Model) -> dict[str, float]:
    """The seconds of each layer: its weights' quantizers say their width."""
    found = {}
    for node in model.graph:
        if node.op_type in ("Conv", "Gemm", "ConvTranspose", "MatMul"):
            quantizers = [value.producer() for value in node.inputs if value]
            widths = [
                int(each.inputs[3].const_value.numpy())
                for each in quantizers
                if each is not None and each.inputs[0].is_initializer()
            ]
            fitting = [each for each in timing.STORED if widths and each >= widths[0]]
            found[node.name] = min(fitting, default=40) + 1.0
    return found


@pytest.mark.usefixtures("slow_bits")
@pytest.mark.parametrize("seconds", [46, 30, 18])
def test_a_mix_takes_no_longer_than_that(seconds: int) -> None:
    data = data_for("convolutions")
    found = anybit.quantize(NETWORKS["convolutions"](), data, budget=f"{seconds}s")
    taken = sum(_bits(found.model).values())
    assert taken <= seconds
    (remark,) = [each for each in found.remarks if "takes" in each]
    assert float(re.search(r"takes ([0-9.]+) s", remark)[1]) == pytest.approx(taken, rel=1e-2)
    assert sum(each.chosen for each in found.front) == 1
    widths = {each.weight_bits for each in found.layers}
    assert widths <= {2, 4, 8, 16}, "others take the time of these, and have more noise"
    if seconds >= 45:
        assert all(each.weight_bits == 8 for each in found.layers)
    elif len(widths) > 1:  # one width for all may be better than what was expected of a mix
        assert taken > seconds - 4, "what is left would be a better width of some layer"


@pytest.mark.usefixtures("slow_bits")
def test_what_cannot_be_reached_is_said_with_what_was() -> None:
    with pytest.raises(ModelError, match=r"budget 14s: not reached.* takes 15 s on this machine"):
        anybit.quantize(NETWORKS["convolutions"](), data_for("convolutions"), budget="14s")


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_are_timed_here(name: str) -> None:
    found = anybit.quantize(NETWORKS[name](), data_for(name, 8), budget=f"{_SLOWEST}s")
    assert any("on this machine" in each for each in found.remarks)
    assert found.verdict is not None
    assert found.verdict.sqnr > 60, "there is time for 16 bits everywhere"
