# SPDX-License-Identifier: Apache-2.0
"""What quantization did to the outputs of a model."""

from dataclasses import dataclass, field

import numpy as np

from anybit.inputs import Array

LEAST_SQNR, LEAST_AGREEMENT = 10.0, 0.9
"""Below these a model is not what it was."""


@dataclass(frozen=True)
class Verdict:
    """Two models on the same samples.

    Attributes:
        sqnr: Signal over noise of the worst output, in dB; infinite where nothing differs.
        agreement: The share of rows whose largest element stands in the same place; None for
            outputs in which that means nothing.
        samples: How many there were.
        seen: Whether the quantizers were chosen by the same samples, for want of others.
    """

    sqnr: float
    agreement: float | None
    samples: int
    seen: bool

    @property
    def passed(self) -> bool:
        """Whether the model is fit for use."""
        agrees = self.agreement is None or self.agreement >= LEAST_AGREEMENT
        return self.sqnr >= LEAST_SQNR and agrees


@dataclass
class _Output:
    signal: float = 0.0
    noise: float = 0.0
    agreeing: int = 0
    rows: int = 0

    def add(self, a: Array, b: Array) -> None:
        x, y = a.astype(np.float64), b.astype(np.float64)
        self.signal += float(np.square(x).sum())
        self.noise += float(np.square(x - y).sum())
        if a.ndim and a.shape[-1] > 1:
            same = x.argmax(axis=-1) == y.argmax(axis=-1)
            self.agreeing += int(np.count_nonzero(same))
            self.rows += same.size

    @property
    def sqnr(self) -> float:
        if not self.noise:
            return np.inf
        if not np.isfinite(self.noise) or not self.signal:
            return -np.inf
        return 10 * float(np.log10(self.signal / self.noise))


@dataclass
class Judge:
    """Adds up what two models give."""

    _outputs: dict[str, _Output] = field(default_factory=dict)
    _samples: int = 0

    def add(self, floats: dict[str, Array], quantized: dict[str, Array]) -> None:
        """Compare the outputs for a sample, by name."""
        self._samples += 1
        for name, a in floats.items():
            if a.dtype.kind == "f":
                self._outputs.setdefault(name, _Output()).add(a, quantized[name])

    def verdict(self, *, seen: bool) -> Verdict:
        """The verdict on all that was added."""
        outputs = self._outputs.values()
        rows = sum(each.rows for each in outputs)
        agreement = sum(each.agreeing for each in outputs) / rows if rows else None
        return Verdict(
            min((each.sqnr for each in outputs), default=np.inf), agreement, self._samples, seen
        )
