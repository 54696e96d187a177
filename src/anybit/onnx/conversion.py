# SPDX-License-Identifier: Apache-2.0
"""Convert models between QONNX and standard ONNX."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import onnx_ir as ir
from onnx_ir.passes import InPlacePass
from onnx_ir.passes.common import RemoveUnusedNodesPass, RemoveUnusedOpsetsPass

from anybit.errors import OptionError
from anybit.onnx.fencing import Fencing, fence
from anybit.onnx.files.collection import seldom_collected
from anybit.onnx.files.quiet import quiet
from anybit.onnx.files.reader import Source, read_copy
from anybit.onnx.files.writer import Result
from anybit.onnx.forms import NEWEST_OPSET, Form
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.names import label_of
from anybit.onnx.graph.walk import nodes_in
from anybit.onnx.operators.known import STANDARD_DOMAINS
from anybit.onnx.operators.multi_threshold import is_multi_threshold
from anybit.onnx.operators.registry import operators_in, versions_of
from anybit.onnx.passes import (
    AddFunctions,
    ExpandMultiThreshold,
    FencePairs,
    FoldConstants,
    FreeSizes,
    FromQdq,
    InferShapes,
    LiftOpset,
    Lower,
    Normalize,
    StandardLayout,
    ToQdq,
    UseStandardPair,
)
from anybit.onnx.passes.add_functions import opset_for_functions
from anybit.onnx.preparation import apply, errors_named_after, inline, reported
from anybit.onnx.qdq.nbits import Lifted, lift_nbits
from anybit.onnx.qdq.packed_weights import is_nbits
from anybit.onnx.qdq.qlinear import is_integer_operator
from anybit.onnx.quantizers.float4 import float4_remarks
from anybit.onnx.quantizers.nodes import is_dequantize, is_quantize
from anybit.onnx.report import Report, Step
from anybit.onnx.runtimes import NAMES, runtime_named
from anybit.onnx.trial import Trial, reference_of, remark
from anybit.text import shown

# Where, Clip for integers and Cast to bfloat16 in the form that the expansions use.
_STANDARD_OPSET = 13

_NOT_QUANTIZED = (
    "the model has no quantizers, and convert adds none: quantize it with anybit quantize, or "
    "with anybit.torch.nn (quantize_model) and export it"
)


@dataclass(frozen=True)
class Conversion(Result):
    """A converted model, and what was done to each quantizer on the way.

    Attributes:
        model: The result. `onnx_ir.to_proto` turns it into an `onnx.ModelProto`.
        form: What it is now.
        steps: One per node that was changed, or that could not be.
        remarks: What there is to know of the whole model, one line each.
    """

    model: ir.Model = field(repr=False)
    form: Form
    steps: tuple[Step, ...]
    remarks: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether no step changes a value."""
        return all(step.exact for step in self.steps)

    def to_json(self) -> dict[str, Any]:
        """What was done to each node, and why, as JSON has it."""
        return {
            "form": self.form.value,
            "exact": self.exact,
            "remarks": list(self.remarks),
            "steps": [asdict(step) for step in self.steps],
        }


@quiet()
@seldom_collected()
def convert(
    source: Source,
    *,
    to: str | None = None,
    runtime: str | None = None,
    allow_approximate: bool = False,
    opset_limit: int = NEWEST_OPSET,
) -> Conversion:
    """Convert a model to another form without changing a value it computes.

    Values are compared as numbers: the sign of a zero may differ. Integer types have no NaN:
    where `qdq` and `qcdq` quantize a NaN, the runtime gives some code. The opset and the IR version
    are lifted as far as the result needs, and no further. The source is not changed.

    What becomes `qdq` or `qcdq` keeps its values in ONNX Runtime with default options, on every
    x86 and ARM CPU: a Min stands behind a DequantizeLinear, or before a QuantizeLinear, where the
    optimizer would make an integer operator that is not proven to give the same values but for the
    order of sums. The result is also tried in the installed version, unless it is large or may run
    for long. The last of the remarks says which nodes have a fence and why, and what the model
    needs.

    Args:
        source: A path, the bytes of a file, an `onnx.ModelProto` or an `onnx_ir.Model`.
        to: The form: qonnx, standard, portable, qdq or qcdq; see `Form`. May be left out where
            the runtime is given, which has a form that it takes best.
        runtime: What the result is for: "onnxruntime", "onnxruntime=1.20" or another version from
            1.17 on, "web", "openvino", or "any". It limits the opset. Nothing is fenced for
            "openvino" and "any".
        allow_approximate: Convert also what has no exact counterpart; `steps` says what changes.
        opset_limit: The newest opset to use: 21 avoids 2-bit types, 20 also those of 4 and 16
            bits.

    Raises:
        ModelError: The model cannot be read, or a node cannot be converted without changing a
            value; the message says which and what to do.
        OptionError: There is no such form or runtime.
    """
    if to is None and runtime is None:
        raise OptionError(f"to must be one of {', '.join(Form)}; or name the runtime: {NAMES}")
    wanted = runtime_named("onnxruntime" if runtime is None else runtime)
    try:
        form = wanted.form if to is None else Form(to)
    except ValueError:
        raise OptionError(f"to must be one of {', '.join(Form)}, got {to!r}") from None
    options = _Options(allow_approximate, min(opset_limit, wanted.opset_limit))
    converted, pairs = _converted(source, form, options)
    native = any(is_dequantize(node) for node in nodes_in(converted.model.graph))
    if form not in (Form.QDQ, Form.QCDQ) or not native or not wanted.fenced:
        return converted
    with errors_named_after(source):
        fencing = fence(converted.model)
    if wanted.tried:
        return _tried(converted, pairs, fencing)
    return _remarked(converted, fencing.details())


