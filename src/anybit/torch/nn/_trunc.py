# SPDX-License-Identifier: Apache-2.0
"""Module for the removal of low bits."""

import numbers

import torch

from anybit.ops import RoundingMode
from anybit.torch.dispatch import operators
from anybit.torch.nn._scales import check_scale


class Trunc(torch.nn.Module):
    """Removal of low bits of a quantized tensor; `anybit.torch.trunc` as a module.

    Args:
        in_bits: The bits of the input's codes.
        out_bits: The bits of the result's codes.
        scale: The scale of the input, a number > 0 or a tensor of such numbers: a buffer.
            `forward(x, scale)` takes another one.
        shift: The number of low bits to remove: the result's scale is scale * 2^shift. None stands
            for in_bits - out_bits.
        signed, narrow, rounding_mode: As in `trunc`.

    >>> Trunc(8, 4)(torch.tensor([7.0, -7.0, 100.0]))
    tensor([  0., -16.,  96.])
    """

    scale: torch.Tensor

    def __init__(
        self,
        in_bits: int,
        out_bits: int,
        *,
        scale: float | torch.Tensor = 1.0,
        shift: int | None = None,
        signed: bool = True,
        narrow: bool = False,
        rounding_mode: str = "FLOOR",
    ) -> None:
        super().__init__()
        for name, bits in (("in_bits", in_bits), ("out_bits", out_bits)):
            if not (isinstance(bits, numbers.Integral) and bits >= 1):
                raise ValueError(f"{name} must be an integer >= 1, got {bits!r}")
        if not (shift is None or isinstance(shift, numbers.Integral)):
            raise ValueError(f"shift must be an integer or None, got {shift!r}")
        dtype = torch.get_default_dtype()
        # The default device may be "meta", which stores no values.
        if not (isinstance(scale, torch.Tensor) and scale.is_meta):
            check_scale(torch.as_tensor(scale, dtype=dtype, device="cpu"), scale)
        self.in_bits = in_bits
        self.out_bits = out_bits
        self.shift = in_bits - out_bits if shift is None else shift
        self.signed = signed
        self.narrow = narrow
        self.rounding_mode = RoundingMode.parse(rounding_mode).name
        self.register_buffer("scale", torch.as_tensor(scale, dtype=dtype))

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        scale = self.scale if scale is None else scale
        return operators.trunc(
            x,
            scale,
            0,
            self.in_bits,
            scale * 2.0**self.shift,
            self.out_bits,
            signed=self.signed,
            narrow=self.narrow,
            rounding_mode=self.rounding_mode,
        )

    def extra_repr(self) -> str:
        return (
            f"{self.in_bits}, {self.out_bits}, shift={self.shift}, signed={self.signed}, "
            f"narrow={self.narrow}, rounding_mode={self.rounding_mode!r}"
        )
