# SPDX-License-Identifier: Apache-2.0
"""Attention: products of two computed tensors, softmax and layer normalization in programs."""

from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest
from text_models import parse

import anybit
from anybit.compiler.backends.c.source import emit_c
from anybit.compiler.partition import matrix_products
from anybit.compiler.partition.expressions import IntegerTensor, PlannedInstruction
from anybit.compiler.partition.layout import make_layout
from anybit.compiler.program import program as p
from anybit.compiler.program.network import Network
from anybit.compiler.program.reference import compute_exp, compute_softmax, run
from anybit.errors import ModelError
from anybit.quant_types.grids import TensorGrid

TOKENS, HEADS, WIDTH = 6, 2, 4
CHANNELS = HEADS * WIDTH
# As PyTorch exports it: heads of queries, keys and values lie on an axis before the rows.
SPLIT = """
    r = Reshape (l, parts)
    t = Transpose <perm = [2, 0, 3, 1, 4]> (r)
    q5 = Slice (t, n0, n1, n0)
    k5 = Slice (t, n1, n2, n0)
    v5 = Slice (t, n2, n3, n0)
    q4 = Squeeze (q5, n0)
    k4 = Squeeze (k5, n0)
    v4 = Squeeze (v5, n0)
    kt = Transpose <perm = [0, 1, 3, 2]> (k4)
"""
# As other exporters write it: slices of channels, then heads.
HEADS_FIRST = """
    q3, k3, v3 = Split <axis = 2> (l)
    qr = Reshape (q3, heads)
    kr = Reshape (k3, heads)
    vr = Reshape (v3, heads)
    q4 = Transpose <perm = [0, 2, 1, 3]> (qr)
    v4 = Transpose <perm = [0, 2, 1, 3]> (vr)
    kt = Transpose <perm = [0, 2, 3, 1]> (kr)
"""
BODY = """
    h = LayerNormalization (x, gain, offset)
    a = Q(h)
    m = MatMul (a, w)
    l = Q(m)
    {split}
    s = MatMul (q4, kt)
    d = Mul (s, scale)
    f = Softmax (d)
    e = U(f)
    o = MatMul (e, v4)
    c = Q(o)
    ot = Transpose <perm = [0, 2, 1, 3]> (c)
    om = Reshape (ot, merged)
    z = MatMul (om, u)
    y = Q(z)
"""


def attention(split: str, rows: str = "1", *, quantizes_heads: bool = False):
    """Return a block of attention whose weights are integers.

    Args:
        split: The nodes that split queries, keys and values into heads.
        rows: The size of the first axis.
        quantizes_heads: Whether quantizers follow the split, and not the product before it.
    """
    rng = np.random.default_rng(0)
    floats = {
        "gain": rng.normal(1, 0.2, CHANNELS),
        "offset": rng.normal(0, 0.2, CHANNELS),
        "w": rng.integers(-7, 8, (CHANNELS, 3 * CHANNELS)) / 16,
        "u": rng.integers(-7, 8, (CHANNELS, CHANNELS)) / 8,
        "scale": 0.5,
        "step": 1 / 32,
        "part": 1 / 255,
        "none": 0.0,
        "bits": 8,
    }
    numbers = {
        **{f"n{number}": [number] for number in range(4)},
        "parts": [0, TOKENS, 3, HEADS, WIDTH],
        "heads": [0, TOKENS, HEADS, WIDTH],
        "merged": [0, TOKENS, CHANNELS],
    }
    text = BODY.format(split=split)
    names = ["h", "m", "o", "z"]
    if quantizes_heads:
        heads = ("q4", "kt", "v4")
        moves = split.replace("k4)", "k_moved)").replace("k4 =", "k_moved =")
        for name in heads:
            moves = moves.replace(f"{name} =", f"{name}_moved =")
            moves += f"{name} = Q({name}_moved)\n"
            names.append(f"{name}_moved")
        text = BODY.replace("l = Q(m)", "l = Identity (m)").format(split=moves)
    for name in names:
        text = text.replace(f"Q({name})", f"Quant <signed: int = 1> ({name}, step, none, bits)")
    text = text.replace("U(f)", "Quant <signed: int = 0> (f, part, none, bits)")
    shape = f"{rows}, {TOKENS}, {CHANNELS}"
    return parse(
        f"g (float[{shape}] x) => (float[{shape}] y) {{ {text} }}",
        {
            **{name: np.float32(item) for name, item in floats.items()},
            **{name: np.int64(item) for name, item in numbers.items()},
        },
    )


