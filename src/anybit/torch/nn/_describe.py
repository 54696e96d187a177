# SPDX-License-Identifier: Apache-2.0
"""Which layers of a model have which quantizers."""

import io

import torch
from rich.console import Console
from rich.table import Table

from anybit.torch.nn._layers import QUANTIZERS, QuantizedLayer
from anybit.torch.nn._words import words

_FLOAT_LAYERS = (
    torch.nn.Linear,
    torch.nn.Conv1d,
    torch.nn.Conv2d,
    torch.nn.ConvTranspose2d,
)


def describe(model: torch.nn.Module) -> str:
    """A table of the model's layers and their quantizers in words; "-" stands for none.

    Layers in float of the types that could have quantizers are listed too.
    """
    table = Table(box=None, pad_edge=False)
    headings = [keyword.removesuffix("_quantizer") for keyword in QUANTIZERS]
    for heading in ("layer", "type", *headings):
        table.add_column(heading, no_wrap=True)
    for name, module in model.named_modules():
        if isinstance(module, (QuantizedLayer, *_FLOAT_LAYERS)):
            found = (getattr(module, keyword, None) for keyword in QUANTIZERS)
            cells = ("-" if each is None else words(each) for each in found)
            table.add_row(name or "(model)", type(module).__name__, *cells)
    text = io.StringIO()
    Console(file=text, width=1000, markup=False).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())
