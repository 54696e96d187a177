# SPDX-License-Identifier: Apache-2.0
"""MX blocks of activations, with scales computed at run time, against exact arithmetic."""

from fractions import Fraction

import numpy as np
import onnx_ir as ir
import pytest
from block_models import edge_case_blocks
from dynamic_graphs import check_activations, make_quantizer_graph
from float_models import NETWORKS, data_for
from onnx.reference import ReferenceEvaluator
from oracle import blocks as oracle
from pass_checks import random
from small_models import model, node

import anybit
from anybit import ModelError, OptionError
from anybit.onnx import reference_ops
from anybit.ptq.specs.dynamic_grid import MxGrid
from anybit.ptq.specs.quantize import quantize_to_grid
from anybit.quant_types.block_formats import BLOCK_FORMATS

FORMATS = ("mxfp8", "mxfp8_e5m2", "mxfp6", "mxfp6_e3m2", "mxfp4", "mxint8")


def run_all(network: ir.Model, x: np.ndarray) -> list[np.ndarray]:
    """Return the outputs of ONNX Runtime, of the reference evaluator and of standard operators."""
    evaluator = ReferenceEvaluator(ir.to_proto(network), new_ops=reference_ops())
    standard = anybit.convert(network, to="standard").model
    models = [anybit.load(source) for source in (network, standard)]
    return [*(model.run(x)["y"] for model in models), evaluator.run(None, {"x": x})[0]]


@pytest.mark.parametrize("name", FORMATS)
def test_block_quantization_is_exact(name: str) -> None:
    x = edge_case_blocks(32)
    expected = [
        oracle.mx([Fraction(float(value)) for value in block], name, "floor") for block in x
    ]
    for sizes in ((None, 32), (None, None)):
        grid = MxGrid(BLOCK_FORMATS[name], 1)
        for output in (
            *run_all(make_quantizer_graph(grid, sizes), x),
            quantize_to_grid(x, grid),
        ):
            np.testing.assert_array_equal(output, expected)


@pytest.mark.parametrize("name", FORMATS)
def test_block_quantization_makes_nan_of_blocks_that_are_not_finite(name: str) -> None:
    """Check that other blocks stay finite."""
    x = random(4, 96)
    x[0, 3], x[1, 40], x[2, 95] = np.nan, np.inf, -np.inf
    grid = MxGrid(BLOCK_FORMATS[name], 1)
    clean = quantize_to_grid(np.where(np.isfinite(x), x, 0), grid)
    clean[0, :32] = clean[1, 32:64] = clean[2, 64:] = np.nan
    for output in run_all(make_quantizer_graph(grid, (None, 96)), x):
        np.testing.assert_array_equal(output, clean)


@pytest.mark.parametrize(
    ("axis", "sizes", "shape"),
    [
        (1, (None, 70), (3, 70)),
        (1, (None, None), (3, 70)),
        (1, (None, None), (3, 5)),
        (1, (None, None), (3, 64)),
        (1, (None, 64, 3, 5), (2, 64, 3, 5)),
        (1, (None, 40, None, None), (2, 40, 3, 5)),
        (1, (None, 24, None, None), (2, 24, 3, 5)),
        (2, (None, None, None, None), (2, 3, 33, 4)),
        (0, (64, None), (64, 3)),
        (0, (40,), (40,)),
    ],
)
def test_block_quantization_supports_all_axes_and_sizes(
    axis: int, sizes: tuple[int | None, ...], shape: tuple[int, ...]
) -> None:
    x = random(*shape)
    grid = MxGrid(BLOCK_FORMATS["mxfp4"], axis)
    last = np.moveaxis(x, axis, -1)
    expected = np.zeros_like(last)
    for start in range(0, shape[axis], 32):
        for row in np.ndindex(last.shape[:-1]):
            block = [Fraction(float(value)) for value in last[row][start : start + 32]]
            expected[row][start : start + 32] = oracle.mx(block, "mxfp4", "floor")
    for output in (*run_all(make_quantizer_graph(grid, sizes), x), quantize_to_grid(x, grid)):
        np.testing.assert_array_equal(output, np.moveaxis(expected, -1, axis))


@pytest.mark.parametrize(
    ("name", "spec", "least_sqnr"),
    [("attention", "mxint8", 30), ("recurrent", "mxfp8", 20), ("convolutions", "mxfp6", 25)],
)
def test_quantize_with_block_activations_is_accurate(
    name: str, spec: str, least_sqnr: float
) -> None:
    result = anybit.quantize(NETWORKS[name](), data_for(name), weights=spec, activations=spec)
    check_activations(result, spec, data_for(name)[0], least_sqnr)


def test_quantize_with_block_activations_keeps_the_opset() -> None:
    proto = model(
        [node("MatMul", "x w", domain="", name="head")],
        {"w": random(40, 3)},
        inputs={"x": ["rows", 40]},
        opsets={"": 9},
    )
    result = anybit.quantize(proto, random(16, 40), weights="int8", activations="mxfp8")
    assert result.model.graph.opset_imports[""] == 9
    assert result.verdict is not None
    assert result.verdict.sqnr > 25


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nvfp4", 'second scale of nvfp4 needs the whole tensor .*; use "mxfp4" or "mxfp8"'),
        ("mxfp4 mse", "the scale rule of mxfp4 cannot be mse; use floor"),
        ("int8 per-block 32", 'blocks of activations need an MX format; use "mxint8"'),
    ],
)
def test_quantize_rejects_block_specs_for_activations(spec: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        anybit.quantize(NETWORKS["attention"](), data_for("attention"), activations=spec)


def test_quantize_rejects_block_activations_with_two_reduction_axes() -> None:
    nodes = [
        node("MatMul", "x w", "h", domain="", name="first"),
        node("MatMul", "h h", "y", domain="", name="square"),
    ]
    proto = model(nodes, {"w": random(8, 8)}, inputs={"x": [8, 8]}, opsets={"": 18})
    with pytest.raises(
        ModelError, match=r"'h': mxfp8 needs one reduction axis, .* axes 0 and 1; .* for 'square'"
    ):
        anybit.quantize(proto, [random(8, 8)], activations="mxfp8")
