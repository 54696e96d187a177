# SPDX-License-Identifier: Apache-2.0
"""What was measured of models."""

from dataclasses import asdict, dataclass
from typing import Any

from anybit.quantization.output_quality import OutputQuality


@dataclass(frozen=True)
class Evaluated:
    """One model. What compares it with the first one is None for that one itself.

    Attributes:
        name: Its path, or "model 2".
        metric: What the metric gives; None where there is none.
        sqnr, correlation, agreement: As in the verdict of `quantize`: those of the output or part
            where they are worst. The agreement is that of distributions over classes and integers;
            where there are none, that of the logits of a classifier.
        outputs: The figures of each output or part.
        mse: The mean squared difference of the elements of all outputs that are floats.
        seconds: The time per row: the least of several runs of the first sample on this machine,
            with one thread per core that the process may use. Files without operators of this
            package run with the default options of ONNX Runtime, others as `anybit.load` does.
        bytes: The size of the file, and of a `.data` beside it; None of what is not in a file.
    """

    name: str
    metric: float | None
    sqnr: float | None
    agreement: float | None
    mse: float | None
    seconds: float
    bytes: int | None
    correlation: float | None = None
    outputs: tuple[OutputQuality, ...] = ()


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
