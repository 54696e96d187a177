# SPDX-License-Identifier: Apache-2.0
"""Convert models between QONNX and standard ONNX."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

import onnx_ir as ir
from onnx_ir.passes import InPlacePass
from onnx_ir.passes.common import RemoveUnusedNodesPass, RemoveUnusedOpsetsPass

from anybit.errors import ModelError
from anybit.onnx.files.reader import Source, read
from anybit.onnx.files.writer import save
from anybit.onnx.graph.names import label_of
from anybit.onnx.operators.registry import operators_in, versions_of
from anybit.onnx.passes import (
    AddFunctions,
    FoldConstants,
    FromQdq,
    InferShapes,
    InlineFunctions,
    Lower,
    Normalize,
    RaiseOpset,
    StandardLayout,
    ToQdq,
)
from anybit.onnx.passes.add_functions import opset_for_functions
from anybit.onnx.passes.to_qdq import needed_opset
from anybit.onnx.preparation import apply, errors_named_after
from anybit.onnx.report import Step

NEWEST_OPSET = 25
"""The newest opset that a conversion asks for; it brings the 2-bit types."""

# Where, Clip for integers and Cast to bfloat16 in the form that the expansions use.
_STANDARD_OPSET = 13


class Form(StrEnum):
    """What a model can be converted to."""

    QONNX = "qonnx"
    """QONNX's operators under their canonical names; QuantizeLinear and its kin are raised."""
    STANDARD = "standard"
    """Standard operators only; quantized weights are computed."""
    PORTABLE = "portable"
    """QONNX's operators with local functions for runtimes that lack them; weights computed."""
    QDQ = "qdq"
    """QuantizeLinear and DequantizeLinear on the narrowest native types, weights stored in them;
    what they cannot express exactly becomes `standard`."""
    QCDQ = "qcdq"
    """The same with 8-bit types and a Clip between the two."""


@dataclass(frozen=True)
class Conversion:
    """A converted model, and what was done to each quantizer on the way.

    Attributes:
        model: The result. `onnx_ir.to_proto` turns it into an `onnx.ModelProto`.
        form: What it is now.
        steps: One per node that was changed, or that could not be.
    """

    model: ir.Model
    form: Form
    steps: tuple[Step, ...]

    @property
    def exact(self) -> bool:
        """Whether no step changes a value."""
        return all(step.exact for step in self.steps)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model, as `anybit.onnx.save` does."""
        save(self.model, path)


def convert(
    source: Source,
    *,
    to: str,
    allow_approximate: bool = False,
    opset_limit: int = NEWEST_OPSET,
) -> Conversion:
    """Convert a model to another form without changing a value it computes.

    Values are compared as numbers: the sign of a zero may differ. Integer types have no NaN:
    where `qdq` and `qcdq` quantize a NaN, the runtime gives some code. The opset and the IR version
    are raised as far as the result needs, and no further. The source is not changed.

    Args:
        source: A path, the bytes of a file, an `onnx.ModelProto` or an `onnx_ir.Model`.
        to: The form: qonnx, standard, portable, qdq or qcdq; see `Form`.
        allow_approximate: Convert also what has no exact counterpart; `steps` says what changes.
        opset_limit: The newest opset to use: 21 does without 2-bit types, 20 without 4- and 16-bit
            ones.

    Raises:
        ModelError: The model cannot be read, or a node cannot be converted without changing a
            value; the message says which and what to do.
    """
    try:
        form = Form(to)
    except ValueError:
        raise ModelError(f"to must be one of {', '.join(Form)}, got {to!r}") from None
    work = _Work(source, allow_approximate, opset_limit)
    match form:
        case Form.QONNX:
            work.raise_native()
        case Form.STANDARD:
            work.expand({})
        case Form.PORTABLE:
            work.add_functions()
        case Form.QDQ | Form.QCDQ:
            work.expand(work.lower_to_native(form))
    return Conversion(work.finished(), form, tuple(work.steps))


class _Work:
    """A model on its way: normalised, its small constants folded, its types known."""

    def __init__(self, source: Source, allow_approximate: bool, opset_limit: int) -> None:
        self._source = source
        self._allow_approximate = allow_approximate
        self._opset_limit = opset_limit
        self.steps: list[Step] = []
        model = read(source)
        self._model = model.clone() if model is source else model
        self._run(InlineFunctions())
        self._names = _names(self._model)
        self._run(Normalize(), StandardLayout(), FoldConstants(operators=False), InferShapes())

    def raise_native(self) -> None:
        """QuantizeLinear and its kin become operators of ours."""
        self.steps.extend(_renamed(self._names, _names(self._model)))
        self._run(FromQdq(self.steps, allow_approximate=self._allow_approximate), Normalize())

    def lower_to_native(self, style: Form) -> dict[str, str]:
        """Quantizers become QuantizeLinear and its kin; why the others do not, by their outputs."""
        with errors_named_after(self._source):
            opset = needed_opset(
                self._model,
                style,
                self._opset_limit,
                _STANDARD_OPSET,
                allow_approximate=self._allow_approximate,
            )
        native = ToQdq(
            self.steps,
            style=style,
            opset_limit=self._opset_limit,
            allow_approximate=self._allow_approximate,
        )
        # First, since raising the version loses the ranges that nodes are annotated with.
        self._run(RaiseOpset(opset), native)
        return native.reasons

    def expand(self, reasons: Mapping[str, str]) -> None:
        """What is left of ours becomes constants and standard operators."""
        self._fold_weights()
        self._run(RaiseOpset(_STANDARD_OPSET if operators_in(self._model) else 1))
        self._run(Lower(self.steps, reasons), Normalize())

    def add_functions(self) -> None:
        """Operators of ours get local functions; weights become constants."""
        self._fold_weights()
        # Once more, since the IR version follows from types that were not known the first time.
        self._run(RaiseOpset(opset_for_functions(self._model)), Normalize())
        functions = AddFunctions(self.steps)
        self._run(functions, Lower(self.steps, functions.left, only=functions.left))

    def finished(self) -> ir.Model:
        self._run(RemoveUnusedNodesPass(), RemoveUnusedOpsetsPass())
        return self._model

    def _run(self, *passes: InPlacePass) -> None:
        apply(self._model, self._source, *passes)

    def _fold_weights(self) -> None:
        quantizers = operators_in(self._model)
        self._run(FoldConstants())
        self.steps.extend(_folded(node) for node, _ in quantizers if node.graph is None)


def _names(model: ir.Model) -> dict[ir.Node, tuple[str, str]]:
    """The domain and the name that each quantizer goes by."""
    nodes = (node for node in model.graph.all_nodes() if versions_of(node.domain, node.op_type))
    return {node: (node.domain, node.op_type) for node in nodes}


def _renamed(
    before: dict[ir.Node, tuple[str, str]], after: dict[ir.Node, tuple[str, str]]
) -> Iterator[Step]:
    for node, (domain, name) in after.items():
        if before.get(node, (domain, name)) != (domain, name):
            old_domain, old_name = before[node]
            reason = f"it is called {old_name} of {old_domain} in the file"
            yield Step(label_of(node), old_name, name, reason)


def _folded(node: ir.Node) -> Step:
    return Step(label_of(node), node.op_type, "constant")