@pytest.mark.parametrize(("split", "rows"), [(SPLIT, "1"), (HEADS_FIRST, "n")])
def test_attention_is_one_program(split, rows):
    model = attention(split, rows)
    compiled = anybit.compile(model)
    (program,) = compiled.report.programs
    assert compiled.report.coverage == "4 of 4 layers, 100 % of MACs"
    kinds = [type(at) for at in program.instructions]
    assert kinds.count(p.MatMul) == 2
    assert kinds.count(p.Softmax) == 1
    x = np.random.default_rng(1).normal(size=(1 if rows == "1" else 3, TOKENS, CHANNELS))
    x = x.astype(np.float32)
    (expected,) = anybit.load(model).run({"x": x}).values()
    (actual,) = compiled.run({"x": x}).values()
    # Softmax and normalization may round otherwise, and a code may differ then.
    assert np.mean(expected != actual) < 0.01
    assert np.abs(expected - actual).max() <= 1 / 16
    assert np.ptp(expected) > 1


def test_queries_may_be_scaled_before_their_quantizer():
    """Slices of q, k and v before the rows stay views, as Paddle's exporter writes them."""
    model = attention(
        SPLIT.replace("q4 = Squeeze (q5, n0)", "q0 = Squeeze (q5, n0)\n q4 = Mul (q0, scale)"),
        quantizes_heads=True,
    )
    compiled = anybit.compile(model)
    (program,) = compiled.report.programs
    assert compiled.report.coverage == "4 of 4 layers, 100 % of MACs"
    assert sum(isinstance(at, p.MatMul) for at in program.instructions) == 2
    x = np.random.default_rng(1).normal(size=(1, TOKENS, CHANNELS)).astype(np.float32)
    (expected,) = anybit.load(model).run({"x": x}).values()
    (actual,) = compiled.run({"x": x}).values()
    assert np.abs(expected - actual).max() <= 1 / 16
    assert np.ptp(expected) > 1


def test_codes_of_scaled_queries_are_views():
    """Codes that are scaled and quantized again are mapped before heads are split."""
    again = "q1 = Mul (q0, scale)\n q4 = Quant <signed: int = 1> (q1, step, none, bits)"
    split = SPLIT.replace("q4 = Squeeze (q5, n0)", f"q0 = Squeeze (q5, n0)\n {again}")
    model = attention(split)
    compiled = anybit.compile(model)
    (program,) = compiled.report.programs
    assert not any(isinstance(at, p.Reshape) for at in program.instructions)
    for gather in (at for at in program.instructions if isinstance(at, p.Gather)):
        assert set(np.diff(gather.columns)) == set(np.diff(gather.channels)) == {1}
    x = np.random.default_rng(1).normal(size=(1, TOKENS, CHANNELS)).astype(np.float32)
    (expected,) = anybit.load(model).run({"x": x}).values()
    (actual,) = compiled.run({"x": x}).values()
    assert np.abs(expected - actual).max() <= 1 / 16
    assert np.ptp(expected) > 1


@pytest.mark.parametrize("kind", ["Slice", "Split"])
def test_quantizers_between_the_moves_of_heads_follow_them(kind):
    """Integer-only quantization quantizes parts before their axis of size 1 is dropped."""
    split = SPLIT
    if kind == "Split":
        first, *_, last = (SPLIT.index(text) for text in ("q5 =", "k5 =", "v5 =", "q4 ="))
        split = SPLIT[:first] + "q5, k5, v5 = Split <axis = 0> (t)\n" + SPLIT[last:]
    for name in "qkv":
        quantizer = f"{name}6 = Quant <signed: int = 1> ({name}5, step, none, bits)"
        split = split.replace(f"{name}4 =", f"{quantizer}\n {name}4 =")
        split = split.replace(f"Squeeze ({name}5", f"Squeeze ({name}6")
    model = attention(split, "n")
    compiled = anybit.compile(model)
    assert compiled.report.coverage == "4 of 4 layers, 100 % of MACs"
    assert len(compiled.report.programs) == 1
    x = np.random.default_rng(1).normal(size=(3, TOKENS, CHANNELS)).astype(np.float32)
    (expected,) = anybit.load(model).run({"x": x}).values()
    (actual,) = compiled.run({"x": x}).values()
    assert np.abs(expected - actual).max() <= 1 / 16
    assert np.ptp(expected) > 1


