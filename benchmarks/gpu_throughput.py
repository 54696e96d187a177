# SPDX-License-Identifier: Apache-2.0
"""Throughput of the operators on a GPU, after a check of their bits.

    python benchmarks/gpu_throughput.py

1. Every row of the case tables runs on the GPU and is compared bit for bit.
2. Every operator is timed against a device-to-device copy of as many bytes; 100 % is the bandwidth
   of the copy. Forward and backward are timed against a copy and a masked copy.
3. Ours and PyTorch's own fake quantization and float8 are timed on many elements, and on few, where
   the launch of a kernel dominates.

This needs PyTorch with CUDA, Triton and the packages of the tests.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch
from _measure import arguments, show, versions

import anybit
import anybit.torch

Call = Callable[[], object]
TESTS = Path(__file__).parent.parent / "tests" / "support"
ROW = 4096


def seconds(call: Call, rounds: int, repeats: int = 1) -> float:
    """Return the median time of a call on the GPU; `repeats` calls between two events."""
    for _ in range(3):
        call()
    times = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(repeats):
            call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / repeats)
    return median(times)


def case_tables() -> list[tuple[str, ...]]:
    """Return the number of rows and of wrong rows per operator."""
    sys.path.insert(0, str(TESTS))
    import triton_backend
    from cases import assert_same_bits, every_case, expected_result

    rows: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for operator, case in every_case():
        if case.raises is not None:
            continue
        rows[operator] += 1
        try:
            actual = triton_backend.evaluate(operator, *case.inputs, **case.attributes)
            assert_same_bits(actual, expected_result(operator, case), case)
        except AssertionError as error:
            wrong[operator] += 1
            print(error)
    return [(name, str(count), str(wrong[name])) for name, count in rows.items()]


def operators(x: torch.Tensor, scale: torch.Tensor) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield operators by name, as functions of x and scale."""
    ops = anybit.torch
    e4m3, e2m1 = anybit.formats.float8_e4m3fn, anybit.formats.float4_e2m1fn
    yield "int_quant 4 bit", lambda x, s: ops.int_quant(x, s, 0, 4)
    yield (
        "int_quant 4 bit, HALF_UP",
        lambda x, s: ops.int_quant(x, s, 0, 4, rounding_mode="HALF_UP"),
    )
    yield "float_quant e4m3", lambda x, s: ops.float_quant(x, s, *e4m3)
    yield "float_quant e2m1", lambda x, s: ops.float_quant(x, s, *e2m1)
    yield "trunc 8 to 4 bit", lambda x, s: ops.trunc(x, s, 0, 8, s * 16, 4)
    yield "trunc_v1 8 to 4 bit", lambda x, s: ops.trunc_v1(x, s, 0, 8, 4)
    yield "bipolar_quant", lambda x, s: ops.bipolar_quant(x, s)
    if x.dtype == torch.float32 and scale.ndim == 0:
        yield "dynamic_quantize", lambda x, s: ops.dynamic_quantize(x, s.reshape(1))


