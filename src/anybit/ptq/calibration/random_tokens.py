# SPDX-License-Identifier: Apache-2.0
"""Random token ids: samples for models of text, without data.

The activations of random tokens have the outlier channels of real ones, since these follow from
weights. So SmoothQuant and GPTQ gain from them. Ranges and qualities need real data.
"""

import math
import os
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from anybit.data.dataset import DataSource
from anybit.errors import DataError
from anybit.inputs import DeclaredShape, TensorInfo, list_inputs
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import Array, is_constant
from anybit.onnx.graph.op_traits import OpTrait, has_trait, is_onnx_op
from anybit.ptq.config import RandomTokensConfig

RANDOM_TOKENS = "random-tokens"
"""The word for these samples in place of a path."""

_MEASURED = (
    "All samples are random token ids, those of the quality check included: measure the quality "
    "for real tokens with `anybit evaluate`."
)
_SUGGESTED = f"The inputs are token ids: data={RANDOM_TOKENS!r} usually lowers the error."

_POSITION = "position"
"""Part of the names of inputs that number tokens, for models that compute functions of these."""

_KEEPS_IDS = OpTrait.CAST | OpTrait.RESHAPE | OpTrait.IDENTITY

Tables: TypeAlias = dict[str, int]
"""The rows of the table that an input selects from, by the name of the input."""

Caches: TypeAlias = dict[str, int]
"""The dynamic axis to which a Concat appends, by the name of an input of floats."""


def requests_random_tokens(data: Any) -> bool:
    """Return whether the data are the word `random-tokens`."""
    return isinstance(data, str | os.PathLike) and os.fspath(data) == RANDOM_TOKENS


def describe_random_tokens(model: ir.Model, name: str, data: Any) -> tuple[str, ...]:
    """Return the remark on qualities for random tokens, or on what they would gain without data."""
    if requests_random_tokens(data):
        return (_MEASURED,)
    if data is None:
        inputs = list_inputs(model.graph, name)
        if not _find_reasons(inputs, _find_tables(model.graph), _find_caches(model.graph, inputs)):
            return (_SUGGESTED,)
    return ()


def expand_random_tokens(
    data: DataSource, model: ir.Model, name: str, config: RandomTokensConfig
) -> DataSource:
    """Return random tokens for the word `random-tokens`, and other data as they are.

    Args:
        data: The data.
        model: The model.
        name: Its name in messages.
        config: The numbers and sizes of the samples.

    Raises:
        DataError: See `generate_random_tokens`.
    """
    return generate_random_tokens(model, name, config) if requests_random_tokens(data) else data


