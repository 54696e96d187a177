# SPDX-License-Identifier: Apache-2.0
"""Formulas of the operators for PyTorch's autograd, with straight-through rounding.

They are the oracles of gradients and share no code with src.
"""

import oracle
import torch

Tensor = torch.Tensor
ROUNDINGS = {"ROUND": torch.round, "FLOOR": torch.floor, "CEIL": torch.ceil, "DOWN": torch.trunc}


def straight_through(y: Tensor, rounded: Tensor) -> Tensor:
    return y + (rounded - y).detach()


def clipped(y: Tensor, lowest: Tensor, highest: Tensor) -> Tensor:
    y = torch.where(y > highest, highest, y)
    return torch.where(y < lowest, lowest, y)


def bounds(bitwidth: Tensor, signed: bool, narrow: bool) -> tuple[Tensor, Tensor]:
    if signed:
        return -(2 ** (bitwidth - 1)) + int(narrow), 2 ** (bitwidth - 1) - 1
    return torch.zeros(()), 2**bitwidth - 1 - int(narrow)


def int_quant(
    x: Tensor,
    scale: Tensor,
    zeropt: Tensor,
    bitwidth: Tensor,
    *,
    signed: bool = True,
    narrow: bool = False,
    rounding_mode: str = "ROUND",
) -> Tensor:
    y = clipped(x / scale + zeropt, *bounds(bitwidth, signed, narrow))
    return (straight_through(y, ROUNDINGS[rounding_mode](y)) - zeropt) * scale


def float_quant(
    x: Tensor,
    scale: Tensor,
    e: Tensor,
    m: Tensor,
    bias: Tensor,
    max_val: Tensor,
    *,
    signed: bool = True,
    rounding_mode: str = "ROUND",
) -> Tensor:
    y = x / scale
    # More exponents change the range and not the grid.
    wide = oracle.float_quant(
        y.detach().numpy(), 1.0, 10, m.numpy(), bias.numpy(), rounding_mode=rounding_mode
    )
    largest = torch.minimum((2 - 2.0**-m) * 2.0 ** (2.0**e - 1 - bias), max_val)
    lowest = -largest if signed else torch.zeros(())
    return clipped(straight_through(y, torch.from_numpy(wide)), lowest, largest) * scale


def trunc(
    x: Tensor,
    scale: Tensor,
    zeropt: Tensor,
    in_bitwidth: Tensor,
    out_scale: Tensor,
    out_bitwidth: Tensor,
    *,
    signed: bool = True,
    narrow: bool = False,
    rounding_mode: str = "FLOOR",
) -> Tensor:
    y = x / scale + zeropt
    factor = (2.0 ** torch.round(torch.log2(out_scale / scale))).detach()
    y = straight_through(y, torch.round(y)) / factor
    y = clipped(y, *bounds(out_bitwidth, signed, narrow))
    return (straight_through(y, ROUNDINGS[rounding_mode](y)) - zeropt / factor) * out_scale


def trunc_v1(
    x: Tensor,
    scale: Tensor,
    zeropt: Tensor,
    in_bitwidth: Tensor,
    out_bitwidth: Tensor,
    *,
    rounding_mode: str = "FLOOR",
) -> Tensor:
    y = x / scale + zeropt
    y = straight_through(y, torch.round(y)) / 2.0 ** (in_bitwidth - out_bitwidth)
    return (straight_through(y, ROUNDINGS[rounding_mode](y)) - zeropt) * scale


def bipolar_quant(x: Tensor, scale: Tensor) -> Tensor:
    sign = torch.where(x >= 0, 1.0, -1.0)
    inside = x.clip(-scale.detach().abs(), scale.detach().abs())
    return straight_through(inside, (sign * scale).detach()) + sign * (scale - scale.detach())


def dynamic_dequantize(
    src: Tensor,
    scales: Tensor,
    zps: Tensor | None = None,
    *,
    qtype: str = "per_tensor",
    axis: int = 1,
) -> Tensor:
    shape = [1] * src.ndim
    if qtype == "per_channel":
        shape[axis] = -1
    codes = src.long() if zps is None else src.long() - zps.long().reshape(shape)
    return codes.float() * scales.reshape(shape)


def block_quant(x: Tensor, *, format: str, block_size: int) -> Tensor:
    """Quantize blocks of the last axis to mxfp4, with constant scales."""
    assert format == "mxfp4"
    blocks = x.reshape(*x.shape[:-1], -1, block_size)
    largest = blocks.detach().abs().amax(-1, keepdim=True)
    scale = 2.0 ** (torch.floor(torch.log2(largest)) - 2)
    y = (blocks / scale).clamp(-6, 6)
    step = 2.0 ** (torch.floor(torch.log2(y.detach().abs())).clamp(min=0) - 1)
    return (straight_through(y, torch.round(y.detach() / step) * step) * scale).reshape(x.shape)


FORMULAS = {
    function.__name__: function
    for function in (
        *(int_quant, float_quant, trunc, trunc_v1, bipolar_quant, dynamic_dequantize, block_quant),
    )
}
