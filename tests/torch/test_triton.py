# SPDX-License-Identifier: Apache-2.0
"""Triton kernels beside what the case tables ask: their parts, their layouts, their errors.

The rows of the case tables run in test_cases.py, as the back-end `triton`.
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cases import Case, assert_same_bits, telling_values

pytest.importorskip("triton")
torch = pytest.importorskip("torch")

from triton_backend import BY_NAME, DEVICE, FORWARD, interpreter  # noqa: E402
from x_types import x_dtypes  # noqa: E402

import anybit.torch  # noqa: E402
from anybit.ops import powers  # noqa: E402
from anybit.ops.rounding import RoundingMode, round_to_integer  # noqa: E402
from anybit.torch.triton import make_forward_plan, namespace  # noqa: E402
from anybit.torch.triton.plan import Plan, Result, get_layouts  # noqa: E402
from anybit.torch.triton.source import compile_kernel  # noqa: E402

FLOATS = (np.float32, np.float64)


def computed(function: Callable[..., Any], x: np.ndarray, *columns: np.ndarray) -> np.ndarray:
    """function(x, *columns), traced and run as a kernel; a count comes as float64."""
    tensors = [torch.from_numpy(item).to(DEVICE) for item in (x, *columns)]
    layouts = get_layouts(tensors)
    traced = [
        namespace.make_input(place, layout.dtype_name, layout.shape, varies=place == 0)
        for place, layout in enumerate(layouts)
    ]
    value = function(*traced)
    if value.dtype == "int64":
        value = value.astype("float64")
    dtype = getattr(torch, value.dtype)
    result = Result("result", value, dtype, tuple(x.shape), like_x=True)
    names = ["x", "column", "other"][: len(tensors)]
    with interpreter():
        return Plan("part", names, layouts, [result]).run(tensors)[0].cpu().numpy()


def same(actual: np.ndarray, expected: np.ndarray, name: str, x: np.ndarray) -> None:
    assert_same_bits(actual, expected.astype(actual.dtype), Case(name, (x,)))


def every_exponent(dtype: Any) -> np.ndarray:
    """Powers of two with their neighbours, subnormal ones included, of both signs."""
    limits = np.finfo(dtype)
    lowest = int(np.log2(limits.smallest_subnormal))
    powers = np.ldexp(np.ones((), dtype), np.arange(lowest, limits.maxexp)).astype(dtype)
    with np.errstate(all="ignore"):
        near = [powers, np.nextafter(powers, dtype(0)), np.nextafter(powers, dtype(np.inf))]
    values = np.concatenate([*near, powers * dtype(1.5), telling_values(np.dtype(dtype))])
    return np.concatenate([values, -values])


@pytest.mark.parametrize("dtype", FLOATS)
class TestParts:
    """Compare functions on the bits of numbers with the portable formula."""

    def test_floor_log2(self, dtype: Any) -> None:
        x = every_exponent(dtype)
        x = x[np.isfinite(x) & (x != 0)]
        with np.errstate(over="ignore"):
            same(computed(powers.floor_log2, x), powers.floor_log2(x), "floor_log2", x)

    def test_floor_log2_of_zero_is_below_all(self, dtype: Any) -> None:
        x = np.array([0.0, -0.0, np.finfo(dtype).smallest_subnormal], dtype)
        exponents = computed(powers.floor_log2, x)
        assert (exponents[:2] < exponents[2]).all()

    def test_power_of_two(self, dtype: Any) -> None:
        exponents = np.concatenate([np.arange(-1300, 1300), [-(2**62), 2**62]])
        x = np.zeros(exponents.shape, dtype)
        actual = computed(lambda x, n: powers.power_of_two(n, x.dtype), x, exponents)
        with np.errstate(over="ignore"):
            same(actual, powers.power_of_two(exponents, np.dtype(dtype)), "power_of_two", x)

    @pytest.mark.parametrize("varies", [False, True])
    def test_times_power_of_two(self, dtype: Any, varies: bool) -> None:
        x = every_exponent(dtype)[::7]
        shifts = np.concatenate([np.arange(-300, 300, 7), np.arange(-2200, 2200, 97), [-(2**62)]])
        x, shifts = np.repeat(x, len(shifts)), np.tile(shifts, len(x))

        def scaled(x: Any, n: Any) -> Any:
            # Added to a count that varies, n is held in 32 bits.
            return powers.times_power_of_two(x, powers.floor_log2(x) + n if varies else n)

        with np.errstate(all="ignore"):
            same(computed(scaled, x, shifts), scaled(x, shifts), "times_power_of_two", x)

    @pytest.mark.parametrize("mode", RoundingMode)
    def test_round_to_integer(self, dtype: Any, mode: str) -> None:
        halves = np.arange(-40, 41, dtype=dtype) / 4
        edge = dtype(2.0 ** (np.finfo(dtype).nmant - 1)) + np.arange(-8, 9, dtype=dtype) / 2
        plain = np.concatenate([halves, edge, 2 * edge, 4 * edge, telling_values(np.dtype(dtype))])
        with np.errstate(all="ignore"):
            near = [np.nextafter(plain, dtype(side)) for side in (-np.inf, np.inf)]
            x = np.concatenate([plain, *near, -plain])
            expected = round_to_integer(x, mode)
        same(computed(lambda y: round_to_integer(y, mode), x), expected, mode, x)

    def test_division_is_rounded_correctly(self, dtype: Any) -> None:
        random = np.random.default_rng(3)
        x = random.standard_normal(4096).astype(dtype)
        divisor = np.exp(random.standard_normal(4096)).astype(dtype)
        same(computed(lambda x, d: x / d, x, divisor), x / divisor, "division", x)


def test_traced_refuses_sums_of_unbounded_integers() -> None:
    x = namespace.make_input(0, "float32", (4,), varies=True)
    column = namespace.make_input(1, "int64", (), varies=False)
    exponent = powers.floor_log2(x)
    assert (exponent + column).varies
    with pytest.raises(NotImplementedError, match="two unbounded integers"):
        exponent + column + column


def random_layout(seed: int) -> tuple[Any, tuple[int, ...]]:
    """Return a tensor of any order of axes, with steps and repetitions, and a matching shape."""
    random = np.random.default_rng(seed)
    rank = int(random.integers(0, 5))
    shape = [int(random.choice([1, 2, 3, 4, 9])) for _ in range(rank)]
    x = torch.from_numpy(random.standard_normal([2 * size for size in shape]).astype(np.float32))
    x = 3 * x.permute(random.permutation(rank).tolist())
    for axis in range(rank):
        step, kind = int(random.integers(1, 3)), random.random()
        x = x.narrow(axis, 0, 1).expand(x.shape) if kind < 0.1 else x
        x = x[(slice(None),) * axis + (slice(None, None, step),)]
    kept = int(random.integers(0, rank + 1))
    small = [size if random.random() < 0.6 else 1 for size in x.shape[rank - kept :]]
    return x, tuple(small)


@pytest.mark.parametrize("seed", range(80))
def test_forward_kernels_support_all_layouts(seed: int) -> None:
    """Compare bits and strides for every order of axes, broadcasting and alignment."""
    x, shape = random_layout(seed)
    random = np.random.default_rng(seed + 1000)
    scale = torch.from_numpy(random.uniform(0.1, 2, shape).astype(np.float32))
    bitwidth = torch.from_numpy(random.integers(2, 9, shape[-1:]))
    expected = anybit.torch.int_quant(x, scale, 1.0, bitwidth)
    inputs = (x, scale, torch.tensor(1.0), bitwidth)
    with interpreter():
        actual = FORWARD["int_quant"](*(item.to(DEVICE) for item in inputs)).cpu()
    assert torch.equal(actual, expected)
    if DEVICE == "cpu":
        assert actual.stride() == expected.stride()


def test_plan_merges_contiguous_axes() -> None:
    def sizes(x: Any, *parameters: Any) -> list[int]:
        rest = (torch.zeros(()), torch.tensor(4))
        plan = make_forward_plan(BY_NAME["int_quant"], [x, *parameters, *rest], {})
        size_n, size_m, _, _, *outer = plan.numbers
        return [*outer[: plan.text.count("size_0)") and 1], size_m, size_n]

    x = torch.zeros(8, 3, 5, 7)
    channels_last = x.to(memory_format=torch.channels_last)
    assert sizes(x, torch.ones(())) == [1, 840]
    assert sizes(x, torch.ones(8, 1, 1, 1)) == [8, 105]
    assert sizes(channels_last, torch.ones(())) == [1, 840]
    assert sizes(channels_last, torch.ones(3, 1, 1)) == [280, 3]


@pytest.mark.parametrize("name", BY_NAME)
def test_plan_source_is_deterministic(name: str) -> None:
    """Compare sources, which depend on the layout only, as Triton's cache requires."""
    import triton_ptx

    dtype = getattr(torch, x_dtypes(BY_NAME[name])[0])
    x = torch.empty(4096, dtype=dtype, device="meta")
    inputs = [x, *triton_ptx.parameters(BY_NAME[name], x)]
    first, second = (make_forward_plan(BY_NAME[name], inputs, {}) for _ in range(2))
    assert first.text == second.text
    longer = [torch.empty(8192, dtype=dtype, device="meta"), *inputs[1:]]
    assert make_forward_plan(BY_NAME[name], longer, {}).text == first.text


def test_kernels_check_values_once_per_version(monkeypatch: pytest.MonkeyPatch) -> None:
    from anybit.torch import triton

    looks = []
    original = triton.check_values
    monkeypatch.setattr(triton, "check_values", lambda *a: looks.append(a) or original(*a))
    x, bitwidth = torch.ones(4, device=DEVICE), torch.tensor([4.0], device=DEVICE)
    one, zero = (torch.tensor(value, device=DEVICE) for value in (1.0, 0.0))
    with interpreter():
        for _ in range(3):
            FORWARD["int_quant"](x, one, zero, bitwidth)
        assert len(looks) == 1
        bitwidth.fill_(float("nan"))
        with pytest.raises(ValueError, match=r"bitwidth must be an integer >= 1, got nan"):
            FORWARD["int_quant"](x, one, zero, bitwidth)


def test_compile_kernel_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ImportError, match=r"pip install \"anybit\[triton\]\""):
        compile_kernel("nothing", "def nothing():\n    pass\n", True)


@pytest.mark.skipif(DEVICE != "cpu", reason="asks what happens without a GPU")
def test_kernels_without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match=r"x must be on a GPU, got cpu"):
        FORWARD["bipolar_quant"](torch.ones(3), torch.ones(()))
