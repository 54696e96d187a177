# SPDX-License-Identifier: Apache-2.0
"""Sums and products of two tensors equal the float graph for all pairs of codes."""

import numpy as np
import pytest
from text_models import parse

import anybit
from anybit.compiler.program import program as p

SIGNED = "Quant <signed: int = 1, narrow: int = 1>"
UNSIGNED = "Quant <signed: int = 0, narrow: int = 0>"


def quantizer(x, y, words, scale, zero="z"):
    if words == "linear":
        codes = f"{y}_codes = QuantizeLinear ({x}, {scale}, {zero})"
        return f"{codes}\n{y} = DequantizeLinear ({y}_codes, {scale}, {zero})"
    if words == "asymmetric":
        return f"{y} = {UNSIGNED} ({x}, {scale}, float_zero, eight)"
    return f"{y} = {SIGNED if words == 'signed' else UNSIGNED} ({x}, {scale}, none, eight)"


def network(first, second, middle, last, **scales):
    """Two quantized inputs, what lies between, a quantizer, and a product."""
    body = "\n".join(
        [
            quantizer("x", "a", first, "s"),
            quantizer("u", "b", second, "t"),
            middle,
            quantizer("d", "q", last, "r", "odd"),
            "y = MatMul (q, w)",
        ]
    )
    head = "g (float[n, 1] x, float[n, 1] u) => (float[n, 1] q, float[n, 2] y)"
    constants = {"none": 0, "eight": 8, "float_zero": 117, "three": np.pi, "w": [[1, -3]]}
    zeropts = {"z": np.array(128, np.uint8), "odd": np.array(7, np.uint8)}
    return parse(f"{head} {{ {body} }}", constants | zeropts | scales)


def pairs(scales):
    """Return all pairs of codes of any quantizers."""
    codes = np.arange(-128, 256, dtype=np.float32)
    x, u = np.meshgrid(codes * np.float32(scales["s"]), codes * np.float32(scales["t"]))
    return {"x": x.reshape(-1, 1), "u": u.reshape(-1, 1)}


ADD, RELU = "d = Add (a, b)", "c = Add (a, b)\n d = Relu (c)"
ANY = {"s": 0.0191, "t": 0.0137, "r": 0.0243}
TIES = {"s": 0.125, "t": 0.125, "r": 0.25}
CASES = {
    "signed": ("signed", "signed", ADD, "signed", ANY),
    "rectified": ("unsigned", "signed", RELU, "unsigned", ANY),
    "rectified, signed": ("signed", "signed", RELU, "signed", ANY),
    "one scale": ("signed", "signed", ADD, "signed", dict.fromkeys("str", 0.0173)),
    "ties to even numbers": ("signed", "signed", ADD, "signed", TIES),
    "ties, unsigned": ("unsigned", "signed", RELU, "unsigned", TIES),
    "zero-points": ("linear", "linear", ADD, "linear", ANY),
    "ties before an odd zero-point": ("linear", "linear", ADD, "linear", TIES),
    "a difference": ("signed", "unsigned", "d = Sub (b, a)", "signed", ANY),
    "a bound": ("signed", "signed", "c = Add (a, b)\n d = Min (c, three)", "signed", ANY),
    "a factor": ("signed", "signed", "c = Add (a, b)\n d = Mul (c, three)", "signed", ANY),
    "powers of two": ("signed", "unsigned", ADD, "unsigned", {"s": 0.25, "t": 0.0625, "r": 0.5}),
}


@pytest.mark.parametrize("name", CASES)
def test_pair_arithmetic_replaces_sums(name):
    *words, scales = CASES[name]
    instructions = exact(network(*words, **scales), scales)
    assert p.Add in instructions
    assert p.Combine not in instructions


@pytest.mark.parametrize("seed", range(6))
def test_pair_arithmetic_equals_sums_of_any_scales(seed):
    random = np.random.default_rng(seed)
    scales = dict(zip("str", random.uniform(0.005, 0.03, 3), strict=True))
    last = ("signed", "unsigned")[seed % 2]
    assert p.Add in exact(network("unsigned", "signed", RELU, last, **scales), scales)


PRODUCTS = {
    "signed": ("signed", "signed", "d = Mul (a, b)", "signed", {**ANY, "r": 0.02}),
    "gate": ("unsigned", "signed", "d = Mul (a, b)", "signed", {**ANY, "s": 1 / 255}),
    "rectified": ("signed", "signed", "c = Mul (a, b)\n d = Relu (c)", "unsigned", ANY),
    "powers of two": ("signed", "unsigned", "d = Mul (a, b)", "signed", {**TIES, "r": 4}),
    "zero-points": ("linear", "linear", "d = Mul (a, b)", "linear", ANY),
    "ties before an odd zero-point": ("linear", "linear", "d = Mul (a, b)", "linear", TIES),
    "a factor": ("signed", "signed", "c = Mul (a, b)\n d = Mul (c, three)", "signed", ANY),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_pair_arithmetic_replaces_products(name):
    *words, scales = PRODUCTS[name]
    instructions = exact(network(*words, **scales), scales)
    assert p.Multiply in instructions
    assert p.Combine not in instructions


@pytest.mark.parametrize("seed", range(6))
def test_pair_arithmetic_equals_products_of_any_scales(seed):
    """Fitting factors are found, unless roundings of the float graph decide at ties."""
    random = np.random.default_rng(seed)
    scales = dict(zip("str", random.uniform(0.005, 0.03, 3), strict=True))
    middle = "d = Mul (a, b)"
    instructions = exact(network("unsigned", "signed", middle, "signed", **scales), scales)
    assert p.Multiply in instructions


@pytest.mark.parametrize(("middle", "kind"), [(ADD, p.Add), ("d = Mul (a, b)", p.Multiply)])
@pytest.mark.parametrize("last", ["signed", "asymmetric", "linear"])
def test_pair_arithmetic_repeats_roundings_of_graph(middle, kind, last):
    """Use pairs half way between two codes, where roundings decide."""
    scales = {"s": 0.3, "t": 0.3, "r": 0.6 if kind is p.Add else 0.18}
    instructions = exact(network("signed", "signed", middle, last, **scales), scales)
    assert kind in instructions
    assert p.Combine not in instructions


def test_combine_is_used_for_other_functions():
    middle = "c = Add (a, b)\n d = Abs (c)"
    assert p.Combine in exact(network("signed", "signed", middle, "signed", **ANY), ANY)


def exact(model, scales):
    """Return the instructions of a region after comparing its codes with the graph."""
    compiled = anybit.compile(model)
    (program,) = compiled.report.programs
    feeds = pairs(scales)
    expected = anybit.load(model).run(feeds)["q"]
    np.testing.assert_array_equal(compiled.run(feeds)["q"], expected)
    return [type(item) for item in program.instructions]
