# SPDX-License-Identifier: Apache-2.0
"""Means of pixels, the sigmoid and GELU in float32, with bits that programs define."""

import math
from dataclasses import replace

import numpy as np
import pytest
from text_models import parse

import anybit
from anybit.compiler.backends.c.source import emit_c
from anybit.compiler.program import program as p
from anybit.compiler.program.encoding import encode
from anybit.compiler.program.network import Network
from anybit.compiler.program.open_bits import is_open
from anybit.compiler.program.reference import compute_gelu, compute_sigmoid, run
from anybit.errors import ModelError

NO_OPERAND = np.zeros(1, np.float32)
SIGMOID = p.Step(p.Operation.SIGMOID, NO_OPERAND)
GELU = p.Step(p.Operation.GELU, NO_OPERAND)


def mean_of(height: int, width: int, channels: int, first: int = 0) -> p.Program:
    """Return the mean of an input, and that of a tensor of floats with the same elements."""
    sizes = (channels, height, width) if first else (height, width, channels)
    copy = p.Elementwise(0, -1, 0, p.Operation.ADD, ())
    out = p.Port(np.int32([channels]), 1, 1, channels, 0)
    return p.Program(
        (p.Port(np.int32(sizes), height, width, channels, first),),
        (out, out),
        (),
        (copy, p.SpatialMean(0, 1), p.SpatialMean(1, 2)),
        (p.FloatTensor(height, width, channels),),
    )


def sigmoid_of(channels: int, *steps: p.Step) -> p.Program:
    port = p.Port(np.int32([channels]), 1, 1, channels, 0)
    whole = p.Elementwise(0, -1, 0, p.Operation.ADD, steps or (SIGMOID,))
    return p.Program((port,), (port,), (), (whole,))


def test_sigmoid_has_an_error_of_four_ulp():
    x = np.concatenate([s * np.geomspace(1e-30, 86.9, 40000) for s in (1, -1)]).astype(np.float32)
    exact = 1 / (1 + np.exp(-x.astype(np.float64)))
    unit = np.spacing(exact.astype(np.float32)).astype(np.float64)
    assert np.max(np.abs(compute_sigmoid(x) - exact) / unit) < 4


def test_sigmoid_of_special_numbers():
    y = compute_sigmoid(np.float32([0, -0.0, 100, np.inf, -87, -100, -np.inf, np.nan]))
    assert y[:4].tolist() == [0.5, 0.5, 1, 1]
    assert 0 < y[4] == y[5] == y[6] < 1e-37
    assert np.isnan(y[7])


@pytest.mark.parametrize("channels", [1, 15, 16, 17, 70, 1500])
def test_sigmoid_equals_reference_on_all_isa_levels(level, channels):
    x = np.random.default_rng(channels).normal(0, 30, (3, channels)).astype(np.float32)
    x[0, 0], x[1, 0], x[2, 0] = np.inf, -np.inf, np.nan
    silu = (p.Step(p.Operation.KEEP, NO_OPERAND), SIGMOID, p.Step(9, NO_OPERAND))
    for program in (sigmoid_of(channels), sigmoid_of(channels, *silu)):
        (y,), (expected,) = Network(program).run([x]), run(program, [x])
        np.testing.assert_array_equal(y, expected, strict=True)


def test_gelu_has_an_error_of_a_few_roundings():
    x = np.concatenate([np.geomspace(1e-30, 1e30, 40000), np.linspace(0, 6, 40000)])
    x = np.concatenate([x, -x]).astype(np.float32)
    erfc = np.array([math.erfc(-y / math.sqrt(2)) for y in x.astype(np.float64)])
    exact = x.astype(np.float64) * erfc / 2
    assert np.all(np.abs(compute_gelu(x) - exact) <= 3.2e-7 * np.abs(x))


def test_gelu_of_special_numbers():
    y = compute_gelu(np.float32([5.4, 3e38, np.inf, -5.4, -3e38, 0, -0.0, 1e-45, -np.inf, np.nan]))
    assert y[:3].tolist() == [np.float32(5.4), np.float32(3e38), np.inf]
    assert y[3:8].tolist() == [0, 0, 0, 0, 0]
    assert np.signbit(y[3:8]).tolist() == [True, True, False, True, False]
    assert np.isnan(y[8:]).all()  # as of the nodes: -inf * 0


