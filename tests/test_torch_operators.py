# SPDX-License-Identifier: Apache-2.0
"""The operators in PyTorch: arguments, memory, types, and what dispatches to them."""

import inspect
import threading
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from strategies import any_float, quantizers  # noqa: E402
from torch_backend import as_array, as_tensor  # noqa: E402

import anybit.torch  # noqa: E402
from anybit import _core  # noqa: E402
from anybit.ops import OPERATORS, Operator  # noqa: E402

Tensor = torch.Tensor
any_operator = pytest.mark.parametrize("operator", OPERATORS, ids=lambda each: each.name)
any_name = pytest.mark.parametrize("name", [each.name for each in OPERATORS])
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def usual_parameters(operator: Operator) -> list[Any]:
    """Numbers that every domain accepts."""
    return [1] * (operator.required_inputs - 1)


@any_operator
def test_signatures(operator: Operator) -> None:
    """The fourth copy of the declaration: the schema."""
    function = getattr(anybit.torch, operator.name)
    assert inspect.signature(function) == inspect.signature(operator.function)
    assert function.__doc__ == operator.function.__doc__
    schema = getattr(torch.ops.anybit, operator.name).default._schema
    inputs = [each for each in schema.arguments if not each.kwarg_only]
    attributes = [each for each in schema.arguments if each.kwarg_only]
    assert [(each.name, str(each.type)) for each in inputs] == [
        (each.name, "Optional[Tensor]" if each.optional else "Tensor") for each in operator.inputs
    ]
    assert [(each.name, each.default_value) for each in attributes] == [
        (each.name, each.default) for each in operator.attributes
    ]


def exactly(actual: Tensor, expected: Any) -> None:
    """Equal dtype, shape and bits; NaN equals NaN."""
    wanted = as_tensor(expected)
    assert actual.dtype == wanted.dtype
    torch.testing.assert_close(actual, wanted, rtol=0, atol=0, equal_nan=True)
    ordinary = ~actual.isnan()
    assert torch.equal(actual.signbit() & ordinary, wanted.signbit() & ordinary)


PARAMETERS: dict[str, tuple[Any, ...]] = {
    "numbers": (0.1, 1, 4),
    "floats": (0.1, 1.0, 4.0),
    "bools": (True, False, True),
    "huge_integers": (2**70, -(2**62) - 1, 2**70),
    "integers_that_round": (2**53 + 1, 2**24 + 1, 30),
    "beyond_float32": (3.4028235e38, -1e39, 300),
    "lists": ([0.1, 0.2, 0.3], [[1], [2]], [4]),
    "scalars_of_numpy": (np.float64(0.1), np.int8(1), np.uint64(4)),
    "arrays": (np.array([0.1, 0.2, 0.3]), np.float16(0.5), np.array([[4.0], [8.0]], np.float32)),
    "read_only": (np.broadcast_to(np.float32(0.1), (2, 3)), 0, np.broadcast_to(np.int64(4), 3)),
}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("parameters", PARAMETERS.values(), ids=PARAMETERS)
def test_parameters_of_every_kind(parameters: tuple, dtype: torch.dtype) -> None:
    """Converted as the NumPy function converts them; as tensors they mean the same."""
    x = torch.linspace(-3, 3, 6).reshape(2, 3).to(dtype)
    expected = anybit.int_quant(as_array(x), *parameters)
    exactly(anybit.torch.int_quant(x, *parameters), expected)
    if all(isinstance(value, np.ndarray | np.generic) for value in parameters):
        exactly(anybit.torch.int_quant(x, *map(as_tensor, parameters)), expected)


def test_arguments_by_name() -> None:
    x = torch.linspace(-3, 3, 7)
    expected = anybit.torch.int_quant(x, 0.5, 0, 4, rounding_mode="FLOOR")
    for mode in ("floor", anybit.RoundingMode.FLOOR):
        call = {"bitwidth": 4, "zeropt": 0, "scale": 0.5, "x": x, "rounding_mode": mode}
        assert torch.equal(anybit.torch.int_quant(**call), expected)
    assert torch.equal(anybit.torch.float_quant(x, 1, 2, 1, 1, max_val=None), x.round().clip(-3, 3))
    for dtype in ("u8", "uint8", np.uint8, np.dtype("uint8"), torch.uint8):
        result = anybit.torch.dynamic_quantize(x, 1.0, dtype=dtype)
        assert result.dtype == torch.uint8