def _tried(converted: Conversion, pairs: tuple[ir.Node, ...], fencing: Fencing) -> Conversion:
    """The conversion, with more fences if ONNX Runtime keeps the values of that alone."""
    opset = converted.model.graph.opset_imports.get("", 1)
    reference = reference_of(converted.model)
    if reference is None:
        return _remarked(converted, remark(fencing, opset))
    problem = reference.problem(converted.model)
    if not problem:
        return _remarked(converted, remark(fencing, opset, Trial()))
    bare = converted.model.clone()
    for before in (False, True) if pairs else ():
        FencePairs(pairs, before=before)(converted.model)
        if not reference.problem(converted.model):
            where = " and before each QuantizeLinear" * before
            aside = f"; without a Min behind each DequantizeLinear{where} it {problem}"
            return _remarked(converted, remark(fencing, opset, Trial()) + aside)
    trial = Trial(problem, reference.setting(bare))
    return _remarked(replace(converted, model=bare), remark(fencing, opset, trial))


def _remarked(converted: Conversion, words: str) -> Conversion:
    if not words:
        return converted
    return replace(converted, remarks=(*converted.remarks, words))


@dataclass(frozen=True)
class _Options:
    allow_approximate: bool
    opset_limit: int


def _converted(
    source: Source, form: Form, options: _Options
) -> tuple[Conversion, tuple[ir.Node, ...]]:
    """The conversion, and the DequantizeLinear that it wrote."""
    work = _Work(source, options)
    if form is not Form.QONNX:
        work.lift_nbits()
    match form:
        case Form.QONNX:
            work.lift_native()
        case Form.COMPACT:
            work.store_codes()
        case Form.STANDARD:
            work.expand_thresholds()
            work.expand({})
        case Form.PORTABLE:
            work.expand_thresholds()
            work.add_functions()
        case Form.QDQ | Form.QCDQ:
            work.expand_thresholds()
            work.expand(work.lower_to_native(form))
    if form is not Form.QONNX:
        work.name_foreign()
    model = work.finished()
    return Conversion(model, form, tuple(work.steps), tuple(work.remarks)), work.pairs