@pytest.mark.parametrize("channels", [1, 15, 16, 17, 70, 1500])
def test_gelu_equals_reference_on_all_isa_levels(level, channels):
    x = np.random.default_rng(channels).normal(0, 3, (3, channels)).astype(np.float32)
    x[0, 0], x[1, 0], x[2, 0] = np.inf, -np.inf, np.nan
    x[0, 1:2], x[1, 1:2], x[2, 1:2] = -0.0, -1e38, 1e-40
    twice = (p.Step(p.Operation.KEEP, NO_OPERAND), GELU, p.Step(9, NO_OPERAND))
    for program in (sigmoid_of(channels, GELU), sigmoid_of(channels, *twice)):
        (y,), (expected,) = Network(program).run([x]), run(program, [x])
        nan = np.isnan(expected)
        np.testing.assert_array_equal(np.isnan(y), nan)
        assert y[~nan].tobytes() == expected[~nan].tobytes()


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("sizes", [(1, 1), (1, 3), (2, 3), (8, 8), (5, 13), (13, 10)])
def test_mean_equals_reference_on_all_isa_levels(level, sizes, first):
    rng = np.random.default_rng(0)
    for channels in (1, 8, 16, 17, 40, 64):
        program = mean_of(*sizes, channels, first)
        x = rng.normal(3, 5, (2, *program.inputs[0].sizes)).astype(np.float32)
        both = Network(program).run([x])
        for y, expected in zip(both, run(program, [x]), strict=True):
            np.testing.assert_array_equal(y, expected, strict=True)
            exact = x.mean(axis=(2, 3) if first else (1, 2), dtype=np.float64)
            np.testing.assert_allclose(y, exact, rtol=1e-5, atol=1e-6)


def test_mean_of_infinities_and_nan():
    program = mean_of(1, 5, 3)
    x = np.ones((1, 1, 5, 3), np.float32)
    x[0, 0, 1, 0], x[0, 0, 4, 1], x[0, 0, 2:4, 2] = np.inf, np.nan, (np.inf, -np.inf)
    for y in (*Network(program).run([x]), *run(program, [x])):
        np.testing.assert_array_equal(y, [[np.inf, np.nan, np.nan]])


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((1, 2, 4), "number of pixels of the target must be 1, got 2"),
        ((1, 1, 5), "number of channels must be 4, got 5"),
    ],
)
def test_verify_refuses_means_of_other_sizes(sizes, message):
    program = mean_of(2, 2, 4)
    floats = (*program.floats, p.FloatTensor(*sizes))
    changed = replace(program, floats=floats, instructions=program.instructions[:2])
    with pytest.raises(ValueError, match=f"SpatialMean.*{message}"):
        Network(changed)


@pytest.mark.parametrize(
    ("program", "name", "version"),
    [
        (mean_of(1, 2, 3), "SpatialMean", 5),
        (sigmoid_of(3), "sigmoid", 5),
        (sigmoid_of(3, GELU), "GELU", 7),
    ],
)
def test_earlier_versions_have_no_such_function(program, name, version):
    encoded = encode(program)
    assert encoded.words[0] == version
    encoded.words[0] = version - 1
    with pytest.raises(ValueError, match=f"version {version - 1} has no {name}"):
        Network(encoded)


def test_c_code_refuses_functions_of_floats():
    with pytest.raises(ModelError, match="net: functions of floats such as Sigmoid have no C code"):
        emit_c(sigmoid_of(3), "net")


MEAN = "ReduceMean <axes = [2, 3]>"
GATED = """
    a = Quant <signed: int = 1> (x, step, none, bits)
    c = Conv <pads = [1, 1, 1, 1], group = 4> (a, w)
    s = Sigmoid (c)
    h = {act}
    m = {mean} (h)
    b = Quant <signed: int = 1> (m, part, none, bits)
    d = Conv (b, v)
    g = HardSigmoid <alpha = 0.25, beta = 0.5> (d)
    e = Mul (h, g)
    f = Quant <signed: int = 1> (e, step, none, bits)
    y = Conv (f, v)
"""


def gated(act: str = "Relu (c)", mean: str = MEAN):
    """Return a block with a gate from the mean of its channels."""
    rng = np.random.default_rng(0)
    text = GATED.format(act=act, mean=mean)
    return parse(
        f"g (float[1, 4, 6, 6] x) => (float[1, 4, 6, 6] y) {{ {text} }}",
        {
            "w": np.float32(rng.integers(-7, 8, (4, 1, 3, 3)) / 16),
            "v": np.float32(rng.integers(-7, 8, (4, 4, 1, 1)) / 8),
            "part": np.float32(0.0217),
            "step": np.float32(1 / 32),
            "none": np.float32(0),
            "bits": np.float32(8),
        },
    )


