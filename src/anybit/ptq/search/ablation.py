# SPDX-License-Identifier: Apache-2.0
"""End-to-end ablation of the choices that were made layer by layer.

Each layer is tuned alone, on few samples. The best choices of single layers need not be the best
for the whole network, nor on other data. So the network runs three times: with all choices, without
weight rounding and bias correction, and without range search and scaling as well. Choices are kept
unless the SQNR on the ablation samples is higher without them, by more than its standard error.

The ablation samples are not the held-out samples. First come samples set apart from every search,
then calibration samples up to a fixed number.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from anybit.data.readers import Sample
from anybit.metrics.confidence import NoiseSpread
from anybit.metrics.quality import QualityAccumulator, QualityMetrics, compare_outputs
from anybit.onnx.graph.constants import Array
from anybit.ptq.algorithms.layer_params import LayerParams
from anybit.ptq.calibration.collect import split_calibration_samples
from anybit.ptq.calibration.taps import TapSpec
from anybit.ptq.context import Context
from anybit.ptq.graph.targets import ActivationTensor
from anybit.ptq.search.evaluate import ModelOutputs
from anybit.text import format_count

Choices = Mapping[ActivationTensor, LayerParams]

_ABLATIONS = (
    ("Weight rounding and bias correction", "weights rounded to nearest"),
    (
        "Range search, scaling, weight rounding and bias correction",
        "whole ranges and weights rounded to nearest",
    ),
)


@dataclass(frozen=True)
class Variant:
    """The choices with some of them dropped.

    Attributes:
        choices: The remaining choices.
        dropped: A description of the dropped choices; "" if there are none.
        replacement: A description of the choices in their place.
    """

    choices: Choices
    dropped: str = ""
    replacement: str = ""


@dataclass(frozen=True)
class VariantQuality:
    """The quality of a variant on the ablation samples.

    Attributes:
        metrics: Its figures.
        spread: The noise of its worst output per sample; None without float outputs.
    """

    metrics: QualityMetrics
    spread: NoiseSpread | None = None


class AblationSet:
    """Samples on which variants of a quantized model are compared with the float model.

    Args:
        ctx: The float model and the data.
        floats: The outputs of the float model.
    """

    def __init__(self, ctx: Context, floats: ModelOutputs) -> None:
        self._executor, self._parts = ctx.executor, floats.parts
        config = ctx.config.ablation
        searched, apart = split_calibration_samples(ctx.dataset, ctx.config.calibration)
        numbers = [*apart, *searched[::-1]][: config.samples]
        numbers = ctx.dataset.limit_memory(numbers, config.input_bytes)
        batches = [
            batch
            for group in (numbers[: len(apart)], numbers[len(apart) :])
            if group
            for batch in ctx.dataset.read_batches(group, config.batch_bytes)
        ]
        self._floats, size = [], 0
        for outputs in self._iterate_outputs(floats.recording, batches):
            self._floats.append(outputs)
            size += sum(array.nbytes for array in outputs.values())
            if size > config.output_bytes:
                break
        self._batches = batches[: len(self._floats)]
        self._counts = [*map(ctx.dataset.count_samples, self._batches)]

    def evaluate(self, quantized: TapSpec) -> VariantQuality:
        """Return the quality of a quantized model on these samples."""
        judge = QualityAccumulator()
        outputs = self._iterate_outputs(quantized, self._batches)
        for count, expected, actual in zip(self._counts, self._floats, outputs, strict=True):
            for one, other in _split_samples(expected, actual, count):
                judge.add(compare_outputs(one, other, self._parts))
        metrics = replace(judge.compute(seen=True), samples=sum(self._counts))
        return VariantQuality(metrics, judge.worst_spread)

    def _iterate_outputs(
        self, recording: TapSpec, batches: Sequence[Sample]
    ) -> Iterator[dict[str, Array]]:
        return self._executor.map(make_runner, recording, batches)


def _split_samples(
    expected: Mapping[str, Array], actual: Mapping[str, Array], count: int
) -> Iterator[tuple[dict[str, Array], dict[str, Array]]]:
    """Yield the outputs of each sample; those of the batch if they are not rows of samples."""
    arrays = [*expected.values(), *actual.values()]
    if not all(array.ndim and array.shape[0] == count for array in arrays):
        yield dict(expected), dict(actual)
        return
    for row in range(count):
        part = slice(row, row + 1)
        yield (
            {name: array[part] for name, array in expected.items()},
            {name: array[part] for name, array in actual.items()},
        )


def make_runner(recording: TapSpec) -> Callable[[Sample], dict[str, Array]]:
    """Return a function that runs a model on a sample."""
    return recording.open().run


@dataclass(frozen=True)
class Ablation:
    """The result of an ablation.

    Attributes:
        best: The index of the best variant.
        verdict: Its quality on the ablation samples; None if there is one variant.
        remarks: The remark on dropped choices.
    """

    best: int = 0
    verdict: QualityMetrics | None = None
    remarks: tuple[str, ...] = ()


def ablate(
    samples: AblationSet, variants: Sequence[Variant], outputs: Sequence[TapSpec]
) -> Ablation:
    """Select the best variant.

    Args:
        samples: The samples.
        variants: All choices, then the choices with some of them dropped.
        outputs: The outputs of the models with these choices.
    """
    qualities = [samples.evaluate(recording) for recording in outputs]
    best = select_best_variant(qualities)
    verdict, complete = qualities[best].metrics, qualities[0].metrics
    remarks = (describe_ablation(variants[best], verdict, complete),) if best else ()
    return Ablation(best, verdict, remarks)


def make_variants(choices: Choices) -> list[Variant]:
    """Return all choices, then those without more and more of them."""
    most = max((len(choice.fallbacks) for choice in choices.values()), default=0)
    return [
        Variant(choices),
        *(
            Variant(
                {source: _drop_choices(choice, level) for source, choice in choices.items()}, *names
            )
            for level, names in enumerate(_ABLATIONS[:most])
        ),
    ]


def _drop_choices(choice: LayerParams, level: int) -> LayerParams:
    fallbacks = choice.fallbacks[: level + 1]
    return replace(fallbacks[-1], tried=choice.tried) if fallbacks else choice


def select_best_variant(qualities: Sequence[VariantQuality]) -> int:
    """Return the index of the variant to keep; 0 if none has a score.

    A variant replaces one with more choices only if it is better by more than the standard error.
    """
    best = 0
    for index, quality in enumerate(qualities):
        if _is_better(quality, qualities[best]):
            best = index
    return best


def _is_better(one: VariantQuality, other: VariantQuality) -> bool:
    if not _compute_score(one.metrics) > _compute_score(other.metrics):
        return False
    if one.spread is None or other.spread is None:
        return True
    return other.spread.is_noisier_than(one.spread)


def describe_ablation(variant: Variant, verdict: QualityMetrics, complete: QualityMetrics) -> str:
    """Return the remark on a variant that is kept instead of all choices."""
    return (
        f"{variant.dropped} were dropped: on {format_count(verdict.samples, 'sample')} "
        f"{variant.replacement} give {_format_score(verdict)}, "
        f"and all choices {_format_score(complete)}."
    )


def _compute_score(verdict: QualityMetrics) -> float:
    """Return the SQNR in dB, the agreement in percent if no output is a float, or -inf."""
    if verdict.sqnr is not None:
        return verdict.sqnr
    return -math.inf if verdict.agreement is None else 100 * verdict.agreement


def _format_score(verdict: QualityMetrics) -> str:
    score = _compute_score(verdict)
    if math.isinf(score):
        return "nothing finite" if score < 0 else "the same outputs"
    return f"{score:.1f} dB" if verdict.sqnr is not None else f"{score:.1f} % agreement"
