# SPDX-License-Identifier: Apache-2.0
"""Which layers of a model have which quantizers."""

import io

import torch
from rich.console import Console
from rich.table import Table

from anybit.torch.nn._floats import in_float, percentage, share_in_float
from anybit.torch.nn._functions import QuantizedFunction
from anybit.torch.nn._layers import QUANTIZERS, QuantizedLayer
from anybit.torch.nn._words import words


def describe(model: torch.nn.Module) -> str:
    """A table of the model's layers and their quantizers in words; "-" stands for none.

    Everything that has weights in float is listed too, and how much that is in all: a weight is a
    parameter with two axes or more.
    """
    table = Table(box=None, pad_edge=False)
    headings = [keyword.removesuffix("_quantizer") for keyword in QUANTIZERS]
    for heading in ("layer", "type", *headings):
        table.add_column(heading, no_wrap=True)
    floats = {each.module for each in in_float(model)}
    for name, module in model.named_modules():
        if isinstance(module, QuantizedLayer | QuantizedFunction) or module in floats:
            found = (getattr(module, keyword, None) for keyword in QUANTIZERS)
            cells = ("-" if each is None else words(each) for each in found)
            table.add_row(name or "(model)", type(module).__name__, *cells)
    text = io.StringIO()
    Console(file=text, width=1000, markup=False).print(table)
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    return "\n".join([*lines, f"in float: {percentage(share_in_float(model))} of the weights"])
