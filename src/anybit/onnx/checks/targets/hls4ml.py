# SPDX-License-Identifier: Apache-2.0
"""hls4ml's frontend for QONNX, from version 1.2 on.

Read in hls4ml: model/optimizer/passes/quant_opt.py at commit f3ff077, bipolar_quant_opt.py at
18ce38e, converters/onnx/core.py, merge.py and reshape.py at 0110414, docs/frontend/qonnx.rst at
312395e; pull request 1355, which adds BipolarQuant and the name IntQuant.
"""

import re
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from anybit.onnx.checks.finding import Finding, error, warning
from anybit.onnx.checks.shapes import free_sizes
from anybit.onnx.checks.subject import Subject
from anybit.onnx.graph.constants import are_powers_of_two
from anybit.onnx.graph.layout import CHANNELS_LAST, CHANNELS_LAST_OPERATORS
from anybit.onnx.operators.registry import versions_of
from anybit.onnx.quantizers.quantizer import OwnQuantizer
from anybit.ops.domain import Role

NAMES = frozenset(("Quant", "IntQuant", "BipolarQuant"))
"""The operators of ours that hls4ml reads, by name."""

_KEYWORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t
    char32_t class compl concept const consteval constexpr constinit const_cast continue co_await
    co_return co_yield decltype default delete do double dynamic_cast else enum explicit export
    extern false float for friend goto if inline int long mutable namespace new noexcept not not_eq
    nullptr operator or or_eq private protected public register reinterpret_cast requires return
    short signed sizeof static static_assert static_cast struct switch template this thread_local
    throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t while
    xor xor_eq
"""
_GENERATED_NAMES = """
    input main myproject nnet std hls ap_int ap_uint ap_fixed ap_ufixed size_t EOF INFINITY NAN NULL
    CHECKPOINT current e fin fout fpr i iline in in_begin cptr output_path pline pr
"""
RESERVED = frozenset((*_KEYWORDS.split(), *_GENERATED_NAMES.split()))
"""Names that inputs of hls4ml's C++ cannot have: words of the language, and of what it generates."""
GENERATED = re.compile(r"_*[A-Z0-9].*|__.*|.*_t|(config|index|layer)[0-9]+.*|[a-z][0-9]+")
"""What names that hls4ml generates look like: types, configurations, results and weights."""

_IN_CHANNELS_LAST = {*CHANNELS_LAST_OPERATORS, "AveragePool"}
_LAYERS = {
    *("MatMul", "Conv", "BatchNormalization", "AveragePool", "MaxPool"),
    *("GlobalAveragePool", "GlobalMaxPool", "Transpose", "Reshape", "Flatten", "Resize"),
    *("Add", "Sub", "Mul", "Div", "Average", "Max", "Min", "Concat", "Sum"),
    *("Relu", "Tanh", "Sigmoid", "LeakyRelu", "ThresholdedRelu", "Elu", "Selu", "PRelu"),
    *("Softmax", "Softsign", "Softplus", "Clip", "Dropout", "Identity", "Constant"),
}


def findings(subject: Subject) -> Iterator[Finding]:
    yield from free_sizes(subject, "hls4ml")
    yield from _layer_findings(subject)
    for quantizer in subject.quantizers:
        if quantizer.spelled not in NAMES:
            problem = f"hls4ml has no {quantizer.spelled}"
            yield error(quantizer.node, "operator", problem, "quantize to integers")
            continue
        yield from _quantizer_findings(quantizer)
        if quantizer.known and not _is_fixed_point(quantizer):
            problem = "no fixed-point type has this scale and zero-point, so that hls4ml multiplies"
            remedy = "train with one power-of-two scale per tensor and zero-point 0"
            yield warning(quantizer.node, "scale", problem, remedy)


def _layer_findings(subject: Subject) -> Iterator[Finding]:
    for node in subject.model.graph:
        if versions_of(node.domain, node.op_type):
            continue
        if node.op_type == "Gemm":
            problem = "hls4ml does not read Gemm"
            yield error(node, "gemm", problem, "run anybit clean --target hls4ml")
        elif node.op_type not in _LAYERS:
            problem = f"hls4ml has no layer for {node.op_type}"
            yield error(node, "layer", problem, "use layers that hls4ml has")
        elif node.op_type in _IN_CHANNELS_LAST and CHANNELS_LAST not in node.meta:
            shape = node.inputs[0].shape if node.inputs and node.inputs[0] is not None else None
            if node.op_type != "BatchNormalization" or (shape is not None and len(shape) > 2):
                yield _channels_first(node)


def _channels_first(node: ir.Node) -> Finding:
    remedy = "run anybit clean --target hls4ml"
    if node.op_type not in CHANNELS_LAST_OPERATORS:
        remedy = "use another kind of pooling: QONNX has none of this kind with channels last"
    problem = f"hls4ml reads {node.op_type} with channels last"
    return error(node, "channels-first", problem, remedy)


def _quantizer_findings(quantizer: OwnQuantizer) -> Iterator[Finding]:
    node = quantizer.node
    if not quantizer.known:
        problem = "a parameter is computed at run time; hls4ml needs constants"
        yield error(node, "run-time-parameter", problem, "run anybit clean, or export constants")
    width = quantizer.parameter(Role.BITWIDTH)
    if width is not None and width.size != 1:
        problem = f"bitwidth of shape {list(width.shape)}; hls4ml takes one per tensor"
        yield error(node, "granularity", problem, "use one bit-width")
    mode = quantizer.attributes.get("rounding_mode", "ROUND")
    if mode not in ("ROUND", "FLOOR"):
        problem = f"rounding mode {mode}; hls4ml takes ROUND and FLOOR"
        yield error(node, "rounding-mode", problem, "train with one of them")
    if quantizer.attributes.get("narrow") and not quantizer.attributes.get("signed"):
        problem = "narrow and unsigned; hls4ml takes narrow ranges of signed quantizers only"
        yield error(node, "range", problem, "train with the full range")


def _is_fixed_point(quantizer: OwnQuantizer) -> bool:
    scale, zeropt = quantizer.parameter(Role.SCALE), quantizer.parameter(Role.ZERO_POINT)
    steps = np.unique(np.ones(1) if scale is None else scale)
    centred = zeropt is None or not (zeropt != 0).any()
    return steps.size == 1 and bool(are_powers_of_two(steps[0])) and centred
