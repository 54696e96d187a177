# SPDX-License-Identifier: Apache-2.0
"""`anybit.report`: what is said of quantized models, and how much room that takes."""

import dataclasses
import json
import math
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from float_models import NETWORKS, data_for
from small_models import model, node, quantized_weight

import anybit
from anybit.layers.layer import Layer
from anybit.quantization import Mix, Verdict
from anybit.quantization.certainty import FEWEST
from anybit.reporting import Report, page
from anybit.reporting.facts import Finding, Histogram, ReportedLayer, Tensor
from anybit.reporting.findings import with_findings
from anybit.reporting.fronts import front
from anybit.reporting.wording import sentence

HOSTILE = "</style><script>document.title='owned'</script>\x1b[31m\" onload=alert(1) '&"


@pytest.mark.parametrize("name", NETWORKS)
def test_quantized_networks(name: str) -> None:
    quantized = anybit.quantize(NETWORKS[name](), data_for(name, 8), weights="int4")
    found = anybit.report(quantized, name=name, command="anybit quantize")
    assert [each.name for each in found.layers] == [each.name for each in quantized.layers]
    assert dataclasses.replace(quantized.verdict, worst=()) == found.verdict
    assert [each.number for each in found.worst] == [
        each.number for each in quantized.verdict.worst
    ]
    assert sum(each.noise for each in found.layers) == pytest.approx(1)
    for layer, row in zip(found.layers, quantized.layers, strict=True):
        assert layer.sqnr == row.sqnr
        kinds = {each.role: each.kind for each in layer.tensors}
        assert kinds.get("weights", "") == row.weights
        assert kinds["activations"] == row.activations
        assert (layer.layer.weight_bits, layer.layer.input_bits) == (4 if row.weights else 8, 8)
        assert layer.layer.parameters == row.parameters
    text = page(found)
    assert f"{name} in few bits" in text
    assert "anybit quantize" in text
    assert len(re.findall(r'<details><summary>[^<]+<span>[^<]+</span></summary><div id="layer\d+">',
                          text)) == len(found.layers)  # fmt: skip
    json.dumps(found.to_json(), allow_nan=False)


@pytest.mark.parametrize("words", ["int3 per-tensor", "int4", "fp4_e2m1", "bipolar"])
def test_weights_are_measured(words: str) -> None:
    """Against plain sums over the tensors."""
    quantized = anybit.quantize(NETWORKS["convolutions"](), weights=words, activations=None)
    found = anybit.report(quantized)
    nodes = {each.name: each for each in quantized.model.graph}
    for layer in found.layers:
        (tensor,) = layer.tensors
        quantizer = nodes[layer.name].inputs[1].producer()
        x = quantizer.inputs[0].const_value.numpy().astype(np.float64)
        scale = quantizer.inputs[1].const_value.numpy().astype(np.float64)
        steps = x / scale if scale.size > 1 else x
        assert tensor.in_steps == (scale.size > 1)
        assert tensor.scales == scale.size
        assert sum(tensor.histogram.counts) == x.size
        assert tensor.histogram.lowest == pytest.approx(steps.min())
        assert tensor.histogram.highest == pytest.approx(steps.max())
        edges = np.linspace(steps.min(), steps.max(), len(tensor.histogram.counts) + 1)
        below = np.searchsorted(np.sort(steps.ravel()), edges[1:-1])
        seen = np.cumsum(tensor.histogram.counts)[:-1]
        assert np.abs(seen - below).max() <= 0.05 * x.size + 2
        y = anybit.load(_only(quantizer, x.shape)).run(x.astype(np.float32))["y"]
        noise = np.square(x - y).sum() / np.square(x).sum()
        assert tensor.sqnr == pytest.approx(-10 * np.log10(noise), abs=1e-6)
        axis = 1 if layer.layer.operator == "ConvTranspose" else 0
        reach = np.abs(x).max(axis=tuple(each for each in range(x.ndim) if each != axis))
        np.testing.assert_allclose(tensor.reach, reach, rtol=1e-6)
        if words != "bipolar":
            assert tensor.clipped == np.mean((steps > _last(tensor)) | (steps < -_last(tensor)))
        rounded = y / scale if scale.size > 1 else y
        away = np.abs(rounded[..., None] - np.array(tensor.values)).min(axis=-1)
        assert away.max() < 1e-5 * np.abs(rounded).max()


def _last(tensor: Tensor) -> float:
    """Half a step beyond the last value."""
    return tensor.values[-1] + (tensor.values[-1] - tensor.values[-2]) / 2


