# SPDX-License-Identifier: Apache-2.0
"""Learned rounding: which of two neighbours on its grid each weight becomes, by gradient descent.

Nagel et al. (2020, https://arxiv.org/abs/2004.10568) relax the choice: between its neighbours low
and high a weight is

    w = low + (high - low) h,   0 <= h <= 1

and h is found with Adam (Kingma and Ba, 2015, https://arxiv.org/abs/1412.6980) for the least
|f(x; w) - y|^2. Li et al. (2021, https://arxiv.org/abs/2102.05426) do it for the layers of a block
together: here f is a stretch of the network, x what the quantized network before it gives, and y
what the float network has at its end. So it makes up for what was lost before, too.

In the end each h has to be 0 or 1. Nagel et al. add a term that pushes all of them there, which
takes ten thousand steps. Here those that are nearest to 0 or 1 are set to that and stay, more of
them in each step, and the others make up for it, as Zhou et al. (2017,
https://arxiv.org/abs/1702.03044) have it: after a share t of the steps, that is a share of
1 - (1 - (t - 0.2) / 0.75)^2.

One of the two neighbours is what GPTQ, or rounding to nearest, has chosen, and the other lies on
the side of the float weight. Biases are learned along with the weights.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from anybit.onnx.graph.constants import Array
from anybit.ops.grids import Coding, FloatGrid, Grid
from anybit.quantization.learned.running import tensor_of
from anybit.quantization.schemes import operator_for

# The shares of the steps when the first and the last weights are settled.
_FIRST, _LAST = 0.2, 0.95
_RATES = 3e-2, 2e-3
"""Of weights and biases, at first; a tenth in the end."""
# Weights nearer to the middle than that begin so near to it.
_MIDDLE = 0.45


@dataclass(frozen=True)
class Neighbours:
    """Two values of a grid for each weight.

    Attributes:
        low, high: They; the same where there is no choice.
        share: How far from low to high it is to begin with: below one half if low is today's.
    """

    low: Array
    high: Array
    share: Array

    @property
    def are_some(self) -> bool:
        """Whether there is a choice at all."""
        return bool((self.high > self.low).any())

    def rounded(self, shares: Array) -> Array:
        """The nearer one, for how far each weight is."""
        return np.where(shares >= 0.5, self.high, self.low)


def neighbours_of(weights: Array, rounded: Array, grid: Grid) -> Neighbours:
    """What weights may become beside what they are rounded to; nothing if the grid has no order."""
    found = operator_for(grid)
    rounded = rounded.astype(np.float32)
    if grid.coding is not Coding.NEAREST or "rounding_mode" not in found.call.attributes:
        return Neighbours(rounded, rounded, np.zeros_like(rounded))
    step = grid.scale.astype(np.float32) * np.float32(0.5)
    if isinstance(grid, FloatGrid):
        fraction = 2.0 ** -(grid.format.mantissa_bitwidth + 2)
        least = 2.0 ** (1 - grid.format.exponent_bias - grid.format.mantissa_bitwidth - 2)
        step = (np.abs(rounded) * fraction + least * grid.scale).astype(np.float32)
    upwards = weights >= rounded
    parameters = found.call.parameters

    def towards(x: Array, mode: str) -> Array:
        attributes = {**found.call.attributes, "rounding_mode": mode}
        return np.asarray(found.operator.function(x, **parameters, **attributes))

    high = np.where(upwards, towards(rounded + step, "CEIL"), rounded)
    low = np.where(upwards, rounded, towards(rounded - step, "FLOOR"))
    width = np.where(high > low, high - low, 1.0)
    share = np.clip((weights - low) / width, 0.0, 1.0)
    share = np.where(upwards, np.minimum(share, _MIDDLE), np.maximum(share, 1 - _MIDDLE))
    return Neighbours(low.astype(np.float32), high.astype(np.float32), share.astype(np.float32))


@contextmanager
def reproducible() -> Iterator[None]:
    """The same bits for the same inputs: one thread, for how many there are determines the last
    bits of sums. There are derivatives, too, wherever this is called. What was set before is set
    again."""
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(strict, warn_only=warns)


def learned(
    weights: Sequence[Neighbours],
    biases: Sequence[Array],
    items: int,
    outputs: Callable[[int, Sequence[Any], Sequence[Any]], tuple[Any, Any]],
    steps: int,
) -> tuple[list[Array], list[Array]]:
    """The weights, each one of its neighbours, and what is added to biases.

    Args:
        weights: What each may be.
        biases: The scale of each element of a bias: how much one step may change it.
        items: How many batches there are; one is looked at in each step.
        outputs: For the number of a batch, and tensors for weights and for what is added to biases,
            the output and what it is to be.
        steps: How often.
    """
    ends = [(tensor_of(each.low), tensor_of(each.high - each.low)) for each in weights]
    shares = [tensor_of(each.share).requires_grad_() for each in weights]
    settled = [torch.zeros_like(each, dtype=torch.bool) for each in shares]
    units = [tensor_of(each.astype(np.float32)) for each in biases]
    added = [torch.zeros_like(each).requires_grad_() for each in units]
    nothing = [torch.zeros_like(each) for each in added]
    with torch.no_grad():
        start = [tensor_of(each.rounded(each.share)) for each in weights]
        y, wanted = outputs(0, start, nothing)
        # Adam adds a small number of its own to the size of derivatives.
        unit = 1 / (y - wanted).square().mean().clamp_min(1e-30)
    groups = [{"params": each} for each in (shares, added) if each]
    optimizer = torch.optim.Adam(groups, betas=(0.9, 0.95))
    chooser = np.random.default_rng(0)
    order: list[int] = []
    for step in range(1, steps + 1):
        order = order or [int(each) for each in chooser.permutation(items)]
        soft = [low + width * share for (low, width), share in zip(ends, shares, strict=True)]
        moved = [each * unit for each, unit in zip(added, units, strict=True)]
        y, wanted = outputs(order.pop(), soft, moved)
        optimizer.zero_grad()
        (unit * (y - wanted).square().mean()).backward()
        for group, rate in zip(optimizer.param_groups, _RATES, strict=False):
            group["lr"] = rate * (1 - 0.9 * step / steps)
        before = [each.detach().clone() for each in shares]
        optimizer.step()
        with torch.no_grad():
            for share, fixed, old in zip(shares, settled, before, strict=True):
                share.copy_(torch.where(fixed, old, share.clamp(0, 1)))
            _settle(shares, settled, step / steps)
    return (
        [each.rounded(share.detach().numpy()) for each, share in zip(weights, shares, strict=True)],
        [(each * unit).detach().numpy() for each, unit in zip(added, units, strict=True)],
    )


def _settle(shares: Sequence[Any], settled: Sequence[Any], done: float) -> None:
    """Set those that are nearest to 0 or 1 to that, as many as there should be by now."""
    left = 1 - min(1.0, max(0.0, (done - _FIRST) / (_LAST - _FIRST)))
    gaps = [
        torch.minimum(share, 1 - share).masked_fill(fixed, -1.0)
        for share, fixed in zip(shares, settled, strict=True)
    ]
    every = torch.cat([each.reshape(-1) for each in gaps])
    count = int((1 - left * left) * every.numel())
    if not count:
        return
    border = torch.kthvalue(every, count).values
    for share, fixed, gap in zip(shares, settled, gaps, strict=True):
        fixed |= gap <= border
        share.copy_(torch.where(fixed, share.round(), share))
