# SPDX-License-Identifier: Apache-2.0
"""Random transformers with dynamic activations: quantized, compiled, converted and run."""

import numpy as np
import onnx
import pytest
from random_transformers import (
    PAST,
    TOKENS,
    Builder,
    assert_near,
    draw_style,
    make_feeds,
    open_plain,
)

import anybit

FORMATS = ("int8 dynamic", "uint8 dynamic", "int8 dynamic per-tensor")


def check_transformer(seed, tmp_path):
    model = Builder(draw_style(seed), seed).build()
    quantized = anybit.quantize(model, activations=FORMATS[seed % len(FORMATS)])
    quantized.save(tmp_path / "q.onnx")
    compiled = anybit.compile(tmp_path / "q.onnx")
    floats = [layer for layer in compiled.report.products if layer.guarantee is None]
    assert not floats, floats
    compiled.save(tmp_path / "c.onnx")
    saved, loaded = anybit.load(tmp_path / "c.onnx"), anybit.load(tmp_path / "q.onnx")
    anybit.save(anybit.convert(tmp_path / "q.onnx", to="standard").model, tmp_path / "s.onnx")
    run_as_written, _ = open_plain(onnx.load(tmp_path / "s.onnx"))
    for tokens, past in ((TOKENS, PAST), (1, PAST), (TOKENS, 0), (0, PAST), (0, 0)):
        feeds = make_feeds(model, seed, tokens=tokens, past=past)
        expected, actual = loaded.run(feeds), compiled.run(feeds)
        assert_near(actual, expected)
        for name, array in saved.run(feeds).items():
            np.testing.assert_array_equal(array, actual[name])
        for name, array in run_as_written(feeds).items():
            np.testing.assert_array_equal(array, expected[name])


@pytest.mark.parametrize("seed", range(9))
def test_random_transformers(seed, tmp_path):
    check_transformer(seed, tmp_path)


@pytest.mark.parametrize("number", [np.nan, np.inf, 0, 1e-41, 1e18, 1e38])
@pytest.mark.parametrize("seed", [0, 1, 4])
def test_hostile_tokens(number, seed):
    """Spread NaN as far as the quantized graph does, and no further."""
    model = Builder(draw_style(seed), seed).build()
    quantized = anybit.quantize(model, activations="int8 dynamic").model
    feeds = make_feeds(model, seed)
    feeds["x"][0, 1] = number
    assert_near(anybit.compile(quantized).run(feeds), anybit.load(quantized).run(feeds))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(9, 90))
def test_more_random_transformers(seed, tmp_path):
    check_transformer(seed, tmp_path)
