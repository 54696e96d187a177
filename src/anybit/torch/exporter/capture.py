# SPDX-License-Identifier: Apache-2.0
"""Capture of a module as a graph of PyTorch operators."""

import inspect
import itertools
import logging
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree

from anybit.errors import ModelError
from anybit.text import format_count

DynamicShapes: TypeAlias = dict[str, Any]
"""Dynamic sizes by argument of forward: a dict from axis to `torch.export.Dim`, or None."""

# Warnings of the exporter about PyTorch itself, and about its recurrent layers.
_IGNORED_WARNINGS = (
    (FutureWarning, r"`isinstance\(treespec, LeafSpec\)` is deprecated"),
    (UserWarning, r"The tensor attributes .*_flat_weights.* were assigned during export"),
)

_FIXED_SIZE = (
    "the module fixes a size that should be dynamic; take sizes from x.shape, or pass "
    "dynamic_batch=False for a model of the sizes of the arguments"
)
_NO_GRAPH = (
    "forward must be a graph of tensor operations, with torch.cond for branches on values; see "
    "the documentation of torch.export"
)


@contextmanager
def silence() -> Iterator[None]:
    """Suppress logs, because errors have the reason, and warnings about PyTorch itself."""
    loggers = logging.root.manager.loggerDict.values()
    # PyTorch has handlers on many of its loggers.
    handlers = {
        handler
        for logger in loggers
        if isinstance(logger, logging.Logger) and logger.name.partition(".")[0] == "torch"
        for handler in logger.handlers
    }
    for handler in handlers:
        handler.addFilter(_reject)
    try:
        with _ignore_warnings():
            yield
    finally:
        for handler in handlers:
            handler.removeFilter(_reject)


def _reject(record: logging.LogRecord) -> bool:
    return False


@contextmanager
def _ignore_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        for category, message in _IGNORED_WARNINGS:
            warnings.filterwarnings("ignore", message, category)
        yield


def capture(
    module: torch.nn.Module, bound: inspect.BoundArguments, shapes: DynamicShapes | None
) -> torch.export.ExportedProgram:
    """Return the graph of the module for arguments like these.

    Raises:
        ModelError: torch.export cannot capture it, or it writes to buffers or by out=.
    """
    example = inspect.BoundArguments(bound.signature, OrderedDict(bound.arguments))
    if shapes is not None:
        example.arguments.update(
            _pytree.tree_map(_repeat_single_rows, dict(bound.arguments), shapes)
        )
    try:
        with silence():
            program = torch.export.export(
                module, example.args, example.kwargs, dynamic_shapes=shapes, strict=False
            )
            # This replaces operators that write in place.
            program = program.run_decompositions({})
    except Exception as error:  # torch.export has no error class of its own
        fixed = "Constraints violated" in str(error)
        raise ModelError(
            f"{type(module).__name__} cannot be captured: {get_reason(error)}; "
            f"{_FIXED_SIZE if fixed else _NO_GRAPH}"
        ) from error
    _check_writes(module, program)
    return program


def _check_writes(module: torch.nn.Module, program: torch.export.ExportedProgram) -> None:
    changed = list(program.graph_signature.buffers_to_mutate.values())
    if changed:
        raise ModelError(
            f"{type(module).__name__} changes its buffer {changed[0]!r} in eval mode, and an ONNX "
            "model has no state; change buffers only if self.training is set"
        )
    # run_decompositions has replaced PyTorch's own operators that write.
    parts = (
        part for part in program.graph_module.modules() if isinstance(part, torch.fx.GraphModule)
    )
    for node in itertools.chain.from_iterable(part.graph.nodes for part in parts):
        if str(node.target).startswith("auto_functionalized"):
            raise ModelError(
                f"{type(module).__name__} calls {node.args[0]}, which writes to an argument; "
                "ONNX operators cannot: use the result of the operator, without out="
            )


def bind_shapes(
    bound: inspect.BoundArguments, shapes: DynamicShapes | Sequence[Any] | None
) -> DynamicShapes | None:
    """Return dynamic sizes by the names of the arguments, from either form of torch.export.

    Raises:
        ModelError: The arguments and the entries differ.
    """
    if shapes is None:
        return None
    names = list(bound.arguments)
    named = isinstance(shapes, Mapping)
    if set(shapes) != set(names) if named else len(shapes) != len(names):
        raise ModelError(
            f"dynamic_shapes needs an entry, or None, for each of {', '.join(names)}; "
            f"got {', '.join(map(str, shapes)) if named else format_count(len(shapes), 'item')}"
        )
    return dict(
        shapes if isinstance(shapes, Mapping) else zip(bound.arguments, shapes, strict=True)
    )


def make_batch_shapes(bound: inspect.BoundArguments) -> DynamicShapes | None:
    """Return shapes with a dynamic first axis in tensors where it is as long as in the first one.

    None if no tensor has an axis.
    """
    arguments = dict(bound.arguments)
    lengths = [leaf.shape[0] for leaf in _pytree.tree_leaves(arguments) if _has_rows(leaf)]
    if not lengths:
        return None
    batch = torch.export.Dim("batch")

    def shape(leaf: Any) -> dict[int, Any] | None:
        return {0: batch} if _has_rows(leaf) and leaf.shape[0] == lengths[0] else None

    shapes: DynamicShapes = _pytree.tree_map(shape, arguments)
    return shapes


def name_sizes(bound: inspect.BoundArguments, shapes: DynamicShapes | None) -> list[dict[int, str]]:
    """Return the names of the dynamic axes of each tensor among the arguments."""
    names: list[dict[int, str]] = []

    def note(leaf: Any, axes: Any) -> None:
        if isinstance(leaf, torch.Tensor):
            sizes = axes if isinstance(axes, dict) else dict(enumerate(axes or ()))
            named = {axis: getattr(size, "__name__", "") for axis, size in sizes.items()}
            names.append({axis: name for axis, name in named.items() if name})

    if shapes is not None:
        _pytree.tree_map(note, dict(bound.arguments), shapes)
    return names


def get_reason(error: BaseException) -> str:
    """Return the first line of the original error."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _has_rows(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.ndim > 0


def _repeat_single_rows(leaf: Any, axes: Any) -> Any:
    """Repeat a tensor along dynamic axes of size 1, which torch.export would treat as fixed."""
    if isinstance(leaf, torch.Tensor) and isinstance(axes, dict):
        for axis, size in axes.items():
            if size is not None and leaf.shape[axis] == 1:
                leaf = torch.cat([leaf, leaf], axis)
    return leaf
