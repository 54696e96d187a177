# SPDX-License-Identifier: Apache-2.0
"""Conversion of models between QONNX and standard ONNX."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import onnx_ir as ir
from onnx_ir.passes import InPlacePass
from onnx_ir.passes.common import RemoveUnusedNodesPass, RemoveUnusedOpsetsPass

from anybit.errors import OptionError
from anybit.onnx.expansion.opsets import STANDARD_OPSET, find_expansion_opset
from anybit.onnx.fencing import Fencing, describe_unfenced, fence
from anybit.onnx.files.reader import Source, read_copy
from anybit.onnx.files.writer import ModelResult
from anybit.onnx.forms import NEWEST_OPSET, Form
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.names import format_operator, get_label
from anybit.onnx.graph.walk import iter_nodes
from anybit.onnx.operators.known import STANDARD_DOMAINS
from anybit.onnx.operators.multi_threshold import is_multi_threshold
from anybit.onnx.operators.registry import find_operators, find_versions
from anybit.onnx.passes import (
    AddFunctions,
    DynamicSizes,
    ExpandMultiThreshold,
    FencePairs,
    FoldConstants,
    FromQdq,
    InferShapes,
    LiftOpset,
    Lower,
    Normalize,
    SplitDynamicProducts,
    StandardLayout,
    ToNBits,
    ToQdq,
    UseStandardPair,
)
from anybit.onnx.passes.add_functions import find_function_opset
from anybit.onnx.preparation import apply_passes, inline_functions, name_errors_after, run_pass
from anybit.onnx.process import relax_gc, silence_onnx_logs
from anybit.onnx.qdq.codes.rewrite import may_rewrite
from anybit.onnx.qdq.nbits import LiftedNBits, lift_nbits
from anybit.onnx.qdq.packed_weights import is_nbits
from anybit.onnx.qdq.qlinear import is_integer_operator
from anybit.onnx.quantizers.float4 import list_float4_remarks
from anybit.onnx.quantizers.nodes import is_dequantize, is_quantize
from anybit.onnx.report import ConversionReport, ConversionStep
from anybit.onnx.runtimes import NAMES, find_runtime
from anybit.onnx.trial import ReferenceRun, Trial, compute_reference, describe_requirements
from anybit.text import escape_name

_NOT_QUANTIZED = (
    "the model has no quantizers, and convert adds none: quantize it with anybit quantize, or "
    "with anybit.torch.nn (quantize_model) and export it"
)


@dataclass(frozen=True)
class Conversion(ModelResult):
    """A converted model, and what was done to each quantizer on the way.

    Attributes:
        model: The result. `onnx_ir.to_proto` turns it into an `onnx.ModelProto`.
        form: The form of the result.
        steps: One per node that was changed, or that could not be.
        remarks: Remarks about the whole model, one line each.
    """

    model: ir.Model = field(repr=False)
    form: Form
    steps: tuple[ConversionStep, ...]
    remarks: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Return whether no step changes a value."""
        return all(step.exact for step in self.steps)

    def to_json(self) -> dict[str, Any]:
        """Return the action and the reason of each step, for JSON."""
        return {
            "form": self.form.value,
            "exact": self.exact,
            "remarks": list(self.remarks),
            "steps": [asdict(step) for step in self.steps],
        }


