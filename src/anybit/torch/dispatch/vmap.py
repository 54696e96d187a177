# SPDX-License-Identifier: Apache-2.0
"""Batching rules for `torch.func.vmap`: the batch becomes the first axis of every tensor."""

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from anybit.ops import Operator
from anybit.torch.checks import check, check_backward
from anybit.torch.results import make_empty_gradients, make_empty_result


def make_forward_rule(operator: Operator, overload: Any) -> Callable[..., Any]:
    def rule(info: Any, in_dims: Sequence[Any], *inputs: Any, **attributes: Any) -> Any:
        if not operator.broadcasts:
            return _call_one_by_one(
                operator, overload, info.batch_size, in_dims, inputs, attributes
            )
        aligned = _align_inputs(operator, info.batch_size, in_dims, inputs, attributes)
        return overload(*aligned, **attributes), 0

    return rule


def make_backward_rule(operator: Operator, overload: Any) -> Callable[..., Any]:
    """Return the rule for gradients, which are per element also for shared parameters."""

    def rule(
        info: Any,
        in_dims: Sequence[Any],
        gradient: torch.Tensor,
        *inputs: Any,
        requested: list[str],
        **attributes: Any,
    ) -> Any:
        size = info.batch_size
        if not operator.broadcasts:
            keywords = {"requested": requested, **attributes}
            every = (gradient, *inputs)
            return _differentiate_one_by_one(operator, overload, size, in_dims, every, keywords)
        by_name = operator.name_inputs(inputs)
        dims = dict(zip(by_name, in_dims[1:], strict=False))
        batched = [
            _move_batch_first(value, dims[name], size) if name in requested else value
            for name, value in by_name.items()
        ]
        batched_dims = [0 if name in requested else dims[name] for name in by_name]
        aligned = _align_inputs(operator, size, batched_dims, batched, attributes)
        gradients = overload(
            _move_batch_first(gradient, in_dims[0], size),
            *aligned,
            requested=requested,
            **attributes,
        )
        shapes = {name: value.shape for name, value in zip(by_name, batched, strict=True)}
        results = [
            gradient.reshape(shapes[name])
            for gradient, name in zip(gradients, requested, strict=True)
        ]
        return results, [0] * len(requested)

    return rule


def _align_inputs(
    operator: Operator,
    size: int,
    in_dims: Sequence[Any],
    inputs: Sequence[Any],
    attributes: dict[str, Any],
) -> list[Any]:
    """Return x with the batch first, and parameters that broadcast as without a batch."""
    x_dim = in_dims[0]
    x = _move_batch_first(inputs[0], x_dim, size)
    one = SimpleNamespace(shape=x.shape[1:])
    aligned = [x]
    for declared, value, dim in zip(operator.inputs[1:], inputs[1:], in_dims[1:], strict=False):
        if value is None:
            aligned.append(None)
            continue
        if dim is not None:
            value = value.movedim(dim, 0)
        own = value.shape if dim is None else value.shape[1:]
        # An additional axis would broadcast to the batch without an error.
        operator.place(SimpleNamespace(shape=own), one, declared.name, attributes)
        if dim is not None:
            value = value.reshape(size, *[1] * (len(one.shape) - len(own)), *own)
        aligned.append(value)
    return aligned


def _move_batch_first(value: torch.Tensor, dim: int | None, size: int) -> torch.Tensor:
    if dim is None:
        return value.unsqueeze(0).expand(size, *value.shape)
    return value.movedim(dim, 0)


def _call_one_by_one(
    operator: Operator,
    overload: Any,
    size: int,
    in_dims: Sequence[Any],
    inputs: Sequence[Any],
    attributes: dict[str, Any],
) -> Any:
    """Call per element, for operators whose parameters have an axis attribute."""
    if size == 0:
        return _make_empty_results(operator, in_dims, inputs, attributes), 0
    calls = _iterate_calls(size, in_dims, inputs)
    return torch.stack([overload(*call, **attributes) for call in calls]), 0


def _differentiate_one_by_one(
    operator: Operator,
    overload: Any,
    size: int,
    in_dims: Sequence[Any],
    inputs: Sequence[Any],
    keywords: dict[str, Any],
) -> Any:
    """Compute gradients per element. The first input is the gradient of the result."""
    requested = keywords["requested"]
    if size == 0:
        gradient, *one = _make_one_call(in_dims, inputs)
        attributes = {name: value for name, value in keywords.items() if name != "requested"}
        check_backward(operator, gradient, one, requested, attributes)
        results = [
            result.new_empty((0, *result.shape))
            for result in make_empty_gradients(operator, one, requested)
        ]
    else:
        gradients = [overload(*call, **keywords) for call in _iterate_calls(size, in_dims, inputs)]
        results = [torch.stack(column) for column in zip(*gradients, strict=True)]
    return results, [0] * len(requested)


def _iterate_calls(size: int, in_dims: Sequence[Any], inputs: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield the inputs of each element of the batch."""
    for index in range(size):
        yield [
            value if dim is None else value.select(dim, index)
            for value, dim in zip(inputs, in_dims, strict=False)
        ]


def _make_one_call(in_dims: Sequence[Any], inputs: Sequence[Any]) -> list[Any]:
    """Return the inputs of an element of an empty batch, uninitialized."""
    return [
        value if dim is None else value.new_empty(value.movedim(dim, 0).shape[1:])
        for value, dim in zip(inputs, in_dims, strict=False)
    ]


def _make_empty_results(
    operator: Operator, in_dims: Sequence[Any], inputs: Sequence[Any], attributes: dict[str, Any]
) -> torch.Tensor:
    """Return the results for an empty batch, after a check of the arguments."""
    one = _make_one_call(in_dims, inputs)
    check(operator, one, attributes)
    result = make_empty_result(operator, one[0], attributes)
    return result.new_empty((0, *result.shape))