class _Work:
    """A model on its way: normalized, its small constants folded, its types known."""

    def __init__(self, source: Source, options: _Options) -> None:
        self._source = source
        self._options = options
        self.steps: list[Step] = []
        self.remarks: list[str] = []
        self.pairs: tuple[ir.Node, ...] = ()
        self._lifted = Lifted()
        self._model = read_copy(source)
        inline(self._model, source)
        if not any(_is_quantizer(node) for node in nodes_in(self._model.graph)):
            self.remarks.append(_NOT_QUANTIZED)
        self._names = _names(self._model)
        self._run(Normalize(), StandardLayout(), FoldConstants(operators=False), InferShapes())

    def lift_nbits(self) -> None:
        """MatMulNBits becomes MatMul of a quantized weight, as in `FromQdq`."""
        if not any(is_nbits(node) for node in nodes_in(self._model.graph)):
            return
        allowed = self._options.allow_approximate
        with errors_named_after(self._source):
            self._lifted = lift_nbits(self._model, Editor(self._model), allow_approximate=allowed)
        self.steps.extend(self._lifted.steps)
        self._run(Normalize())

    def lift_native(self) -> None:
        """QuantizeLinear and its kin become operators of ours."""
        self.steps.extend(_renamed(self._names, _names(self._model)))
        self._reported(FromQdq(allow_approximate=self._options.allow_approximate))
        self._run(Normalize())
        self._use_standard_pair()

    def lower_to_native(self, style: Form) -> Mapping[str, str]:
        """Quantizers become QuantizeLinear and its kin; why the others do not, by their outputs."""
        self._use_standard_pair()
        native = ToQdq(
            style=style,
            opset_limit=self._options.opset_limit,
            allow_approximate=self._options.allow_approximate,
        )
        with errors_named_after(self._source):
            opset = native.needed_opset(self._model, _STANDARD_OPSET)
        # First, since lifting the version loses the ranges that nodes are annotated with.
        self._run(LiftOpset(opset))
        report = self._reported(native)
        self.pairs = report.pairs
        return report.left

    def store_codes(self) -> None:
        """Constant quantized weights become codes with a DequantizeLinear each."""
        native = ToQdq(style=Form.QDQ, opset_limit=self._options.opset_limit, constants_only=True)
        with errors_named_after(self._source):
            opset = native.needed_opset(self._model)
        self._run(LiftOpset(opset))
        self._reported(native)
        self._run(Normalize())

    def expand(self, reasons: Mapping[str, str]) -> None:
        """What is left of ours becomes constants and standard operators."""
        self._use_standard_pair()
        self._fold_weights()
        self._run(LiftOpset(_STANDARD_OPSET if operators_in(self._model) else 1))
        self._reported(Lower(reasons))
        self._run(Normalize())

    def expand_thresholds(self) -> None:
        """MultiThreshold becomes standard operators."""
        if any(is_multi_threshold(node) for node in nodes_in(self._model.graph)):
            self._run(LiftOpset(_STANDARD_OPSET), InferShapes())
            self._reported(ExpandMultiThreshold())
            self._run(Normalize())

    def add_functions(self) -> None:
        """Operators of ours get local functions; weights become constants."""
        self._use_standard_pair()
        self._fold_weights()
        # Once more, since the IR version follows from types that were not known the first time.
        self._run(LiftOpset(opset_for_functions(self._model)), Normalize())
        left = self._reported(AddFunctions()).left
        self._reported(Lower(left, only=left))

    def _use_standard_pair(self) -> None:
        self._run(UseStandardPair(self._options.opset_limit))

    def name_foreign(self) -> None:
        """Say which operators the result asks of its runtime, besides ONNX's and ours."""
        counts: Counter[str] = Counter()
        for node in nodes_in(self._model.graph):
            ours = versions_of(node.domain, node.op_type) or is_multi_threshold(node)
            if node.domain in STANDARD_DOMAINS or ours:
                continue
            operator = f"{node.domain}.{node.op_type}"
            reason = "not an operator of ONNX or QONNX: its runtime must have it"
            if why := self._lifted.reason(node):
                reason += f"; {why}"
            self.steps.append(Step(label_of(node), operator, "kept", reason))
            counts[operator] += 1
        if counts:
            kinds = ", ".join(f"{count} {operator}" for operator, count in counts.items())
            self.remarks.append(f"operators of other domains stay: {shown(kinds)}")

    def finished(self) -> ir.Model:
        self._run(RemoveUnusedNodesPass(), RemoveUnusedOpsetsPass())
        self.remarks.extend(self._reported(FreeSizes()).remarks)
        self.remarks.extend(float4_remarks(self._model))
        return self._model

    def _run(self, *passes: InPlacePass) -> None:
        apply(self._model, self._source, *passes)

    def _reported(self, each: InPlacePass) -> Report:
        """Run a pass and keep its steps."""
        report = reported(self._model, self._source, each)
        self.steps.extend(report.steps)
        return report

    def _fold_weights(self) -> None:
        quantizers = operators_in(self._model)
        self._run(FoldConstants())
        self.steps.extend(_folded(node) for node, _ in quantizers if node.graph is None)


def _names(model: ir.Model) -> dict[ir.Node, tuple[str, str]]:
    """The domain and the name that each quantizer goes by."""
    nodes = (node for node in nodes_in(model.graph) if versions_of(node.domain, node.op_type))
    return {node: (node.domain, node.op_type) for node in nodes}


def _is_quantizer(node: ir.Node) -> bool:
    ours = versions_of(node.domain, node.op_type)
    native = is_quantize(node) or is_dequantize(node) or is_integer_operator(node)
    return bool(ours) or native or is_multi_threshold(node)


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
