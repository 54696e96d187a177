# SPDX-License-Identifier: Apache-2.0
"""The report of an export."""

from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir

from anybit.comparison import Difference, TensorDifference
from anybit.onnx.checks.checking import Finding
from anybit.onnx.files.writer import Result
from anybit.onnx.operators.registry import operators_in


@dataclass(frozen=True)
class Exported(Result):
    """The result of `anybit.torch.export`.

    Attributes:
        path: The file; None if none was asked for.
        model: What is in it. Of a large file the weights stay on disk until they are used.
        findings: What `anybit.check` says about it: warnings only, such as sums that float32
            does not compute exactly.
        difference: The comparison of the model, run by `anybit.load`, with the module: outputs,
            and what each quantizer gives. None if it was not asked for.
    """

    path: Path | None
    model: ir.Model = field(repr=False)
    findings: tuple[Finding, ...]
    difference: Difference | None = field(repr=False)

    @property
    def equal(self) -> bool | None:
        """Whether every compared tensor is equal, element for element. None if not compared."""
        return None if self.difference is None else self.difference.equal

    @property
    def steps(self) -> float | None:
        """The most quantization steps by which a quantized tensor differs; 0 if none does.

        None if nothing was compared.
        """
        if self.difference is None:
            return None
        return max((each.steps or 0.0 for each in self.quantized), default=0.0)

    @property
    def quantized(self) -> tuple[TensorDifference, ...]:
        """Those of the compared tensors that a quantizer makes."""
        found = () if self.difference is None else self.difference.tensors
        return tuple(each for each in found if each.step_of == "itself")

    def __str__(self) -> str:
        where = "the model" if self.path is None else str(self.path)
        nodes, quantizers = self.model.graph.num_nodes(), len(operators_in(self.model))
        lines = [f"{where}: {nodes} nodes, {quantizers} of them quantizers"]
        if self.difference is not None:
            lines.append(f"run: {_compared(self.difference)}")
            lines += [f"  {_in_words(each)}" for each in self.difference.different]
        lines += [f"{each.severity}: {each.node}: {each.problem}" for each in self.findings]
        return "\n".join(lines)


def _compared(difference: Difference) -> str:
    count = len(difference.tensors)
    tensors = f"{count} tensor{'s' * (count != 1)} compared with the module"
    return f"{tensors}, {'all' if difference.equal else count - len(difference.different)} equal"


def _in_words(tensor: TensorDifference) -> str:
    by = f"{tensor.steps:.3g} steps" if tensor.steps is not None else f"{tensor.largest:.3g}"
    return f"{tensor.name}: {tensor.differing} of {tensor.elements} elements differ by up to {by}"
