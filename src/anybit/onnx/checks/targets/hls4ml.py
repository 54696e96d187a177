# SPDX-License-Identifier: Apache-2.0
"""hls4ml's frontend for QONNX, as of version 1.3.0, whose emulation the tests compare with.

Source, in hls4ml: model/optimizer/passes/quant_opt.py at commit f3ff077, bipolar_quant_opt.py at
18ce38e, converters/onnx/core.py, merge.py and reshape.py at 0110414, docs/frontend/qonnx.rst at
312395e; pull request 1355, which adds BipolarQuant and the name IntQuant.
"""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from anybit.onnx.checks.finding import Finding, make_error, make_warning
from anybit.onnx.checks.shapes import check_dynamic_sizes
from anybit.onnx.checks.subject import Subject
from anybit.onnx.checks.targets import foreign, hls4ml_names
from anybit.onnx.forms import Form
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import are_powers_of_two, is_constant
from anybit.onnx.graph.layout import CHANNELS_LAST, CHANNELS_LAST_OPERATORS
from anybit.onnx.operators.multi_threshold import is_multi_threshold
from anybit.onnx.operators.registry import find_versions
from anybit.onnx.quantizers.quantizer import OwnQuantizer
from anybit.ops.domain import Role

NAMES = frozenset(("Quant", "IntQuant", "BipolarQuant"))
"""The operators of this package that hls4ml supports, by name."""

_IN_CHANNELS_LAST = {*CHANNELS_LAST_OPERATORS, "AveragePool"}
_JOINED_WITH_SIGNS = {"Add", "BatchNormalization", "Div", "Mul", "Sub"}
_GLOBAL_POOLS = {"GlobalAveragePool", "GlobalMaxPool"}
_MERGES = {"Add", "Sub", "Mul", "Div", "Max", "Min", "Concat", "Sum"}
_TABLES = {"Tanh", "Sigmoid", "Elu", "Selu", "Softmax", "Softsign", "Softplus"}
_POOL = "pool over 2^k values, so that anybit clean --target hls4ml writes it as a convolution"
_LAYERS = {
    *("MatMul", "Conv", "BatchNormalization", "AveragePool", "MaxPool", *_GLOBAL_POOLS),
    *("Transpose", "Reshape", "Flatten", "Resize", *_MERGES),
    *("Relu", "LeakyRelu", "ThresholdedRelu", "PRelu", *_TABLES, "Dropout", "Identity"),
}


def check(subject: Subject) -> Iterator[Finding]:
    yield from check_dynamic_sizes(subject, "hls4ml")
    yield from hls4ml_names.check(subject.file.graph)
    yield from _check_layers(subject)
    for quantizer in subject.quantizers:
        if quantizer.spelled not in NAMES:
            problem = f"hls4ml has no {quantizer.spelled}"
            remedy = "quantize the float model with anybit quantize --target hls4ml"
            yield make_error(quantizer.node, "operator", problem, remedy)
            continue
        yield from _check_quantizer(quantizer)
        if quantizer.static and not _is_fixed_point(quantizer):
            problem = (
                "no fixed-point type has this scale and zero-point; hls4ml multiplies, in its "
                "default precision, which has to hold the codes"
            )
            remedy = "quantize again with one power of two as scale, and a zero-point of 0"
            yield make_warning(quantizer.node, "scale", problem, remedy)


def _check_layers(subject: Subject) -> Iterator[Finding]:
    for node in subject.model.graph:
        if find_versions(node.domain, node.op_type):
            continue
        if foreign.is_foreign(node):
            yield _report_missing_layer(node)
            continue
        if node.op_type == "Gemm":
            problem = "hls4ml does not read Gemm"
            yield make_error(node, "gemm", problem, hls4ml_names.CLEAN)
        elif node.op_type in _GLOBAL_POOLS:
            problem = f"hls4ml reads sizes and data of {node.op_type} in different layouts"
            remedy = hls4ml_names.CLEAN if node.op_type == "GlobalMaxPool" else _POOL
            yield make_error(node, "layout", problem, remedy)
        elif node.op_type == "Pad":
            problem = "hls4ml pads images with channels last; Pad has them first"
            yield make_error(node, "layout", problem, "move the padding into the next Conv")
        elif node.op_type not in _LAYERS:
            yield _report_missing_layer(node)
        elif node.op_type in _IN_CHANNELS_LAST and CHANNELS_LAST not in node.meta:
            shape = node.inputs[0].shape if node.inputs and node.inputs[0] is not None else None
            if node.op_type != "BatchNormalization" or (shape is not None and len(shape) > 2):
                yield _report_channels_first(node)
        yield from _check_operands(node)
        if node.op_type == "Conv":
            yield from _check_convolution(node)


