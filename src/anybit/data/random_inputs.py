# SPDX-License-Identifier: Apache-2.0
"""Random arrays for the inputs of a model."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from anybit import text
from anybit.errors import AnybitError, DataError, OptionError
from anybit.inputs import TensorInfo
from anybit.onnx.graph.constants import Array

# 8 GiB of float32: more is a mistake in the model.
_MAX_ELEMENTS = 2**31


def override_shapes(
    inputs: Iterable[TensorInfo], shapes: Mapping[str, Sequence[int]]
) -> list[TensorInfo]:
    """Return the inputs with the shapes of `shapes`, by name.

    Raises:
        OptionError: A name that is not an input, or a shape that contradicts the declared one.
    """
    inputs = list(inputs)
    unknown = [name for name in shapes if name not in {tensor.name for tensor in inputs}]
    if unknown:
        names = text.join_names(tensor.name for tensor in inputs) or "none"
        raise OptionError(f"{unknown[0]} is not an input; inputs: {names}")
    for tensor in inputs:
        shape = shapes.get(tensor.name)
        if shape is not None and not tensor.fits(shape):
            raise OptionError(
                f"input {tensor.name!r} is declared with shape {text.format_shape(tensor.shape)}, "
                f"which {text.format_shape(shape)} does not fit"
            )
    return [
        replace(tensor, shape=tuple(shapes[tensor.name])) if tensor.name in shapes else tensor
        for tensor in inputs
    ]


def describe_random_inputs(inputs: Iterable[TensorInfo]) -> str:
    """Return the note on results for random inputs: the seed and the assumed sizes."""
    sizes = _describe_assumed_sizes(inputs)
    return "the inputs are random numbers (seed 0)" + (f"; {sizes}" if sizes else "")


@contextmanager
def report_assumed_sizes(inputs: Iterable[TensorInfo]) -> Iterator[None]:
    """Add the assumed sizes of dynamic dimensions to the errors of a run."""
    try:
        yield
    except AnybitError as error:
        sizes = _describe_assumed_sizes(inputs)
        if not sizes:
            raise
        raise type(error)(f"{error}; {sizes}; give real ones with --shape or --input") from error


def _describe_assumed_sizes(inputs: Iterable[TensorInfo]) -> str:
    assumed = []
    for tensor in inputs:
        shape = tensor.shape or ()
        if any(not isinstance(size, int) for size in shape):
            sizes = text.format_shape(size if isinstance(size, int) else 1 for size in shape)
            assumed.append(f"{tensor.name} has {text.format_shape(shape)}, run with {sizes}")
    return f"dynamic sizes are assumed to be 1: {text.join_names(assumed, 3)}" if assumed else ""


def generate_random_inputs(inputs: Iterable[TensorInfo]) -> dict[str, Array]:
    """Return normally distributed numbers (0 and 1 for integers) from seed 0; dynamic sizes are 1.

    Raises:
        DataError: An input has no declared shape, or one with too many elements.
    """
    generator = np.random.default_rng(0)
    return {tensor.name: _generate_array(generator, tensor) for tensor in inputs}


def _generate_array(generator: np.random.Generator, declared: TensorInfo) -> Array:
    if declared.shape is None:
        raise DataError(
            f"input {declared.name!r} has no declared shape: pass an array, or its sizes with "
            f"--shape {declared.name}=..."
        )
    shape = [size if isinstance(size, int) else 1 for size in declared.shape]
    if math.prod(shape) > _MAX_ELEMENTS:
        raise DataError(
            f"input {declared.name!r} of shape {shape} is too large for random numbers: it has "
            f"{math.prod(shape)} elements, the limit is {_MAX_ELEMENTS}"
        )
    if "float" in declared.dtype.name:
        return generator.standard_normal(shape, dtype=np.float32).astype(declared.dtype)
    return generator.integers(0, 2, shape).astype(declared.dtype)
