# SPDX-License-Identifier: Apache-2.0
"""What becomes of a layer's scales when one of its parameters is replaced by another.

Fusion of batch normalization replaces parameters, in PyTorch's own functions too. Scales that were
found for the old ones would ruin the new ones.
"""

from typing import Any

import torch

from anybit.torch.nn._quantizer import Quantizer
from anybit.torch.nn._stored_scales import FixedScale, StoredScale

_REMEDY = (
    "call anybit.torch.fold_batchnorm before quantize_model, or copy other values into the "
    "parameter that is there"
)


def replaced(layer: torch.nn.Module, name: str, old: Any, new: Any) -> None:
    """Let the scales of the layer follow its parameter of that name.

    Raises:
        ValueError: A scale cannot follow, for it is fixed, or is that of what the layer gave.
    """
    # Neither shards nor views, which stand for the same values in other forms.
    if not (type(old) is type(new) is torch.nn.Parameter and old.shape == new.shape):
        return
    if old.is_meta or new.is_meta or torch.equal(old, other := new.detach().to(old)):
        return
    output = getattr(layer, "output_quantizer", None)
    if output is not None and isinstance(output.scale, StoredScale) and output.scale.is_known:
        raise ValueError(
            f"{output.scale.owner} has a scale for what the layer gives, which another {name} "
            f"changes: {_REMEDY}"
        )
    quantizer = getattr(layer, f"{name}_quantizer", None)
    if quantizer is None:
        return
    scale = quantizer.scale
    if isinstance(scale, FixedScale):
        raise ValueError(f"{scale.owner} has a fixed scale, not one for another {name}: {_REMEDY}")
    if isinstance(scale, StoredScale) and scale.is_known:
        if name.startswith("bias"):
            quantizer.initialize(other)
        else:
            _carry(quantizer, old.detach(), other)


def _carry(quantizer: Quantizer, old: torch.Tensor, new: torch.Tensor) -> None:
    """Change the scales as the largest magnitudes change; from 0 they start anew."""
    scale = quantizer.scale
    dims = scale.layout.reduced(old)
    before, after = (x.abs().amax(dim=dims) if dims else x.abs() for x in (old, new))
    carried = scale.known().detach() * (after / before)
    quantizer.initialize(new)
    scale.set(torch.where(before > 0, carried, scale.known()))