def _report_missing_layer(node: ir.Node) -> Finding:
    remedy = "replace it by layers such as Conv, MatMul, BatchNormalization, Relu, Add or MaxPool"
    if is_multi_threshold(node):
        remedy = "start from the model before FINN's transformations, in which it was a Quant"
    elif foreign.is_quantized(node):
        remedy = foreign.suggest_remedy(node, Form.QONNX)
    return make_error(
        node, "layer", f"hls4ml has no layer for {foreign.name_operator(node)}", remedy
    )


def _check_operands(node: ir.Node) -> Iterator[Finding]:
    """Yield operands that hls4ml refuses, or stores in another type."""
    if None in node.inputs:
        problem = "an optional input is missing, but hls4ml reads all inputs"
        yield make_error(node, "layer", problem, "export the layer with all of its inputs")
    shape = _get_shape(node)
    if node.op_type == "MatMul" and shape is not None and len(shape) != 2:
        problem = f"hls4ml treats an input of shape {list(shape)} as a vector"
        yield make_error(node, "rank", problem, "reshape it to [batch, features] before")
    if node.op_type == "MatMul" and (_is_constant(node, 0) or not _is_constant(node, 1)):
        problem = "hls4ml multiplies with constants from the right only"
        yield make_error(node, "reader", problem, "rewrite it as x @ constant")
    if node.op_type in _MERGES and len(node.inputs) > 2:
        problem = f"{len(node.inputs)} inputs; hls4ml merges two"
        yield make_error(node, "layer", problem, f"split it into several {node.op_type}")
    if node.op_type in ("Conv", "MatMul"):
        for value in node.inputs[1:]:
            yield from _check_float(node, value)
    constants = [index for index in range(len(node.inputs)) if _is_constant(node, index)]
    if node.op_type in ("Max", "Min") and constants:
        problem = f"hls4ml has no {node.op_type} with a constant"
        yield make_error(node, "layer", problem, "use Relu, or let a quantizer clip")
    if node.op_type in ("Add", "Sub", "Mul", "Div") and constants:
        yield from _check_constant_operand(node, constants)
    if node.op_type in _TABLES:
        problem = f"hls4ml reads {node.op_type} from a table of rounded values"
        yield make_warning(node, "table", problem, "compare the results (anybit diff), or use Relu")


def _check_constant_operand(node: ir.Node, constants: list[int]) -> Iterator[Finding]:
    if node.op_type == "Add" and any(map(_comes_from_conv, node.inputs)):
        problem = "hls4ml cannot add a constant to a convolution"
        yield make_error(
            node, "bias", problem, f"make it the bias of the convolution: {hls4ml_names.CLEAN}"
        )
        return
    for index in constants:
        value = node.inputs[index]
        rank = 0 if value is None or value.shape is None else len(value.shape)
        if rank > 1 and rank == len(node.outputs[0].shape or ()):
            problem = "the constant has a batch axis, which hls4ml drops from its inputs"
            yield make_error(node, "rank", problem, hls4ml_names.CLEAN)
        else:
            yield from _check_float(node, value)


def _comes_from_conv(value: ir.Value | None) -> bool:
    """Return whether a Conv computes a value, possibly followed by a Transpose to channels last."""
    producer = None if value is None else value.producer()
    if producer is not None and producer.op_type == "Transpose":
        return _comes_from_conv(producer.inputs[0])
    return producer is not None and producer.op_type == "Conv"