def test_out() -> None:
    x = torch.linspace(-3, 3, 12).reshape(3, 4)
    expected = anybit.torch.int_quant(x, 0.5, 0, 3)
    out = torch.empty(4, 3).t()
    assert anybit.torch.int_quant(x, 0.5, 0, 3, out=out) is out
    assert torch.equal(out, expected)
    assert anybit.torch.int_quant(x, 0.5, 0, 3, out=x) is x
    assert torch.equal(x, expected)


def layouts() -> dict[str, Tensor]:
    plain = torch.linspace(-9, 9, 240).reshape(2, 3, 5, 8)
    complex_numbers = torch.complex(plain, plain.flip(0))
    return {
        "contiguous": plain,
        "channels_last": plain.contiguous(memory_format=torch.channels_last),
        "transposed": plain.transpose(0, 2),
        "steps": plain[:, ::2, 1::3, :: -1 + 3],
        "expanded": plain[:1, :, :1].expand(4, 3, 5, 8),
        "one": plain[0, 0, 0, 0],
        "expanded_one": plain[0, 0, 0, 0].expand(2, 2),
        "empty": plain[:0],
        "offset": plain.flatten()[3:50],
        "real_part": complex_numbers.real,
        "negative_view": complex_numbers.conj().imag,
        "unaligned_rows": plain.flatten()[:234].reshape(2, 117)[:, 1:],
    }


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("layout", layouts())
def test_memory_format_is_kept(layout: str, dtype: torch.dtype) -> None:
    """Every layout is read in place, and the result lies as `torch.empty_like` would."""
    x = layouts()[layout]
    if not x.is_neg():
        strided = torch.empty_strided(x.shape, x.stride(), dtype=dtype)
        x = strided.copy_(x) if "expanded" not in layout else x.to(dtype)
    before = x.clone()
    result = anybit.torch.int_quant(x, 0.3, 1, 4)
    exactly(result, anybit.int_quant(as_array(x.resolve_neg().contiguous()), 0.3, 1, 4))
    assert result.stride() == torch.empty_like(x).stride()
    assert torch.equal(x, before)


@any_operator
def test_fake_tensors_have_the_same_strides(operator: Operator) -> None:
    function = getattr(torch.ops.anybit, operator.name)
    for layout, x in layouts().items():
        if x.is_neg():
            continue
        parameters = [
            torch.ones((), dtype=torch.float32) for _ in range(operator.required_inputs - 1)
        ]
        real = function(x, *parameters)
        with torch._subclasses.FakeTensorMode() as mode:
            fake = function(mode.from_tensor(x), *(mode.from_tensor(each) for each in parameters))
        assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype), (
            layout
        )


@any_operator
def test_meta_tensors(operator: Operator) -> None:
    x = torch.empty(2, 3, 4, device="meta")
    result = getattr(anybit.torch, operator.name)(x, *usual_parameters(operator))
    assert result.is_meta
    assert result.shape == x.shape


@pytest.mark.parametrize(
    "operator",
    [each for each in OPERATORS if "bfloat16" in each.inputs[0].domain.dtypes],
    ids=lambda each: each.name,
)
def test_autocast_changes_nothing(operator: Operator) -> None:
    """Half precision is computed in float32 and rounded once, under autocast as without."""
    function, parameters = getattr(anybit.torch, operator.name), usual_parameters(operator)
    for dtype, inside in ((torch.bfloat16, torch.bfloat16), (torch.float32, torch.bfloat16)):
        x = torch.linspace(-9, 9, 50).to(dtype)
        scale = torch.tensor(0.3, dtype=inside)
        expected = function(x, scale, *parameters[1:])
        with torch.autocast("cpu", dtype=inside):
            result = function(x, scale, *parameters[1:])
        assert result.dtype == dtype
        assert torch.equal(result, expected)


