# SPDX-License-Identifier: Apache-2.0
"""Fixed shapes for inputs with dynamic sizes."""

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from anybit.data.random_inputs import override_shapes
from anybit.errors import OptionError
from anybit.inputs import list_inputs
from anybit.onnx import Source
from anybit.onnx.files.reader import read_copy
from anybit.onnx.graph.walk import iter_nodes
from anybit.onnx.preparation import name_errors_after


def fix_shapes(source: Source, shapes: Mapping[str, Sequence[int]]) -> Source:
    """Return a model with these shapes of some inputs. A first size of 1 keeps rows dynamic.

    Raises:
        OptionError: The model has no such input, or one of another shape.
    """
    if not shapes:
        return source
    for name, sizes in shapes.items():
        if not all(isinstance(size, int) and size > 0 for size in sizes):
            raise OptionError(f"input {name!r}: sizes must be integers from 1 on, got {sizes}")
    model = read_copy(source)
    with name_errors_after(source):
        override_shapes(list_inputs(model.graph, "the model"), shapes)
    inputs = {value.name: value for value in model.graph.inputs}
    for name, sizes in shapes.items():
        rows = list(inputs[name].shape or ())[:1]
        keeps_rows = bool(rows) and not isinstance(rows[0], int) and sizes[0] == 1
        inputs[name].shape = ir.Shape((*rows, *sizes[1:]) if keeps_rows else sizes)
    for node in iter_nodes(model.graph):
        for value in node.outputs:
            value.shape = None  # of the shapes before
    return model
