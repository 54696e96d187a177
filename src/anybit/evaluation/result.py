# SPDX-License-Identifier: Apache-2.0
"""What was measured of models."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Evaluated:
    """One model. What compares it with the first one is None for that one itself.

    Attributes:
        name: Its path, or "model 2".
        metric: What the metric gives; None where there is none.
        sqnr, agreement: As in the verdict of `quantize`: signal over noise of the worst output in
            dB, and the share of rows whose largest element stands in the same place.
        mse: The mean squared difference of the elements of all outputs that are floats.
        seconds: The time per row, the median of all samples. Each was computed by itself.
        bytes: The size of the file, and of a `.data` beside it; None of what is not in a file.
    """

    name: str
    metric: float | None
    sqnr: float | None
    agreement: float | None
    mse: float | None
    seconds: float
    bytes: int | None


@dataclass(frozen=True)
class Evaluation:
    """The result of `evaluate`.

    Attributes:
        models: In the order in which they were given; the first is what others are compared with.
        metric: The name of the metric; None where there is none.
        samples, rows: How many there were.
    """

    models: tuple[Evaluated, ...]
    metric: str | None
    samples: int
    rows: int

    def to_json(self) -> dict[str, Any]:
        """All of it, as JSON has it."""
        return asdict(self)
