# SPDX-License-Identifier: Apache-2.0
"""Report of an export."""

from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir

from anybit.comparison import Difference, TensorDifference
from anybit.onnx.checks.checking import Finding
from anybit.onnx.files.writer import ModelResult
from anybit.onnx.operators.registry import find_operators


@dataclass(frozen=True)
class ExportResult(ModelResult):
    """Result of `anybit.torch.export`.

    Attributes:
        path: The file; None if none was written.
        model: The model. The weights of a large file stay on disk until they are used.
        findings: The warnings of `anybit.check`, such as sums that are inexact in float32.
        difference: The comparison of the model, run by `anybit.load`, with the module: outputs and
            results of quantizers. None without verification.
    """

    path: Path | None
    model: ir.Model = field(repr=False)
    findings: tuple[Finding, ...]
    difference: Difference | None = field(repr=False)

    @property
    def equal(self) -> bool | None:
        """True if all compared tensors are equal, element for element; None if not compared."""
        return None if self.difference is None else self.difference.equal

    @property
    def steps(self) -> float | None:
        """The largest difference of a quantized tensor in quantization steps.

        None if nothing was compared.
        """
        if self.difference is None:
            return None
        return max((tensor.steps or 0.0 for tensor in self.quantized), default=0.0)

    @property
    def quantized(self) -> tuple[TensorDifference, ...]:
        """The compared tensors that are results of quantizers."""
        tensors = () if self.difference is None else self.difference.tensors
        return tuple(tensor for tensor in tensors if tensor.step_quantizer == "itself")

    def __str__(self) -> str:
        where = "the model" if self.path is None else str(self.path)
        nodes, quantizers = self.model.graph.num_nodes(), len(find_operators(self.model))
        lines = [f"{where}: {nodes} nodes, {quantizers} of them quantizers"]
        if self.difference is not None:
            lines.append(f"run: {_summarize(self.difference)}")
            lines += [f"  {_describe(tensor)}" for tensor in self.difference.different]
        lines += [
            f"{finding.severity}: {finding.node}: {finding.problem}" for finding in self.findings
        ]
        return "\n".join(lines)


def _summarize(difference: Difference) -> str:
    count = len(difference.tensors)
    tensors = f"{count} tensor{'s' * (count != 1)} compared with the module"
    return f"{tensors}, {'all' if difference.equal else count - len(difference.different)} equal"


def _describe(tensor: TensorDifference) -> str:
    by = f"{tensor.steps:.3g} steps" if tensor.steps is not None else f"{tensor.largest:.3g}"
    return f"{tensor.name}: {tensor.differing} of {tensor.elements} elements differ by up to {by}"
