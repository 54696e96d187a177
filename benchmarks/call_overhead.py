# SPDX-License-Identifier: Apache-2.0
"""Time of one call on 16 elements, and of `import anybit`.

With PyTorch installed, `anybit.torch` is compared with torch's own fake quantization, too.
"""

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
    """Return the time of a Python process that imports one module."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True)
    return time.perf_counter() - start


def torch_modules() -> tuple[Any, Any]:
    """Create modules that quantize to 8 bits, ours and torch's."""
    import torch

    import anybit.torch

    peer = torch.ao.quantization.FakeQuantize(quant_min=0, quant_max=255)
    return anybit.torch.nn.IntQuantizer(8, scale=0.1), peer


def torch_calls() -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
    """Return pairs of calls, ours and torch's, that compute the same."""
    import torch

    import anybit.torch

    torch.set_num_threads(1)
    quantize = anybit.torch.int_quant
    fake_quantize = torch.fake_quantize_per_tensor_affine
    per_channel = torch.fake_quantize_per_channel_affine
    learnable = torch._fake_quantize_learnable_per_tensor_affine
    x, gradient = torch.randn(4, 4), torch.ones(4, 4)
    learned = x.clone().requires_grad_()
    scale, zeropt = torch.full((4,), 0.1), torch.zeros(4, dtype=torch.int32)
    column = scale.reshape(4, 1)
    learned_scale, offset = (torch.tensor([value], requires_grad=True) for value in (0.1, 0.0))
    module, peer = torch_modules()
    peer(x)  # sets its scale
    peer.disable_observer()

    def step(function: Callable[..., Any], *parameters: Any) -> Callable[[], None]:
        def run() -> None:
            function(learned, *parameters).backward(gradient)
            learned.grad = learned_scale.grad = offset.grad = None

        return run

    def call(function: Callable[..., Any], *arguments: Any) -> Callable[[], object]:
        return lambda: function(*arguments)

    return {
        "without gradients": (call(quantize, x, 0.1, 0, 4), call(fake_quantize, x, 0.1, 0, -8, 7)),
        "with gradients": (
            call(quantize, learned, 0.1, 0, 4),
            call(fake_quantize, learned, 0.1, 0, -8, 7),
        ),
        "forward and backward": (step(quantize, 0.1, 0, 4), step(fake_quantize, 0.1, 0, -8, 7)),
        "per-channel, without gradients": (
            call(quantize, x, column, 0, 4),
            call(per_channel, x, scale, zeropt, 0, -8, 7),
        ),
        "per-channel, forward and backward": (
            step(quantize, column, 0, 4),
            step(per_channel, scale, zeropt, 0, -8, 7),
        ),
        "learned scale, forward and backward": (
            step(quantize, learned_scale, 0, 4),
            step(learnable, learned_scale, offset, -8, 7, 1.0),
        ),
        "a module, without gradients": (call(module, x), call(peer, x)),
        "a module, forward and backward": (step(module), step(peer)),
    }


def show_torch(options: Any) -> None:
    """Print the table of PyTorch."""
    pairs = torch_calls()
    calls = {
        (name, side): call
        for name, pair in pairs.items()
        for side, call in zip(("ours", "torch"), pair, strict=True)
    }
    times = best_times(calls, 20 * options.rounds, 0.002)
    rows = []
    for name in pairs:
        ours, peer = times[name, "ours"], times[name, "torch"]
        rows.append((name, f"{1e6 * ours:.1f} us", f"{1e6 * peer:.1f} us", f"{ours / peer:.2f}"))
    print(f"{versions('torch')}; one thread")
    title = "16 float32 elements in PyTorch: int_quant and torch's fake quantization"
    show(title, ("call", "ours", "torch's", "ratio"), rows, options.markdown)


def main() -> None:
    options = arguments(__doc__).parse_args()
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
    imports = {
        module: min(import_seconds(module) for _ in range(options.rounds))
        for module in ("numpy", "anybit")
    }
    seconds = imports["anybit"] - imports["numpy"]
    rows.append(("import anybit, beyond numpy", f"{1e3 * seconds:.0f} ms"))
    print(f"{machine()}; {versions('numpy')}")
    show("16 float32 elements, one call", ("call", "time"), rows, options.markdown)
    if importlib.util.find_spec("torch"):
        show_torch(options)


if __name__ == "__main__":
    main()