def _check_float(node: ir.Node, value: ir.Value | None) -> Iterator[Finding]:
    if value is not None and is_constant(value):
        problem = "a constant is not quantized; hls4ml rounds it to its default precision"
        remedy = "quantize it, or set default_precision in the configuration of hls4ml"
        yield make_warning(node, "float-constant", problem, remedy)


def _check_convolution(node: ir.Node) -> Iterator[Finding]:
    if any(size != 1 for size in get_attribute(node, "dilations", ())):
        problem = "hls4ml computes the wrong size for dilated convolutions"
        yield make_error(node, "layer", problem, "use a dilation of 1")
    group, shape = get_attribute(node, "group", 1), _get_shape(node)
    if group != 1 and shape is not None and shape[1] != group:
        problem = f"{group} groups of {shape[1]} channels; hls4ml has 1 group or one per channel"
        yield make_error(node, "layer", problem, "use one group, or one per channel")


def _get_shape(node: ir.Node) -> ir.Shape | None:
    x = node.inputs[0] if node.inputs else None
    return None if x is None else x.shape


def _is_constant(node: ir.Node, index: int) -> bool:
    value = node.inputs[index] if index < len(node.inputs) else None
    if value is None:
        return False
    producer = value.producer()
    if producer is None or not find_versions(producer.domain, producer.op_type):
        return is_constant(value)
    return producer.inputs[0] is not None and is_constant(producer.inputs[0])


def _report_channels_first(node: ir.Node) -> Finding:
    remedy = hls4ml_names.CLEAN
    if node.op_type not in CHANNELS_LAST_OPERATORS:
        remedy = _POOL
    problem = f"hls4ml reads {node.op_type} with channels last"
    return make_error(node, "channels-first", problem, remedy)


def _check_quantizer(quantizer: OwnQuantizer) -> Iterator[Finding]:
    node = quantizer.node
    if not quantizer.static:
        problem = "a parameter is computed at run time; hls4ml needs constants"
        yield make_error(
            node, "run-time-parameter", problem, "run anybit clean, or export constants"
        )
    width = quantizer.get_parameter(Role.BITWIDTH)
    if width is not None and width.size != 1:
        problem = f"bitwidth of shape {list(width.shape)}; hls4ml supports one per tensor"
        yield make_error(node, "granularity", problem, "use one bit-width for the whole tensor")
    if quantizer.spelled == "BipolarQuant" and quantizer.preceding in _JOINED_WITH_SIGNS:
        problem = f"hls4ml joins it with {quantizer.preceding} and rounds the threshold down"
        yield make_error(
            node, "threshold", problem, f"put a Quant between {quantizer.preceding} and it"
        )
    scale = quantizer.get_parameter(Role.SCALE)
    if scale is not None and scale.ndim > 1 and scale.size == 1:
        problem = f"scale of shape {list(scale.shape)}; hls4ml supports a scalar"
        yield make_error(node, "granularity", problem, hls4ml_names.CLEAN)
    if quantizer.constant and len(node.outputs[0].uses()) > 1:
        problem = "a quantized constant with several readers; hls4ml drops it after the first"
        yield make_error(node, "fork", problem, hls4ml_names.CLEAN)
    mode = quantizer.attributes.get("rounding_mode", "ROUND")
    if mode not in ("ROUND", "FLOOR"):
        problem = f"rounding mode {mode}; hls4ml supports ROUND and FLOOR"
        yield make_error(node, "rounding-mode", problem, "quantize again with one of these")
    if quantizer.attributes.get("narrow") and not quantizer.attributes.get("signed"):
        problem = "narrow and unsigned; hls4ml supports narrow ranges of signed quantizers only"
        yield make_error(node, "range", problem, "quantize again without narrow")


def _is_fixed_point(quantizer: OwnQuantizer) -> bool:
    scale, zeropt = quantizer.get_parameter(Role.SCALE), quantizer.get_parameter(Role.ZERO_POINT)
    steps = np.unique(np.ones(1) if scale is None else scale)
    centred = zeropt is None or not (zeropt != 0).any()
    return steps.size == 1 and bool(are_powers_of_two(steps[0])) and centred
