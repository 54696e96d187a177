# SPDX-License-Identifier: Apache-2.0
"""Instructions of compiled Triton kernels: none that rounds differently from the formulas.

Triton compiles for a GPU without having one. That no result differs is for the case tables; this is
what a machine without a GPU can know about one.
"""

import re
from itertools import product
from typing import Any

import pytest

triton = pytest.importorskip("triton", minversion="3.3", reason="another ASTSource before")
torch = pytest.importorskip("torch")

import triton_ptx  # noqa: E402
from x_types import reads_codes  # noqa: E402

from anybit.ops import OPERATORS, RoundingMode  # noqa: E402

BY_NAME = {operator.name: operator for operator in OPERATORS if operator.block_axis is None}
DIFFERENTIABLE = [name for name, operator in BY_NAME.items() if operator.differentiable]
OF_FLOATS = [name for name in DIFFERENTIABLE if not reads_codes(BY_NAME[name])]
WITHOUT_DIVISION = ("bipolar_quant", "dynamic_dequantize")
MODES = tuple(RoundingMode)
FORWARD_KERNELS = [
    *((name, "float32", {}) for name in BY_NAME if not reads_codes(BY_NAME[name])),
    *(("int_quant", "float32", {"rounding_mode": str(mode)}) for mode in MODES[1:]),
    *((name, dtype, {}) for name in OF_FLOATS for dtype in ("float64", "bfloat16", "float16")),
    ("dynamic_dequantize", "int8", {}),
    ("dynamic_dequantize", "uint8", {}),
    ("dynamic_quantize", "float32", {"dtype": "u8", "arithmetic": "reciprocal"}),
]


def assert_exact(instructions: set[str]) -> None:
    """Nothing that flushes subnormal numbers, fuses, or divides roughly."""
    parts = {part for instruction in instructions for part in instruction.split(".")}
    assert not parts & {"ftz", "approx", "full", "fma", "sat", "ex2", "lg2"}, instructions
    divisions = {item for item in instructions if re.match(r"(div|rcp|sqrt)\..*f\d", item)}
    assert divisions <= {"div.rn.f32", "div.rn.f64", "rcp.rn.f32"}
    casts = {entry for entry in instructions if entry.startswith("cvt.") and "bf16" in entry}
    assert casts <= {"cvt.rn.bf16.f32", "cvt.rn.bf16x2.f32", "cvt.f32.bf16"}


@pytest.mark.parametrize(("name", "dtype", "attributes"), FORWARD_KERNELS)
def test_forward_kernels_compile_to_exact_instructions(
    name: str, dtype: str, attributes: dict[str, Any]
) -> None:
    x = torch.empty(1 << 20, dtype=getattr(torch, dtype), device="meta")
    instructions = triton_ptx.forward_instructions(BY_NAME[name], x, **attributes)
    assert_exact(instructions)
    wide = "f64" if dtype == "float64" else "f32"
    assert (f"div.rn.{wide}" in instructions) == (name not in WITHOUT_DIVISION)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *product(OF_FLOATS, ("float32", "bfloat16")),
        *product(set(DIFFERENTIABLE) - set(OF_FLOATS), ("int8", "uint8")),
    ],
)
def test_backward_kernels_compile_to_exact_instructions(name: str, dtype: str) -> None:
    x = torch.empty(1 << 20, dtype=getattr(torch, dtype), device="meta")
    operator = BY_NAME[name]
    for names in (operator.differentiable[:1], operator.differentiable):
        assert_exact(triton_ptx.backward_instructions(operator, x, names))
