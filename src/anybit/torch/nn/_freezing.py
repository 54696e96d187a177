# SPDX-License-Identifier: Apache-2.0
"""Scales that stop to change, and go on."""

import torch

from anybit.torch.nn._stored_scales import StoredScale


def freeze_scales(model: torch.nn.Module) -> None:
    """Let learned and "ema" scales of a model, or of a part of it, stay as they are.

    Learned ones get no gradient, so that optimizers leave them alone, whatever their momentum;
    "ema" ones count no more batches. Weights learn on. State dicts, eval mode and exports are the
    same: that scales are frozen is in copies and pickles, and not in state dicts. Scales that are
    computed in each call ("absmax") go on being computed.
    """
    _freeze(model, True)


def unfreeze_scales(model: torch.nn.Module) -> None:
    """Let the scales go on that `freeze_scales` has stopped."""
    _freeze(model, False)


def _freeze(model: torch.nn.Module, frozen: bool) -> None:
    for module in model.modules():
        if isinstance(module, StoredScale):
            module.freeze(frozen)
