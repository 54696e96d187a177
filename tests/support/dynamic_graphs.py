# SPDX-License-Identifier: Apache-2.0
"""Quantizers with scales computed at run time, as post-training quantization writes them."""

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
from small_models import model, node

import anybit
from anybit.onnx.graph.editor import Editor
from anybit.ptq.insertion.nodes import NodeWriter
from anybit.ptq.specs.dynamic_grid import DynamicGrid, MxGrid
from anybit.ptq.specs.quantize import select_block_operator


def make_quantizer_graph(grid: DynamicGrid, sizes: Sequence[int | None]) -> ir.Model:
    """Return a model that quantizes x; sizes of None are dynamic."""
    shape = [f"n{axis}" if size is None else size for axis, size in enumerate(sizes)]
    proto = model([node("Identity", "x", domain="")], {}, inputs={"x": shape}, opsets={"": 18})
    network = ir.from_proto(proto)
    (last,) = network.graph
    writer, (x,) = NodeWriter(network, Editor(network), last, "x"), network.graph.inputs
    if isinstance(grid, MxGrid):
        last.replace_input_with(0, writer.quantize(x, select_block_operator(grid)))
    else:
        last.replace_input_with(0, writer.quantize_rows(x, grid))
    return network


def check_activations(
    result: anybit.QuantizationResult, spec: str, x: np.ndarray, least_sqnr: float
) -> None:
    """Check the accuracy and the file of a result whose activations have a spec."""
    assert result.verdict is not None
    assert result.verdict.sqnr > least_sqnr
    assert {layer.activations for layer in result.layers} == {spec}
    onnx.checker.check_model(ir.to_proto(result.model))
    standard = anybit.convert(result.model, to="standard").model
    a, b = (anybit.load(network).run(x)["y"] for network in (result.model, standard))
    np.testing.assert_array_equal(a, b)