def _only(quantizer, shape) -> onnx.ModelProto:
    """A model of one quantizer."""
    import onnx_ir as ir

    proto = ir.to_proto(quantizer)
    constants = {each.name: each.const_value.numpy() for each in quantizer.inputs[1:] if each}
    given = [each.name if each else "" for each in quantizer.inputs[1:]]
    made = node(proto.op_type, " ".join(["x", *given]))
    made.attribute.extend(proto.attribute)
    return model([made], constants, inputs={"x": list(shape)})


def test_a_file_is_enough() -> None:
    proto, _ = quantized_weight()
    found = anybit.report(proto)
    (layer,) = found.layers
    (tensor,) = layer.tensors
    assert (layer.layer.weight_bits, layer.layer.input_bits) == (3, 32)
    assert (tensor.kind, tensor.lowest, tensor.highest) == ("int3", -1, 0.75)
    assert tensor.values == tuple(np.arange(-4, 4) / 4)
    assert (layer.sqnr, layer.noise, found.verdict) == (None, None, None)
    assert layer.bytes == (12 * 3 + 7) // 8
    assert "were not compared" in page(found)


@pytest.mark.parametrize("form", ["qdq", "qcdq", "standard"])
def test_other_forms(form: str) -> None:
    path = "examples/digits_w4a4.onnx"
    plain, other = anybit.report(path), anybit.report(anybit.convert(path, to=form))
    if form == "standard":
        assert not any(each.tensors for each in other.layers)
        return
    for one, two in zip(plain.layers, other.layers, strict=True):
        assert [(each.role, each.kind, each.lowest, each.highest) for each in one.tensors] == [
            (each.role, each.kind, each.lowest, each.highest) for each in two.tensors
        ]
        assert one.bits == two.bits == 4
        assert [sum(each.histogram.counts) for each in two.tensors if each.histogram] == [
            one.layer.parameters
        ]


def test_stored_codes_lie_along_the_same_channels() -> None:
    quantized = anybit.quantize(NETWORKS["convolutions"](), weights="int8", activations=None)
    plain, other = anybit.report(quantized), anybit.report(anybit.convert(quantized, to="qdq"))
    for one, two in zip(plain.layers, other.layers, strict=True):
        (floats,), (codes,) = one.tensors, two.tensors
        np.testing.assert_allclose(floats.reach, codes.reach, rtol=0.02)
        assert (codes.sqnr, codes.scales) == (None, floats.scales)


def layer(number: int, name: str = "") -> ReportedLayer:
    rng = np.random.default_rng(number)

    def tensor(role: str, low: float) -> Tensor:
        counts = tuple(rng.integers(0, 10**6, 64).tolist())
        return Tensor(
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
            reach=tuple(rng.random(32).tolist()),
            channels=768,
            alone=(17, 0.5),
        )

    known = Layer(
        name=f"{name}encoder/layer.{number}/attention/MatMul",
        operator="MatMul",
        output=f"y{number}",
        shape="[?, 128, 768]",
        parameters=768**2,
        macs=10**6 * (number + 1),
        bops=10**7 * (number + 1),
        weight_bits=4,
        input_bits=8,
        sparsity=0.123,
        accumulator_bits=20,
        sums=(-1234.5, 2345.6),
    )
    tensors = tensor("weights", -8.0), tensor("activations", 0.0)
    return ReportedLayer(known, tensors, sqnr=20 + number / 100, noise=1 / 500)


@pytest.mark.parametrize(
    ("count", "name"), [(500, ""), (3000, ""), (600, "/".join(["long"] * 300))]
)
def test_pages_stay_small(count: int, name: str) -> None:
    layers = tuple(layer(each, name) for each in range(count))
    findings = tuple(Finding(f"{name[:100]} {each}", "Try.") for each in range(12))
    report = Report(name, layers, {each.name: name for each in layers}, findings=findings)
    text = page(report)
    assert len(text.encode()) < 2_000_000
    assert text.count("<details>") >= 300
    if count == 500:
        assert text.count("<details>") == 500


@pytest.mark.parametrize("samples", [3, FEWEST - 1, FEWEST, 300])
@pytest.mark.parametrize("sqnr", [3.0, 30.0])
def test_a_verdict_is_one_sentence(sqnr: float, samples: int) -> None:
    verdict = Verdict(sqnr, 1.0, samples, seen=False, correlation=0.98765)
    said = sentence(Report("m", (), verdict=verdict))
    assert f": SQNR {sqnr:.1f} dB, correlation 0.9877, agreement 100.0 %" in said
    assert said.endswith(".")
    assert ("give hundreds" in said) == (samples < FEWEST)
    assert ("quality check failed: SQNR 3.0 dB is below 10 dB (--fail-below)" in said) == (
        sqnr < 10
    )


