# SPDX-License-Identifier: Apache-2.0
"""Result of `quantize`: description of the layers, remarks, quality and sizes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import onnx_ir as ir

from anybit.compiler.prepare.eligibility import INTEGER_ONLY
from anybit.data.dataset import Dataset
from anybit.metrics.quality import QualityMetrics
from anybit.onnx.forms import Form
from anybit.onnx.graph.walk import iter_nodes
from anybit.onnx.qdq.packed_weights import is_nbits
from anybit.ptq.calibration.collect import has_confirming_samples
from anybit.ptq.fpga_targets import check_result
from anybit.ptq.graph.targets import TargetNode
from anybit.ptq.layer_rows import ConstantSizes, describe_layer
from anybit.ptq.mixed_precision.budget_search import SearchResult
from anybit.ptq.mixed_precision.noise_model import NoiseTable
from anybit.ptq.options import QuantizeOptions
from anybit.ptq.remarks.collect import list_candidate_remarks, list_data_remarks
from anybit.ptq.result import ParetoPoint, QuantizationResult
from anybit.ptq.search.candidates import QuantizedCandidate

_NOT_MEASURED = (
    "The effect of each layer on the outputs was not measured: that needs data and a float output."
)
_NOT_CONFIRMED = "Per-layer SQNR is not reported: too few samples to hold any out of the search."


@dataclass(frozen=True)
class ResultBuilder:
    """Builder of the result of one call of `quantize`.

    Attributes:
        model: The float model, after `prepare`.
        options: The options of the call.
        origin: Metadata on the file of the float model.
        remarks: The remarks of `prepare`.
    """

    model: ir.Model
    options: QuantizeOptions
    origin: Mapping[str, str]
    remarks: tuple[str, ...]

    @cached_property
    def sizes(self) -> ConstantSizes:
        """Return the sizes of the constants by plan."""
        return ConstantSizes(self.model, self.options.config.gptq)

    def build_unmeasured(self, candidate: QuantizedCandidate) -> QuantizationResult:
        """Return the result of a quantization without data."""
        remarks = (_NOT_MEASURED,) if self.options.sensitivity else ()
        return self._build(candidate, (*self.remarks, *remarks, *candidate.plan.remarks))

    def build(
        self, search: SearchResult, dataset: Dataset, macs: Mapping[TargetNode, int]
    ) -> QuantizationResult:
        """Return the result of a quantization with data.

        Args:
            search: The quantized model, and the mixed precisions it was chosen from.
            dataset: The data.
            macs: Multiplications of each layer for one sample.
        """
        verdict = replace(search.candidate.verdict, thresholds=self.options.thresholds)
        candidate = replace(search.candidate, verdict=verdict)
        confirmed = has_confirming_samples(dataset, self.options.config.calibration)
        remarks = self.remarks
        if self.options.config.searches and not confirmed:
            remarks += (_NOT_CONFIRMED,)
        if self.options.sensitivity and search.noises is None:
            remarks += (_NOT_MEASURED,)
        remarks += (
            *list_data_remarks(dataset),
            *candidate.plan.remarks,
            *list_candidate_remarks(candidate, self.model),
            *search.remarks,
        )
        return self._build(
            candidate,
            remarks,
            macs=macs,
            noises=search.noises,
            confirmed=confirmed,
            front=search.front,
            verdict=verdict,
        )

    def _build(
        self,
        candidate: QuantizedCandidate,
        remarks: tuple[str, ...],
        *,
        macs: Mapping[TargetNode, int] | None = None,
        noises: NoiseTable | None = None,
        confirmed: bool = True,
        front: tuple[ParetoPoint, ...] = (),
        verdict: QualityMetrics | None = None,
    ) -> QuantizationResult:
        candidate.model.metadata_props.update(self.origin)
        if self.options.integer_only:
            candidate.model.metadata_props[INTEGER_ONLY] = "1"
        target = self.options.target
        return QuantizationResult(
            model=candidate.model,
            layers=tuple(
                describe_layer(layer, candidate, macs or {}, noises, confirmed)
                for layer in candidate.plan.layers
            ),
            skipped=candidate.plan.skipped,
            remarks=remarks + (check_result(target, candidate.model) if target else ()),
            front=front,
            verdict=verdict,
            bytes_before=self.sizes.total,
            bytes_after=self.sizes(candidate.plan),
            form=Form.QONNX if target or _has_packed_weights(candidate.model) else Form.COMPACT,
        )


def _has_packed_weights(model: ir.Model) -> bool:
    """Return whether a model has MatMulNBits, which the compact form would replace."""
    return any(is_nbits(node) for node in iter_nodes(model.graph))
