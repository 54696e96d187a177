# SPDX-License-Identifier: Apache-2.0
"""Budgets of mixed precision: `4MB`, `30dB`, `50%bops`."""

import math
import re
from dataclasses import dataclass
from enum import Enum

from anybit.errors import OptionError
from anybit.metrics.sqnr import sqnr_to_noise

_SIZES = {
    "b": 1,
    "byte": 1,
    "bytes": 1,
    **{
        f"{prefix}{suffix}": 1024**power
        for power, prefix in enumerate("kmg", 1)
        for suffix in ("b", "ib")
    },
}
_MAX_PERCENT, _MAX_DECIBELS = 1000, 150
_REMEDY = 'give a size ("4MB", "500KiB"), an SQNR ("30dB") or a share of the work ("50%bops")'


class BudgetKind(Enum):
    """Quantity that a budget limits, and its unit."""

    BYTES = "bytes"
    """The size of the constants in bytes."""
    NOISE = "noise"
    """The noise-to-signal power ratio of the worst output."""
    BIT_OPERATIONS = "bops"
    """The share of the bit operations at the requested widths of weights and activations."""


@dataclass(frozen=True)
class Budget:
    """A limit for mixed precision.

    Attributes:
        text: The text that it was parsed from.
        kind: The limited quantity.
        limit: The largest value, in the unit of the kind.
    """

    text: str
    kind: BudgetKind
    limit: float


def parse_budget(text: str) -> Budget:
    """Parse a budget.

    Raises:
        OptionError: The text is not a budget.

    >>> parse_budget("4 MB").limit, parse_budget("30dB").limit, parse_budget("50%bops").limit
    (4194304.0, 0.001, 0.5)
    """
    match = re.fullmatch(r"\s*([0-9]{1,15}(?:\.[0-9]{0,15})?)\s*(%?)\s*([a-zA-Z]*)\s*", text)
    if match is None:
        raise OptionError(f"budget={text!r}: {_REMEDY}")
    amount, unit = float(match[1]), match[3].lower()
    if not amount or not math.isfinite(amount):
        raise OptionError(f"budget={text!r}: nothing is left for the model; {_REMEDY}")
    if match[2]:
        if unit != "bops":
            raise OptionError(f'budget={text!r}: shares are of bit operations, such as "50%bops"')
        if amount > _MAX_PERCENT:
            raise OptionError(f"budget={text!r}: a share must be at most {_MAX_PERCENT}%")
        return Budget(text, BudgetKind.BIT_OPERATIONS, amount / 100)
    if unit == "db":
        if amount > _MAX_DECIBELS:
            raise OptionError(f"budget={text!r}: an SQNR must be at most {_MAX_DECIBELS}dB")
        return Budget(text, BudgetKind.NOISE, sqnr_to_noise(amount))
    if unit in _SIZES:
        return Budget(text, BudgetKind.BYTES, amount * _SIZES[unit])
    raise OptionError(f"budget={text!r}: {_REMEDY}")
