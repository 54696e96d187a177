# SPDX-License-Identifier: Apache-2.0
"""Quality metrics of a quantized model against its float model."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from anybit.metrics.confidence import NoiseSpread
from anybit.metrics.output_parts import OutputPart
from anybit.metrics.output_quality import OutputQuality, OutputSums
from anybit.metrics.thresholds import DEFAULT_THRESHOLDS, QualityThresholds
from anybit.onnx.graph.constants import Array
from anybit.text import escape_name

_MAX_WORST_SAMPLES = 10


@dataclass(frozen=True)
class WorstSample:
    """A sample with a low SQNR.

    Attributes:
        number: The index of the sample in the dataset.
        sqnr: The SQNR of its worst output in dB.
        agrees: Whether all arg max values and integers are equal; None without any.
    """

    number: int
    sqnr: float
    agrees: bool | None


@dataclass(frozen=True)
class QualityMetrics:
    """Quality of a quantized model against the float model on the same samples.

    The parts of a concatenated output are evaluated separately.

    Attributes:
        sqnr: The SQNR of the worst output in dB; infinite without noise, None without float
            outputs.
        agreement: The least agreement of any output. For distributions over classes it is the share
            of rows with the same arg max, for integers and booleans the share of equal elements.
            None without such outputs. Distributions are outputs of Softmax, LogSoftmax and
            Hardmax, inputs of these, ArgMax and TopK, and outputs whose rows are non-negative and
            sum to 1.
        samples: The number of samples.
        seen: Whether these are the calibration samples, because there are no others.
        worst: The samples with the least SQNR, in increasing order.
        sqnr_bound: An estimated lower bound of the SQNR of the worst output on unseen data of the
            same distribution, in dB; 300 without noise. The intended coverage is 95 %, and less
            for heavy tails: with a hundredfold noise in one of twenty samples the measured coverage
            is 59 % for 24 samples, 75 % for 50 and 90 % for 200. None for fewer than 24 samples,
            without float outputs, and if an output with noise is 0 for nearly all samples, or not
            finite.
        correlation: The least Pearson's r of any float output; None if it is undefined for all.
        logits_agreement: The share of rows with the same arg max, for outputs [rows, classes] of a
            Gemm or MatMul. It is checked only against a threshold that the user names.
        outputs: The figures of each output or part.
        thresholds: The thresholds of `passed`.
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
        """True if a figure is checked, and none is below its threshold."""
        return not self.failures

    @property
    def failures(self) -> tuple[str, ...]:
        """The figures that are below their thresholds, as text."""
        limits = self.thresholds
        if limits.sqnr is None and limits.agreement is None:
            return ()
        sqnr = None if limits.sqnr is None else self.sqnr
        kinds = ("distribution", "exact", *(["logits"] if limits.named else []))
        shares = [self.agreement, self.logits_agreement if limits.named else None]
        checked = [share for share in shares if share is not None and limits.agreement is not None]
        if sqnr is None and not checked:
            return ("no output has a figure to check",)
        failures = []
        if sqnr is not None and limits.sqnr is not None and not sqnr >= limits.sqnr:
            of = self._name_worst(lambda output: output.sqnr, ("float", *kinds, "logits"))
            figure = _format_below(sqnr, limits.sqnr, 1)
            failures.append(f"SQNR {figure} dB{of} is below {limits.sqnr:g} dB")
        if checked and limits.agreement is not None and min(checked) < limits.agreement:
            of = self._name_worst(lambda output: output.agreement, kinds)
            least = 100 * limits.agreement
            figure = _format_below(100 * min(checked), least, 1)
            metric = "agreement" if min(checked) == self.agreement else "same arg max"
            failures.append(f"{metric} {figure} %{of} is below {least:g} %")
        return tuple(failures)

    def _name_worst(
        self, figure: Callable[[OutputQuality], float | None], kinds: Collection[str]
    ) -> str:
        """Return " of OUTPUT" for the output with the least figure; "" for a single output."""
        figures = [
            (value, output.name)
            for output in self.outputs
            if output.kind in kinds and (value := figure(output)) is not None
        ]
        return f" of {escape_name(min(figures)[1])}" if figures and len(self.outputs) > 1 else ""


def _format_below(value: float, limit: float, digits: int) -> str:
    """Format a figure with enough digits to show that it is below a limit."""
    if not math.isfinite(value):
        return f"{value}"
    while float(f"{value:.{digits}f}") >= limit and digits < 17:
        digits += 1
    return f"{value:.{digits}f}"


