# SPDX-License-Identifier: Apache-2.0
"""A user's module, looked at without a change."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """The module inside of what compiles or replicates one."""
    parallel = torch.nn.parallel
    while True:
        if isinstance(module, parallel.DataParallel | parallel.DistributedDataParallel):
            module = module.module
        elif hasattr(module, "_orig_mod"):
            module = module._orig_mod
        else:
            return module


@contextmanager
def evaluating(module: torch.nn.Module) -> Iterator[None]:
    """Eval mode without gradients; afterwards each part of the module is in the mode it was in."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, training in modes:
            part.training = training