@pytest.mark.parametrize("mean", [MEAN, "GlobalAveragePool"])
def test_block_with_a_gate_is_one_program(mean):
    model = gated(mean=mean)
    compiled = anybit.compile(model)
    (program,) = compiled.report.programs
    assert sum(isinstance(at, p.SpatialMean) for at in program.instructions) == 1
    (layer,) = (layer for layer in compiled.report.layers if layer.name == "m")
    assert (layer.guarantee, layer.place[0]) == ("bounded", 0)
    x = np.random.default_rng(1).normal(size=(1, 4, 6, 6)).astype(np.float32)
    (expected,) = anybit.load(model).run({"x": x}).values()
    (actual,) = compiled.run({"x": x}).values()
    np.testing.assert_allclose(actual, expected, atol=0.03)
    assert np.mean(np.abs(actual - expected) > 1e-5) < 0.05
    assert np.ptp(expected) > 1


def test_exact_guarantee_leaves_means_of_floats_in_the_graph():
    programs = anybit.compile(gated(), guarantee="exact").report.programs
    kinds = {type(at) for program in programs for at in program.instructions}
    assert p.Product in kinds
    assert p.SpatialMean not in kinds


@pytest.mark.parametrize("mean", ["ReduceMean <axes = [3]>", "ReduceMean <axes = [1]>"])
def test_means_over_other_axes_stay_in_the_graph(mean):
    model = parse(
        f"""g (float[1, 4, 6, 6] x) => (float[1, 4, 6, 6] y) {{
            a = Quant <signed: int = 1> (x, step, none, bits)
            c = Conv (a, v)
            m = {mean} (c)
            y = Sub (c, m)
        }}""",
        {
            "v": np.eye(4, dtype=np.float32).reshape(4, 4, 1, 1),
            "step": np.float32(1 / 32),
            "none": np.float32(0),
            "bits": np.float32(8),
        },
    )
    compiled = anybit.compile(model)
    kinds = {type(at) for program in compiled.report.programs for at in program.instructions}
    assert p.SpatialMean not in kinds
    x = np.random.default_rng(1).normal(size=(1, 4, 6, 6)).astype(np.float32)
    expected, actual = (runner.run({"x": x})["y"] for runner in (anybit.load(model), compiled))
    np.testing.assert_array_equal(actual, expected)


def test_silu_with_several_readers_is_computed_once():
    """Compute sums once, with the sigmoid, if a mean and a product read its floats."""
    model = gated("Mul (c, s)")
    compiled = anybit.compile(model)
    (program,) = compiled.report.programs
    products = [at for at in program.instructions if isinstance(at, p.Product)]
    assert len(products) == 3
    assert is_open(products[0])
    assert not is_open(products[1])
    layers = {layer.name: layer for layer in compiled.report.layers}
    assert layers["c"].guarantee == "bounded"
    assert layers["c"].reason == "ONNX leaves the last bits of its Sigmoid open"
    x = np.random.default_rng(1).normal(size=(1, 4, 6, 6)).astype(np.float32)
    (expected,) = anybit.load(model).run({"x": x}).values()
    (actual,) = compiled.run({"x": x}).values()
    np.testing.assert_allclose(actual, expected, atol=0.03)
    assert np.mean(np.abs(actual - expected) > 1e-5) < 0.05


def test_exact_guarantee_leaves_sigmoids_in_the_graph():
    programs = anybit.compile(gated("Mul (c, s)"), guarantee="certified").report.programs
    assert programs
    assert not any(is_open(at) for program in programs for at in program.instructions)


