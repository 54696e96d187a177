# SPDX-License-Identifier: Apache-2.0
"""Budgets of mixed precision: `4MB`, `30dB`, `50%bops`."""

import math
import re
from dataclasses import dataclass

from anybit.errors import OptionError
from anybit.metrics.sqnr import sqnr_to_noise

_SIZES = {
    "b": 1,
    "byte": 1,
    "bytes": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmg", 1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmg", 1)},
}
_KNOWN = 'say a size ("4MB", "500KiB"), a quality ("30dB") or a share of the work ("50%bops")'


@dataclass(frozen=True)
class Budget:
    """A limit for mixed precision.

    Attributes:
        words: The text it was parsed from.
        bytes: The largest size of the constants.
        noise: The largest ratio of noise power to signal power of the worst output.
        bops: The most bit operations, as a share of those at the requested widths of weights and
            activations.
    """

    words: str
    bytes: float | None = None
    noise: float | None = None
    bops: float | None = None


def parse_budget(words: str) -> Budget:
    """Parse a budget.

    Raises:
        OptionError: The words are not a budget.

    >>> budget("4 MB").bytes, budget("30dB").noise, budget("50%bops").bops
    (4000000.0, 0.001, 0.5)
    """
    number = re.fullmatch(r"\s*([0-9]{1,15}(?:\.[0-9]{0,15})?)\s*(%?)\s*([a-zA-Z]*)\s*", words)
    if number is None:
        raise OptionError(f"budget {words!r}: {_KNOWN}")
    amount, unit = float(number[1]), number[3].lower()
    if not amount or not math.isfinite(amount):
        raise OptionError(f"budget {words!r}: nothing is left for the model; {_KNOWN}")
    if number[2]:
        if unit != "bops" or amount > 1000:
            raise OptionError(f'budget {words!r}: shares are of the work, such as "50%bops"')
        return Budget(words, bops=amount / 100)
    if unit == "db" and amount <= 150:
        return Budget(words, noise=sqnr_to_noise(amount))
    if unit in _SIZES:
        return Budget(words, bytes=amount * _SIZES[unit])
    raise OptionError(f"budget {words!r}: {_KNOWN}")
