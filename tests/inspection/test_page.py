# SPDX-License-Identifier: Apache-2.0
"""Pages: hostile names, damaged models, and their size."""

import contextlib

import numpy as np
import pytest
from bad_models import BAD_MODELS
from page_tags import Tags
from small_models import model, node, quantized_weight

import anybit
from anybit import ModelError
from anybit.inspection import LayerReport, ModelReport, report_quantization
from anybit.inspection.model_report import Histogram, LayerQuality, QuantizedTensor
from anybit.inspection.pages import render_report
from anybit.quant_types.layer_info import LayerInfo

HOSTILE = "</style><script>document.title='owned'</script>\x1b[31m\" onload=alert(1) '&{{ page }}"


def test_page_escapes_hostile_names() -> None:
    proto, _ = quantized_weight()
    proto.graph.node[1].name = HOSTILE
    proto.graph.initializer[0].name = proto.graph.node[0].input[0] = HOSTILE + "2"
    report = anybit.inspect(proto, np.ones((3, 4), np.float32))
    text = render_report(report)
    Tags(text)
    assert "onload=alert(1)" in text
    assert "{{ page }}" in text
    assert "\x1b" not in text
    assert "url(" not in text
    assert "http" not in text.replace("http-equiv", "")


def test_page_escapes_the_command() -> None:
    constants = {"w": np.float32(np.random.default_rng(0).normal(size=(4, 4)))}
    proto = model([node("MatMul", "x w", domain="")], constants, inputs={"x": ["n", 4]})
    quantized = anybit.quantize(proto, weights="int4", activations="float")
    report = report_quantization(quantized, name=HOSTILE, command=HOSTILE)
    Tags(render_report(report))


@pytest.mark.parametrize("name", BAD_MODELS)
def test_page_of_a_bad_model_is_complete(name: str) -> None:
    with contextlib.suppress(ModelError):
        assert "</html>" in render_report(anybit.inspect(BAD_MODELS[name][0]))


def layer(number: int, name: str) -> LayerReport:
    """Return a layer with two large histograms."""
    rng = np.random.default_rng(number)

    def tensor(role: str, low: float) -> QuantizedTensor:
        counts = tuple(rng.integers(0, 10**6, 64).tolist())
        return QuantizedTensor(
            name=f"{name}encoder/layer.{number}/attention/{role}",
            role=role,
            kind="int4",
            scales=64,
            in_steps=role == "weights",
            lowest=low,
            highest=7.5,
            values=tuple(map(float, range(-8, 8))),
            histogram=Histogram(-9.5, 9.25, counts),
            clipped=0.01,
            sqnr=20.123,
            channel_max=tuple(rng.random(32).tolist()),
            channels=768,
            outlier=(17, 0.5),
        )

    info = LayerInfo(
        name=f"{name}encoder/layer.{number}/attention/MatMul",
        operator="MatMul",
        output=f"y{number}",
        shape="[?, 128, 768]",
        parameters=768**2,
        macs=10**6 * (number + 1),
        weight_bits=4,
        input_bits=8,
        accumulator_bits=20,
        sums=(-1234.5, 2345.6),
    )
    tensors = tensor("weights", -8.0), tensor("activations", 0.0)
    return LayerReport(info, 2**18, tensors, quality=LayerQuality(20 + number / 100, noise=1 / 500))


@pytest.mark.parametrize("name", ["", "/".join(["long"] * 300)])
def test_page_of_many_layers_stays_small(name: str) -> None:
    text = render_report(ModelReport("m", layers=tuple(layer(at, name) for at in range(3000))))
    assert len(text.encode()) < 2_500_000
    assert text.count("<details ") == 300
    assert "2700 further layers are in the JSON" in text
