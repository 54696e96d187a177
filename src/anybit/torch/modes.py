# SPDX-License-Identifier: Apache-2.0
"""Access to a user's module without changing it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def unwrap(module: torch.nn.Module) -> torch.nn.Module:
    """Return the module inside of wrappers that compile or replicate it."""
    parallel = torch.nn.parallel
    while True:
        if isinstance(module, parallel.DataParallel | parallel.DistributedDataParallel):
            module = module.module
        elif hasattr(module, "_orig_mod"):
            module = module._orig_mod
        else:
            return module


@contextmanager
def switch_to_eval(module: torch.nn.Module) -> Iterator[None]:
    """Set eval mode without gradients; afterwards restore the mode of every part."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, training in modes:
            part.training = training
