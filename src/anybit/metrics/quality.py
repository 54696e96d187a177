# SPDX-License-Identifier: Apache-2.0
"""What quantization did to the outputs of a model."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from anybit.inputs import Array
from anybit.metrics.output_parts import OutputPart
from anybit.metrics.output_quality import OutputQuality, OutputSums
from anybit.metrics.thresholds import DEFAULT_THRESHOLDS, QualityThresholds
from anybit.text import shown

_MOST_EXAMPLES = 10


@dataclass(frozen=True)
class WorstSample:
    """A sample for which two models differ.

    Attributes:
        number: Its number among all samples.
        sqnr: Signal over noise of its worst output, in dB.
        agrees: Whether its largest elements stand in the same places; None where none do.
    """

    number: int
    sqnr: float
    agrees: bool | None


@dataclass(frozen=True)
class QualityMetrics:
    """Quality figures of a quantized model, against the float model on the same samples.

    An output that Concat puts together is judged part by part.

    Attributes:
        sqnr: Signal over noise of the worst output, in dB; infinite where nothing differs, None
            where no output is a float.
        agreement: For distributions over classes the share of rows with the same arg max, for
            integers and booleans the share of equal elements; of several outputs the least. None
            where there is nothing of these. A distribution is what Softmax, LogSoftmax or Hardmax
            gives, what one of these, ArgMax or TopK reads, and rows of the data that are not
            negative and sum to 1.
        samples: How many there were.
        seen: Whether the quantizers were chosen by the same samples, for want of others.
        worst: A few samples, those with the least SQNR first.
        sqnr_bound: An estimated lower bound of the SQNR of the worst output on other data of that
            kind, by how much these samples differ, in dB; 300 where nothing differs. It is to hold
            in 95 % of cases, and holds in fewer where tails are heavy: with one of twenty samples a
            hundred times as loud, it was measured to hold in 59 % for 24 samples, 75 % for 50 and
            90 % for 200. None where there are fewer than 24, where nothing is a float, and where
            an output that differs is 0 for nearly all of them, or not finite.
        correlation: Pearson's r of the float output, or part, where it is least; None where it is
            not defined for any.
        logits_agreement: The share of rows with the same arg max of what a Gemm or MatMul gives as
            [rows, classes]: information, unless the user names a percentage to fail below.
        outputs: The figures of each output or part.
        thresholds: What the figures have to reach.
    """

    sqnr: float | None
    agreement: float | None
    samples: int
    seen: bool
    worst: tuple[WorstSample, ...] = ()
    sqnr_bound: float | None = None
    correlation: float | None = None
    logits_agreement: float | None = None
    outputs: tuple[OutputQuality, ...] = ()
    thresholds: QualityThresholds = DEFAULT_THRESHOLDS

    @property
    def passed(self) -> bool:
        """Return whether no figure is below its threshold, and there is one to check."""
        return not self.failures

    @property
    def failures(self) -> tuple[str, ...]:
        """Return each figure that is below its threshold, in words."""
        limits = self.thresholds
        if limits.sqnr is None and limits.agreement is None:
            return ()
        sqnr = None if limits.sqnr is None else self.sqnr
        kinds = ("distribution", "exact", *(["logits"] if limits.named else []))
        shares = [self.agreement, self.logits_agreement if limits.named else None]
        known = [each for each in shares if each is not None and limits.agreement is not None]
        if sqnr is None and not known:
            return ("no output has a figure to check",)
        found = []
        if sqnr is not None and limits.sqnr is not None and not sqnr >= limits.sqnr:
            of = self._where(lambda each: each.sqnr, ("float", *kinds, "logits"))
            found.append(f"SQNR {_below(sqnr, limits.sqnr, 1)} dB{of} is below {limits.sqnr:g} dB")
        if known and limits.agreement is not None and min(known) < limits.agreement:
            of = self._where(lambda each: each.agreement, kinds)
            least = 100 * limits.agreement
            share = _below(100 * min(known), least, 1)
            what = "agreement" if min(known) == self.agreement else "same arg max"
            found.append(f"{what} {share} %{of} is below {least:g} %")
        return tuple(found)

    def _where(
        self, figure: Callable[[OutputQuality], float | None], kinds: Collection[str]
    ) -> str:
        """Name the output that is worst by a figure, if there are several."""
        known = [
            (value, each.name)
            for each in self.outputs
            if each.kind in kinds and (value := figure(each)) is not None
        ]
        return f" of {shown(min(known)[1])}" if known and len(self.outputs) > 1 else ""


def _below(value: float, limit: float, digits: int) -> str:
    """Return a figure with as many digits as show that it is below a limit."""
    if not math.isfinite(value):
        return f"{value}"
    while float(f"{value:.{digits}f}") >= limit and digits < 17:
        digits += 1
    return f"{value:.{digits}f}"


@dataclass(frozen=True)
class SampleComparison:
    """Two models compared on one sample.

    Attributes:
        outputs: The sums of each output or part, by its name.
        sqnr: Signal over noise of the worst, in dB.
        agrees: Whether all largest elements stand in the same places; None where none do.
    """

    outputs: Mapping[str, OutputSums]
    sqnr: float | None
    agrees: bool | None


def compare_outputs(
    floats: Mapping[str, Array],
    quantized: Mapping[str, Array],
    parts: Mapping[str, Sequence[OutputPart]] | None = None,
) -> SampleComparison:
    """Compare the outputs for a sample, by name. Other shapes are nothing but noise.

    Args:
        floats, quantized: The outputs.
        parts: The parts of outputs, by name; those that do not fit the array are not looked at.
    """
    outputs, own, agrees = {}, [], []
    for name, a in floats.items():
        b = quantized[name]
        same = a.shape == b.shape
        known = (parts or {}).get(name, ())
        for part in known if known and all(each.fits(a) for each in known) else (OutputPart(name),):
            found = OutputSums.of(part.of(a), part.of(b) if same else None, part)
            outputs[part.name] = found
            if found.is_float or not same:
                own.append(found.sqnr if same else -math.inf)
            if found.has_classes:
                agrees.append(found.agreeing == found.rows)
    return SampleComparison(outputs, min(own, default=None), all(agrees) if agrees else None)


@dataclass
class QualityAccumulator:
    """Adds up what two models give, sample by sample: sums depend on the order."""

    _outputs: dict[str, OutputSums] = field(default_factory=dict)
    _samples: int = 0
    _worst: list[WorstSample] = field(default_factory=list)

    def add(self, sample: SampleComparison, number: int | None = None) -> None:
        """Add a sample. It has the number that is given, or that of those before it."""
        for name, sums in sample.outputs.items():
            self._outputs.setdefault(name, OutputSums(sums.is_float, sums.kind)).merge(sums)
        if sample.sqnr is not None:
            number = self._samples if number is None else number
            found = WorstSample(number, sample.sqnr, sample.agrees)
            self._worst = sorted([*self._worst, found], key=lambda each: each.sqnr)[:_MOST_EXAMPLES]
        self._samples += 1

    def compute(self, *, seen: bool) -> QualityMetrics:
        """The verdict on all that was added."""
        found = tuple(each.quality(name) for name, each in self._outputs.items())
        sure = [each.agreement for each in found if each.kind in ("distribution", "exact")]
        logits = [each.agreement for each in found if each.kind == "logits"]
        return QualityMetrics(
            sqnr=_least(each.sqnr for each in found),
            agreement=_least(sure),
            samples=self._samples,
            seen=seen,
            worst=tuple(self._worst),
            sqnr_bound=self.sqnr_bound,
            correlation=_least(each.correlation for each in found),
            logits_agreement=_least(logits),
            outputs=found,
        )

    @property
    def sqnr_bound(self) -> float | None:
        """An estimated lower bound of the SQNR of the worst output on other data, in dB."""
        floats = [each.sqnr_bound for each in self._outputs.values() if each.is_float]
        known = [each for each in floats if each is not None]
        return min(known) if known and len(known) == len(floats) else None

    @property
    def mse(self) -> float | None:
        """The mean squared difference of all floats; None where there are none."""
        noise = sum(each.noise for each in self._outputs.values())
        elements = sum(each.elements for each in self._outputs.values())
        return noise / elements if elements else None


def _least(figures: Iterable[float | None]) -> float | None:
    return min((each for each in figures if each is not None), default=None)
