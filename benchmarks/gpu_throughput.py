# SPDX-License-Identifier: Apache-2.0
"""On a GPU: are the bits those of the case tables, and does quantizing cost more than copying?

    python benchmarks/gpu_throughput.py

First every row of the case tables runs on the GPU and is compared bit for bit. Then every operator
is timed against a copy from device to device of as many bytes, at 256 Mi elements: forward, and
backward against a copy and a masked copy. The ratio is that of the bandwidths; 100 % is a copy's.
Last, PyTorch's own fake quantization and its float8, beside ours: on many elements, and on a few,
where a call costs what it costs to start a kernel. Needs PyTorch with CUDA, Triton and the packages
of the tests.
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
    """The median time of a call on the GPU, that many of them between two events."""
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
    """Per operator the rows that were asked and those that differ."""
    sys.path.insert(0, str(TESTS))
    import triton_backend
    from cases import answer, assert_same_bits, every_case

    asked: Counter[str] = Counter()
    wrong: Counter[str] = Counter()
    for operator, case in every_case():
        if case.raises is not None:
            continue
        asked[operator] += 1
        try:
            actual = triton_backend.evaluate(operator, *case.inputs, **case.attributes)
            assert_same_bits(actual, answer(operator, case), case)
        except AssertionError as error:
            wrong[operator] += 1
            print(error)
    return [(name, str(count), str(wrong[name])) for name, count in asked.items()]


def operators(x: torch.Tensor, scale: torch.Tensor) -> Iterator[tuple[str, Callable[..., Any]]]:
    """What is timed: the operator as a function of x and scale."""
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
    options = {"dtype": torch.float32, "device": x.device}
    return {
        "per-tensor": torch.full((), 0.1, **options),
        "per row": torch.linspace(0.1, 1, x.shape[0], **options).reshape(-1, 1),
        "per column": torch.linspace(0.1, 1, x.shape[1], **options),
        "per group of 128": torch.linspace(0.1, 1, x.numel() // 128, **options).reshape(-1, 1),
        "per element": torch.linspace(0.1, 1, x.numel(), **options).reshape(x.shape),
    }


def speeds(dtype: torch.dtype, elements: int, rounds: int) -> list[tuple[str, ...]]:
    x = torch.randn(elements // ROW, ROW, device="cuda").to(dtype)
    target = torch.empty_like(x)
    copy = 2 * x.nbytes / seconds(lambda: target.copy_(x), rounds)
    rows = [("copy", "", f"{copy / 1e12:.2f} TB/s", "100 %")]
    for granularity, scale in granularities(x).items():
        data = x.reshape(-1, 128) if granularity == "per group of 128" else x
        for name, function in operators(x, scale):
            moved = x.nbytes + function(data, scale).nbytes
            if granularity == "per element":
                moved += scale.nbytes
            rate = moved / seconds(lambda f=function, d=data, s=scale: f(d, s), rounds)
            rows.append((name, granularity, f"{rate / 1e12:.2f} TB/s", f"{rate / copy:.0%}"))
    return rows


def training(elements: int, rounds: int) -> list[tuple[str, ...]]:
    """Forward and backward, over a copy and a masked copy."""
    x = torch.randn(elements // ROW, ROW, device="cuda", requires_grad=True)
    gradient, target = torch.ones_like(x), torch.empty_like(x)
    mask, none = x > 0, torch.zeros((), device="cuda")

    def copies() -> None:
        target.copy_(x.detach())
        torch.where(mask, gradient, none, out=target)

    base = seconds(copies, rounds)
    rows = [("copy and masked copy", "", f"{base * 1e3:.2f} ms", "1.00")]
    for wanted, learned in (("x", False), ("x and scale", True)):
        scale = torch.full((), 0.1, device="cuda", requires_grad=learned)
        for name, function in operators(x.half(), scale):

            def step(function: Callable[..., Any] = function, scale: Any = scale) -> None:
                x.grad = scale.grad = None
                function(x, scale).backward(gradient)

            time = seconds(step, rounds)
            rows.append((name, wanted, f"{time * 1e3:.2f} ms", f"{time / base:.2f}"))
    return rows


def contests() -> Iterator[tuple[str, Callable[..., Any], str, Callable[..., Any]]]:
    """What PyTorch has, as a function of x and a scale or a column of scales, and its twin here."""
    ops, e4m3 = anybit.torch, anybit.formats.float8_e4m3fn
    zero = torch.zeros((), dtype=torch.int32, device="cuda")

    def by_channel(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
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
        by_channel,
        "int_quant, per row",
        lambda x, s: ops.int_quant(x, s, 0, 4),
    )
    yield (
        "x.to(float8_e4m3fn).to(float32)",
        lambda x, s: x.to(torch.float8_e4m3fn).to(x.dtype),
        "float_quant e4m3",
        lambda x, s: ops.float_quant(x, 1.0, *e4m3),
    )


def beside_pytorch(count: int, repeats: int, rounds: int) -> list[tuple[str, ...]]:
    """Microseconds forward, and forward and back to x; calls one behind another."""
    x = torch.randn(max(1, count // ROW), min(count, ROW), device="cuda")
    scale = torch.linspace(0.1, 1, len(x), device="cuda").reshape(-1, 1)
    gradient, rows = torch.ones_like(x), []

    def forward(function: Callable[..., Any]) -> None:
        function(x, scale)

    def both_ways(function: Callable[..., Any]) -> None:
        function(x.detach().requires_grad_(), scale).backward(gradient)

    for theirs, their_function, ours, our_function in contests():
        for way, run in (("forward", forward), ("forward and backward", both_ways)):
            took, compared = (
                1e6 * seconds(lambda f=f, run=run: run(f), rounds, repeats)
                for f in (their_function, our_function)
            )
            times = (f"{took:.1f}", f"{compared:.1f}", f"{took / compared:.2f} x")
            rows.append((theirs, ours, way, *times))
    return rows


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--elements", type=int, default=256 << 20, help="of the arrays")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("there is no GPU here: nothing was compared and nothing was timed")
    print(f"{torch.cuda.get_device_name()}; {versions('torch', 'triton')}")
    tables = case_tables()
    show("Case tables on the GPU", ("operator", "rows", "wrong"), tables, options.markdown)
    count = options.elements // ROW * ROW
    columns = ("operator", "granularity", "rate", "of a copy")
    for dtype in (torch.float32, torch.bfloat16):
        title = f"Bandwidth, {count >> 20} Mi elements of {dtype}"
        show(title, columns, speeds(dtype, count, options.rounds), options.markdown)
    title = f"Forward and backward, {count >> 20} Mi elements of float32"
    columns = ("operator", "gradients of", "time", "over the copies")
    show(title, columns, training(count, options.rounds), options.markdown)
    columns = ("PyTorch's", "ours", "what", "theirs, us", "ours, us", "faster")
    for elements, repeats in ((count, 1), (4096, 200)):
        title = f"Beside PyTorch's own, {elements} elements of float32"
        rows = beside_pytorch(elements, repeats, options.rounds)
        show(title, columns, rows, options.markdown)
    if any(wrong != "0" for _, _, wrong in tables):
        sys.exit("the GPU gives other bits than the case tables")


if __name__ == "__main__":
    main()
