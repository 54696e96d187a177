# SPDX-License-Identifier: Apache-2.0
"""Memory and threads: tensors are read in place, whatever their strides, without the GIL."""

import pytest

torch = pytest.importorskip("torch")

from gil_release import releases_gil  # noqa: E402
from torch_backend import as_array, assert_same_tensor  # noqa: E402
from x_types import x_dtypes  # noqa: E402

import anybit.torch  # noqa: E402
from anybit import _native  # noqa: E402
from anybit.ops import OPERATORS, Operator  # noqa: E402

Tensor = torch.Tensor
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def layouts(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Return tensors of every layout; integers are not parts of complex tensors."""
    plain = torch.linspace(-9, 9, 240).to(dtype).reshape(2, 3, 5, 8)
    complex_numbers = torch.complex(plain.float(), plain.flip(0).float())
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
        "real_part": complex_numbers.real.to(dtype),
        "negative_view": complex_numbers.conj().imag.to(dtype),
        "unaligned_rows": plain.flatten()[:234].reshape(2, 117)[:, 1:],
    }


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("layout", layouts())
def test_functions_keep_memory_format(layout: str, dtype: torch.dtype) -> None:
    """Read every layout in place; the result has the format of `torch.empty_like`."""
    x = layouts()[layout]
    if not x.is_neg():
        strided = torch.empty_strided(x.shape, x.stride(), dtype=dtype)
        x = strided.copy_(x) if "expanded" not in layout else x.to(dtype)
    before = x.clone()
    result = anybit.torch.int_quant(x, 0.3, 1, 4)
    assert_same_tensor(result, anybit.int_quant(as_array(x.resolve_neg().contiguous()), 0.3, 1, 4))
    assert result.stride() == torch.empty_like(x).stride()
    assert torch.equal(x, before)


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)
def test_functions_of_fake_tensors_have_the_same_strides(operator: Operator) -> None:
    function = getattr(torch.ops.anybit, operator.name)
    for layout, x in layouts(getattr(torch, x_dtypes(operator)[0])).items():
        if x.is_neg() or (not x.ndim and operator.block_axis is not None):
            continue
        parameters = [
            torch.ones((), dtype=torch.float32) for _ in range(operator.required_inputs - 1)
        ]
        real = function(x, *parameters)
        with torch._subclasses.FakeTensorMode() as mode:
            fake = function(
                mode.from_tensor(x), *(mode.from_tensor(parameter) for parameter in parameters)
            )
        assert (fake.shape, fake.stride(), fake.dtype) == (real.shape, real.stride(), real.dtype), (
            layout
        )


def test_functions_do_not_depend_on_the_number_of_threads() -> None:
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


def test_kernels_use_the_thread_limit_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the limit for the calling thread, and reset it, also after errors."""
    limits = []

    def limit_threads(count: int) -> int:
        limits.append(count)
        return before(count)

    before = _native.limit_threads
    monkeypatch.setattr(_native, "limit_threads", limit_threads)
    x = torch.ones(10_000, requires_grad=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        anybit.torch.int_quant(x, 0.1, 0, 4).sum().backward()
        with pytest.raises(ValueError, match="bitwidth"):
            anybit.torch.int_quant(x, 0.1, 0, torch.tensor(0))
    finally:
        torch.set_num_threads(threads)
    assert len(limits) >= 6
    assert limits == [1, 0] * (len(limits) // 2)


def test_kernels_release_the_gil() -> None:
    """Run a Python thread during one long call."""
    x = torch.ones(1 << 24)
    parameters = [torch.tensor(value) for value in (0.3, 4, 3, 7)]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert releases_gil(lambda: torch.ops.anybit.float_quant(x, *parameters))
    finally:
        torch.set_num_threads(threads)