@pytest.mark.parametrize("split", [SPLIT, HEADS_FIRST])
def test_codes_have_the_shapes_of_the_graph(split, tmp_path):
    compiled = anybit.compile(attention(split, quantizes_heads=True))
    assert compiled.report.coverage == "4 of 4 layers, 100 % of MACs"
    compiled.save(tmp_path / "m.onnx")
    x = np.ones((1, TOKENS, CHANNELS), np.float32)
    results = compiled.saved(tmp_path / "m.onnx").run({"x": x})
    heads, keys = (1, HEADS, TOKENS, WIDTH), (1, HEADS, WIDTH, TOKENS)
    shapes = {"a": x.shape, "q4": heads, "kt": keys, "v4": heads, "e": (1, HEADS, TOKENS, TOKENS)}
    codes = compiled.codes & set(shapes)
    assert {"a", "e"} <= codes
    assert {name: results[name].shape for name in codes} == {name: shapes[name] for name in codes}


def test_functions_of_floats_are_bounded_layers():
    report = anybit.compile(attention(SPLIT)).report
    layers = {layer.name: layer for layer in report.layers}
    assert [layers[name].guarantee for name in "hf"] == ["bounded", "bounded"]
    assert layers["f"].reason == "its sums of float32 have an open order"
    assert report.guarantees == {"exact": 3, "certified": 1, "bounded": 2}
    assert layers["m"].layer.inputs == ("h",)


def test_views_move_no_elements():
    (program,) = anybit.compile(attention(SPLIT)).report.programs
    products = [at for at in program.instructions if isinstance(at, p.MatMul)]
    assert not any(isinstance(at, p.Gather | p.Reshape) for at in program.instructions)
    scores, mixed = products
    assert scores.first_view.tolist() == [0, WIDTH, 3 * CHANNELS, 1]
    assert scores.second_view.tolist() == [CHANNELS, WIDTH, 3 * CHANNELS, 1]
    assert mixed.second_view.tolist() == [2 * CHANNELS, WIDTH, 1, 3 * CHANNELS]
    assert (scores.merges, mixed.merges) == (0, 1)


@pytest.mark.parametrize("second", ["x", "z"])
def test_normalizations_of_sums_of_inputs_are_in_a_region(second):
    """Sums have channels on the last axis if a normalization reads them, as inputs can."""
    text = f"""
        a = Quant <signed: int = 1> (x, step, none, bits)
        m = MatMul (a, w)
        p = Quant <signed: int = 1> (m, step, none, bits)
        b = Quant <signed: int = 1> (z, step, none, bits)
        s = Add ({"a, p" if second == "x" else "a, b"})
        h = LayerNormalization (s, gain)
        q = Quant <signed: int = 1> (h, step, none, bits)
        y = MatMul (q, w)
    """
    constants = {
        "gain": np.float32([1, 2, 1, 2]),
        "w": np.float32(np.eye(4) / 2),
        "step": np.float32(1 / 16),
        "none": np.float32(0),
        "bits": np.float32(8),
    }
    model = parse(
        f"g (float[n, 3, 4] x, float[n, 3, 4] z) => (float[n, 3, 4] y) {{ {text} }}", constants
    )
    compiled = anybit.compile(model)
    (program,) = compiled.report.programs
    assert any(isinstance(at, p.LayerNorm) for at in program.instructions)
    x, z = np.random.default_rng(0).normal(size=(2, 2, 3, 4)).astype(np.float32)
    (expected,) = anybit.load(model).run({"x": x, "z": z}).values()
    (actual,) = compiled.run({"x": x, "z": z}).values()
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1 / 16)


def test_exact_guarantee_leaves_sums_of_floats_in_graph():
    programs = anybit.compile(attention(SPLIT), guarantee="exact").report.programs
    kinds = {type(at) for program in programs for at in program.instructions}
    assert p.MatMul in kinds
    assert not kinds & {p.Softmax, p.LayerNorm}


