# SPDX-License-Identifier: Apache-2.0
"""Compiled models give what the float graph gives, and say what became of each layer."""

import numpy as np
import pytest
from places import MODELS

import anybit
from anybit.lowbit.layers import Guarantee

pytestmark = pytest.mark.skipif(not MODELS.exists(), reason="the shared models are missing")


def rows_of(name, more):
    """The stored inputs of a model, and random ones."""
    x = np.load(MODELS / f"{name}.npz")["x"].astype(np.float32)
    random = np.random.default_rng(0).standard_normal((more, *x.shape[1:])).astype(np.float32)
    return np.concatenate([x, random])


@pytest.mark.parametrize("name", ["TFC_1W1A", "TFC_2W2A", "cnv_1w1a"])
def test_exact_networks_equal_the_float_graph(name):
    compiled = anybit.compile(MODELS / f"{name}.onnx", guarantee="exact")
    assert compiled.report.share == 1
    assert set(compiled.report.guarantees) == {Guarantee.EXACT}
    x = rows_of(name, 40 if name == "cnv_1w1a" else 400)
    wanted = anybit.load(MODELS / f"{name}.onnx").run(x)
    got = compiled.run(x)
    assert got.keys() == wanted.keys()
    for output, array in wanted.items():
        np.testing.assert_array_equal(got[output], array)


def test_a_whole_network_takes_any_number_of_rows():
    compiled = anybit.compile(MODELS / "TFC_1W1A.onnx")
    (name,) = (each.name for each in compiled.outputs)
    x = rows_of("TFC_1W1A", 9)
    together = compiled.run(x)[name]
    single = np.concatenate([compiled.run(row[None])[name] for row in x])
    np.testing.assert_array_equal(together, single)


def test_arbitrary_scales_are_bounded_and_close():
    name = "kwsmlp_w3a3"
    compiled = anybit.compile(MODELS / f"{name}.onnx")
    assert compiled.report.guarantees == {Guarantee.BOUNDED: 4}
    assert all(layer.reason for layer in compiled.report.layers)
    x = rows_of(name, 100)
    wanted = anybit.load(MODELS / f"{name}.onnx").run(x)["74"]
    got = compiled.run(x)["74"]
    off = np.abs(got - wanted).max(axis=1) > 1e-4
    assert off.mean() < 0.02  # a row with an element at risk


def test_nan_is_refused_where_the_graph_keeps_it():
    compiled = anybit.compile(MODELS / "TFC_2W2A.onnx")
    x = np.full((1, 1, 28, 28), np.nan, np.float32)
    with pytest.raises(anybit.ModelError, match="NaN"):
        compiled.run(x)


def test_a_class_is_one_of_three():
    with pytest.raises(anybit.ModelError, match="exact, certified, bounded, got 'true'"):
        anybit.compile(MODELS / "TFC_1W1A.onnx", guarantee="true")