def test_subclasses() -> None:
    class Named(torch.Tensor):
        pass

    x = torch.linspace(-3, 3, 7)
    expected = anybit.torch.int_quant(x, 0.5, 0, 4)
    named = anybit.torch.int_quant(x.as_subclass(Named), 0.5, 0, 4)
    assert type(named) is Named
    assert torch.equal(named.as_subclass(Tensor), expected)
    learned = anybit.torch.int_quant(torch.nn.Parameter(x), torch.nn.Parameter(x[0].abs()), 0, 4)
    assert type(learned) is Tensor
    assert learned.requires_grad
    with torch.inference_mode():
        assert torch.equal(anybit.torch.int_quant(x.clone(), 0.5, 0, 4), expected)


@any_name
@given(data=st.data())
def test_any_call_equals_numpy(name: str, data: st.DataObject) -> None:
    """Random shapes and strides, and the NumPy function with the same parameters."""
    quantize = data.draw(quantizers(name))
    shape = data.draw(st.lists(st.integers(0, 4), max_size=4))
    size = int(np.prod(shape, dtype=int))
    values = data.draw(st.lists(any_float, min_size=size, max_size=size))
    x = torch.tensor(values, dtype=torch.float32).reshape(shape)
    x = x.permute(data.draw(st.permutations(range(len(shape)))))
    if shape and data.draw(st.booleans()):
        x = x[::2]
    parameters = [as_tensor(v) if isinstance(v, np.ndarray) else v for v in quantize.inputs]
    actual = getattr(anybit.torch, name)(x, *parameters, **quantize.attributes)
    exactly(actual.contiguous(), np.ascontiguousarray(quantize(as_array(x))).reshape(x.shape))


@given(data=st.data())
def test_any_broadcast_equals_numpy(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    x = torch.linspace(-9, 9, int(np.prod(shape))).reshape(shape)
    parameters = []
    for low, high in ((0.1, 2.0), (-3.0, 3.0)):
        rank = data.draw(st.integers(0, len(shape)))
        own = [data.draw(st.sampled_from([1, size])) for size in shape[len(shape) - rank :]]
        parameters.append(torch.linspace(low, high, int(np.prod(own, dtype=int))).reshape(own))
    actual = anybit.torch.int_quant(x, *parameters, 4)
    exactly(actual, anybit.int_quant(as_array(x), *map(as_array, parameters), 4))


def test_threads_of_pytorch_do_not_change_a_bit() -> None:
    x = torch.randn(700_001, generator=torch.Generator().manual_seed(1))
    before = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append(anybit.torch.int_quant(x, 0.1, 0, 4))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*results)


def test_the_kernel_is_told_the_threads_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its limit is the calling thread's own, and is taken back, after errors too."""
    limits = []

    def limit_threads(count: int) -> int:
        limits.append(count)
        return before(count)

    before = _core.limit_threads
    monkeypatch.setattr(_core, "limit_threads", limit_threads)
    x = torch.ones(10_000, requires_grad=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        anybit.torch.int_quant(x, 0.1, 0, 4).sum().backward()
        with pytest.raises(ValueError, match="bitwidth"):
            anybit.torch.int_quant(x, 0.1, 0, torch.tensor(0))
    finally:
        torch.set_num_threads(threads)
    assert limits == [1, 0] * 3


def test_other_threads_run_meanwhile() -> None:
    """The kernel runs without the GIL: a Python thread makes progress during one long call."""
    x = torch.ones(1 << 24)
    parameters = [torch.tensor(value) for value in (0.3, 4, 3, 7)]
    ticks, stop = [], threading.Event()

    def tick() -> None:
        while not stop.wait(0.0005):
            ticks.append(None)

    thread = threading.Thread(target=tick)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    thread.start()
    try:
        before = len(ticks)
        torch.ops.anybit.float_quant(x, *parameters)
        during = len(ticks) - before
    finally:
        stop.set()
        thread.join()
        torch.set_num_threads(threads)
    assert during >= 3  # one tick may come on either side of the call
