# SPDX-License-Identifier: Apache-2.0
"""Quality thresholds of the metrics: `10dB`, `95%`, `10dB,95%`, `none`."""

import math
import re
from dataclasses import dataclass

from anybit.errors import OptionError

_REMEDY = 'give an SQNR ("10dB"), an agreement ("95%"), both ("10dB,95%") or "none"'
_NUMBER = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)) *(db|%)")
_MAX_DECIBELS = 300.0


@dataclass(frozen=True)
class QualityThresholds:
    """The figures below which a model fails the quality check.

    Attributes:
        sqnr: The least SQNR in dB; None for no check.
        agreement: The least agreement, 0 to 1; None for no check.
        named: Whether the user named them. Only then the agreement of logits is checked, too.
    """

    sqnr: float | None = 10.0
    agreement: float | None = 0.9
    named: bool = False


DEFAULT_THRESHOLDS = QualityThresholds()


def parse_thresholds(words: str | None, *, has_data: bool = True) -> QualityThresholds:
    """Parse quality thresholds; a figure without one is not checked.

    Args:
        words: The text; None for the defaults.
        has_data: Whether there are data to evaluate the model on.

    Raises:
        OptionError: The words are not thresholds, or there are no data to check them on.

    >>> parse_thresholds("12 dB, 95%").sqnr, parse_thresholds("none").agreement
    (12.0, None)
    """
    if words is None:
        return DEFAULT_THRESHOLDS
    if not isinstance(words, str):
        raise OptionError(f"fail_below={words!r} is not a text; {_REMEDY}")
    if words.strip().lower() in ("none", "0"):
        return QualityThresholds(None, None, named=True)
    if not has_data:
        raise OptionError(f"fail_below={words!r}: the check needs data: add data='FILE.npz'")
    numbers: dict[str, float] = {}
    for item in words.split(","):
        match = _NUMBER.fullmatch(item.strip().lower())
        if match is None:
            raise OptionError(f"fail_below={words!r}: {_REMEDY}")
        number, unit = float(match[1]), match[2]
        if unit in numbers:
            raise OptionError(f"fail_below={words!r}: {unit.replace('b', 'B')} is given twice")
        if unit == "%" and not 0 <= number <= 100:
            raise OptionError(f"fail_below={words!r}: an agreement lies between 0 % and 100 %")
        if unit == "db" and not (math.isfinite(number) and abs(number) <= _MAX_DECIBELS):
            raise OptionError(f"fail_below={words!r}: an SQNR lies between -300 dB and 300 dB")
        numbers[unit] = number
    share = numbers.get("%")
    return QualityThresholds(numbers.get("db"), None if share is None else share / 100, named=True)
