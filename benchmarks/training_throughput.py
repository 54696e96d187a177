# SPDX-License-Identifier: Apache-2.0
"""Throughput of forward and backward passes relative to copies.

The first yardstick is a copy of x and a masked copy of the gradient by PyTorch (torch.where with a
bool mask). The second one, two copies, is the lower bound of time for anything that touches both
arrays. All use the same number of threads and outputs that are allocated before.
"""

from itertools import product

import numpy as np
import torch
from _measure import Call, arguments, best_times, machine, show, versions

import anybit
from anybit._native import _core

CHANNELS = 64
# Operators with their inputs after x and the scale.
INPUTS = {
    "int_quant": (0, 4),
    "float_quant": (*anybit.formats.float8_e4m3fn,),
    "trunc_v1": (0, 8, 4),
    "bipolar_quant": (),
}


class Data:
    """Arrays of one training step, shared by NumPy and PyTorch."""

    def __init__(self, elements: int) -> None:
        random = np.random.default_rng(0)
        shape = (elements // (CHANNELS * 64), CHANNELS, 64)
        self.x = random.standard_normal(shape, np.float32) * 3
        self.gradient = random.standard_normal(shape, np.float32)
        self.out, self.gradient_x = np.empty_like(self.x), np.empty_like(self.x)
        scales = random.uniform(0.1, 1, CHANNELS).astype(np.float32)
        self.scales = {
            "per-tensor": scales[0],
            "axis 1": scales.reshape(-1, 1),
            "last axis": scales,
        }

    def copies(self) -> dict[str, Call]:
        """Return PyTorch's copy and masked copy."""
        arrays = (self.x, self.gradient, self.out, self.gradient_x)
        x, gradient, out, gradient_x = map(torch.from_numpy, arrays)
        mask, zero = torch.rand(x.shape) < 0.9, torch.zeros(())
        return {
            "copy": lambda: out.copy_(x),
            "mask": lambda: torch.where(mask, gradient, zero, out=gradient_x),
        }

    def step(self, operator: str, granularity: str, *gradients: str) -> dict[str, Call]:
        """Return the passes of an operator; `gradients` names the inputs that need one."""
        inputs = (self.x, self.scales[granularity], *INPUTS[operator])
        forward, backward = getattr(_core, operator), getattr(_core, f"{operator}_backward")
        return {
            "forward": lambda: forward(*inputs, out=self.out),
            "backward": lambda: backward(
                self.gradient, *inputs, requested=gradients, out=self.gradient_x
            ),
        }


def table(data: Data, threads: int, rounds: int) -> list[tuple[str, ...]]:
    """Time every operator, granularity and set of gradients."""
    torch.set_num_threads(threads)
    anybit.set_num_threads(threads)
    rows = []
    for operator, granularity, gradients in product(INPUTS, data.scales, (("x",), ("x", "scale"))):
        calls = {**data.copies(), **data.step(operator, granularity, *gradients)}
        times = best_times(calls, rounds)
        ours = times["forward"] + times["backward"]
        rows.append(
            (
                *(operator, granularity, ", ".join(gradients)),
                f"{1e3 * times['forward']:.1f} ms",
                f"{1e3 * times['backward']:.1f} ms",
                f"{ours / (times['copy'] + times['mask']):.2f}",
                f"{ours / (2 * times['copy']):.2f}",
            )
        )
    return rows


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--elements", type=int, default=16 << 20, help="elements of x")
    options = parser.parse_args()
    print(f"{machine()}; {_core.isa()}; {versions('numpy', 'torch')}")
    data = Data(options.elements)
    columns = ("operator", "scale", "gradients of", "forward", "backward")
    for threads in (1, 2):
        show(
            f"Forward and backward, {options.elements >> 10} Ki float32, threads: {threads}",
            (*columns, "over a copy and a mask", "over two copies"),
            table(data, threads, options.rounds),
            options.markdown,
        )


if __name__ == "__main__":
    main()
