# SPDX-License-Identifier: Apache-2.0
"""A module as a graph of PyTorch's own operators."""

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
from anybit.text import counted

Shapes: TypeAlias = dict[str, Any]
"""By argument of forward: a dict from axis to `torch.export.Dim` for each tensor, or None."""

# What the exporter says about PyTorch itself, and what recurrent layers of PyTorch make it say.
_KNOWN_WARNINGS = (
    (FutureWarning, r"`isinstance\(treespec, LeafSpec\)` is deprecated"),
    (UserWarning, r"The tensor attributes .*_flat_weights.* were assigned during export"),
)

_FIXED_SIZE = (
    "the module fixes a size that was to be free; take sizes from x.shape, or pass "
    "dynamic_batch=False for a model of the sizes of the arguments"
)
_NO_GRAPH = (
    "forward must be a graph of tensor operations, with torch.cond for branches on values; see "
    "the documentation of torch.export"
)


@contextmanager
def silenced() -> Iterator[None]:
    """No log, as errors say why; and no warnings about PyTorch itself, but all others."""
    known = logging.root.manager.loggerDict.values()
    loggers = [each for each in known if isinstance(each, logging.Logger)]
    # PyTorch has handlers on many of its loggers.
    theirs = [each for each in loggers if each.name.partition(".")[0] == "torch"]
    handlers = {handler for logger in theirs for handler in logger.handlers}
    for handler in handlers:
        handler.addFilter(_nothing)
    try:
        with _without_known_warnings():
            yield
    finally:
        for handler in handlers:
            handler.removeFilter(_nothing)


def _nothing(record: logging.LogRecord) -> bool:
    return False


@contextmanager
def _without_known_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        for category, message in _KNOWN_WARNINGS:
            warnings.filterwarnings("ignore", message, category)
        yield


def capture(
    module: torch.nn.Module, bound: inspect.BoundArguments, shapes: Shapes | None
) -> torch.export.ExportedProgram:
    """What the module computes from such arguments, as a graph.

    Raises:
        ModelError: torch.export cannot capture it, or it writes to buffers or by out=.
    """
    example = inspect.BoundArguments(bound.signature, OrderedDict(bound.arguments))
    if shapes is not None:
        example.arguments.update(_pytree.tree_map(_of_two_rows, dict(bound.arguments), shapes))
    try:
        with silenced():
            program = torch.export.export(
                module, example.args, example.kwargs, dynamic_shapes=shapes, strict=False
            )
            # The same operators, but nothing is written in place any more.
            program = program.run_decompositions({})
    except Exception as error:  # torch.export has no class of its own for what it cannot do
        fixed = "Constraints violated" in str(error)
        raise ModelError(
            f"{type(module).__name__} cannot be captured: {reason(error)}; "
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
    # Of PyTorch's own operators run_decompositions has replaced those that write.
    parts = (
        part for part in program.graph_module.modules() if isinstance(part, torch.fx.GraphModule)
    )
    for node in itertools.chain.from_iterable(part.graph.nodes for part in parts):
        if str(node.target).startswith("auto_functionalized"):
            raise ModelError(
                f"{type(module).__name__} calls {node.args[0]}, which writes to a tensor that it "
                "is given, and no ONNX operator does; use what the operator returns, without out="
            )


def by_argument(
    bound: inspect.BoundArguments, shapes: Shapes | Sequence[Any] | None
) -> Shapes | None:
    """Free sizes by the names of the arguments; torch.export also takes them in their order.

    Raises:
        ModelError: Not one for each argument.
    """
    if shapes is None:
        return None
    names = list(bound.arguments)
    named = isinstance(shapes, Mapping)
    if set(shapes) != set(names) if named else len(shapes) != len(names):
        raise ModelError(
            f"dynamic_shapes must say something, or None, of each of {', '.join(names)}; "
            f"got {', '.join(map(str, shapes)) if named else counted(len(shapes), 'item')}"
        )
    return dict(
        shapes if isinstance(shapes, Mapping) else zip(bound.arguments, shapes, strict=True)
    )


def batch_shapes(bound: inspect.BoundArguments) -> Shapes | None:
    """The first axis free in all tensors where it is as long as in the first tensor.

    None if no tensor has an axis.
    """
    arguments = dict(bound.arguments)
    lengths = [leaf.shape[0] for leaf in _pytree.tree_leaves(arguments) if _has_rows(leaf)]
    if not lengths:
        return None
    batch = torch.export.Dim("batch")

    def shape(leaf: Any) -> dict[int, Any] | None:
        return {0: batch} if _has_rows(leaf) and leaf.shape[0] == lengths[0] else None

    shapes: Shapes = _pytree.tree_map(shape, arguments)
    return shapes


def names_of_sizes(bound: inspect.BoundArguments, shapes: Shapes | None) -> list[dict[int, str]]:
    """For each tensor among the arguments what its free axes are called."""
    names: list[dict[int, str]] = []

    def note(leaf: Any, free: Any) -> None:
        if isinstance(leaf, torch.Tensor):
            sizes = free if isinstance(free, dict) else dict(enumerate(free or ()))
            named = {axis: getattr(size, "__name__", "") for axis, size in sizes.items()}
            names.append({axis: name for axis, name in named.items() if name})

    if shapes is not None:
        _pytree.tree_map(note, dict(bound.arguments), shapes)
    return names


def reason(error: BaseException) -> str:
    """The first line of what was wrong in the first place."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _has_rows(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.ndim > 0


def _of_two_rows(leaf: Any, free: Any) -> Any:
    """A tensor of which no free axis has size 1, which torch.export would take for fixed."""
    if isinstance(leaf, torch.Tensor) and isinstance(free, dict):
        for axis, size in free.items():
            if size is not None and leaf.shape[axis] == 1:
                leaf = torch.cat([leaf, leaf], axis)
    return leaf
