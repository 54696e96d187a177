# SPDX-License-Identifier: Apache-2.0
"""Comparison of an analysis with runs of the model."""

from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from anybit.onnx.analysis.abstract_values import AbstractValue
from anybit.onnx.analysis.analysis import Analysis, analyze
from anybit.onnx.analysis.products import ProductAnalysis
from anybit.onnx.graph.constants import is_constant, read_array
from anybit.onnx.passes import (
    FoldConstants,
    InferShapes,
    InlineFunctions,
    Normalize,
    StandardLayout,
)
from anybit.onnx.runtime import evaluate


def prepare(proto: onnx.ModelProto, *, fold: bool = False) -> ir.Model:
    """Return a model for the analysis, with quantized weights folded or not."""
    model = ir.serde.deserialize_model(proto)
    for transform in (
        InlineFunctions(),
        Normalize(),
        StandardLayout(),
        InferShapes(),
        FoldConstants(operators=fold, codes=fold),
        InferShapes(),
    ):
        transform(model)
    return model


def analyze_and_compare(
    proto: onnx.ModelProto,
    feeds: Mapping[str, np.ndarray],
    inputs: Mapping[str, AbstractValue] | None = None,
    *,
    fold: bool = False,
) -> Analysis:
    """Return the analysis of a model, after comparing it with a run."""
    model = prepare(proto, fold=fold)
    analysis = analyze(model, inputs)
    arrays = run_all_values(model, feeds)
    for value, abstract in analysis.values.items():
        array = read_array(value) if is_constant(value) else arrays.get(str(value.name))
        if array is not None:
            check_abstract(str(value.name), abstract, array)
    for product in analysis.products:
        check_product(product, arrays)
    return analysis


def run_all_values(model: ir.Model, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return every tensor of a run of the graph as written, by name."""
    fragment = model.clone()
    outputs = [value for node in fragment.graph for value in node.outputs if value.name]
    fragment.graph.outputs[:] = outputs
    arrays = evaluate(fragment, feeds)
    arrays |= feeds
    for value in model.graph.initializers.values():
        arrays[str(value.name)] = read_array(value)
    return arrays


def check_abstract(name: str, abstract: AbstractValue, array: np.ndarray) -> None:
    """AssertionError if a value is none that the abstract allows."""
    values = array.astype(np.float64)
    assert abstract.nan or not np.isnan(values).any(), name
    values = np.where(np.isnan(values), abstract.broadcast(abstract.lowest), values)
    if not values.size:
        return
    assert np.all(values >= abstract.broadcast(abstract.lowest)), (name, abstract)
    assert np.all(values <= abstract.broadcast(abstract.highest)), (name, abstract)
    if abstract.exponent is not None:
        units = values[np.isfinite(values)] / 2.0**abstract.exponent
        assert np.all(units == np.rint(units)), (name, abstract)
    if abstract.integers is not None:
        assert np.array_equal(abstract.grid.decode(abstract.integers), array), name
    if abstract.codes is not None:
        check_codes(name, abstract, values)


def check_codes(name: str, abstract: AbstractValue, values: np.ndarray) -> None:
    codes, grid = abstract.codes, abstract.grid
    with np.errstate(all="ignore"):
        actual = np.rint(values / grid.scale + grid.zeropt)
    actual = np.where(np.isfinite(actual), actual, abstract.broadcast(codes.lowest)).astype(
        np.int64
    )
    assert np.array_equal(grid.decode(actual).astype(np.float64), values), (name, abstract)
    allowed = codes.allowed or codes.hull
    channels = [actual] if abstract.axis is None else np.moveaxis(actual, abstract.axis, 0)
    for index, channel in enumerate(channels):
        possible = codes.get_channel(index)
        for code in np.unique(channel).tolist():
            assert code in possible, (name, code, possible, abstract)
            assert code in allowed, (name, code, abstract)


def check_product(product: ProductAnalysis, arrays: Mapping[str, np.ndarray]) -> None:
    """AssertionError if the sum is off by more than it may be, or the accumulators too large."""
    layout, node = product.layout, product.node
    if layout is None or product.error is None:
        return
    inputs = [None if value is None else arrays[str(value.name)] for value in node.inputs]
    axis = layout.y_axis
    y = arrays[str(node.outputs[0].name)].astype(np.float64)
    exact = in_float64(node, inputs)

    def broadcast(array: np.ndarray) -> np.ndarray:
        if array.ndim == 0 or axis is None:
            return array.max()
        return array.reshape(-1, *[1] * (-axis - 1))

    off = np.abs(y - exact)
    assert np.all(off <= broadcast(product.error)), product.node.name
    if product.exact:
        assert np.array_equal(y, exact), product.node.name
    if product.accumulator is None:
        return
    centered = list(inputs[:2])
    x = product.x
    codes = np.rint(inputs[layout.x] / np.where(x.grid.scale == 0, 1, x.grid.scale))
    centered[layout.x] = codes
    centered[layout.weight] = product.codes
    sums = in_float64(node, centered)
    low, high = product.accumulator.lowest, product.accumulator.highest
    if axis is None:
        low, high = low.min(), high.max()
    assert np.all(sums >= broadcast(np.asarray(low)) if axis is not None else sums >= low)
    assert np.all(sums <= broadcast(np.asarray(high)) if axis is not None else sums <= high)
    scale = broadcast(np.asarray(product.scale))
    x_scale = x.codes.scale
    if x_scale.ndim == 0 and np.isfinite(product.error).all():
        bias = 0.0
        if len(inputs) > 2 and inputs[2] is not None:
            bias = inputs[2].reshape(-1, *[1] * (-axis - 1)).astype(np.float64)
        tail = np.float32(sums) * np.float32(x_scale * scale)
        reference = np.float32(tail + np.float32(bias)).astype(np.float64)
        assert np.all(np.abs(y - reference) <= 2 * broadcast(product.error))


def in_float64(node: ir.Node, inputs: list[np.ndarray | None]) -> np.ndarray:
    """Return the output of a node in float64."""
    group = node.attributes.get("group")
    count = 1 if group is None else int(group.value)
    if node.op_type == "ConvTranspose" and count > 1:  # the evaluator of onnx knows no groups
        x, weight, *bias = inputs
        parts = zip(np.split(x, count, axis=1), np.split(weight, count), strict=True)
        kept = [attribute for name, attribute in node.attributes.items() if name != "group"]
        alone = ir.Node("", node.op_type, node.inputs[:2], kept)
        y = np.concatenate([in_float64(alone, list(part)) for part in parts], axis=1)
        return y + bias[0].reshape(-1, *[1] * (x.ndim - 2)) if bias else y
    names = [None if array is None else f"i{index}" for index, array in enumerate(inputs)]
    proto = ir.serde.serialize_node(node)
    del proto.input[:], proto.output[:]
    proto.input.extend(name or "" for name in names)
    proto.output.append("y")
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [proto],
        "one",
        [value(name, onnx.TensorProto.DOUBLE, None) for name in names if name],
        [value("y", onnx.TensorProto.DOUBLE, None)],
    )
    imports = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=8)
    feeds = {
        name: array.astype(np.float64)
        for name, array in zip(names, inputs, strict=True)
        if name and array is not None
    }
    return ReferenceEvaluator(model).run(None, feeds)[0]