def test_c_code_refuses_products_of_two_tensors():
    with pytest.raises(ModelError, match=r"net: .*two computed tensors.*leave it to the caller"):
        emit_c(SOUND, "net")


def test_exp_has_an_error_of_three_ulp():
    x = np.concatenate([-np.geomspace(1e-30, 86.9, 40000), [0, -87.1, -np.inf]]).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    unit = np.spacing(exact.astype(np.float32)).astype(np.float64)
    assert np.max(np.abs(compute_exp(x) - exact)[:-2] / unit[:-2]) < 3
    assert compute_exp(x)[-2:].tolist() == [0, 0]
    assert np.isnan(compute_exp(np.float32([np.nan]))).all()


def test_softmax_handles_infinities():
    inf = np.inf
    y = compute_softmax(np.float32([[0, -inf, 0], [-inf, -inf, -inf], [0, np.nan, 1]]))
    np.testing.assert_array_equal(y, [[0.5, 0, 0.5], [np.nan] * 3, [np.nan] * 3])


VIEW = np.array([0, 4, 2, 1], np.int32)
PRODUCT = p.MatMul(
    *(0, 0, 1, 2, 2, 2, 2, VIEW, VIEW, 0),
    p.Thresholds(np.int32([1, 1]), np.int32([0, 1, 2, 0, 1, 2])),
)
SOUND = p.Program(
    (p.Port(np.int32([8]), 1, 1, 8, 0),),
    (p.Port(np.int32([8]), 2, 2, 2, 0),),
    (p.Tensor(1, 1, 8, -1, 1, 4), p.Tensor(2, 2, 2, 0, 1, 4)),
    (
        p.Quantize(0, 0, np.int32([1]), np.float32([-1, 0, 1]), 0),
        PRODUCT,
        p.Dequantize(1, 0, np.float32([0, 1, 2, 3])),
    ),
)


def test_matmul_multiplies_views():
    (y,) = Network(SOUND).run([np.arange(-4, 4, dtype=np.float32)[None]])
    codes = np.searchsorted([-1, 0, 1], np.arange(-4, 4), side="right").reshape(2, 2, 2) - 1
    sums = codes @ codes.swapaxes(1, 2)
    np.testing.assert_array_equal(y.reshape(2, 2, 2), np.clip(sums + 1, 0, 3))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"groups": 1}, "number of pixels must be 2, got 4"),
        ({"columns": 1}, "number of channels must be 1, got 2"),
        ({"merges": 2}, "merges must be from 0 to 1, got 2"),
        ({"merges": 1}, "number of pixels must be 2, got 4"),
        ({"groups": 3}, "last element of a view must be from 0 to 7, got 11"),
        ({"depth": 0}, "a size must be from 1"),
        ({"depth": 9}, "the depth must be from 1 to 8, got 9"),
        ({"depth": 3}, "last element of a view must be from 0 to 7, got 8"),
        ({"first_view": VIEW[:3]}, "a view must have 4 elements, got 3"),
        ({"second_view": VIEW + 1}, "last element of a view must be from 0 to 7, got 11"),
        ({"second_view": -VIEW}, "number of a view must be from 0 to 8, got -4"),
        ({"second_view": VIEW * 2**29}, "number of a view must be from 0 to 8"),
        ({"second": 1}, "tensor 1 is read before it is written"),
        (
            {"epilogue": p.Table(np.int32([-4, -4]), np.zeros(8, np.uint8))},
            "accumulators from -4 to 8",
        ),
        (
            {"epilogue": p.Arithmetic(np.float32([1, 1]), ())},
            "number of the floats must be 0, got 1",
        ),
    ],
)
def test_verify_refuses_inconsistent_products(fields, message):
    changed = (SOUND.instructions[0], replace(PRODUCT, **fields), SOUND.instructions[2])
    with pytest.raises(ValueError, match=f"(?=.*damaged).*MatMul.*{message}"):
        Network(replace(SOUND, instructions=changed))


@pytest.mark.parametrize(("lowest", "step"), [(-(2**15), 1), (2**15 - 3, 1)])
def test_verify_refuses_codes_of_more_than_16_bits(lowest, step):
    wide = replace(SOUND.tensors[0], lowest=lowest, step=step)
    with pytest.raises(ValueError, match="code of an operand must be from -32767 to 32767"):
        Network(replace(SOUND, tensors=(wide, SOUND.tensors[1])))