def test_sigmoid_of_a_sum_of_floats_is_a_bounded_layer():
    model = parse(
        """g (float[1, 4, 6, 6] x) => (float[1, 4, 6, 6] y) {
            a = Quant <signed: int = 1> (x, step, none, bits)
            c = Conv (a, v)
            d = Conv (a, w)
            e = Mul (c, d)
            s = Sigmoid (e)
            y = Mul (s, e)
        }""",
        {
            "v": np.float32(np.arange(16).reshape(4, 4, 1, 1) - 7),
            "w": np.float32(np.arange(16).reshape(4, 4, 1, 1) % 5 - 2),
            "step": np.float32(1 / 32),
            "none": np.float32(0),
            "bits": np.float32(8),
        },
    )
    compiled = anybit.compile(model)
    (program,) = compiled.report.programs
    assert is_open(program.instructions[-1])
    layers = {layer.name: layer for layer in compiled.report.layers}
    assert layers["s"].guarantee == "bounded"
    x = np.random.default_rng(1).normal(size=(1, 4, 6, 6)).astype(np.float32)
    expected, actual = (runner.run({"x": x})["y"] for runner in (anybit.load(model), compiled))
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("rows", ["1", "n"])
@pytest.mark.parametrize("act", ["g = Sigmoid (c) a = Mul (c, g)", "a = Relu (c)"])
def test_tokens_of_an_image_of_one_line_stay_in_the_region(rows, act):
    """Text recognition reads columns as tokens: axes of size 1 come and go, floats stay in place.

    SiLU before the Transpose makes the layer bounded, by a node before the movement.
    """
    model = parse(
        f"""g (float[{rows}, 4, 1, 6] x) => (float[{rows}, 8, 1, 6] y) {{
            q = Quant <signed: int = 1> (x, step, none, bits)
            c = Conv (q, w)
            {act}
            r = Reshape (a, tokens)
            t = Transpose <perm = [0, 2, 1]> (r)
            h = LayerNormalization (t, gain)
            s = Add (h, t)
            b = Reshape (s, image)
            f = Transpose <perm = [0, 3, 1, 2]> (b)
            p = Quant <signed: int = 1> (f, step, none, bits)
            y = Conv (p, u)
        }}""",
        {
            "w": np.float32(np.arange(32).reshape(8, 4, 1, 1) % 7 - 3) / 8,
            "u": np.float32(np.arange(64).reshape(8, 8, 1, 1) % 5 - 2) / 8,
            "gain": np.linspace(0.5, 1.5, 8, dtype=np.float32),
            "tokens": np.int64([0, 8, -1]),
            "image": np.int64([0, 1, 6, 8]),
            "step": np.float32(1 / 32),
            "none": np.float32(0),
            "bits": np.float32(8),
        },
    )
    compiled = anybit.compile(model)
    (program,) = compiled.report.programs
    assert compiled.report.coverage == "2 of 2 layers, 100 % of MACs"
    assert sum(isinstance(at, p.LayerNorm) for at in program.instructions) == 1
    reasons = {layer.name: layer.reason for layer in compiled.report.layers}
    assert ("Sigmoid" in reasons["c"]) == ("Sigmoid" in act)
    x = np.random.default_rng(1).normal(size=(1 if rows == "1" else 3, 4, 1, 6))
    (expected,) = anybit.load(model).run(x.astype(np.float32)).values()
    (actual,) = compiled.run(x.astype(np.float32)).values()
    # A function of floats may round otherwise, and a code may then differ by one step.
    assert np.abs(expected - actual).max() <= 2 / 32
    assert np.mean(expected != actual) < 0.02
    assert np.ptp(expected) > 1


@pytest.mark.parametrize(
    "residual",
    [
        "s = Add (q, e) t = Transpose <perm = [0, 2, 3, 1]> (s)",
        "s = Add (q, e) r = Relu (s) t = Transpose <perm = [0, 2, 3, 1]> (r)",
        "s = Add (q, c) t = Transpose <perm = [0, 2, 3, 1]> (s)",
    ],
)
@pytest.mark.parametrize("after", ["f = Add (b, q)", "f = Add (b, c)", "f = Relu (b)"])
def test_normalized_channels_between_transposes_stay_in_the_region(residual, after):
    """ConvNeXt has channels last between its depthwise convolutions, and sums of images."""
    model = parse(
        f"""g (float[n, 4, 3, 2] x) => (float[n, 4, 3, 2] y) {{
            q = Quant <signed: int = 1> (x, step, none, bits)
            c = Conv (q, w)
            e = Quant <signed: int = 1> (c, step, none, bits)
            {residual}
            h = LayerNormalization (t, gain)
            b = Transpose <perm = [0, 3, 1, 2]> (h)
            {after}
            p = Quant <signed: int = 1> (f, step, none, bits)
            y = Conv (p, w)
        }}""",
        {
            "w": np.float32(np.arange(16).reshape(4, 4, 1, 1) % 7 - 3) / 8,
            "gain": np.linspace(0.5, 1.5, 4, dtype=np.float32),
            "step": np.float32(1 / 32),
            "none": np.float32(0),
            "bits": np.float32(8),
        },
    )
    compiled = anybit.compile(model)
    assert compiled.report.coverage == "2 of 2 layers, 100 % of MACs"
    assert len(compiled.report.programs) == 1
    x = np.random.default_rng(1).normal(size=(3, 4, 3, 2)).astype(np.float32)
    (expected,), (actual,) = (run(x).values() for run in (anybit.load(model).run, compiled.run))
    # A function of floats may round otherwise, and a code may then differ by one step.
    assert np.abs(expected - actual).max() <= 2 / 32
    assert np.mean(expected != actual) < 0.02
    assert np.ptp(expected) > 1
