# SPDX-License-Identifier: Apache-2.0
"""The gradients of parameters: sums over the elements that a parameter was repeated for."""

import torch

from anybit.torch.triton.tiles import Axes, Sizes, Tiles, contiguous_strides


class Sums:
    """What tiles leave behind for one parameter, and how that becomes its gradient.

    A tile sums along m and n where the parameter is repeated, PyTorch sums the rest. Which elements
    go into which sum depends on shapes only, so that results are the same every time.

    `strides` are those of the gradient along the merged axes, 0 where the parameter is repeated.
    """

    def __init__(self, axes: Axes, tiles: Tiles, strides: Sizes, shape: Sizes) -> None:
        rows = axes.sizes[-2] if strides[-2] else tiles.blocks_m
        columns = axes.sizes[-1] if strides[-1] else tiles.blocks_n
        self.partial_shape = (*axes.leads, rows, columns)
        self._repeated = tuple(axis for axis, step in enumerate(strides) if not step)
        self._kept = tuple(
            size if step else 1 for size, step in zip(axes.sizes, strides, strict=True)
        )
        # Without axes of one element, which may have any stride.
        steps = zip(self._kept, strides, contiguous_strides(self._kept), strict=True)
        self._in_order = all(size == 1 or step == wanted for size, step, wanted in steps)
        self._strides = strides
        self._shape = shape

    def finished(self, partial: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """The gradient from the sums of the tiles."""
        total = partial.sum(self._repeated, keepdim=True) if self._repeated else partial
        if self._in_order:
            return total.reshape(self._shape).to(dtype)
        gradient = torch.empty(self._shape, dtype=dtype, device=partial.device)
        gradient.as_strided(self._kept, self._strides).copy_(total)
        return gradient
