# SPDX-License-Identifier: Apache-2.0
"""Mixed precision within a budget: predict, search, evaluate and report.

The sensitivity of the outputs to each weight and activation is measured, and predicts the noise of
all assignments of widths. Noise powers add up only nearly: networks with many Softmax are worse
than the sum. So assignments are evaluated, and the predictions multiplied by the measured factor.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from anybit.data.dataset import Dataset
from anybit.data.readers import Sample
from anybit.data.splits import is_held_out, is_selected
from anybit.errors import ModelError
from anybit.metrics.confidence import CONFIDENCE, MIN_SAMPLES
from anybit.metrics.quality import QualityMetrics
from anybit.metrics.sqnr import noise_to_sqnr, sqnr_to_noise
from anybit.ptq.algorithms.layer_params import LayerParams
from anybit.ptq.budget import Budget, BudgetKind
from anybit.ptq.config import SensitivityConfig
from anybit.ptq.context import Progress, ignore_progress, scale_progress
from anybit.ptq.graph.precision import FLOAT_TYPES
from anybit.ptq.graph.targets import ActivationTensor, TargetNode
from anybit.ptq.mixed_precision.assignment_search import (
    CountBytes,
    SearchState,
    choose_least_width,
    search_assignment,
)
from anybit.ptq.mixed_precision.cost_model import CostModel
from anybit.ptq.mixed_precision.mix_evaluator import MixEvaluator
from anybit.ptq.mixed_precision.noise_model import NoiseTable, measure_noise
from anybit.ptq.mixed_precision.pareto import Assignment, compute_front
from anybit.ptq.mixed_precision.sensitivity import ProbeSpec
from anybit.ptq.mixed_precision.widths import select_variable_specs, set_widths
from anybit.ptq.plan import QuantPlan
from anybit.ptq.result import ParetoPoint
from anybit.ptq.search.candidates import CandidateBuilder, MeasuredCandidate
from anybit.quant_types.spec import QuantSpec
from anybit.text import format_count

_PARAMS_SHARE, _SENSITIVITY_SHARE = 0.3, 0.3
"""Shares of the time until evaluation: parameters at the base widths, and sensitivity."""
_EVALUATION_START = _PARAMS_SHARE + _SENSITIVITY_SHARE


@dataclass(frozen=True)
class SearchResult:
    """A quantized model, and the assignments of widths that it was chosen from.

    Attributes:
        candidate: The quantized model.
        noises: The noise of each weight and activation; None if it was not measured.
        front: The best assignments and the uniform ones, by bit operations and bytes.
        remarks: Specs that the budget replaced, and the confidence in its SQNR.
    """

    candidate: MeasuredCandidate
    noises: NoiseTable | None = None
    front: tuple[ParetoPoint, ...] = ()
    remarks: tuple[str, ...] = ()


def search_mixed_precision(
    budget: Budget,
    plan: QuantPlan,
    builder: CandidateBuilder,
    macs: Mapping[TargetNode, int],
    count_bytes: CountBytes,
) -> SearchResult:
    """Search the best widths for a plan within a budget.

    Args:
        budget: The budget.
        plan: The requested plan. Integers of layers without a spec of their own may get other
            widths.
        builder: Quantizes the model.
        macs: The multiplications of each layer.
        count_bytes: Returns the size of the constants of a plan.

    Raises:
        ModelError: No assignment is within the budget; the message has the least possible value.
    """
    weights, _ = select_variable_specs(plan)
    if not any(output.dtype in FLOAT_TYPES for output in builder.ctx.model.graph.outputs):
        raise ModelError(
            f"budget {budget.text}: widths are chosen by the noise of float outputs, and there are "
            "none; let the model return its scores, too, or use --weights"
        )
    state = _measure(budget, plan, builder, macs, count_bytes)
    progress = scale_progress(builder.ctx.progress, _EVALUATION_START, 1)
    evaluator = MixEvaluator(state.base, builder, progress)
    assignment = search_assignment(state, evaluator)
    candidate = evaluator.build(assignment)
    remarks = _report_replaced_specs(weights)
    if budget.kind is BudgetKind.NOISE:
        remarks += _report_confidence(budget, candidate.verdict)
    front = _list_front(state, assignment, evaluator.compute_correction(assignment))
    return SearchResult(candidate, state.noises, front, remarks)


def measure_layer_noise(candidate: MeasuredCandidate, builder: CandidateBuilder) -> NoiseTable:
    """Measure the noise of each weight and activation of a quantized model at its own width."""
    plan, ctx = candidate.plan, builder.ctx
    spec = ProbeSpec(
        tuple(plan.weights),
        {tensor: candidate.params[tensor] for tensor in plan.activations},
        _read_samples(ctx.dataset, ctx.config.sensitivity),
        ctx.name,
        ctx.config,
        parts=builder.floats.parts,
    )
    return measure_noise(ctx.executor, ctx.model, spec, plan, None, ignore_progress)


def _measure(
    budget: Budget,
    plan: QuantPlan,
    builder: CandidateBuilder,
    macs: Mapping[TargetNode, int],
    count_bytes: CountBytes,
) -> SearchState:
    """Measure the noise of all weights and activations."""
    ctx, config = builder.ctx, builder.ctx.config
    weights, activations = select_variable_specs(plan)
    limits_noise = budget.kind is BudgetKind.NOISE
    # With float activations, bit operations are proportional to the bytes of weights.
    by_bytes = budget.kind is BudgetKind.BYTES or (limits_noise and not activations)
    costs = CostModel(macs, by_bytes, limits_noise, config.budget, config.gptq)
    tensors = () if by_bytes else tuple(activations)
    least_bits = base_bits = config.budget.base_bits
    base = set_widths(plan, tuple((target, base_bits) for target in (*weights, *tensors)))
    if budget.kind is BudgetKind.BIT_OPERATIONS and tensors:
        requested = budget.limit * costs.count_bit_operations(plan)
        share = requested / max(costs.count_bit_operations(base), 1)
        least_bits = choose_least_width(share, config.budget)
    params, narrow_params = _search_params(
        base, least_bits, builder, scale_progress(ctx.progress, 0, _PARAMS_SHARE)
    )
    spec = ProbeSpec(
        tuple(base.weights),
        params,
        _read_samples(ctx.dataset, config.sensitivity),
        ctx.name,
        config,
        narrow_params,
        builder.floats.parts,
    )
    max_noise = config.sensitivity.max_additive_noise
    if limits_noise:
        max_noise = config.budget.layer_share * budget.limit

    progress = scale_progress(ctx.progress, _PARAMS_SHARE, _EVALUATION_START)
    noises = measure_noise(ctx.executor, ctx.model, spec, base, max_noise, progress, least_bits)
    return SearchState(budget, plan, base, least_bits, costs, noises, count_bytes, config.budget)


def _search_params(
    base: QuantPlan, least_bits: int, builder: CandidateBuilder, progress: Progress
) -> tuple[Mapping[ActivationTensor, LayerParams], Mapping[ActivationTensor, LayerParams]]:
    """Search the parameters of activations at the base width.

    Returns:
        These, and the parameters at `least_bits` of those whose noise cannot be extrapolated.
    """
    if least_bits > builder.ctx.config.budget.least_activation_bits:
        params = builder.choose(base, progress)
        return {tensor: params[tensor] for tensor in base.activations}, {}
    params = builder.choose(base, scale_progress(progress, 0, 0.5))
    weights, tensors = select_variable_specs(base)
    narrow = set_widths(base, tuple((target, least_bits) for target in (*weights, *tensors)))
    narrow_params = builder.choose(narrow, scale_progress(progress, 0.5, 1))
    return (
        {tensor: params[tensor] for tensor in base.activations},
        {tensor: narrow_params[tensor] for tensor in tensors},
    )


def _read_samples(samples: Dataset, config: SensitivityConfig) -> list[Sample]:
    """Return batches of calibration samples at equal distances in the data."""
    indices = [index for index in range(len(samples)) if not is_held_out(index)]
    count = config.samples if samples.rows_are_samples else config.whole_items
    period = math.ceil(len(indices) / count)
    selected = frozenset(
        index for position, index in enumerate(indices) if is_selected(position, period)
    )
    read = [sample for _, sample in samples.select(selected)]
    step = config.batch_samples
    return [
        batch
        for start in range(0, len(read), step)
        for batch in samples.concatenate(read[start : start + step])
    ]


def _list_front(
    state: SearchState, chosen: Assignment, correction: float
) -> tuple[ParetoPoint, ...]:
    """Return the chosen assignment, the front and the uniform ones, without duplicates.

    They are in order of increasing bit operations, bytes and noise.
    """
    front = compute_front(state.groups)
    step = math.ceil(len(front) / state.config.max_front_points)
    assignments = [
        chosen,
        *front[::step],
        *state.list_uniform(state.config.base_bits),
        *state.list_uniform(state.least_bits),
    ]
    points = [
        _make_point(state, state.make_plan(assignment), correction, index == 0)
        for index, assignment in enumerate(assignments)
    ]
    unique = {
        replace(point, chosen=False): point for point in reversed(points) if point.sqnr > -math.inf
    }
    return tuple(sorted(unique.values(), key=lambda point: (point.bops, point.bytes, -point.sqnr)))


def _make_point(
    state: SearchState, plan: QuantPlan, correction: float, chosen: bool
) -> ParetoPoint:
    weights = {str(spec.format) for spec in plan.weights.values()}
    activations = {str(spec.format) for spec in plan.activations.values()}
    is_uniform = len(weights) == 1 and len(activations) <= 1
    return ParetoPoint(
        "/".join([*weights, *activations]) if is_uniform else "",
        state.count_bytes(plan),
        int(state.costs.count_bit_operations(plan)),
        noise_to_sqnr(state.noises.predict(plan) * correction),
        chosen,
    )


def _report_replaced_specs(weights: Mapping[TargetNode, QuantSpec]) -> tuple[str, ...]:
    """Return a remark on ternary layers, which a budget turns into integers of other widths."""
    count = sum(spec.text.startswith("ternary") for spec in weights.values())
    if not count:
        return ()
    return (
        f"The budget gives {format_count(count, 'layer')} integers of other widths in place of "
        "ternary; name the layers that stay ternary: --layer NAME=ternary.",
    )


def _report_confidence(budget: Budget, quality: QualityMetrics) -> tuple[str, ...]:
    """Return a remark if unseen data may have more noise than a budget of noise allows."""
    bound, held_out = quality.sqnr_bound, f"{format_count(quality.samples, 'held-out sample')}"
    unsure = f"{budget.text} is not certain on new data"
    if quality.seen:
        return (f"{unsure}: the only sample is used for calibration, too; give hundreds.",)
    if quality.samples < MIN_SAMPLES:
        return (f"{unsure}: there are only {held_out}; give hundreds.",)
    if bound is None:
        return (
            f"{unsure}: an output is 0 for nearly all of the {held_out}; give other samples, too.",
        )
    if sqnr_to_noise(bound) <= budget.limit:
        return ()
    return (
        f"{unsure}: the SQNR may be as low as {bound:.1f} dB ({100 * CONFIDENCE:g} % bound "
        f"from {held_out}); add samples or raise the budget.",
    )
