# SPDX-License-Identifier: Apache-2.0
"""States of recurrent cells: an input and an output on one grid."""

import numpy as np
import pytest
from small_networks import NETWORKS

import anybit
from anybit import OptionError, QuantizationResult
from anybit.onnx.graph.constants import read_array
from anybit.ptq.search.layer_search import LayerSearch

STATES = {
    "gru": {"h": "state"},
    "lstm": {"h": "state", "c": "cell"},
    "concatenated gru": {"h": "state"},
    "stream with state": {"past": "next"},
}


def quantize(name: str, **options: object) -> QuantizationResult:
    network = NETWORKS[name]
    arguments = {"outputs": "int8", "integer_only": True, "states": STATES[name], **options}
    data = network.draw(80, 1)
    for state in {"h", "c"}.intersection(data):  # gates keep states small
        data[state] *= np.float32(0.3)
    return anybit.quantize(network.make(), data, **arguments)


def read_grid(result: QuantizationResult, name: str) -> list[float]:
    """Return scale and zero-point of the quantizer of an input or output."""
    graph = result.model.graph
    for value in graph.inputs:
        if value.name == name:
            (quantizer,) = {reader for reader, _ in value.uses()}
            break
    else:
        (value,) = [value for value in graph.outputs if value.name == name]
        quantizer = value.producer()
        while quantizer.op_type == "Slice":
            source = quantizer.inputs[0].producer()
            quantizer = source.inputs[0].producer() if source.op_type == "Concat" else source
    assert quantizer.op_type == "IntQuant"
    return [read_array(parameter).item() for parameter in quantizer.inputs[1:3]]


@pytest.mark.parametrize("effort", ["fast", "default"])
@pytest.mark.parametrize("name", STATES)
def test_states_have_one_grid_at_both_ends(name: str, effort: str) -> None:
    result = quantize(name, effort=effort)
    assert result.verdict is not None
    assert result.verdict.sqnr > 20
    for source, target in STATES[name].items():
        assert read_grid(result, source) == read_grid(result, target)


def test_states_stay_on_their_grid_from_step_to_step() -> None:
    result = quantize("gru")
    model, steps = anybit.load(result), NETWORKS["gru"].draw(20, 4)["x"]
    scale, zero = read_grid(result, "h")
    state = np.zeros((1, 6), np.float32)
    for x in steps:
        state = model.run({"x": x[None], "h": state})["state"]
        codes = state / np.float32(scale)
        np.testing.assert_allclose(codes, np.rint(codes), atol=1e-3)
        assert np.all((codes + zero >= 0) & (codes + zero <= 255))


def test_states_do_not_share_second_moments_of_different_tensors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = []
    original = LayerSearch.choose

    def choose(search: LayerSearch, *arguments: object) -> object:
        names.append({runner.input_name for runner in search._runners})
        return original(search, *arguments)

    monkeypatch.setattr(LayerSearch, "choose", choose)
    quantize("concatenated gru")
    assert max(map(len, names)) > 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"states": {"q": "state"}}, r'states\[.q.\]: unknown input "q"'),
        ({"states": {"h": "q"}}, r'states\[.h.\]: unknown output "q"'),
        ({"outputs": None}, "the outputs are float; add outputs='int8'"),
        (
            {"outputs": "int8 dynamic", "integer_only": False},
            "int8 dynamic' has dynamic scales",
        ),
    ],
)
def test_unknown_states_are_rejected(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        quantize("gru", **options)
