# SPDX-License-Identifier: Apache-2.0
"""Shapes of the samples that a model was quantized with, as the quantized model records them.

The metadata entry `anybit.sample_shapes` of the model is JSON: shapes by input name, of inputs
whose sizes are dynamic.
"""

import json
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

SHAPES_KEY = "anybit.sample_shapes"
_LARGEST_SIZE = 2**31 - 1


def describe_sample_shapes(model: ir.Model, sample: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Return the metadata for a sample; empty if at most the number of rows is dynamic."""
    shapes = {
        str(x.name): list(sample[str(x.name)].shape)
        for x in model.graph.inputs
        if x.name in sample
        and (x.shape is None or not all(isinstance(size, int) for size in tuple(x.shape)[1:]))
    }
    return {SHAPES_KEY: json.dumps(shapes)} if shapes else {}


def find_sample_shape(model: ir.Model, x: ir.Value) -> tuple[int, ...] | None:
    """Return the recorded shape of an input; None if there is none that fits it.

    Trust no record of a file: it may be malformed, or for another input.
    """
    try:
        shapes = json.loads(model.metadata_props.get(SHAPES_KEY, "{}"))
    except (ValueError, RecursionError):
        return None
    shape = shapes.get(x.name) if isinstance(shapes, dict) else None
    if not isinstance(shape, list) or not all(map(_is_size, shape)):
        return None
    declared = shape if x.shape is None else list(x.shape)
    fits = len(declared) == len(shape) and all(
        size == actual for size, actual in zip(declared, shape, strict=True) if _is_size(size)
    )
    return tuple(shape) if fits else None


def _is_size(size: object) -> bool:
    return type(size) is int and 0 < size <= _LARGEST_SIZE
