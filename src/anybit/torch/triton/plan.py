# SPDX-License-Identifier: Apache-2.0
"""From expressions to a launch: what is worked out once per combination of layouts."""

import contextlib
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from anybit.torch.triton.compiled import compiled
from anybit.torch.triton.source import Output, Pointer, Shape, kernel
from anybit.torch.triton.sums import Sums
from anybit.torch.triton.tiles import (
    Sizes,
    broadcast_strides,
    contiguous_strides,
    merged,
    tiles,
)
from anybit.torch.triton.traced import Traced

# What Triton asks of pointers, in bytes.
_ALIGNMENT = 16


class Layout(NamedTuple):
    """What of a tensor decides on a kernel."""

    dtype: torch.dtype
    shape: Sizes
    strides: Sizes
    device: torch.device

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Result:
    """One tensor that a kernel gives.

    It lies in memory as x does, or is contiguous. One of another shape than x is summed over the
    axes along which it is repeated, in the dtype of its value. It is delivered in `delivered`, if
    that is given, instead of the shape in which it broadcasts to x.
    """

    name: str
    value: Traced
    dtype: torch.dtype
    shape: Sizes
    like_x: bool
    delivered: Sizes | None = None


class Plan:
    """A kernel for tensors of certain layouts, and how to start it.

    The layouts are those of x, the parameters (None where one is not given) and, where a gradient
    is carried back, that gradient. `views` are the shapes in which they broadcast to x, by default
    their own.

    Attributes:
        text: The kernel.
        tiles: How the elements are cut.
    """

    def __init__(
        self,
        name: str,
        names: Sequence[str],
        layouts: Sequence[Layout | None],
        results: Sequence[Result],
        views: Sequence[Sizes | None] | None = None,
    ) -> None:
        x = layouts[0]
        assert x is not None
        self.name = name
        self._results = results
        self._empty = 0 in x.shape
        self._kernel: Any = None
        if not self._empty:
            self._work_out(x.shape, names, layouts, views or [None] * len(layouts))

    def _work_out(
        self,
        shape: Sizes,
        names: Sequence[str],
        layouts: Sequence[Layout | None],
        views: Sequence[Sizes | None],
    ) -> None:
        like_x = _like(layouts[0])
        inputs = {
            place: _viewed(layout, views[place], shape)
            for place, layout in enumerate(layouts)
            if layout is not None
        }
        gives = [
            like_x
            if result.like_x
            else broadcast_strides(result.shape, contiguous_strides(result.shape), shape)
            for result in self._results
        ]
        axes = merged(shape, [like_x, *inputs.values(), *gives])
        self.tiles = tiles(axes)
        steps = iter(axes.strides[1:])
        moving = {place: next(steps) for place in inputs}
        pointers = [
            Pointer(name, moving[place]) if place in moving else None
            for place, name in enumerate(names)
        ]
        outputs = [
            Output(Pointer(result.name, next(steps)), result.value, result.shape != shape)
            for result in self._results
        ]
        self._sums = [
            Sums(axes, self.tiles, output.pointer.strides, result.shape) if output.summed else None
            for output, result in zip(outputs, self._results, strict=True)
        ]
        form = Shape(len(axes.leads), axes.sizes[-2] > 1, self.tiles.uneven)
        self.text = kernel(self.name, form, pointers, outputs)
        self.numbers = [*axes.sizes[:-3:-1], self.tiles.blocks_n, self.tiles.blocks_m, *axes.leads]
        for each in (*pointers, *outputs):
            if each is not None:
                self.numbers += each.numbers
        self.numbers += [self.tiles.tile_m, self.tiles.tile_n]
        self._grid = (self.tiles.blocks_n * self.tiles.blocks_m * math.prod(axes.leads), 1, 1)

    def run(self, tensors: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
        """The results for tensors of these layouts."""
        given = [each for each in tensors if each is not None]
        x = given[0]
        if self._empty:
            return [
                _delivered(x.new_zeros(result.shape, dtype=result.dtype), result)
                for result in self._results
            ]
        buffers = self._buffers(x)
        start = _interpret if interpreted() else _start
        start(self, given, buffers)
        return [
            _delivered(buffer if sums is None else sums.finished(buffer, result.dtype), result)
            for buffer, result, sums in zip(buffers, self._results, self._sums, strict=True)
        ]

    @property
    def buffer_dtypes(self) -> list[torch.dtype]:
        """The dtypes of what the kernel writes; sums have that of their elements."""
        return [
            result.dtype if sums is None else getattr(torch, result.value.dtype)
            for result, sums in zip(self._results, self._sums, strict=True)
        ]

    def _buffers(self, x: torch.Tensor) -> list[torch.Tensor]:
        buffers = []
        kinds = zip(self._results, self._sums, self.buffer_dtypes, strict=True)
        for result, sums, dtype in kinds:
            if sums is None and result.like_x:
                buffers.append(torch.empty_like(x, dtype=dtype))
            else:
                shape = result.shape if sums is None else sums.partial_shape
                buffers.append(torch.empty(shape, dtype=dtype, device=x.device))
        return buffers

    def launch(self, tensors: Sequence[torch.Tensor]) -> None:
        """Start the kernel on inputs and results.

        Triton looks at all arguments to find what it has compiled for such ones, which takes longer
        than the start. Here that is always the same where pointers are aligned.
        """
        aligned = not any(each.data_ptr() % _ALIGNMENT for each in tensors)
        if aligned and self._kernel is not None:
            self._kernel[self._grid](*tensors, *self.numbers)
            return
        kernel = compiled(self.name, self.text, interpreted())[self._grid](
            *tensors,
            *self.numbers,
            num_warps=self.tiles.warps,
            # No a * b + c in one rounding.
            enable_fp_fusion=False,
        )
        if aligned:
            self._kernel = kernel


def layouts_of(tensors: Iterable[torch.Tensor | None]) -> tuple[Layout | None, ...]:
    return tuple(
        [
            None if each is None else Layout(each.dtype, each.shape, each.stride(), each.device)
            for each in tensors
        ]
    )


def interpreted() -> bool:
    """Whether kernels run on the CPU, under Triton's interpreter."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def _start(plan: Plan, inputs: Sequence[torch.Tensor], buffers: Sequence[torch.Tensor]) -> None:
    x = inputs[0]
    if not x.is_cuda:
        raise ValueError(
            f"x must be on a GPU, got {x.device}; with TRITON_INTERPRET=1 in the environment "
            "kernels run on the CPU, slowly"
        )
    with (
        torch.cuda.device(x.device)
        if x.device.index != torch.cuda.current_device()
        else (contextlib.nullcontext())
    ):
        plan.launch((*inputs, *buffers))


def _interpret(plan: Plan, inputs: Sequence[torch.Tensor], buffers: Sequence[torch.Tensor]) -> None:
    """The interpreter truncates bfloat16, and loses its subnormal numbers: it gets float32."""
    wide = [_widened(each) for each in (*inputs, *buffers)]
    with np.errstate(all="ignore"):
        plan.launch(wide)
    for buffer, computed in zip(buffers, wide[len(inputs) :], strict=True):
        if computed is not buffer:
            buffer.copy_(computed)


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of bfloat16 as float32, with the same strides, even where elements overlap."""
    if tensor.dtype != torch.bfloat16:
        return tensor
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    memory = tensor.as_strided((count,), (1,), 0).float()
    return memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _like(layout: Layout | None) -> Sizes:
    """The strides that `torch.empty_like` gives."""
    assert layout is not None
    meta = torch.empty_strided(layout.shape, layout.strides, device="meta")
    return tuple(torch.empty_like(meta).stride())


def _viewed(layout: Layout, view: Sizes | None, shape: Sizes) -> Sizes:
    """The strides of an input along the axes of x, in the shape in which it broadcasts to x."""
    seen = torch.empty_strided(layout.shape, layout.strides, device="meta")
    if view is not None:
        seen = seen.view(view)
    return broadcast_strides(tuple(seen.shape), tuple(seen.stride()), shape)


def _delivered(tensor: torch.Tensor, result: Result) -> torch.Tensor:
    """Return the tensor in the shape that the result is delivered in."""
    if result.delivered is None or result.delivered == tuple(tensor.shape):
        return tensor
    return tensor.reshape(result.delivered)