def generate_random_tokens(
    model: ir.Model, name: str, config: RandomTokensConfig
) -> list[dict[str, Array]]:
    """Return samples for a model of text, the same in each call.

    The input that selects rows of the largest table gets uniformly distributed ids. Other inputs
    that select rows get the positions 0, 1, ... along the last axis, or 0 if their table is small
    (kinds of sentences). Without a table, integers with `position` in their names get positions.
    Caches are empty: floats to which a Concat appends along a dynamic axis. Masks are 1.

    Args:
        model: The model.
        name: Its name in messages.
        config: The numbers and sizes of the samples.

    Raises:
        DataError: An input is a float but no cache, a scalar or too large, or no input selects rows
            of a table.
    """
    inputs, tables = list_inputs(model.graph, name), _find_tables(model.graph)
    caches = _find_caches(model.graph, inputs)
    reasons = _find_reasons(inputs, tables, caches)
    if reasons:
        raise DataError(
            f"{RANDOM_TOKENS!r} fits models whose inputs are token ids and masks: {reasons[0]}; "
            "pass samples instead"
        )
    random = np.random.default_rng(0)
    shapes = {tensor.name: _get_shape(tensor, config, caches) for tensor in inputs}
    rows = next(iter(shapes.values()))[0]
    return [
        {
            tensor.name: _generate_array(random, tensor, shapes[tensor.name], tables, config)
            for tensor in inputs
        }
        for _ in range(max(config.samples // rows, config.least_batches))
    ]


def _find_reasons(inputs: Sequence[TensorInfo], tables: Tables, caches: Caches) -> list[str]:
    """Return why random tokens do not fit the inputs."""
    reasons = [
        f"input {tensor.name!r} is {tensor.dtype}"
        for tensor in inputs
        if tensor.dtype.kind not in "iub" and tensor.name not in caches
    ]
    reasons += [f"input {tensor.name!r} has no dimensions" for tensor in inputs if not tensor.shape]
    return reasons if tables else [*reasons, "no input selects rows of a constant table (Gather)"]


def _find_tables(graph: ir.Graph) -> Tables:
    """Return the rows of the smallest table that each input selects from."""
    rows_by_input = {value.name: list(_iter_table_rows(value)) for value in graph.inputs}
    return {name: min(rows) for name, rows in rows_by_input.items() if name is not None and rows}


def _find_caches(graph: ir.Graph, inputs: Sequence[TensorInfo]) -> Caches:
    """Return the axes of inputs of floats to which a Concat appends, if their sizes are dynamic."""
    values = {value.name: value for value in graph.inputs}
    caches: Caches = {}
    for tensor in inputs:
        rank = len(tensor.shape or ())
        for node, index in values[tensor.name].uses() if tensor.dtype.kind == "f" else ():
            axis = get_attribute(node, "axis", 0)
            if index == 0 and is_onnx_op(node, "Concat") and -rank <= axis < rank:
                axis %= rank
                if axis and not isinstance((tensor.shape or ())[axis], int):
                    caches[tensor.name] = axis
    return caches


def _iter_table_rows(value: ir.Value) -> Iterator[int]:
    """Yield the rows of all tables that a value selects from, also after casts and reshapes."""
    pending, seen = [value], set[ir.Value]()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        for node, index in value.uses():
            if index == 1 and is_onnx_op(node, "Gather"):
                table = node.inputs[0]
                if table is not None and get_attribute(node, "axis", 0) == 0:
                    yield from _get_rows(table)
            elif index == 0 and has_trait(node, _KEEPS_IDS):
                pending.extend(node.outputs)


def _get_rows(table: ir.Value) -> Iterator[int]:
    """Yield the number of rows if a value is a constant matrix of floats with at least one."""
    tensor = table.const_value
    if tensor is None or not is_constant(table) or not tensor.dtype.is_floating_point():
        return
    shape = tensor.shape.numpy()
    if len(shape) == 2 and shape[0] > 0:
        yield shape[0]


def _get_shape(tensor: TensorInfo, config: RandomTokensConfig, caches: Caches) -> tuple[int, ...]:
    """Return the shape of an input in a batch.

    Raises:
        DataError: It has too many elements.
    """
    declared: DeclaredShape = tensor.shape or ()
    sizes = [config.rows, *[config.tokens] * (len(declared) - 1)]
    if tensor.name in caches:
        sizes[caches[tensor.name]] = 0
    shape = tuple(
        fixed if isinstance(fixed, int) else size
        for fixed, size in zip(declared, sizes, strict=True)
    )
    if math.prod(shape) > config.max_elements:
        raise DataError(
            f"input {tensor.name!r} of shape {list(shape)} has {math.prod(shape)} elements; "
            f"{RANDOM_TOKENS!r} fills at most {config.max_elements}: pass samples instead"
        )
    return shape


def _generate_array(
    random: np.random.Generator,
    tensor: TensorInfo,
    shape: tuple[int, ...],
    tables: Tables,
    config: RandomTokensConfig,
) -> Array:
    rows = tables.get(tensor.name)
    if rows is None and tensor.dtype.kind != "f" and _POSITION in tensor.name.lower():
        return np.broadcast_to(np.arange(shape[-1]), shape).astype(tensor.dtype)
    if rows is None:
        return np.ones(shape, tensor.dtype)
    if rows <= config.most_kinds or tensor.dtype.kind == "b":
        return np.zeros(shape, tensor.dtype)
    rows = min(rows, int(np.iinfo(tensor.dtype).max) + 1)
    if tables[tensor.name] == max(tables.values()):
        return random.integers(0, rows, shape).astype(tensor.dtype)
    return np.broadcast_to(np.arange(shape[-1]) % rows, shape).astype(tensor.dtype)
