# SPDX-License-Identifier: Apache-2.0
"""What does one call on a tiny array cost, and what does the import?"""

import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from _measure import arguments, best_times, machine, show, versions

import anybit


def import_seconds(module: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
    return time.perf_counter() - start


def torch_calls() -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """Each of ours beside the one of PyTorch's own that does the same."""
    import torch

    import anybit.torch

    torch.set_num_threads(1)
    quantize = anybit.torch.int_quant
    theirs = torch.fake_quantize_per_tensor_affine
    by_channel = torch.fake_quantize_per_channel_affine
    learnable = torch._fake_quantize_learnable_per_tensor_affine
    x, gradient = torch.randn(4, 4), torch.ones(4, 4)
    learned = x.clone().requires_grad_()
    scale, zeropt = torch.full((4,), 0.1), torch.zeros(4, dtype=torch.int32)
    column = scale.reshape(4, 1)
    step, offset = (torch.tensor([value], requires_grad=True) for value in (0.1, 0.0))
    module = anybit.torch.nn.IntQuantizer(8, scale=0.1)
    peer = torch.ao.quantization.FakeQuantize(quant_min=0, quant_max=255)
    peer(x)
    peer.disable_observer()

    def step_of(function: Callable[..., Any], *parameters: Any) -> Callable[[], None]:
        def run() -> None:
            function(learned, *parameters).backward(gradient)
            learned.grad = step.grad = offset.grad = None

        return run

    def call_of(function: Callable[..., Any], *arguments: Any) -> Callable[[], object]:
        return lambda: function(*arguments)

    return {
        "without gradients": (call_of(quantize, x, 0.1, 0, 4), call_of(theirs, x, 0.1, 0, -8, 7)),
        "with gradients": (
            call_of(quantize, learned, 0.1, 0, 4),
            call_of(theirs, learned, 0.1, 0, -8, 7),
        ),
        "forward and backward": (
            step_of(quantize, 0.1, 0, 4),
            step_of(theirs, 0.1, 0, -8, 7),
        ),
        "per-channel, without gradients": (
            call_of(quantize, x, column, 0, 4),
            call_of(by_channel, x, scale, zeropt, 0, -8, 7),
        ),
        "per-channel, forward and backward": (
            step_of(quantize, column, 0, 4),
            step_of(by_channel, scale, zeropt, 0, -8, 7),
        ),
        "learned scale, forward and backward": (
            step_of(quantize, step, 0, 4),
            step_of(learnable, step, offset, -8, 7, 1.0),
        ),
        "a module, without gradients": (call_of(module, x), call_of(peer, x)),
        "a module, forward and backward": (step_of(module), step_of(peer)),
    }


def show_torch(options: Any) -> None:
    pairs = torch_calls()
    calls = {
        f"{name}/{side}": call
        for name, both in pairs.items()
        for side, call in zip(("ours", "theirs"), both, strict=True)
    }
    times = best_times(calls, 20 * options.rounds, 0.002)
    rows = []
    for name in pairs:
        ours, theirs = times[f"{name}/ours"], times[f"{name}/theirs"]
        shown = (f"{1e6 * ours:.1f} us", f"{1e6 * theirs:.1f} us", f"{ours / theirs:.2f}")
        rows.append((name, *shown))
    print(f"{versions('torch')}; one thread")
    title = "16 float32 elements in PyTorch: int_quant beside torch's fake quantization"
    show(title, ("call", "ours", "torch's", "ratio"), rows, options.markdown)


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    x = np.ones(16, np.float32)
    array = np.float32([0.1])
    times = best_times(
        {
            "int_quant, scalar parameters": lambda: anybit.int_quant(x, 0.1, 0, 4),
            "int_quant, scale an array": lambda: anybit.int_quant(x, array, 0, 4),
            "float_quant, scalar parameters": lambda: anybit.float_quant(x, 0.1, 4, 3, 7, 448.0),
            "np.multiply": lambda: np.multiply(x, 0.1),
        },
        options.rounds,
    )
    rows = [(name, f"{1e6 * seconds:.2f} us") for name, seconds in times.items()]
    best = {
        module: min(import_seconds(module) for _ in range(options.rounds))
        for module in ("numpy", "anybit")
    }
    rows.append(("import anybit, beyond numpy", f"{1e3 * (best['anybit'] - best['numpy']):.0f} ms"))
    print(f"{machine()}; {versions('numpy')}")
    show("16 float32 elements, one call", ("call", "time"), rows, options.markdown)
    if importlib.util.find_spec("torch"):
        show_torch(options)


if __name__ == "__main__":
    main()