@dataclass(frozen=True)
class SampleComparison:
    """The outputs of two models on one sample.

    Attributes:
        outputs: The sums of each output or part, by name.
        sqnr: The SQNR of the worst output in dB; None without float outputs.
        agrees: Whether all arg max values and integers are equal; None without any.
    """

    outputs: Mapping[str, OutputSums]
    sqnr: float | None
    agrees: bool | None


def compare_outputs(
    floats: Mapping[str, Array],
    quantized: Mapping[str, Array],
    parts: Mapping[str, Sequence[OutputPart]] | None = None,
) -> SampleComparison:
    """Compare the outputs of two models on one sample.

    An output whose shapes differ counts as noise.

    Args:
        floats: The outputs of the float model by name.
        quantized: The outputs of the quantized model.
        parts: The parts of outputs by name. They are ignored if one does not fit its array.
    """
    outputs: dict[str, OutputSums] = {}
    sqnrs: list[float] = []
    agreements: list[bool] = []
    for name, a in floats.items():
        b = quantized[name]
        same_shape = a.shape == b.shape
        declared = (parts or {}).get(name, ())
        fits = bool(declared) and all(part.fits(a) for part in declared)
        for part in declared if fits else (OutputPart(name),):
            sums = OutputSums.compare(part.crop(a), part.crop(b) if same_shape else None, part)
            outputs[part.name] = sums
            if sums.is_float or not same_shape:
                sqnrs.append(sums.sqnr if same_shape else -math.inf)
            if sums.has_classes:
                agreements.append(sums.agreeing == sums.rows)
    return SampleComparison(
        outputs, min(sqnrs, default=None), all(agreements) if agreements else None
    )


@dataclass
class QualityAccumulator:
    """Sums of the comparisons of samples; floating-point results depend on their order."""

    _outputs: dict[str, OutputSums] = field(default_factory=dict)
    _samples: int = 0
    _worst: list[WorstSample] = field(default_factory=list)

    def add(self, sample: SampleComparison, number: int | None = None) -> None:
        """Add a sample with an index; by default the number of samples added so far."""
        for name, sums in sample.outputs.items():
            self._outputs.setdefault(name, OutputSums(sums.is_float, sums.kind)).merge(sums)
        if sample.sqnr is not None:
            number = self._samples if number is None else number
            added = WorstSample(number, sample.sqnr, sample.agrees)
            worst = sorted([*self._worst, added], key=lambda worst_sample: worst_sample.sqnr)
            self._worst = worst[:_MAX_WORST_SAMPLES]
        self._samples += 1

    def compute(self, *, seen: bool) -> QualityMetrics:
        """Return the metrics over all samples.

        Args:
            seen: Whether these are calibration samples.
        """
        outputs = tuple(sums.compute_quality(name) for name, sums in self._outputs.items())
        agreements = [out.agreement for out in outputs if out.kind in ("distribution", "exact")]
        logits_agreements = [out.agreement for out in outputs if out.kind == "logits"]
        return QualityMetrics(
            sqnr=_select_least(output.sqnr for output in outputs),
            agreement=_select_least(agreements),
            samples=self._samples,
            seen=seen,
            worst=tuple(self._worst),
            sqnr_bound=self.sqnr_bound,
            correlation=_select_least(output.correlation for output in outputs),
            logits_agreement=_select_least(logits_agreements),
            outputs=outputs,
        )

    @property
    def sqnr_bound(self) -> float | None:
        """An estimated lower bound of the SQNR of the worst output on unseen data, in dB."""
        all_bounds = [sums.sqnr_bound for sums in self._outputs.values() if sums.is_float]
        bounds = [bound for bound in all_bounds if bound is not None]
        return min(bounds) if bounds and len(bounds) == len(all_bounds) else None

    @property
    def worst_spread(self) -> NoiseSpread | None:
        """Noise and signal per sample of the output with the least SQNR; None without floats."""
        floats = [sums for sums in self._outputs.values() if sums.is_float]
        return min(floats, key=lambda sums: sums.sqnr).spread if floats else None

    @property
    def mse(self) -> float | None:
        """The mean squared difference of all floats; None without floats."""
        noise = sum(sums.noise for sums in self._outputs.values())
        elements = sum(sums.elements for sums in self._outputs.values())
        return noise / elements if elements else None


def _select_least(figures: Iterable[float | None]) -> float | None:
    return min((figure for figure in figures if figure is not None), default=None)