@pytest.mark.parametrize(
    ("samples", "seen", "said"),
    [
        (1, True, "No sample was held back to judge by."),
        (1, False, "Only 1 sample was held back to judge by."),
        (2, False, "Only 2 samples were held back to judge by."),
        (23, False, "Only 23 samples were held back to judge by."),
    ],
)
def test_few_samples_are_a_finding(samples: int, seen: bool, said: str) -> None:
    report = with_findings(Report("m", (), verdict=Verdict(30.0, 1.0, samples, seen=seen)))
    assert [each.text for each in report.findings] == [said]


def test_layers_are_ranked() -> None:
    layers = [dataclasses.replace(layer(each), noise=each / 10) for each in range(4)]
    report = Report("m", (*layers,))
    assert report.ranked == (*layers[::-1],)
    text = page(report)
    assert text.index('data-v="0.3"') < text.index('data-v="0.1"')


def test_one_channel_alone() -> None:
    proto, weight = quantized_weight()
    loud = weight.copy()
    loud[:, 1] *= 0.01
    loud[:, 2] = 0.02
    loud[0, 1] = 0.1
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(loud, "weight"))
    (finding, *_) = [each for each in anybit.report(proto).findings if "One channel" in each.text]
    assert "carries" in finding.text
    assert "per-channel" in finding.remedy


def test_what_other_widths_cost() -> None:
    mixes = [Mix("", 100 * each, 10**6 * each, 10.0 + 4 * each, False) for each in range(1, 9)]
    same = [Mix(f"int{each}/uint8", 120 * each, 2 * 10**6, 9.0 + each, False) for each in (2, 4, 8)]
    report = Report("m", (layer(0),), front=(*mixes[:3], *same, Mix("", 350, 10**6, 23, True)))
    text = page(report)
    assert text.count('<svg class="front"') == 2
    assert text.count('<circle class="same"') == 6
    assert text.count('<circle class="chosen"') == 2
    for words in ("int4/uint8", ">chosen<", "output SQNR", "100 bytes", "3 M", "23.0 dB"):
        assert words in text
    assert '<svg class="front"' not in page(dataclasses.replace(report, front=()))
    hostile = [Mix(HOSTILE, 1, 1, 1, False), Mix(HOSTILE, 2, 2, math.inf, False)]
    hostile.append(Mix("", 3, 1, -5, True))
    text = page(dataclasses.replace(report, front=(*hostile,)))
    assert text.count("<script>") == 1
    assert text.count('<svg class="front"') == 1


def test_names_do_not_stand_on_the_line() -> None:
    """Of formats that lie on it, as those of a network with layers alike do."""
    mixes = [Mix("", 100 * each, each, 6.0 * each, False) for each in range(2, 9)]
    same = [Mix(f"int{each}/uint8", 100 * each, each, 6.0 * each, False) for each in range(3, 9)]
    text = front([*mixes, *same]).split("</svg>")[0]
    (line,) = re.findall(r'class="line" d="M(.*?)"', text)
    corners = [tuple(map(float, each.split())) for each in line.split("L")]
    xs, ys = zip(*corners, strict=True)
    names = re.findall(r'<text class="same-name" x="(\d+)" y="(\d+)">(.*?)</text>', text)
    assert len(names) == 6
    for x, y, name in names:
        left, base = float(x), float(y)
        passed = np.interp(np.linspace(left, left + 6.5 * len(name), 50), xs, ys, right=np.inf)
        assert not np.any((base - 9 < passed) & (passed < base + 2))


def test_names_stand_nearest_to_their_own_rings() -> None:
    """Also where rings of formats crowd: all of them cost the same, or nearly."""
    for step in (0, 4, 12):
        same = [
            Mix(f"int{each}/uint8", 100 + step * each, each, 20 + 0.9 * each, False)
            for each in range(3, 9)
        ]
        others = [Mix("", 100 + 40 * each, each, 6.0 * each, False) for each in range(9)]
        text = front([*others, *same]).split("</svg>")[0]
        ring = r'<circle class="same" cx="(\d+)" cy="(\d+)" r="5"><title>(.*?):'
        rings = {name: (float(x), float(y)) for x, y, name in re.findall(ring, text)}
        names = re.findall(r'<text class="same-name" x="(\d+)" y="(\d+)">(.*?)</text>', text)
        assert names
        for x, y, name in names:
            left, middle, right = float(x), float(y) - 4, float(x) + 7.2 * len(name)
            away = {
                each: math.hypot(min(max(at, left), right) - at, height - middle)
                for each, (at, height) in rings.items()
            }
            assert min(away, key=away.__getitem__) == name


