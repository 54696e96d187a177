# SPDX-License-Identifier: Apache-2.0
"""Does a training step of a quantizer cost more than moving its data?

Forward and backward against what PyTorch needs to copy x and to mask a gradient (torch.where with
a bool mask), timed in turns with the same number of threads. Everybody writes to arrays that exist.
A copy of x and a copy of the gradient stand beside it: nothing that touches both can be faster.
"""

import numpy as np
import torch
from _measure import Call, arguments, best_times, machine, show, versions
from _workloads import CHANNELS

import anybit
from anybit._native import _core

INPUTS = {
    "int_quant": (0, 4),
    "float_quant": (*anybit.formats.float8_e4m3fn,),
    "trunc_v1": (0, 8, 4),
    "bipolar_quant": (),
}


class Data:
    """The arrays of one step, as NumPy and PyTorch see them."""

    def __init__(self, elements: int) -> None:
        random = np.random.default_rng(0)
        shape = (elements // (CHANNELS * 64), CHANNELS, 64)
        self.x = random.standard_normal(shape, np.float32) * 3
        self.gradient = random.standard_normal(shape, np.float32)
        self.out, self.of_x = np.empty_like(self.x), np.empty_like(self.x)
        scale = random.uniform(0.1, 1, CHANNELS).astype(np.float32)
        self.scales = {
            "per-tensor": scale[0],
            "axis 1": scale.reshape(-1, 1),
            "last axis": scale,
        }

    def peers(self) -> dict[str, Call]:
        x, gradient, out, of_x = map(torch.from_numpy, (self.x, self.gradient, self.out, self.of_x))
        mask, zero = torch.rand(x.shape) < 0.9, torch.zeros(())
        return {
            "copy": lambda: out.copy_(x),
            "mask": lambda: torch.where(mask, gradient, zero, out=of_x),
        }

    def step(self, operator: str, granularity: str, *wanted: str) -> dict[str, Call]:
        inputs = (self.x, self.scales[granularity], *INPUTS[operator])
        forward, backward = getattr(_core, operator), getattr(_core, f"{operator}_backward")
        return {
            "forward": lambda: forward(*inputs, out=self.out),
            "backward": lambda: backward(self.gradient, *inputs, wanted=wanted, out=self.of_x),
        }


def table(data: Data, threads: int, rounds: int) -> list[tuple[str, ...]]:
    torch.set_num_threads(threads)
    anybit.set_num_threads(threads)
    rows = []
    for operator in INPUTS:
        for granularity in data.scales:
            for wanted in (("x",), ("x", "scale")):
                calls = {**data.peers(), **data.step(operator, granularity, *wanted)}
                times = best_times(calls, rounds)
                ours = times["forward"] + times["backward"]
                rows.append(
                    (
                        operator,
                        granularity,
                        ", ".join(wanted),
                        f"{1e3 * times['forward']:.1f} ms",
                        f"{1e3 * times['backward']:.1f} ms",
                        f"{ours / (times['copy'] + times['mask']):.2f}",
                        f"{ours / (2 * times['copy']):.2f}",
                    )
                )
    return rows


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--elements", type=int, default=16 << 20)
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