def test_verify_refuses_long_accumulators():
    wide = replace(SOUND.tensors[0], lowest=-32000)
    with pytest.raises(ValueError, match="accumulators go beyond 31 bits"):
        Network(replace(SOUND, tensors=(wide, SOUND.tensors[1])))


def test_gains_per_token_stay_in_the_graph():
    """Scale tokens by a tensor that could be taken for one number per channel."""
    model = parse(
        """g (float[n, 4, 4] x) => (float[n, 4, 4] y) {
            h = LayerNormalization (x, gain)
            a = Quant <signed: int = 1> (h, step, none, bits)
            y = MatMul (a, w)
        }""",
        {
            "gain": np.float32([[1], [2], [3], [4]]),
            "w": np.eye(4, dtype=np.float32),
            "step": np.float32(0.25),
            "none": np.float32(0),
            "bits": np.float32(8),
        },
    )
    programs = anybit.compile(model).report.programs
    assert not any(isinstance(at, p.LayerNorm) for item in programs for at in item.instructions)


def make_operand(*sizes: int) -> IntegerTensor:
    grid = TensorGrid(np.float32(1), 0, 1, 4)
    return IntegerTensor(ir.Value(name="a"), make_layout(sizes, len(sizes)), grid, 0)


@pytest.mark.parametrize(("transposed", "view"), [(False, [0, 12, 4, 1]), (True, [0, 12, 1, 4])])
@pytest.mark.parametrize("most", [0, 100])
def test_whole_operands_are_views_of_any_size(monkeypatch, transposed, view, most):
    """Follow no numbers of large operands: they are the tensor itself."""
    monkeypatch.setattr(matrix_products, "_MOST_FOLLOWED", most)
    operand = make_operand(2, 3, 4)
    source = replace(operand, identity=object())
    keep = {"source_channels_first": 0, "target_channels_first": 0}
    moves = [PlannedInstruction(p.Reshape, (source,), operand, keep)]
    tensor, strides = matrix_products.find_view(operand, moves, (2, 3, 4), transposed=transposed)
    assert strides.tolist() == view
    assert tensor is (source if most else operand)


def test_views_repeat_no_elements_along_the_depth():
    """Keep a repetition: programs have no operands with more depth than elements."""
    operand, source = make_operand(1, 2, 8), make_operand(1, 2, 1)
    lines = {
        "rows": np.int32([0]),
        "columns": np.int32([0, 1]),
        "channels": np.zeros(8, np.int32),
        "first_channel": 0,
        "fill": 0,
    }
    moves = [PlannedInstruction(p.Gather, (source,), operand, lines)]
    assert matrix_products.find_view(operand, moves, (1, 2, 8), transposed=False)[0] is operand


def make_repeated(rows, columns, depth, epilogue, levels=2):
    """Return a product whose views repeat one element, or few."""
    view = np.int32([0, 0, 0, 1])
    return p.Program(
        (p.Port(np.int32([depth]), 1, 1, depth, 0),),
        (p.Port(np.int32([rows, columns]), 1, rows, columns, 0),),
        (p.Tensor(1, 1, depth, 0, 1, 2), p.Tensor(1, rows, columns, 0, 1, levels)),
        (
            p.Quantize(0, 0, np.int32([1]), np.float32([0]), 0),
            p.MatMul(0, 0, 1, 1, rows, columns, depth, view, view, 0, epilogue),
            p.Dequantize(1, 0, np.arange(levels, dtype=np.float32)),
        ),
    )


def test_verify_limits_multiplications():
    side = 2**14
    epilogue = p.Thresholds(np.ones(side, np.int32), np.ones(side, np.int32))
    message = f"number of multiplications must be from 1 to {2**44}, got {2**52}"
    with pytest.raises(ValueError, match=f"MatMul.*damaged.*{message}"):
        Network(make_repeated(side, side, 2**24, epilogue))


