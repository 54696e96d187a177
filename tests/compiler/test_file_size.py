# SPDX-License-Identifier: Apache-2.0
"""Compiled files are little larger than their weights."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from text_models import parse

import anybit
from anybit.compiler.program import program as p
from anybit.compiler.requantize import requantizer

CHANNELS, PIXELS, LAYERS = 64, 6, 4


CONV = "sum{at} = Conv<pads = [{pad}, {pad}, {pad}, {pad}]>(y{at}, w{at}, b{at})"
ACTIVATIONS = {
    "relu": "y{to} = Relu(sum{at})",
    "hard swish": """
        gate{at} = HardSigmoid<alpha = 0.16666667>(sum{at})
        y{to} = Mul(sum{at}, gate{at})""",
    "gate": """
        mean{at} = GlobalAveragePool(sum{at})
        turned{at} = Conv(mean{at}, v{at})
        gate{at} = HardSigmoid(turned{at})
        y{to} = Mul(sum{at}, gate{at})""",  # one factor per channel, from all pixels
}


def network(kernel: int, activation: str) -> onnx.ModelProto:
    """Return a chain of convolutions with 8-bit codes between them."""
    random = np.random.default_rng(0)
    constants, lines = {}, []
    for layer in range(LAYERS):
        shape = (CHANNELS, CHANNELS, kernel, kernel)
        scale = np.float32(1 / np.sqrt(CHANNELS * kernel * kernel))
        bias_scale = np.float32(0.1)
        constants[f"w{layer}"] = random.standard_normal(shape, dtype=np.float32) * scale
        constants[f"b{layer}"] = random.standard_normal(CHANNELS, dtype=np.float32) * bias_scale
        if activation == "gate":
            shape = (CHANNELS, CHANNELS, 1, 1)
            constants[f"v{layer}"] = random.standard_normal(shape, dtype=np.float32) / 8
        for line in (CONV, ACTIVATIONS[activation]):
            lines.append(line.format(at=layer, to=layer + 1, pad=kernel // 2))
    x, y = (f"float[n, {CHANNELS}, {PIXELS}, {PIXELS}] y{at}" for at in (0, LAYERS))
    return parse(f"g ({x}) => ({y}) {{ {' '.join(lines)} }}", constants)


@pytest.mark.sample(3)
@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("activation", ["relu", "hard swish", "gate"])
def test_file_size_is_within_a_tenth_of_weights(
    kernel: int, activation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network(kernel, activation)
    shape = (8, CHANNELS, PIXELS, PIXELS)
    data = np.random.default_rng(1).standard_normal(shape, dtype=np.float32)
    quantized = anybit.quantize(model, data, effort="fast", integer_only=True)
    compiled = anybit.compile(quantized)
    assert compiled.report.share == 1
    compiled.save(tmp_path / "compiled.onnx")
    of_weights = LAYERS * CHANNELS * CHANNELS * kernel * kernel
    of_weights += LAYERS * CHANNELS * CHANNELS * (activation == "gate")
    of_graph = 2**14  # names, shapes, a few numbers per channel
    assert (tmp_path / "compiled.onnx").stat().st_size <= 1.1 * of_weights + of_graph

    monkeypatch.setattr(requantizer, "_MANY_LEVELS", 256)
    thresholds = anybit.compile(quantized)
    epilogues = [
        [layer.epilogue for layer in item.report.layers] for item in (compiled, thresholds)
    ]
    assert "Thresholds" not in epilogues[0]
    assert "Thresholds" in epilogues[1]
    (mine,), (its,) = (item.run(data).values() for item in (compiled, thresholds))
    assert mine.tobytes() == its.tobytes()


QUANT = "Quant <signed: int = 1, narrow: int = 0>"


def with_constants(text: str, **constants: np.ndarray | float) -> onnx.ModelProto:
    constants = {"none": 0, "eight": 8, **constants}
    return parse(text, {name: np.float32(value) for name, value in constants.items()})


@pytest.mark.parametrize("factors", [[0.3, -2, 1e-3, 7], None])
@pytest.mark.parametrize("offsets", [[0.5, -1, 0, 3e4], None])
def test_quantize_fields_use_line_per_channel(
    factors: list[float] | None, offsets: list[float] | None
) -> None:
    scaled, a = ("a = Mul(x, factors)", "a") if factors else ("", "x")
    moved, b = (f"b = Add({a}, offsets)", "b") if offsets else ("", a)
    model = with_constants(
        f"""g (float[n, 4] x) => (float[n, 3] y) {{
            {scaled}
            {moved}
            q = {QUANT} ({b}, scale, none, eight)
            y = MatMul (q, w)
        }}""",
        scale=1 / 64,
        w=np.arange(-6, 6).reshape(4, 3),
        **({"factors": np.array(factors)} if factors else {}),
        **({"offsets": np.array(offsets)} if offsets else {}),
    )
    compiled = anybit.compile(model)
    (program,) = compiled.report.programs
    quantize = program.instructions[0]
    assert isinstance(quantize, p.Quantize)
    assert quantize.thresholds.size == 255
    assert (quantize.factors.size, quantize.offsets.size) == (4 * bool(factors), 4 * bool(offsets))
    special = np.float32([0, -0.0, np.inf, -np.inf, 3e38, -3e38, 1e-45, 1 / 128, -3 / 128])
    x = np.random.default_rng(0).normal(0, 2, (500, 4)).astype(np.float32)
    x[: len(special)] = special[:, None]
    np.testing.assert_array_equal(compiled.run(x)["y"], anybit.load(model).run(x)["y"])


def test_requantize_replays_monotonic_functions_of_long_sums() -> None:
    """More accumulators than can be compared; both sides of each threshold tell."""
    rng = np.random.default_rng(0)
    channels = 8
    model = with_constants(
        f"""g (float[n, 1000] x) => (float[n, 8] y) {{
            q = {QUANT} (x, one, none, eight)
            w = {QUANT} (weights, one, none, eight)
            s = MatMul (q, w)
            b = BatchNormalization (s, gamma, beta, mean, var)
            y = {QUANT} (b, scale, none, eight)
        }}""",
        one=1,
        weights=rng.integers(-127, 128, (1000, channels)),
        gamma=rng.normal(size=channels),
        beta=rng.normal(size=channels),
        mean=rng.normal(size=channels) * 1e4,
        var=rng.uniform(1e10, 4e10, channels),
        scale=0.0123,
    )
    compiled = anybit.compile(model)
    assert [layer.epilogue for layer in compiled.report.layers] == ["Rounded"]
    x = rng.integers(-127, 128, (200, 1000)).astype(np.float32)
    x[:20] = np.sign(rng.normal(size=(20, 1))) * 127
    np.testing.assert_array_equal(compiled.run(x)["y"], anybit.load(model).run(x)["y"])


def test_integer_weights_are_stored_for_float_layers(tmp_path: Path) -> None:
    data = np.random.default_rng(1).standard_normal((8, CHANNELS, PIXELS, PIXELS), np.float32)
    quantized = anybit.quantize(network(3, "relu"), data, effort="fast")
    compiled = anybit.compile(quantized, guarantee="exact")
    floats = [layer for layer in compiled.report.layers if layer.guarantee is None]
    assert len(floats) == LAYERS
    path = tmp_path / "compiled.onnx"
    compiled.save(path)
    assert path.stat().st_size < 1.1 * LAYERS * CHANNELS * CHANNELS * 9 + 2**14
    expected = anybit.load(quantized).run(data)
    for model in (compiled, anybit.load(path)):
        (result,), (value,) = model.run(data).values(), expected.values()
        np.testing.assert_array_equal(result, value)