def test_names_stand_beside_their_rings() -> None:
    """Or not at all: where rings lie close together there is room only far from some."""
    widths = [(w, a) for a in (4, 6, 8) for w in range(2, a + 1)]
    same = [Mix(f"int{w}/uint{a}", 100 * w, w * a, 6.0 * w - 3 * (8 - a), False) for w, a in widths]
    wide = Mix("int16/uint16", 1600, 256, 95.0, False)
    line = [Mix("", 100 * each, 7 * each, 6.0 * each, False) for each in range(2, 11)]
    for chosen in (Mix("", 450, 31, 28, True), Mix("", 300, 24, 15, True)):
        for text in front([*line, *same, wide, chosen]).split("</svg>")[:2]:
            ring = r'<circle class="(\w+)" cx="(\d+)" cy="(\d+)" r="5"><title>(.*?):'
            rings = re.findall(ring, text)
            places = {name: (float(x), float(y)) for _, x, y, name in rings}
            places["chosen"] = places["mix"]
            names = re.findall(r'<text class="\w+-name" x="(\d+)" y="(\d+)">(.*?)</text>', text)
            assert "int16/uint16" in {name for _, _, name in names}
            assert "the dot: what was chosen" in text
            for x, y, name in names:
                at, height = places[name]
                left, middle, right = float(x), float(y) - 4, float(x) + 7.2 * len(name)
                aside = min(max(at, left), right) - at
                above = min(max(height, middle - 7), middle + 7) - height
                assert math.hypot(aside, above) < 12


def test_what_makes_much_of_the_noise() -> None:
    """It is little of three layers what is much of ten."""
    for count, share, said in (
        (3, 0.5, False),
        (3, 0.7, True),
        (10, 0.25, False),
        (10, 0.35, True),
    ):
        others = [(1 - share) / (count - 1)] * (count - 1)
        layers = [
            dataclasses.replace(layer(at), noise=each) for at, each in enumerate([share, *others])
        ]
        texts = [each.text for each in with_findings(Report("m", (*layers,))).findings]
        assert any("of the noise of all layers" in each for each in texts) == said


def test_the_worst_samples_are_named(tmp_path: Path) -> None:
    data = data_for("convolutions", 8)
    for number, each in enumerate(data):
        np.savez(tmp_path / f"<b>{number}.npz", **each)
    quantized = anybit.quantize(NETWORKS["convolutions"](), tmp_path)
    found = anybit.report(quantized, tmp_path)
    assert {each.name for each in found.worst} == {"<b>1.npz", "<b>4.npz"}
    text = page(found)
    assert "The worst samples" in text
    assert "which no choice has seen" in text
    assert "&lt;b&gt;1.npz" in text
    assert "Ranges tried for" in text
    assert "<b>1.npz" not in text


def test_a_budget_has_a_front() -> None:
    data = data_for("convolutions")
    quantized = anybit.quantize(NETWORKS["convolutions"](), data, budget="25dB")
    found = anybit.report(quantized, data)
    assert found.front == quantized.front
    assert all(each.output_sqnr is not None for each in found.layers)
    noises = [10 ** (-each.output_sqnr / 10) for each in found.layers]
    for layer, noise in zip(found.layers, noises, strict=True):
        assert layer.noise == pytest.approx(noise / sum(noises))
    text = page(found)
    assert "What other widths would cost" in text
    assert "no choice has seen" not in text
    assert "which say which mix of widths is taken" in text
    assert "Noise over signal of the outputs of the model" in text
    assert text.count('<circle class="chosen"') == text.count('<svg class="front"') >= 1


@pytest.mark.parametrize("name", ["convolutions", "attention"])
def test_noise_at_the_outputs(name: str) -> None:
    """Powers add, nearly: all layers together do what the verdict says."""
    data = data_for(name)
    quantized = anybit.quantize(NETWORKS[name](), data, weights="int5", sensitivity=True)
    found = anybit.report(quantized)
    total = sum(10 ** (-each.output_sqnr / 10) for each in found.layers)
    assert -10 * math.log10(total) == pytest.approx(found.verdict.sqnr, abs=4)
    text = page(found)
    assert "Noise over signal of the outputs of the model" in text
    assert "output, dB" in text
