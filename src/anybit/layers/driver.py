# SPDX-License-Identifier: Apache-2.0
"""From a model to what is said of its layers."""

import os
from dataclasses import replace

from anybit.inputs import Feeds
from anybit.layers.behind import quantizers_behind
from anybit.layers.facts import connected, layers_of
from anybit.layers.layer import Analyzed
from anybit.layers.observing import observe
from anybit.onnx.analysis.analysis import analyze as follow
from anybit.onnx.analysis.ranges import Ranges, by_name, input_values
from anybit.onnx.files.reader import Source
from anybit.onnx.preparation import followable
from anybit.onnx.process import relaxed_gc


@relaxed_gc()
def analyze(
    source: Source,
    *,
    input_ranges: Ranges | None = None,
    data: Feeds | None = None,
) -> Analyzed:
    """What each layer of a model costs, what it can hold, and whether float32 computes it exactly.

    Everything but what data show is proven from the model: from the weights that are there, and for
    every input within the ranges. Without `data` nothing is run.

    Args:
        source: A path, the bytes of a file, an `onnx.ModelProto` or an `onnx_ir.Model`.
        input_ranges: What inputs hold, by name, or of the only one: "uint8" (integers of a type),
            "uint8/255" or "int8*0.5" (the same times a float32 scale), "uint8-128/127" (less a
            zero-point first), "-1,1" or (-1, 1) (any numbers between).
        data: Inputs as for `Model.run`, to show beside what is proven what there really is.

    Raises:
        ModelError: The model cannot be read, or a range or the data do not fit it.

    >>> found = analyze("examples/digits_w4a4.onnx")
    >>> [(layer.kind, layer.accumulator_bits) for layer in found.layers]
    [('exact', 14), ('exact', 12), ('exact', 12)]
    """
    model = followable(source)
    inputs = [value for value in model.graph.inputs if not value.is_initializer()]
    known = input_values(input_ranges, inputs)
    analysis = follow(model, known)
    quantizers = quantizers_behind(analysis.products)
    layers = connected(list(model.graph.all_nodes()), layers_of(model, analysis, quantizers))
    name = os.fspath(source) if isinstance(source, str | os.PathLike) else "the model"
    rows = 0
    if data is not None:
        seen, rows = observe(model, name, analysis, quantizers, data, known)
        layers = [replace(layer, seen=each) for layer, each in zip(layers, seen, strict=True)]
    said = {key: str(each) for key, each in by_name(input_ranges).items()}
    return Analyzed(name, tuple(layers), said, rows)