@silence_onnx_logs()
@relax_gc()
def convert(
    source: Source,
    *,
    to: str | None = None,
    runtime: str | None = None,
    allow_approximate: bool = False,
    opset_limit: int = NEWEST_OPSET,
) -> Conversion:
    """Convert a model to another form without changing a value it computes.

    Values are compared as numbers: the sign of a zero may differ. Integer types have no NaN: the
    code of a NaN in `qdq` and `qcdq` depends on the runtime. The opset and the IR version are
    raised only if necessary. The source is not changed.

    Models in the forms `standard`, `portable`, `qdq` and `qcdq` keep their values in ONNX Runtime
    with default options, on every x86 and ARM CPU. Weights of `standard` and `portable` are floats.
    A Min after a DequantizeLinear, or before a QuantizeLinear, prevents the optimizer from
    inserting integer operators that are not proven equal (up to the order of sums). The result is
    also run in the installed version, unless it is large or slow. The last remark lists the fenced
    nodes with reasons, and the requirements of the model. Models in the forms `qonnx` and `compact`
    have no fences: use the options of `anybit.onnxruntime.session`. Values are also kept by
    `matmulnbits`, up to the order in which MatMulNBits adds; with `allow_approximate` it also has
    weights of 8 bits, and may round its input to 8 bits.

    Args:
        source: A path, the bytes of a file, an `onnx.ModelProto` or an `onnx_ir.Model`.
        to: The form: qonnx, compact, standard, portable, qdq, qcdq or matmulnbits; see `Form`.
            Default: the best form for the runtime.
        runtime: The target: "onnxruntime" (default), "onnxruntime=1.20" or another version from
            1.17 on, "web", "openvino", or "any". It limits the opset, also with `to`. Nothing is
            fenced for "openvino" and "any"; for "any" a remark lists the nodes whose values ONNX
            Runtime may change.
        allow_approximate: Also convert nodes without an exact counterpart; `steps` reports changes.
        opset_limit: The newest opset to use: 21 avoids 2-bit types, 20 also those of 4 and 16
            bits.

    Raises:
        ModelError: The model cannot be read, or a node cannot be converted without changing a
            value; the message names it and the remedy.
        OptionError: There is no such form or runtime.
    """
    if to is None and runtime is None:
        raise OptionError(f"to must be one of {', '.join(Form)}; or name the runtime: {NAMES}")
    properties = find_runtime("onnxruntime" if runtime is None else runtime)
    try:
        form = properties.form if to is None else Form(to)
    except ValueError:
        raise OptionError(f"to must be one of {', '.join(Form)}, got {to!r}") from None
    options = _Options(allow_approximate, min(opset_limit, properties.opset_limit))
    converted, pairs = _convert(source, form, options)
    native = any(is_dequantize(node) for node in iter_nodes(converted.model.graph))
    alone = not form.needs_library
    fenced = alone and native and properties.fenced
    packed = form is Form.MATMULNBITS
    # Of the values before MatMulNBits, which may round its input if that is allowed.
    is_tried = fenced and properties.tried and not (packed and allow_approximate)
    reference = compute_reference(converted.model) if is_tried else None
    if packed:
        converted = _pack_weights(converted, source, rounded=allow_approximate)
    if not fenced:
        harmful = describe_unfenced(converted.model) if alone and runtime == "any" else ""
        return _add_remark(converted, harmful)
    with name_errors_after(source):
        fencing = fence(converted.model)
    if properties.tried:
        return _try_fencing(converted, pairs, fencing, reference)
    return _add_remark(converted, fencing.details())


def _pack_weights(converted: Conversion, source: Source, *, rounded: bool) -> Conversion:
    """Return the conversion with MatMulNBits where the runtime has it."""
    report = run_pass(converted.model, source, ToNBits(rounded=rounded))
    return replace(converted, steps=(*converted.steps, *report.steps))


def _try_fencing(
    converted: Conversion,
    pairs: tuple[ir.Node, ...],
    fencing: Fencing,
    reference: ReferenceRun | None,
) -> Conversion:
    """Return the conversion, with more fences if only they keep the values in ONNX Runtime."""
    opset = converted.model.graph.opset_imports.get("", 1)
    if reference is None:
        return _add_remark(converted, describe_requirements(fencing, opset))
    problem = reference.find_problem(converted.model)
    if not problem:
        return _add_remark(converted, describe_requirements(fencing, opset, Trial()))
    bare = converted.model.clone()
    for before in (False, True) if pairs else ():
        FencePairs(pairs, before=before)(converted.model)
        if not reference.find_problem(converted.model):
            where = " and before each QuantizeLinear" * before
            aside = f"; without a Min after each DequantizeLinear{where} it {problem}"
            return _add_remark(converted, describe_requirements(fencing, opset, Trial()) + aside)
    trial = Trial(problem, reference.find_setting(bare))
    return _add_remark(replace(converted, model=bare), describe_requirements(fencing, opset, trial))


def _add_remark(converted: Conversion, words: str) -> Conversion:
    if not words:
        return converted
    return replace(converted, remarks=(*converted.remarks, words))


@dataclass(frozen=True)
class _Options:
    allow_approximate: bool
    opset_limit: int


