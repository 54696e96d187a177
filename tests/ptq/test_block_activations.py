# SPDX-License-Identifier: Apache-2.0
"""What is computed, in blocks of MX whose scales follow from it, against exact arithmetic."""

from fractions import Fraction

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from block_models import edge_case_blocks
from float_models import NETWORKS, data_for
from onnx.reference import ReferenceEvaluator
from oracle import blocks as oracle
from pass_checks import random
from small_models import model, node

import anybit
from anybit import ModelError, OptionError
from anybit.onnx import reference_ops
from anybit.onnx.graph.editor import Editor
from anybit.ptq.insertion.nodes import NodeWriter
from anybit.ptq.specs.dynamic_grid import DynamicGrid
from anybit.ptq.specs.quantize import quantize_to_grid
from anybit.quant_types.block_formats import BLOCK_FORMATS

FORMATS = ("mxfp8", "mxfp8_e5m2", "mxfp6", "mxfp6_e3m2", "mxfp4", "mxint8")


def graph_of(grid: DynamicGrid) -> ir.Model:
    """The nodes alone, behind x."""
    sizes = [f"n{axis}" if each is None else each for axis, each in enumerate(grid.sizes)]
    proto = model([node("Identity", "x", domain="")], {}, inputs={"x": sizes}, opsets={"": 18})
    made = ir.from_proto(proto)
    (last,) = made.graph
    result = NodeWriter(made, Editor(made), last, "x").quantize_blocks(made.graph.inputs[0], grid)
    last.replace_input_with(0, result)
    return made


def answers(made: ir.Model, x: np.ndarray) -> list[np.ndarray]:
    """Of ONNX Runtime, and of ONNX's own evaluator with our functions."""
    evaluator = ReferenceEvaluator(ir.to_proto(made), new_ops=reference_ops())
    return [anybit.load(made).run(x)["y"], evaluator.run(None, {"x": x})[0]]


@pytest.mark.parametrize("name", FORMATS)
def test_the_graph_is_exact(name: str) -> None:
    x = edge_case_blocks(32)
    wanted = [oracle.mx([Fraction(float(each)) for each in block], name, "floor") for block in x]
    for sizes in ((None, 32), (None, None)):
        grid = DynamicGrid(BLOCK_FORMATS[name], 1, sizes)
        for found in (*answers(graph_of(grid), x), quantize_to_grid(x, grid)):
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", FORMATS)
def test_blocks_with_infinities_and_nan(name: str) -> None:
    """They become NaN, and no other does."""
    x = random(4, 96)
    x[0, 3], x[1, 40], x[2, 95] = np.nan, np.inf, -np.inf
    grid = DynamicGrid(BLOCK_FORMATS[name], 1, (None, 96))
    clean = quantize_to_grid(np.where(np.isfinite(x), x, 0), grid)
    clean[0, :32] = clean[1, 32:64] = clean[2, 64:] = np.nan
    for found in answers(graph_of(grid), x):
        np.testing.assert_array_equal(found, clean)


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
def test_axes_and_sizes(axis: int, sizes: tuple[int | None, ...], shape: tuple[int, ...]) -> None:
    x = random(*shape)
    grid = DynamicGrid(BLOCK_FORMATS["mxfp4"], axis, sizes)
    last = np.moveaxis(x, axis, -1)
    wanted = np.zeros_like(last)
    for at in range(0, shape[axis], 32):
        for row in np.ndindex(last.shape[:-1]):
            block = [Fraction(float(each)) for each in last[row][at : at + 32]]
            wanted[row][at : at + 32] = oracle.mx(block, "mxfp4", "floor")
    for found in (*answers(graph_of(grid), x), quantize_to_grid(x, grid)):
        np.testing.assert_array_equal(found, np.moveaxis(wanted, -1, axis))


@pytest.mark.parametrize(
    ("name", "words", "least"),
    [("attention", "mxint8", 30), ("recurrent", "mxfp8", 20), ("convolutions", "mxfp6", 25)],
)
def test_networks(name: str, words: str, least: float) -> None:
    found = anybit.quantize(NETWORKS[name](), data_for(name), weights=words, activations=words)
    assert found.verdict is not None
    assert found.verdict.sqnr > least
    assert {each.activations for each in found.layers} == {words}
    onnx.checker.check_model(ir.to_proto(found.model))
    standard = anybit.convert(found.model, to="standard").model
    x = data_for(name)[0]
    a, b = (anybit.load(each).run(x)["y"] for each in (found.model, standard))
    np.testing.assert_array_equal(a, b)


def test_old_models_are_raised() -> None:
    proto = model(
        [node("MatMul", "x w", domain="", name="head")],
        {"w": random(40, 3)},
        inputs={"x": ["rows", 40]},
        opsets={"": 9},
    )
    found = anybit.quantize(proto, random(16, 40), weights="int8", activations="mxfp8")
    assert found.model.graph.opset_imports[""] == 18
    assert found.verdict is not None
    assert found.verdict.sqnr > 25


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("nvfp4", 'second scale of nvfp4 needs the whole tensor .*; use "mxfp4" or "mxfp8"'),
        ("mxfp4 mse", "the scale rule of mxfp4 cannot be mse; use floor"),
        ("int8 per-block 32", 'blocks of activations need an MX format; use "mxint8"'),
    ],
)
def test_words_that_activations_do_not_take(words: str, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        anybit.quantize(NETWORKS["attention"](), data_for("attention"), activations=words)


def test_tensors_that_are_added_up_along_two_axes() -> None:
    nodes = [
        node("MatMul", "x w", "h", domain="", name="first"),
        node("MatMul", "h h", "y", domain="", name="square"),
    ]
    proto = model(nodes, {"w": random(8, 8)}, inputs={"x": [8, 8]}, opsets={"": 18})
    with pytest.raises(
        ModelError, match=r"'h': mxfp8 needs one reduction axis, .* axes 0, 1; .* for 'square'"
    ):
        anybit.quantize(proto, [random(8, 8)], activations="mxfp8")
