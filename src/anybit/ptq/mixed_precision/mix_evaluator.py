# SPDX-License-Identifier: Apache-2.0
"""Evaluation of assignments: models quantized at these widths, and their measured noise."""

from anybit.metrics.sqnr import MIN_NOISE
from anybit.ptq.context import Progress
from anybit.ptq.mixed_precision.pareto import Assignment, Widths
from anybit.ptq.mixed_precision.sensitivity import get_noise
from anybit.ptq.mixed_precision.widths import set_widths
from anybit.ptq.plan import QuantPlan
from anybit.ptq.search.candidates import CandidateBuilder, MeasuredCandidate


class MixEvaluator:
    """Evaluator of assignments, which quantizes the model once for each.

    Args:
        base: The plan at the base widths.
        builder: Quantizes the model.
        progress: Called with the share that is done.
    """

    def __init__(self, base: QuantPlan, builder: CandidateBuilder, progress: Progress) -> None:
        self._base, self._builder, self._progress = base, builder, progress
        self._candidates: dict[Widths, MeasuredCandidate] = {}
        self._count = 0

    def build(self, assignment: Assignment) -> MeasuredCandidate:
        """Return the model quantized at the widths of an assignment."""
        if assignment.widths not in self._candidates:
            plan = set_widths(self._base, assignment.widths)
            self._candidates[assignment.widths] = self._builder.build(plan, self._advance)
            self._count += 1
        return self._candidates[assignment.widths]

    def _advance(self, share: float) -> None:
        # The total count is unknown. The reported share never decreases.
        done = self._count + share
        self._progress(done / (done + 1))

    def measure_noise(self, assignment: Assignment) -> float:
        """Return the noise-to-signal ratio of the worst output on held-out samples."""
        return get_noise(self.build(assignment).verdict)

    def is_within(self, assignment: Assignment, max_noise: float) -> bool:
        """Return whether the noise is within a limit on held-out and on ablation samples.

        One of several assignments may be within it on the held-out samples by luck.
        """
        ablation = self.build(assignment).ablation
        other = 0.0 if ablation is None or ablation.sqnr is None else get_noise(ablation)
        return max(self.measure_noise(assignment), other) <= max_noise

    def forget(self, assignment: Assignment) -> None:
        """Drop the model of an assignment, to free its memory."""
        self._candidates.pop(assignment.widths, None)

    def compute_correction(self, assignment: Assignment) -> float:
        """Return the measured noise over the predicted noise."""
        return max(self.measure_noise(assignment), MIN_NOISE) / max(assignment.noise, MIN_NOISE)