def test_verify_limits_thresholds_before_they_are_made():
    channels = 2**19
    rows = np.zeros(channels, np.int32), np.zeros(2 * channels, np.int32)
    epilogue = p.Scaled(*rows, np.zeros(channels, np.uint8), np.zeros(0, np.uint8))
    at_least = channels * (256 * 4 + 512)
    with pytest.raises(ValueError, match=f"at least {at_least} for one instruction"):
        Network(make_repeated(1, channels, 1, epilogue, levels=18))


def make_rows(at, floats, channels_first=0):
    port = p.Port(np.int32([3, 2, 2]), 2, 2, 3, channels_first)
    return p.Program((port,), (port,), (), (at,), floats)


NORM = p.LayerNorm(0, 0, np.ones(3, np.float32), np.zeros(3, np.float32), np.float32([1e-5]))


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (make_rows(p.Softmax(0, 0), (), 1), "channels of its port come first"),
        (make_rows(p.Softmax(1, 0), ()), "floats 1 are read before they are written"),
        (make_rows(replace(NORM, gains=np.ones(2, np.float32)), ()), "gains must have 3"),
        (make_rows(replace(NORM, epsilon=np.ones(2, np.float32)), ()), "epsilon must have 1"),
        (make_rows(p.Softmax(0, 0), (p.FloatTensor(2, 2, 2),)), "differ in their sizes"),
    ],
)
def test_verify_refuses_inconsistent_functions_of_channels(program, message):
    with pytest.raises(ValueError, match=message):
        Network(program)


@pytest.mark.usefixtures("level")
def test_layernorm_of_negative_zeros_has_the_sign_of_the_reference():
    x = np.full((1, 3, 2, 2), -0.0, np.float32)
    x.reshape(-1, 3)[:, 0] = -1e-45  # the mean is -0
    program = make_rows(replace(NORM, offsets=np.full(3, -0.0, np.float32)), ())
    (y,) = Network(program).run([x])
    (expected,) = run(program, [x])
    assert y.tobytes() == expected.tobytes()


@pytest.mark.usefixtures("level")
@pytest.mark.parametrize("number", [1e19, 2e38, 3.4e38, -3.4e38, np.inf, np.nan])
def test_layernorm_of_numbers_whose_squares_overflow(number):
    channels = 40
    port = p.Port(np.int32([channels]), 1, 1, channels, 0)
    norm = p.LayerNorm(
        0, 0, np.full(channels, 2, np.float32), np.ones(channels, np.float32), np.float32([1e-5])
    )
    program = p.Program((port,), (port,), (), (norm,), ())
    x = np.random.default_rng(0).normal(size=(4, channels)).astype(np.float32)
    x[1] *= np.float32(number) / np.abs(x[1]).max()
    x[2, 3] = x[3] = number
    (y,) = Network(program).run([x])
    (expected,) = run(program, [x])
    np.testing.assert_array_equal(y, expected)
    if np.isfinite(number):
        numbers = x[:3].astype(np.float64)
        deviations = numbers - numbers.mean(axis=1, keepdims=True)
        exact = deviations / np.sqrt(np.mean(deviations**2, axis=1, keepdims=True)) * 2 + 1
        np.testing.assert_allclose(y[:3], exact, rtol=1e-4, atol=1e-4)
        assert np.isfinite(y).all()


def test_transpose_after_a_postponed_move_keeps_the_elements():
    """Change the axes of a depth-to-space that waits for codes."""
    rng = np.random.default_rng(0)
    model = parse(
        """g (float[n, 4, 3, 2] x) => (float[n, 6, 4, 5] y) {
        a = Quant <signed: int = 1> (x, step, none, bits)
        c = Conv (a, w)
        s = DepthToSpace <blocksize = 2> (c)
        t = Transpose <perm = [0, 2, 3, 1]> (s)
        b = Quant <signed: int = 1> (t, step, none, bits)
        y = MatMul (b, m)
        }""",
        {
            "w": np.float32(rng.integers(-7, 8, (8, 4, 1, 1)) / 4),
            "m": np.float32(rng.integers(-7, 8, (2, 5)) / 4),
            "step": np.float32(0.25),
            "none": np.float32(0),
            "bits": np.float32(4),
        },
    )
    x = rng.normal(size=(3, 4, 3, 2)).astype(np.float32)
    (expected,) = anybit.load(model).run({"x": x}).values()
    (actual,) = anybit.compile(model).run({"x": x}).values()
    np.testing.assert_array_equal(actual, expected)
