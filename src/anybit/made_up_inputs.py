# SPDX-License-Identifier: Apache-2.0
"""Arrays that nobody gave: random numbers that fit a model's inputs, and what to say of them."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from anybit import text
from anybit.errors import ModelError
from anybit.inputs import Array, Tensor

# 8 GiB of float32: more is a mistake in the model rather than a wish.
_MOST_ELEMENTS = 2**31


def with_sizes(inputs: Iterable[Tensor], shapes: Mapping[str, Sequence[int]]) -> list[Tensor]:
    """The inputs with these shapes for some of them.

    Raises:
        ModelError: A name that is not an input, or a shape that contradicts the declared one.
    """
    inputs = list(inputs)
    unknown = [name for name in shapes if name not in {each.name for each in inputs}]
    if unknown:
        names = text.listed(each.name for each in inputs) or "none"
        raise ModelError(f"{unknown[0]} is not an input; inputs: {names}")
    for each in inputs:
        shape = shapes.get(each.name)
        if shape is not None and not each.fits(shape):
            raise ModelError(
                f"input {each.name!r} is declared with shape {text.sizes(each.shape)}, "
                f"which {text.sizes(shape)} does not fit"
            )
    return [
        replace(each, shape=tuple(shapes[each.name])) if each.name in shapes else each
        for each in inputs
    ]


def made_up_note(inputs: Iterable[Tensor]) -> str:
    """What a reader must know of results for made-up inputs."""
    sizes = _made_up_sizes(inputs)
    return "the inputs are random numbers (seed 0)" + (f"; {sizes}" if sizes else "")


@contextmanager
def naming_made_up_sizes(inputs: Iterable[Tensor]) -> Iterator[None]:
    """Let errors of a run say which sizes of its inputs were made up."""
    try:
        yield
    except ModelError as error:
        sizes = _made_up_sizes(inputs)
        if not sizes:
            raise
        raise ModelError(f"{error}; {sizes}; give real ones with --shape or --input") from error


def _made_up_sizes(inputs: Iterable[Tensor]) -> str:
    found = []
    for each in inputs:
        shape = each.shape or ()
        if any(not isinstance(size, int) for size in shape):
            sizes = [size if isinstance(size, int) else 1 for size in shape]
            found.append(f"{each.name} has {text.sizes(each.shape)}, run with {text.sizes(sizes)}")
    return f"free sizes were made up: {text.listed(found, 3)}" if found else ""


def random_inputs(inputs: Iterable[Tensor]) -> dict[str, Array]:
    """Normally distributed numbers (0 and 1 for integers) from seed 0; free sizes are 1.

    Raises:
        ModelError: An input without a declared shape, or of one that is too large to make up.
    """
    generator = np.random.default_rng(0)
    return {each.name: _random(generator, each) for each in inputs}


def _random(generator: np.random.Generator, declared: Tensor) -> Array:
    if declared.shape is None:
        raise ModelError(
            f"input {declared.name!r} has no declared shape: pass an array, or its sizes with "
            f"--shape {declared.name}=..."
        )
    shape = [size if isinstance(size, int) else 1 for size in declared.shape]
    if math.prod(shape) > _MOST_ELEMENTS:
        raise ModelError(
            f"input {declared.name!r} of shape {shape} is too large to make up: it has "
            f"{math.prod(shape)} elements, at most {_MOST_ELEMENTS} are"
        )
    if "float" in declared.dtype.name:
        return generator.standard_normal(shape, dtype=np.float32).astype(declared.dtype)
    return generator.integers(0, 2, shape).astype(declared.dtype)
