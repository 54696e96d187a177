# SPDX-License-Identifier: Apache-2.0
"""Effort presets: how much of the search runs."""

from dataclasses import dataclass

from anybit.errors import ModelError
from anybit.words.meant import unknown


@dataclass(frozen=True)
class Effort:
    """An effort preset.

    Attributes:
        word: Its name.
        searches: Whether ranges, scaling and weight rounding are searched on samples. If not,
            tensors get their whole range, weights are rounded to nearest, and the model runs once
            per sample.
    """

    word: str
    searches: bool


_EFFORTS = (Effort("fast", searches=False), Effort("default", searches=True))


def effort(word: str) -> Effort:
    """Return the preset of that name.

    Raises:
        ModelError: There is no such preset.
    """
    presets = {preset.word: preset for preset in _EFFORTS}
    if word not in presets:
        raise ModelError(unknown("effort", str(word), list(presets)))
    return presets[word]
