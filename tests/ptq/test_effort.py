# SPDX-License-Identifier: Apache-2.0
"""The dial between seconds and few errors."""

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


def bytes_of(found: anybit.QuantizationResult) -> bytes:
    return ir.to_proto(found.model).SerializeToString(deterministic=True)


def runs(effort: str) -> tuple[int, int]:
    """How often models are run, and with how many numbers layers by themselves."""
    counts = [0, 0]
    monkeypatch = pytest.MonkeyPatch()

    def counting(index: int, run: Run) -> Run:
        def counted(
            session: object, feeds: Mapping[str, np.ndarray], *names: object, **how: bool
        ) -> dict[str, np.ndarray]:
            counts[index] += sum(each.size for each in feeds.values()) if index else 1
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
def test_fast_ranges_are_whole_and_weights_nearest(name: str) -> None:
    data = data_for(name, 12)
    found = anybit.quantize(NETWORKS[name](), data, weights="int4", effort="fast")
    bare = anybit.quantize(NETWORKS[name](), weights="int4", activations=None)
    stored = {each.name: each.const_value for each in found.model.graph.initializers.values()}
    for each in bare.model.graph.initializers.values():
        assert each.const_value is not None
        if len(each.const_value.shape) > 1:
            other = stored[each.name]
            assert other is not None
            np.testing.assert_array_equal(each.const_value.numpy(), other.numpy())
    assert {(each.smoothed, each.sqnr, each.tried) for each in found.layers} == {(False, None, ())}
    assert found.verdict is not None
    assert found.verdict.samples


@pytest.mark.parametrize("words", ["uint8", "mxfp8", "uint16", None])
def test_fast_activations_of_all_kinds(words: str | None) -> None:
    data = data_for("attention", 12)
    found = anybit.quantize(attention(), data, activations=words, effort="fast")
    assert found.verdict is not None
    assert found.verdict.passed


def test_default_is_what_is_done_without_a_word() -> None:
    data = data_for("convolutions")
    one, other = (
        anybit.quantize(NETWORKS["convolutions"](), data, weights="int4", **words)
        for words in ({}, {"effort": "default"})
    )
    assert bytes_of(one) == bytes_of(other)


def test_effort_fast_gives_the_same_bytes_with_the_cache_of_default(tmp_path: Path) -> None:
    data = data_for("convolutions")

    def found(**words: object) -> bytes:
        return bytes_of(anybit.quantize(NETWORKS["convolutions"](), data, weights="int4", **words))

    found(cache=tmp_path)
    assert found(effort="fast") == found(effort="fast", cache=tmp_path)


def test_fast_takes_a_budget_and_measures_layers() -> None:
    data = data_for("attention", 12)
    found = anybit.quantize(attention(), data, budget="15dB", effort="fast")
    assert found.verdict is not None
    assert found.verdict.sqnr >= 15
    measured = anybit.quantize(attention(), data, sensitivity=True, effort="fast")
    assert all(each.output_sqnr is not None for each in measured.layers)


def test_weights_alone_need_no_effort() -> None:
    models = [
        anybit.quantize(attention(), weights="int4", activations=None, effort=each)
        for each in ("fast", "default")
    ]
    assert len({bytes_of(each) for each in models}) == 1


def test_a_wrong_word_says_what_may_be_meant() -> None:
    with pytest.raises(OptionError, match='unknown effort "fats"; did you mean "fast"'):
        anybit.quantize(attention(), effort="fats")


def test_sensitivity_without_data_is_remarked() -> None:
    found = anybit.quantize(attention(), activations=None, sensitivity=True)
    assert any("was not measured" in remark for remark in found.remarks)


def test_a_cache_is_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("kept")
    with pytest.raises(OptionError, match="is a file"):
        anybit.quantize(attention(), data_for("attention", 4), cache=path)
    assert path.read_text() == "kept"
