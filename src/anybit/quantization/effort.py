# SPDX-License-Identifier: Apache-2.0
"""How much is tried: the one dial between seconds and few errors."""

from dataclasses import dataclass

from anybit.errors import ModelError
from anybit.words.meant import unknown


@dataclass(frozen=True)
class Effort:
    """How much is tried.

    Attributes:
        word: What it is called.
        kept: So many times as many samples are kept to choose by; 0 for none: then ranges are whole
            ones, weights are rounded to nearest, and the model is run once for each sample.
        learned: Whether weights of few bits are learned in PyTorch.
    """

    word: str
    kept: int
    learned: bool = False


_EFFORTS = (Effort("fast", 0), Effort("default", 1), Effort("best", 4, learned=True))


def effort(word: str) -> Effort:
    """What a word stands for.

    Raises:
        ModelError: There is no such word.
    """
    known = {each.word: each for each in _EFFORTS}
    if word not in known:
        raise ModelError(unknown("effort", str(word), list(known)))
    return known[word]
