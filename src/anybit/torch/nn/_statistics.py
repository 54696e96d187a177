# SPDX-License-Identifier: Apache-2.0
"""What a scale is taken from: statistics of a tensor and the reach of the codes."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Reach:
    """The largest value at scale 1; `by_mean` for codes that stand for a mean magnitude.

    Statistics are computed in float32 (float64 for float64), over the axes `dims`, and have no
    gradient.
    """

    largest: float
    by_mean: bool = False

    def covering(self, x: torch.Tensor, dims: list[int]) -> torch.Tensor:
        """The scale at which no element is clipped: max |x| / largest; mean |x| if `by_mean`."""
        magnitude = _magnitude(x)
        if self.by_mean:
            return _mean(magnitude, dims)
        # Without axes torch would reduce all of them; of nothing there is no maximum, but a sum.
        reduced = magnitude.amax if magnitude.numel() else magnitude.sum
        maximum = reduced(dim=dims) if dims else magnitude
        # By a tensor: CUDA multiplies by the reciprocal of a number, which may be another bit.
        scale = maximum / torch.full_like(maximum, self.largest)
        # Where the quotient was rounded down the maximum would lie above the largest code.
        return torch.where(maximum / scale > self.largest, scale * (1 + 2.0**-23), scale)

    def initial(self, x: torch.Tensor, dims: list[int]) -> torch.Tensor:
        """The scale to start learning with: that of LSQ, but none at which no element is clipped.

        2 mean |x| / sqrt(largest), at most max |x| / largest; mean |x| if `by_mean`. Where x is 0
        throughout, as new biases are, 1 / largest: from a scale of 0 nothing could be learned.
        """
        scale = self.covering(x, dims)
        if not self.by_mean:
            mean = _mean(_magnitude(x), dims)
            scale = torch.minimum(scale, 2 * mean / self.largest**0.5)
        return torch.where(scale == 0, torch.full_like(scale, 1 / self.largest), scale)


def finite(x: torch.Tensor) -> torch.Tensor:
    """x with 0 for NaN and infinities: one of them would stay for good in what is kept."""
    return x.detach().nan_to_num(0.0, 0.0, 0.0)


def _magnitude(x: torch.Tensor) -> torch.Tensor:
    x = x.detach()
    return (x if x.dtype == torch.float64 else x.float()).abs()


def _mean(magnitude: torch.Tensor, dims: list[int]) -> torch.Tensor:
    return magnitude.mean(dim=dims) if dims else magnitude


def over_ranks(statistic: torch.Tensor) -> torch.Tensor:
    """The mean over the ranks of the default process group, if there is one."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return statistic
    total = statistic.clone()
    distributed.all_reduce(total)
    return total / distributed.get_world_size()
