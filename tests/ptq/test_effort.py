# SPDX-License-Identifier: Apache-2.0
"""Presets of the search: `effort`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
import pytest
from float_models import NETWORKS, attention, data_for

import anybit
from anybit import OptionError
from anybit.ptq.algorithms import layer_runner as pieces
from anybit.ptq.calibration import taps as recording

Run: TypeAlias = Callable[[Any, Mapping[str, np.ndarray]], dict[str, np.ndarray]]


def bytes_of(result: anybit.QuantizationResult) -> bytes:
    return ir.to_proto(result.model).SerializeToString(deterministic=True)


def runs(effort: str) -> tuple[int, int]:
    """Count the runs of models, and the input elements of the runs of single layers."""
    counts = [0, 0]
    monkeypatch = pytest.MonkeyPatch()

    def counting(index: int, run: Run) -> Run:
        def counted(
            session: object, feeds: Mapping[str, np.ndarray], *names: object, **how: bool
        ) -> dict[str, np.ndarray]:
            counts[index] += sum(array.size for array in feeds.values()) if index else 1
            return run(session, feeds, *names, **how)

        return counted

    for index, module in enumerate((recording, pieces)):
        monkeypatch.setattr(module, "run_session", counting(index, module.run_session))
    data = data_for("attention", 400)
    anybit.quantize(attention(), data, weights="int4", effort=effort)
    monkeypatch.undo()
    return counts[0], counts[1]


def test_effort_default_takes_more_runs_than_fast() -> None:
    fast, default = (runs(effort) for effort in ("fast", "default"))
    # Each sample once, to calibrate or, twice, to judge; and a few to see what the rows are.
    assert fast[0] <= 400 * 1.25 + 5
    assert fast[1] == 0
    assert fast[0] < default[0]
    assert default[1] > 0


@pytest.mark.parametrize("name", NETWORKS)
def test_effort_fast_uses_whole_ranges_and_rounds_to_nearest(name: str) -> None:
    data = data_for(name, 12)
    result = anybit.quantize(NETWORKS[name](), data, weights="int4", effort="fast")
    bare = anybit.quantize(NETWORKS[name](), weights="int4", activations="float")
    stored = {value.name: value.const_value for value in result.model.graph.initializers.values()}
    for value in bare.model.graph.initializers.values():
        assert value.const_value is not None
        if len(value.const_value.shape) > 1:
            other = stored[value.name]
            assert other is not None
            np.testing.assert_array_equal(value.const_value.numpy(), other.numpy())
    assert {(layer.smoothed, layer.sqnr, layer.tried) for layer in result.layers} == {
        (False, None, ())
    }
    assert result.verdict is not None
    assert result.verdict.samples


@pytest.mark.parametrize("words", ["uint8", "mxfp8", "uint16", "float"])
def test_effort_fast_accepts_all_activation_formats(words: str) -> None:
    data = data_for("attention", 12)
    result = anybit.quantize(attention(), data, activations=words, effort="fast")
    assert result.verdict is not None
    assert result.verdict.passed


def test_effort_is_default_without_an_option() -> None:
    data = data_for("convolutions")
    one, other = (
        anybit.quantize(NETWORKS["convolutions"](), data, weights="int4", **words)
        for words in ({}, {"effort": "default"})
    )
    assert bytes_of(one) == bytes_of(other)


def test_effort_fast_gives_the_same_bytes_with_the_cache_of_default(tmp_path: Path) -> None:
    data = data_for("convolutions")

    def result(**words: object) -> bytes:
        return bytes_of(anybit.quantize(NETWORKS["convolutions"](), data, weights="int4", **words))

    result(cache=tmp_path)
    assert result(effort="fast") == result(effort="fast", cache=tmp_path)


def test_effort_fast_accepts_a_budget_and_sensitivity() -> None:
    data = data_for("attention", 12)
    result = anybit.quantize(attention(), data, budget="15dB", effort="fast")
    assert result.verdict is not None
    assert result.verdict.sqnr >= 15
    measured = anybit.quantize(attention(), data, sensitivity=True, effort="fast")
    assert all(layer.output_sqnr is not None for layer in measured.layers)


def test_effort_does_not_change_weights_without_data() -> None:
    models = [
        anybit.quantize(attention(), weights="int4", activations="float", effort=effort)
        for effort in ("fast", "default")
    ]
    assert len({bytes_of(network) for network in models}) == 1


def test_effort_suggests_the_nearest_word() -> None:
    with pytest.raises(OptionError, match='unknown value "fats"; did you mean "fast"'):
        anybit.quantize(attention(), effort="fats")


def test_sensitivity_without_data_gives_a_remark() -> None:
    result = anybit.quantize(attention(), activations="float", sensitivity=True)
    assert any("was not measured" in remark for remark in result.remarks)


def test_cache_must_be_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("kept")
    with pytest.raises(OptionError, match="is a file"):
        anybit.quantize(attention(), data_for("attention", 4), cache=path)
    assert path.read_text() == "kept"