def granularities(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return scales of each granularity."""
    options = {"dtype": torch.float32, "device": x.device}
    return {
        "per-tensor": torch.full((), 0.1, **options),
        "per row": torch.linspace(0.1, 1, x.shape[0], **options).reshape(-1, 1),
        "per column": torch.linspace(0.1, 1, x.shape[1], **options),
        "per group of 128": torch.linspace(0.1, 1, x.numel() // 128, **options).reshape(-1, 1),
        "per element": torch.linspace(0.1, 1, x.numel(), **options).reshape(x.shape),
    }


def bandwidth_rows(dtype: torch.dtype, elements: int, rounds: int) -> list[tuple[str, ...]]:
    """Time the forward pass of every operator and granularity against a copy."""
    x = torch.randn(elements // ROW, ROW, device="cuda").to(dtype)
    target = torch.empty_like(x)
    copy = 2 * x.nbytes / seconds(lambda: target.copy_(x), rounds)
    rows = [("copy", "", f"{copy / 1e12:.2f} TB/s", "100 %")]
    for granularity, scale in granularities(x).items():
        data = x.reshape(-1, 128) if granularity == "per group of 128" else x
        for name, function in operators(x, scale):
            traffic = x.nbytes + function(data, scale).nbytes
            if granularity == "per element":
                traffic += scale.nbytes
            rate = traffic / seconds(lambda f=function, d=data, s=scale: f(d, s), rounds)
            rows.append((name, granularity, f"{rate / 1e12:.2f} TB/s", f"{rate / copy:.0%}"))
    return rows


def training_rows(elements: int, rounds: int) -> list[tuple[str, ...]]:
    """Time forward and backward against a copy and a masked copy."""
    x = torch.randn(elements // ROW, ROW, device="cuda", requires_grad=True)
    gradient, target = torch.ones_like(x), torch.empty_like(x)
    mask, zero = x > 0, torch.zeros((), device="cuda")

    def copies() -> None:
        target.copy_(x.detach())
        torch.where(mask, gradient, zero, out=target)

    base = seconds(copies, rounds)
    rows = [("copy and masked copy", "", f"{base * 1e3:.2f} ms", "1.00")]
    for gradients, learned in (("x", False), ("x and scale", True)):
        scale = torch.full((), 0.1, device="cuda", requires_grad=learned)
        for name, function in operators(x.half(), scale):

            def step(function: Callable[..., Any] = function, scale: Any = scale) -> None:
                x.grad = scale.grad = None
                function(x, scale).backward(gradient)

            time = seconds(step, rounds)
            rows.append((name, gradients, f"{time * 1e3:.2f} ms", f"{time / base:.2f}"))
    return rows


def contests() -> Iterator[tuple[str, Callable[..., Any], str, Callable[..., Any]]]:
    """Yield PyTorch's name and function, and ours, of x and a column of scales."""
    ops, e4m3 = anybit.torch, anybit.formats.float8_e4m3fn
    zero = torch.zeros((), dtype=torch.int32, device="cuda")

    def per_channel(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        zeros = torch.zeros(len(scale), dtype=torch.int32, device="cuda")
        return torch.fake_quantize_per_channel_affine(x, scale.reshape(-1), zeros, 0, -8, 7)

    fake_quantize = torch.fake_quantize_per_tensor_affine
    yield (
        "fake_quantize_per_tensor_affine",
        lambda x, s: fake_quantize(x, s.reshape(-1)[0], zero, -8, 7),
        "int_quant, per-tensor",
        lambda x, s: ops.int_quant(x, s.reshape(-1)[0], 0, 4),
    )
    yield (
        "fake_quantize_per_channel_affine",
        per_channel,
        "int_quant, per row",
        lambda x, s: ops.int_quant(x, s, 0, 4),
    )
    yield (
        "x.to(float8_e4m3fn).to(float32)",
        lambda x, s: x.to(torch.float8_e4m3fn).to(x.dtype),
        "float_quant e4m3",
        lambda x, s: ops.float_quant(x, 1.0, *e4m3),
    )


def pytorch_rows(count: int, repeats: int, rounds: int) -> list[tuple[str, ...]]:
    """Time ours and PyTorch's, forward and with the gradient of x, in microseconds."""
    x = torch.randn(max(1, count // ROW), min(count, ROW), device="cuda")
    scale = torch.linspace(0.1, 1, len(x), device="cuda").reshape(-1, 1)
    gradient, rows = torch.ones_like(x), []

    def forward(function: Callable[..., Any]) -> None:
        function(x, scale)

    def both_passes(function: Callable[..., Any]) -> None:
        function(x.detach().requires_grad_(), scale).backward(gradient)

    for peer, peer_function, name, function in contests():
        for passes, run in (("forward", forward), ("forward and backward", both_passes)):
            peer_time, our_time = (
                1e6 * seconds(lambda f=f, run=run: run(f), rounds, repeats)
                for f in (peer_function, function)
            )
            times = (f"{peer_time:.1f}", f"{our_time:.1f}", f"{peer_time / our_time:.2f} x")
            rows.append((peer, name, passes, *times))
    return rows


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--elements", type=int, default=256 << 20, help="elements of the arrays")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("no GPU: torch.cuda.is_available() is false; nothing was compared or timed")
    print(f"{torch.cuda.get_device_name()}; {versions('torch', 'triton')}")
    tables = case_tables()
    show("Case tables on the GPU", ("operator", "rows", "wrong"), tables, options.markdown)
    count = options.elements // ROW * ROW
    columns = ("operator", "granularity", "rate", "relative to a copy")
    for dtype in (torch.float32, torch.bfloat16):
        title = f"Bandwidth, {count >> 20} Mi elements of {dtype}"
        show(title, columns, bandwidth_rows(dtype, count, options.rounds), options.markdown)
    title = f"Forward and backward, {count >> 20} Mi elements of float32"
    columns = ("operator", "gradients of", "time", "over the copies")
    show(title, columns, training_rows(count, options.rounds), options.markdown)
    columns = ("PyTorch", "ours", "passes", "PyTorch, us", "ours, us", "speedup")
    for elements, repeats in ((count, 1), (4096, 200)):
        title = f"Relative to PyTorch, {elements} elements of float32"
        rows = pytorch_rows(elements, repeats, options.rounds)
        show(title, columns, rows, options.markdown)
    if any(wrong != "0" for _, _, wrong in tables):
        sys.exit("wrong bits: some rows of the case tables differ on the GPU")


if __name__ == "__main__":
    main()
