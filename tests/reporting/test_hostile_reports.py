# SPDX-License-Identifier: Apache-2.0
"""Reports on models that are damaged, or that want to harm whoever reads the page."""

import contextlib

import numpy as np
import onnx
import pytest
from bad_models import BAD_MODELS
from small_models import model, node, quantized_weight

import anybit
from anybit import ModelError
from anybit.reporting import page

HOSTILE = "</style><script>document.title='owned'</script>\x1b[31m\" onload=alert(1) '&"


def test_names_are_hostile() -> None:
    proto, _ = quantized_weight()
    proto.graph.node[1].name = HOSTILE
    proto.graph.initializer[0].name = proto.graph.node[0].input[0] = HOSTILE + "2"
    for command in ("", HOSTILE):
        text = page(anybit.report(proto, name=HOSTILE, command=command))
        assert text.count("<script>") == text.count("</script>") == 1
        assert "onload=alert(1)" in text
        assert '" onload' not in text
        assert "\x1b" not in text
        assert "src=" not in text
        assert "url(" not in text
        assert "http" not in text.replace("http-equiv", "")


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_weights_that_nothing_can_be_said_of(wrong: float) -> None:
    proto, weight = quantized_weight()
    broken = weight.copy()
    broken[1, 1] = wrong
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(broken, "weight"))
    (layer,) = anybit.report(proto).layers
    assert layer.tensors[0].histogram is None
    assert "No quantizer" not in page(anybit.report(proto))


def test_scales_that_are_computed() -> None:
    nodes = [
        node("ReduceMax", "x", "top", domain="", name="top"),
        node("IntQuant", "x top zero four", "q"),
        node("MatMul", "q w", domain="", name="m"),
    ]
    constants = {"w": np.eye(4, dtype="f"), "zero": 0, "four": 4}
    proto = model(nodes, constants, inputs={"x": ["n", 4]})
    x = np.ones((3, 4), np.float32)
    found = anybit.report(proto, x)
    assert found.layers[0].tensors == ()
    assert "No quantizer of a known grid" in page(found)


@pytest.mark.parametrize("name", BAD_MODELS)
def test_bad_models(name: str) -> None:
    with contextlib.suppress(ModelError):
        assert "</html>" in page(anybit.report(BAD_MODELS[name][0]))


def test_parameters_that_do_not_fit() -> None:
    proto, _ = quantized_weight()
    scale = np.ones((2, 1), np.float32)
    proto.graph.initializer[1].CopyFrom(onnx.numpy_helper.from_array(scale, "scale"))
    with pytest.raises(ModelError, match="does not broadcast"):
        anybit.report(proto)
