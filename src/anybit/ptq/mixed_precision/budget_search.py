# SPDX-License-Identifier: Apache-2.0
"""A mix of widths within a budget: chosen by what was measured, tried, and corrected.

Noise powers of layers add, nearly: networks with many Softmax are worse than the sum. So the mix is
run, all predictions are multiplied by the factor that this shows, and another one is chosen, three
times at most, or eight where none is quiet enough before; then cheaper ones near it are tried.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from anybit.data.dataset import Dataset
from anybit.data.readers import Sample
from anybit.data.splits import is_held_out, is_selected
from anybit.errors import ModelError
from anybit.metrics.confidence import MIN_SAMPLES
from anybit.metrics.sqnr import noise_to_sqnr, sqnr_to_noise
from anybit.ptq.algorithms.layer_params import LayerParams
from anybit.ptq.budget import Budget
from anybit.ptq.config import SensitivityConfig
from anybit.ptq.context import Progress
from anybit.ptq.graph.precision import FLOAT_TYPES
from anybit.ptq.graph.targets import ActivationTensor, TargetNode
from anybit.ptq.mixed_precision.bit_operations import least_width
from anybit.ptq.mixed_precision.budget_kinds import SearchState, Size, best_within
from anybit.ptq.mixed_precision.cost_model import Costs
from anybit.ptq.mixed_precision.mix_evaluator import MixEvaluator
from anybit.ptq.mixed_precision.noise_model import (
    BASE,
    NARROW,
    NoiseTable,
    changed,
    measured,
    varied,
)
from anybit.ptq.mixed_precision.pareto import Assignment, front
from anybit.ptq.mixed_precision.sensitivity import ProbeSpec
from anybit.ptq.plan import QuantPlan
from anybit.ptq.result import ParetoPoint
from anybit.ptq.search.candidates import CandidateBuilder, MeasuredCandidate
from anybit.quant_types.spec import QuantSpec
from anybit.text import counted

# Shares of the time: choices at the base widths, sensitivity; the rest are rounds.
_CHOSEN, _MEASURED, _TRIED = 0.3, 0.3, 0.6


@dataclass(frozen=True)
class SearchResult:
    """A quantized model, and the mixed precisions it was chosen from.

    Attributes:
        candidate: The quantized model.
        noises: The noise that each layer adds to the outputs; None if it was not measured.
        front: The best mixed precisions, and those of one width, by size and operations.
        remarks: Remarks on the budget.
    """

    candidate: MeasuredCandidate
    noises: NoiseTable | None = None
    front: tuple[ParetoPoint, ...] = ()
    remarks: tuple[str, ...] = ()


def search_mixed_precision(
    budget: Budget,
    wanted: QuantPlan,
    attempts: CandidateBuilder,
    macs: Mapping[TargetNode, int],
    size: Size,
) -> SearchResult:
    """The best mix of widths for a plan within a budget.

    Args:
        budget: What it may take, or what has to come out of it.
        wanted: The plan. Integers that were not asked for by name get other widths.
        attempts: What quantizes the model.
        macs: Multiplications of each layer.
        size: The bytes of all constants, by a plan.

    Raises:
        ModelError: There is none; the message says what was reached.
    """
    weights, _ = varied(wanted)
    samples, progress = attempts.ctx.dataset, attempts.ctx.progress
    if not any(each.dtype in FLOAT_TYPES for each in attempts.ctx.model.graph.outputs):
        raise ModelError(
            f"budget {budget.words}: mixes are told apart by what they add to outputs that are "
            "floats, and there are none; let the model give its scores, too, or say --weights"
        )
    known = _known(budget, wanted, attempts, samples, macs, size, progress)
    try_it = MixEvaluator(
        known.base, attempts, lambda share: progress(_TRIED + (1 - _TRIED) * share)
    )
    option = best_within(known, try_it)
    attempt = try_it(option)
    remarks = _replaced(weights) + _not_promised(budget, attempt)
    points = _front(known, option, try_it.factor(option))
    return SearchResult(attempt, known.noises, points, remarks)


def _known(
    budget: Budget,
    wanted: QuantPlan,
    attempts: CandidateBuilder,
    samples: Dataset,
    macs: Mapping[TargetNode, int],
    size: Size,
    progress: Progress,
) -> SearchState:
    """What is measured before any mix is tried."""
    config = attempts.ctx.config
    weights, activations = varied(wanted)
    # With activations as floats operations fall with the bytes of weights.
    by_bytes = budget.bytes is not None or (budget.noise is not None and not activations)
    costs = Costs(macs, by_bytes, narrow_first=budget.noise is not None)
    tensors = () if by_bytes else tuple(activations)
    base = changed(wanted, tuple((each, BASE) for each in (*weights, *tensors)))
    least = BASE
    if budget.bops is not None and tensors:
        least = least_width(
            budget.bops * costs.bops(wanted) / max(costs.bops(base), 1), config.budget.exact_bits
        )
    choices, narrow = _choices(base, least, attempts, lambda share: progress(_CHOSEN * share))
    noises = measured(
        attempts.ctx.executor,
        attempts.ctx.model,
        ProbeSpec(
            tuple(base.weights),
            choices,
            _probed(samples, config.sensitivity),
            attempts.ctx.name,
            config,
            narrow,
            attempts.floats.parts,
        ),
        base,
        config.sensitivity.too_much
        if budget.noise is None
        else config.budget.layer_share * budget.noise,
        lambda share: progress(_CHOSEN + _MEASURED * share),
        least,
    )
    return SearchState(budget, wanted, base, least, costs, noises, size, config.budget)


def _front(known: SearchState, option: Assignment, factor: float) -> tuple[ParetoPoint, ...]:
    """A mix that was chosen, others that are good, and those of one width, by operations."""
    told = [
        option,
        *_thinned(front(known.options), known.config.front_points),
        *known.even(BASE),
        *known.even(known.least),
    ]
    plans = [changed(known.base, each.picks) for each in told]
    mixes = [_mix(each, each is plans[0], known, factor) for each in plans]
    once = {replace(each, chosen=False): each for each in reversed(mixes) if each.sqnr > -math.inf}
    return tuple(sorted(once.values(), key=lambda each: (each.bops, each.bytes, -each.sqnr)))


def measure_layer_noise(found: MeasuredCandidate, attempts: CandidateBuilder) -> NoiseTable:
    """What each layer of a model does to its outputs at its own widths, all else being float."""
    plan = found.plan
    choices = {each: found.choices[each] for each in plan.activations}
    ctx, config = attempts.ctx, attempts.ctx.config
    probes = _probed(ctx.dataset, config.sensitivity)
    probed = ProbeSpec(
        tuple(plan.weights), choices, probes, ctx.name, config, parts=attempts.floats.parts
    )
    return measured(ctx.executor, ctx.model, probed, plan, None, lambda share: None)


def _choices(
    base: QuantPlan, least: int, attempts: CandidateBuilder, progress: Progress
) -> tuple[dict[ActivationTensor, LayerParams], dict[ActivationTensor, LayerParams]]:
    """What becomes of tensors in 8 bits, and of those that may have the fewest in so many."""
    if least > NARROW:
        found = attempts.choose(base, progress)
        return {source: found[source] for source in base.activations}, {}
    found = attempts.choose(base, lambda share: progress(share / 2))
    weights, tensors = varied(base)
    fewest = changed(base, tuple((each, least) for each in (*weights, *tensors)))
    narrow = attempts.choose(fewest, lambda share: progress((1 + share) / 2))
    return {source: found[source] for source in base.activations}, {
        source: narrow[source] for source in tensors
    }


def _probed(samples: Dataset, config: SensitivityConfig) -> list[Sample]:
    """Return batches of calibration samples, spread evenly over the data."""
    numbers = [each for each in range(len(samples)) if not is_held_out(each)]
    most = config.samples if samples.rows_are_samples else config.whole_items
    step = math.ceil(len(numbers) / most)
    wanted = frozenset(each for at, each in enumerate(numbers) if is_selected(at, step))
    found = [each for _, each in samples.select(wanted)]
    step = config.batch_samples
    starts = range(0, len(found), step)
    return [each for at in starts for each in samples.concatenate(found[at : at + step])]


def _replaced(weights: Mapping[TargetNode, QuantSpec]) -> tuple[str, ...]:
    """What is to be said of words that are not a width, of which a budget takes others."""
    count = sum(each.text.startswith("ternary") for each in weights.values())
    if not count:
        return ()
    return (
        f"The budget gives {counted(count, 'layer')} integers of other widths in place of ternary; "
        "name those that are to keep it: --layer NAME=ternary.",
    )


def _not_promised(budget: Budget, attempt: MeasuredCandidate) -> tuple[str, ...]:
    """What is to be said if other data may have more noise than was asked for."""
    if budget.noise is None:
        return ()
    bound, count = attempt.verdict.sqnr_bound, attempt.verdict.samples
    held = f"{counted(count, 'sample')} held back"
    unsure = f"{budget.words} is not promised for other data"
    if attempt.verdict.seen:
        return (f"{unsure}: the one sample that there is chose quantizers, too; give hundreds.",)
    if count < MIN_SAMPLES:
        return (f"{held}: too few to promise {budget.words} for other data; give hundreds.",)
    if bound is None:
        return (f"{unsure}: an output is 0 for nearly all of the {held}; give others, too.",)
    if sqnr_to_noise(bound) <= budget.noise:
        return ()
    return (
        f"{unsure}: by how much the {held} differ it may be {bound:.1f} dB; give more, or ask for "
        "more decibels.",
    )


def _thinned(options: Sequence[Assignment], most: int) -> list[Assignment]:
    step = math.ceil(len(options) / most)
    return list(options[::step])


def _mix(plan: QuantPlan, chosen: bool, known: SearchState, factor: float) -> ParetoPoint:
    kinds = {str(each.format) for each in plan.weights.values()}
    others = {str(each.format) for each in plan.activations.values()}
    name = "/".join([*kinds, *others]) if len(kinds) == 1 and len(others) <= 1 else ""
    sqnr = noise_to_sqnr(known.noises.total(plan) * factor)
    return ParetoPoint(name, known.size(plan), int(known.costs.bops(plan)), sqnr, chosen)
