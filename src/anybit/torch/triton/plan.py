# SPDX-License-Identifier: Apache-2.0
"""Plans of kernel launches, one per combination of tensor layouts."""

import contextlib
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from anybit.torch.triton.source import Output, Pointer, Shape, compile_kernel, generate_kernel
from anybit.torch.triton.tiles import (
    Axes,
    Tiles,
    TileSizes,
    get_broadcast_strides,
    get_contiguous_strides,
    make_tiles,
    merge_axes,
)
from anybit.torch.triton.traced import Traced

# Alignment of pointers that Triton specializes kernels for, in bytes.
_ALIGNMENT = 16


class Layout(NamedTuple):
    """Properties of a tensor that a kernel depends on."""

    dtype: torch.dtype
    shape: TileSizes
    strides: TileSizes
    device: torch.device

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Result:
    """One output tensor of a kernel.

    It has the memory format of x, or is contiguous. If its shape differs from that of x, it is
    summed over the axes along which it is repeated, in the dtype of its value. `delivered` is the
    final shape if it is not the one in which the result broadcasts to x.
    """

    name: str
    value: Traced
    dtype: torch.dtype
    shape: TileSizes
    like_x: bool
    delivered: TileSizes | None = None


class ParameterSums:
    """Sums over the elements for which a parameter was repeated: its gradient.

    A tile sums along m and n where the parameter is repeated; PyTorch sums the rest. The order
    depends on shapes only, so that results are deterministic.

    `strides` are those of the gradient along the merged axes, 0 where the parameter is repeated.
    """

    def __init__(self, axes: Axes, tiles: Tiles, strides: TileSizes, shape: TileSizes) -> None:
        rows = axes.sizes[-2] if strides[-2] else tiles.blocks_m
        columns = axes.sizes[-1] if strides[-1] else tiles.blocks_n
        self.partial_shape = (*axes.outer, rows, columns)
        self._repeated = tuple(axis for axis, step in enumerate(strides) if not step)
        self._kept = tuple(
            size if step else 1 for size, step in zip(axes.sizes, strides, strict=True)
        )
        # Axes of one element may have any stride.
        steps = zip(self._kept, strides, get_contiguous_strides(self._kept), strict=True)
        self._in_order = all(size == 1 or step == expected for size, step, expected in steps)
        self._strides = strides
        self._shape = shape

    def finish(self, partial: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the gradient from the sums of the tiles."""
        total = partial.sum(self._repeated, keepdim=True) if self._repeated else partial
        if self._in_order:
            return total.reshape(self._shape).to(dtype)
        gradient = torch.empty(self._shape, dtype=dtype, device=partial.device)
        gradient.as_strided(self._kept, self._strides).copy_(total)
        return gradient


class Plan:
    """A kernel for tensors of certain layouts, and its launch.

    The layouts are those of x, the parameters (None for one left out) and, in a backward kernel,
    the gradient of the result. `views` are the shapes in which they broadcast to x, by default
    their own.

    Attributes:
        text: The source of the kernel.
        tiles: The tiles.
    """

    def __init__(
        self,
        name: str,
        names: Sequence[str],
        layouts: Sequence[Layout | None],
        results: Sequence[Result],
        views: Sequence[TileSizes | None] | None = None,
    ) -> None:
        x = layouts[0]
        assert x is not None
        self.name = name
        self._results = results
        self._empty = 0 in x.shape
        self._kernel: Any = None
        if not self._empty:
            self._prepare(x, names, layouts, views or [None] * len(layouts))

    def _prepare(
        self,
        x: Layout,
        names: Sequence[str],
        layouts: Sequence[Layout | None],
        views: Sequence[TileSizes | None],
    ) -> None:
        shape, like_x = x.shape, _get_like_strides(x)
        inputs = {
            place: _view_strides(layout, views[place], shape)
            for place, layout in enumerate(layouts)
            if layout is not None
        }
        results = [
            like_x
            if result.like_x
            else get_broadcast_strides(result.shape, get_contiguous_strides(result.shape), shape)
            for result in self._results
        ]
        axes = merge_axes(shape, [like_x, *inputs.values(), *results])
        self.tiles = make_tiles(axes)
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
            ParameterSums(axes, self.tiles, output.pointer.strides, result.shape)
            if output.summed
            else None
            for output, result in zip(outputs, self._results, strict=True)
        ]
        form = Shape(len(axes.outer), axes.sizes[-2] > 1, self.tiles.uneven)
        self.text = generate_kernel(self.name, form, pointers, outputs)
        self.numbers = [*axes.sizes[:-3:-1], self.tiles.blocks_n, self.tiles.blocks_m, *axes.outer]
        for pointer in (*pointers, *outputs):
            if pointer is not None:
                self.numbers += pointer.stride_values
        self.numbers += [self.tiles.tile_m, self.tiles.tile_n]
        self._grid = (self.tiles.blocks_n * self.tiles.blocks_m * math.prod(axes.outer), 1, 1)

    def run(self, tensors: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
        """Return the results for tensors of these layouts."""
        inputs = [tensor for tensor in tensors if tensor is not None]
        x = inputs[0]
        if self._empty:
            return [
                _deliver(x.new_zeros(result.shape, dtype=result.dtype), result)
                for result in self._results
            ]
        buffers = self._buffers(x)
        start = _interpret if is_interpreted() else _start
        start(self, inputs, buffers)
        return [
            _deliver(buffer if sums is None else sums.finish(buffer, result.dtype), result)
            for buffer, result, sums in zip(buffers, self._results, self._sums, strict=True)
        ]

    @property
    def buffer_dtypes(self) -> list[torch.dtype]:
        """The dtypes of the kernel's outputs; sums have that of their elements."""
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

        Triton inspects all arguments to find the compiled kernel, which takes longer than the
        launch. With aligned pointers it is always the same one.
        """
        aligned = not any(tensor.data_ptr() % _ALIGNMENT for tensor in tensors)
        if aligned and self._kernel is not None:
            self._kernel[self._grid](*tensors, *self.numbers)
            return
        kernel = compile_kernel(self.name, self.text, is_interpreted())[self._grid](
            *tensors,
            *self.numbers,
            num_warps=self.tiles.warps,
            # Fused multiply-add would skip a rounding.
            enable_fp_fusion=False,
        )
        if aligned:
            self._kernel = kernel


def get_layouts(tensors: Iterable[torch.Tensor | None]) -> tuple[Layout | None, ...]:
    return tuple(
        [None if x is None else Layout(x.dtype, x.shape, x.stride(), x.device) for x in tensors]
    )


def is_interpreted() -> bool:
    """Return whether kernels run on the CPU, in Triton's interpreter."""
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
    """Launch with float32 for bfloat16, which the interpreter truncates and flushes."""
    wide = [_widen(tensor) for tensor in (*inputs, *buffers)]
    with np.errstate(all="ignore"):
        plan.launch(wide)
    for buffer, computed in zip(buffers, wide[len(inputs) :], strict=True):
        if computed is not buffer:
            buffer.copy_(computed)


def _widen(tensor: torch.Tensor) -> torch.Tensor:
    """Return a bfloat16 tensor as float32 with the same strides, even if elements overlap."""
    if tensor.dtype != torch.bfloat16:
        return tensor
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    memory = tensor.as_strided((count,), (1,), 0).float()
    return memory.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _get_like_strides(layout: Layout) -> TileSizes:
    """Return the strides of `torch.empty_like`."""
    meta = torch.empty_strided(layout.shape, layout.strides, device="meta")
    return tuple(torch.empty_like(meta).stride())


def _view_strides(layout: Layout, view: TileSizes | None, shape: TileSizes) -> TileSizes:
    """Return the strides of an input, in the shape that broadcasts to x, along the axes of x."""
    meta = torch.empty_strided(layout.shape, layout.strides, device="meta")
    if view is not None:
        meta = meta.view(view)
    return get_broadcast_strides(tuple(meta.shape), tuple(meta.stride()), shape)


def _deliver(tensor: torch.Tensor, result: Result) -> torch.Tensor:
    """Return the tensor in the shape that the result is delivered in."""
    if result.delivered is None or result.delivered == tuple(tensor.shape):
        return tensor
    return tensor.reshape(result.delivered)
