# SPDX-License-Identifier: Apache-2.0
"""Gradients of Triton kernels against the partial derivatives that operators state."""

import zlib
from typing import Any

import numpy as np
import pytest
from cases import Case, assert_same_bits, every_case

pytest.importorskip("triton")
torch = pytest.importorskip("torch")

import triton_backend  # noqa: E402
from torch_backend import as_array  # noqa: E402
from triton_backend import BY_NAME  # noqa: E402
from x_types import moves_x  # noqa: E402

from anybit.ops.gradient import propagate_gradients  # noqa: E402

ROWS = [
    (name, case)
    for name, case in every_case()
    if case.raises is None and name in BY_NAME and moves_x(BY_NAME[name])
]
# The interpreter takes its time: what is not slow is a sample of the rows, the same each time.
SAMPLE = 12


def is_sampled(name: str, case: Case) -> bool:
    return zlib.crc32(f"{name} {case.name}".encode()) % SAMPLE == 0


def arriving(x: np.ndarray) -> np.ndarray:
    """Return a gradient of every kind of value, NaN and infinities included."""
    values = np.array([1, -0.5, 3, 0, -0.0, 0.1, 1e30, np.inf, np.nan, -2], np.float32)
    with np.errstate(over="ignore"):
        return np.resize(values, x.shape).astype(x.dtype)


def expected_gradients(
    name: str, gradient: np.ndarray, inputs: tuple[Any, ...], attributes: Any, names: Any
) -> list[np.ndarray]:
    operator = BY_NAME[name]
    tensors = [
        item if item is None else item.cpu()
        for item in triton_backend.as_device_tensors(name, inputs)
    ]
    arguments = dict(zip((value.name for value in operator.inputs), tensors, strict=False))
    arrived = triton_backend.as_tensors((gradient,))[0]
    partials = operator.partials(*tensors, **attributes)
    shapes = operator.broadcast_shapes(tensors, attributes)
    result = propagate_gradients(arrived, arguments, partials, names, shapes)
    return [as_array(result[name]) for name in names]


@pytest.mark.parametrize(
    ("name", "case"),
    [
        pytest.param(
            name,
            case,
            id=f"{name}-{case.name}",
            marks=[pytest.mark.slow] * (not is_sampled(name, case)),
        )
        for name, case in ROWS
    ],
)
def test_backward_kernel_equals_reference_for_x(name: str, case: Case) -> None:
    """Bit for bit: no sum is involved."""
    gradient = arriving(np.asarray(case.inputs[0]))
    call = (name, gradient, case.inputs, case.attributes, ["x"])
    (actual,), (expected,) = triton_backend.gradients(*call), expected_gradients(*call)
    assert_same_bits(actual, expected, case)


SHAPES = {
    "per_tensor": ((3, 7, 40), ()),
    "one_element": ((3, 7, 40), (1, 1)),
    "channels": ((3, 7, 40), (7, 1)),
    "rows": ((5, 2050), (5, 1)),
    "last_axis": ((33, 70), (70,)),
    "two_axes": ((3, 7, 40), (3, 1, 40)),
    "planes": ((2, 3, 4, 5), (2, 1, 4, 1)),
    "per_element": ((9, 30), (9, 30)),
    "long": ((5000,), ()),
    "zero_dimensions": ((), ()),
    "enlarged_by_nothing": ((1, 6), (6,)),
}


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("name", [name for name, operator in BY_NAME.items() if moves_x(operator)])
def test_backward_kernel_sums_parameters(name: str, shapes: Any, transposed: bool) -> None:
    """Compare all gradients, with values whose sums are exact in every order."""
    shape, small = shapes
    operator, random = BY_NAME[name], np.random.default_rng(5)
    x = (random.integers(-40, 40, shape) / 4).astype(np.float32)
    gradient = random.integers(-2, 3, shape).astype(np.float32)
    if transposed:
        x, gradient = np.asfortranarray(x), np.asfortranarray(gradient)
    inputs = [x]
    for declared in operator.inputs[1:]:
        values = 2.0 ** random.integers(1, 3, small)
        inputs.append(np.asarray(values, np.float32))
        if declared.name == "out_scale":
            inputs[-1] = inputs[1] * 2
    names = [item for item in operator.differentiable if "bitwidth" not in item]
    call = (name, gradient, tuple(inputs), {}, names)
    for result, expected, input_name in zip(
        triton_backend.gradients(*call), expected_gradients(*call), names, strict=True
    ):
        assert_same_bits(result, expected, Case(input_name, (expected,)))


AXES: dict[str, tuple[tuple[int, ...], int | None]] = {
    "per_tensor": ((3, 7, 40), None),
    "first": ((5, 2050), 0),
    "middle": ((3, 7, 40), 1),
    "last": ((33, 70), -1),
    "per_element": ((900,), 0),
    "zero_dimensions": ((), None),
    "one_element": ((1, 1), 1),
    "empty": ((0, 4), 1),
}


@pytest.mark.parametrize("with_zps", [False, True])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize(("shape", "axis"), AXES.values(), ids=AXES)
def test_backward_kernel_sums_dequantize_scales(
    shape: Any, axis: int | None, dtype: Any, with_zps: bool
) -> None:
    """Scales along an axis, which do not broadcast by NumPy's rule; all sums are exact."""
    random = np.random.default_rng(5)
    limits = np.iinfo(dtype)
    codes = random.integers(limits.min, limits.max + 1, shape).astype(dtype)
    gradient = random.integers(-2, 3, shape).astype(np.float32)
    count = 1 if axis is None else shape[axis]
    inputs: tuple[Any, ...] = (codes, np.full(count, 0.5, np.float32))
    if with_zps:
        inputs += (random.integers(-300, 300, count).astype(np.int32),)
    attributes = {} if axis is None else {"qtype": "per_channel", "axis": axis}
    for values in (codes, np.array(codes, order="F")):
        call = ("dynamic_dequantize", gradient, (values, *inputs[1:]), attributes, ["scales"])
        (result,), (expected,) = triton_backend.gradients(*call), expected_gradients(*call)
        assert result.shape == (count,)
        assert_same_bits(result, expected, Case("scales", (expected,)))


def test_backward_kernel_of_bitwidths() -> None:
    """Compare sums of one addend, because the factor ln 2 rounds."""
    x = np.array([100.0, -100.0, 0.3], np.float32)
    inputs = (x, np.float32(1), np.float32(0), np.array([4, 5, 6], np.float32))
    call = ("int_quant", np.ones(3, np.float32), inputs, {}, ["bitwidth"])
    (actual,), (expected,) = triton_backend.gradients(*call), expected_gradients(*call)
    assert (actual[:2] != 0).all()
    assert_same_bits(actual, expected, Case("bitwidth", (x,)))


def test_backward_kernel_of_expanded_gradients() -> None:
    """Use an expanded gradient, like that of `sum().backward()`."""
    x, one = torch.arange(-8.0, 8).reshape(4, 4), torch.ones(())
    gradient = torch.ones(()).expand(4, 4)
    inputs = (x, one, torch.zeros(()), torch.tensor(3))
    with triton_backend.interpreter():
        result = triton_backend.BACKWARD["int_quant"](
            gradient.to(triton_backend.DEVICE),
            *(item.to(triton_backend.DEVICE) for item in inputs),
            requested=["x"],
        )[0]
    assert torch.equal(result.cpu(), ((x >= -4) & (x <= 3)).float())