def _convert(
    source: Source, form: Form, options: _Options
) -> tuple[Conversion, tuple[ir.Node, ...]]:
    """Return the conversion, and the DequantizeLinear nodes that it wrote."""
    work = _Work(source, options)
    if form is not Form.QONNX:
        work.lift_nbits()
    if form in (Form.QONNX, Form.STANDARD, Form.PORTABLE):
        work.split_dynamic_products()
    match form:
        case Form.QONNX:
            work.lift_native()
        case Form.COMPACT:
            work.store_codes()
        case Form.STANDARD:
            work.expand_thresholds()
            work.fold_codes()
            work.expand({})
        case Form.PORTABLE:
            work.expand_thresholds()
            work.fold_codes()
            work.add_functions()
        case Form.QDQ | Form.QCDQ | Form.MATMULNBITS:
            work.expand_thresholds()
            style = Form.QCDQ if form is Form.QCDQ else Form.QDQ
            work.expand(work.lower_to_native(style))
    if form is not Form.QONNX:
        work.name_foreign()
    model = work.finish()
    return Conversion(model, form, tuple(work.steps), tuple(work.remarks)), work.pairs


class _Work:
    """A model in conversion: normalized, its small constants folded, its types known."""

    def __init__(self, source: Source, options: _Options) -> None:
        self._source = source
        self._options = options
        self.steps: list[ConversionStep] = []
        self.remarks: list[str] = []
        self.pairs: tuple[ir.Node, ...] = ()
        self._lifted = LiftedNBits()
        self._model = read_copy(source)
        inline_functions(self._model, source)
        if not any(_is_quantizer(node) for node in iter_nodes(self._model.graph)):
            self.remarks.append(_NOT_QUANTIZED)
        self._names = _get_names(self._model)
        self._run(Normalize(), StandardLayout(), FoldConstants(operators=False), InferShapes())

    def lift_nbits(self) -> None:
        """Replace MatMulNBits by MatMul of a quantized weight, as in `FromQdq`."""
        if not any(is_nbits(node) for node in iter_nodes(self._model.graph)):
            return
        allowed = self._options.allow_approximate
        with name_errors_after(self._source):
            self._lifted = lift_nbits(self._model, Editor(self._model), allow_approximate=allowed)
        self.steps.extend(self._lifted.steps)
        self._run(Normalize())

    def split_dynamic_products(self) -> None:
        """Replace products that ONNX Runtime fuses with a computed scale by standard operators."""
        if self._run_pass(SplitDynamicProducts()).modified:
            self._run(InferShapes())

    def lift_native(self) -> None:
        """Replace QuantizeLinear and similar operators by operators of this package."""
        self.steps.extend(_list_renamed(self._names, _get_names(self._model)))
        self._run_pass(FromQdq(allow_approximate=self._options.allow_approximate))
        self._run(Normalize())
        self._use_standard_pair()

    def lower_to_native(self, style: Form) -> Mapping[str, str]:
        """Replace quantizers by QuantizeLinear pairs; return reasons for the others by output."""
        self._use_standard_pair()
        native = ToQdq(
            style=style,
            opset_limit=self._options.opset_limit,
            allow_approximate=self._options.allow_approximate,
        )
        with name_errors_after(self._source):
            opset = native.find_needed_opset(self._model, STANDARD_OPSET)
        # First, because lifting the opset loses the ranges in the metadata of nodes.
        self._run(LiftOpset(opset))
        report = self._run_pass(native)
        self.pairs = report.pairs
        return report.left

    def store_codes(self) -> None:
        """Replace constant quantized weights by codes with a DequantizeLinear each."""
        native = ToQdq(style=Form.QDQ, opset_limit=self._options.opset_limit, constants_only=True)
        with name_errors_after(self._source):
            opset = native.find_needed_opset(self._model)
        self._run(LiftOpset(opset))
        self._run_pass(native)
        self._run(Normalize())

    def fold_codes(self) -> None:
        """Replace DequantizeLinear of constant codes by floats, which no runtime can fuse."""
        nodes = [node for node in iter_nodes(self._model.graph) if is_dequantize(node)]
        self._run(FoldConstants(operators=False, rare_codes=True))
        self.steps.extend(_describe_folding(node) for node in nodes if node.graph is None)

    def expand(self, reasons: Mapping[str, str]) -> None:
        """Replace the remaining operators of this package by constants and standard operators."""
        self._use_standard_pair()
        self._fold_weights()
        self._run(
            LiftOpset(find_expansion_opset(operator for _, operator in find_operators(self._model)))
        )
        self._run_pass(Lower(reasons))
        self._run(Normalize())

    def expand_thresholds(self) -> None:
        """Replace MultiThreshold by standard operators."""
        if any(is_multi_threshold(node) for node in iter_nodes(self._model.graph)):
            self._run(LiftOpset(STANDARD_OPSET), InferShapes())
            self._run_pass(ExpandMultiThreshold())
            self._run(Normalize())

    def add_functions(self) -> None:
        """Add local functions for operators of this package; weights become constants."""
        self._use_standard_pair()
        self._fold_weights()
        # Again, because the IR version depends on types that were unknown the first time.
        operators = (operator for _, operator in find_operators(self._model))
        # A node that no function can express is expanded.
        expanded = find_expansion_opset(one for one in operators if one.block_axis is not None)
        self._run(LiftOpset(max(find_function_opset(self._model), expanded)), Normalize())
        left = self._run_pass(AddFunctions()).left
        self._run_pass(Lower(left, only=left))

    def _use_standard_pair(self) -> None:
        self._run(UseStandardPair(self._options.opset_limit))

    def name_foreign(self) -> None:
        """Report required operators that neither ONNX nor this package defines."""
        counts: Counter[str] = Counter()
        for node in iter_nodes(self._model.graph):
            ours = find_versions(node.domain, node.op_type) or is_multi_threshold(node)
            if node.domain in STANDARD_DOMAINS or ours:
                continue
            operator = format_operator(node)
            reason = "not an operator of ONNX or QONNX: its runtime must have it"
            if because := self._lifted.reason(node):
                reason += f"; {because}"
            if may_rewrite(node):
                reason += "; anybit convert --to qonnx replaces it"
            self.steps.append(ConversionStep(get_label(node), operator, "kept", reason))
            counts[operator] += 1
        if counts:
            kinds = ", ".join(f"{count} {operator}" for operator, count in counts.items())
            self.remarks.append(f"operators of other domains stay: {escape_name(kinds)}")

    def finish(self) -> ir.Model:
        self._run(RemoveUnusedNodesPass(), RemoveUnusedOpsetsPass())
        self.remarks.extend(self._run_pass(DynamicSizes()).remarks)
        self.remarks.extend(list_float4_remarks(self._model))
        return self._model

    def _run(self, *passes: InPlacePass) -> None:
        apply_passes(self._model, self._source, *passes)

    def _run_pass(self, pass_: InPlacePass) -> ConversionReport:
        """Run a pass and keep its steps."""
        report = run_pass(self._model, self._source, pass_)
        self.steps.extend(report.steps)
        return report

    def _fold_weights(self) -> None:
        quantizers = find_operators(self._model)
        self._run(FoldConstants())
        self.steps.extend(_describe_folding(node) for node, _ in quantizers if node.graph is None)


def _get_names(model: ir.Model) -> dict[ir.Node, tuple[str, str]]:
    """Return the domain and the name of each quantizer."""
    nodes = (node for node in iter_nodes(model.graph) if find_versions(node.domain, node.op_type))
    return {node: (node.domain, node.op_type) for node in nodes}


def _is_quantizer(node: ir.Node) -> bool:
    ours = find_versions(node.domain, node.op_type)
    native = is_quantize(node) or is_dequantize(node) or is_integer_operator(node)
    return bool(ours) or native or is_multi_threshold(node)


def _list_renamed(
    before: dict[ir.Node, tuple[str, str]], after: dict[ir.Node, tuple[str, str]]
) -> Iterator[ConversionStep]:
    for node, (domain, name) in after.items():
        if before.get(node, (domain, name)) != (domain, name):
            old_domain, old_name = before[node]
            reason = f"it is called {old_name} of {old_domain} in the file"
            yield ConversionStep(get_label(node), old_name, name, reason)


def _describe_folding(node: ir.Node) -> ConversionStep:
    return ConversionStep(get_label(node), node.op_type, "constant")
