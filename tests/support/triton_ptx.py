# SPDX-License-Identifier: Apache-2.0
"""PTX instructions that Triton compiles our kernels to, for a GPU that may be absent."""

import re
from collections.abc import Sequence
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from anybit.ops import Operator
from anybit.torch.triton import make_backward_plan, make_forward_plan
from anybit.torch.triton.plan import Plan
from anybit.torch.triton.source import compile_kernel

HOPPER = GPUTarget("cuda", 90, 32)
TYPES = {
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int8: "i8",
    torch.uint8: "u8",
}
INSTRUCTION = re.compile(r"^\s+(?:@!?%p\d+ )?([a-z]+[0-9]*\.[a-z0-9.:_]+)", re.MULTILINE)


def forward_instructions(operator: Operator, x: torch.Tensor, **attributes: Any) -> set[str]:
    inputs = [x, *parameters(operator, x)]
    plan = make_forward_plan(operator, inputs, attributes)
    return _instructions(plan, inputs)


def backward_instructions(
    operator: Operator, x: torch.Tensor, names: Sequence[str], **attributes: Any
) -> set[str]:
    inputs = [x, *parameters(operator, x)]
    gradient = x if x.is_floating_point() else torch.empty_like(x, dtype=torch.float32)
    plan = make_backward_plan(operator, gradient, inputs, names, attributes)
    return _instructions(plan, [*inputs, gradient])


def parameters(operator: Operator, x: torch.Tensor) -> list[torch.Tensor]:
    """Return parameters of one value per tensor, in the dtype that numbers become."""
    compute = torch.float64 if x.dtype == torch.float64 else torch.float32
    tensors = []
    for declared in operator.inputs[1:]:
        dtype = torch.int64 if declared.domain.integer else compute
        shape: tuple[int, ...] = ()
        if declared.domain.dtypes:
            dtype, shape = getattr(torch, declared.domain.dtypes[-1]), (1,)
        tensors.append(torch.empty(shape, dtype=dtype, device="meta"))
    return tensors


def _instructions(plan: Plan, inputs: Sequence[torch.Tensor]) -> set[str]:
    """Compiled as a launch would have it: pointers and sizes divisible by 16 are known to be."""
    function = compile_kernel(plan.name, plan.text, False)
    names = [parameter.name for parameter in function.params]
    pointers = [
        TYPES[dtype] for dtype in (*(tensor.dtype for tensor in inputs), *plan.buffer_dtypes)
    ]
    signature = {
        name: f"*{kind}" for name, kind in zip(names[: len(pointers)], pointers, strict=True)
    }
    constants = {}
    divisible = {(place,) for place in range(len(pointers))}
    for place, number in enumerate(plan.numbers, start=len(pointers)):
        name = names[place]
        if number == 1 or name.startswith("TILE"):
            constants[name], signature[name] = number, "constexpr"
        else:
            signature[name] = "i32" if number < 2**31 else "i64"
        if number % 16 == 0 and name not in constants:
            divisible.add((place,))
    source = ASTSource(
        function,
        signature,
        constexprs=constants,
        attrs={place: [["tt.divisibility", 16]] for place in divisible},
    )
    options = {"enable_fp_fusion": False, "num_warps": plan.tiles.warps}
    kernel = triton.compile(source, target=HOPPER, options=options)
    return set(INSTRUCTION.findall(kernel.asm["ptx"]))
