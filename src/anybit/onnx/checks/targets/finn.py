# SPDX-License-Identifier: Apache-2.0
"""FINN's conversion from QONNX (`ConvertQONNXtoFINN`).

Source: finn/transformation/qonnx: qonnx_activation_handlers.py at commit 02147ee,
quant_act_to_multithreshold.py at 12be6c9, fold_quant_weights.py at 0023563,
infer_quant_avg_pool_2d.py at 5080639.
"""

import re
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from anybit.onnx.checks.finding import Finding, make_error, make_warning
from anybit.onnx.checks.shapes import check_dynamic_sizes
from anybit.onnx.checks.subject import Subject
from anybit.onnx.checks.targets import foreign
from anybit.onnx.forms import Form
from anybit.onnx.graph.constants import Array
from anybit.onnx.graph.walk import iter_nodes
from anybit.onnx.operators.registry import find_versions
from anybit.onnx.quantizers.quantizer import OwnQuantizer
from anybit.ops.domain import Role
from anybit.ops.grids import Coding, IntegerGrid

NAMES = frozenset(("Quant", "BipolarQuant", "Trunc"))
"""The operators that FINN recognizes, by name."""

# Domains of operators that FINN and QONNX define, such as MultiThreshold.
_DOMAINS = re.compile(r"(finn|qonnx\.custom_op)(\..*)?")

_WIDEST_ACTIVATION = 8
# Scales of weights are moved after these; Gemm is split and Transpose folded before.
_READERS = {"Add", "Conv", "ConvTranspose", "Div", "Gather", "Gemm", "MatMul", "Mul", "Sub"}


def check(subject: Subject) -> Iterator[Finding]:
    yield from check_dynamic_sizes(subject, "FINN")
    for node in iter_nodes(subject.model.graph):
        if _is_refused(node):
            remedy = foreign.suggest_remedy(node, Form.QONNX)
            yield make_error(node, "operator", f"FINN has no {foreign.name_operator(node)}", remedy)
    for quantizer in subject.quantizers:
        names = NAMES.intersection((quantizer.operator.onnx_name, *quantizer.operator.onnx_aliases))
        if not names:
            problem = f"FINN has no {quantizer.spelled}"
            remedy = "quantize the float model with anybit quantize --target finn"
            yield make_error(quantizer.node, "operator", problem, remedy)
            continue
        if quantizer.spelled not in NAMES:
            problem = f"FINN looks for {min(names)} and ignores {quantizer.spelled}"
            yield make_error(quantizer.node, "name", problem, "run anybit clean --target finn")
        yield from _check_quantizer(quantizer)


def _is_refused(node: ir.Node) -> bool:
    """Return whether an operator has another domain than ONNX's, QONNX's or FINN's, or codes."""
    if find_versions(node.domain, node.op_type):
        return False
    is_foreign = foreign.is_foreign(node) and not _DOMAINS.fullmatch(node.domain)
    return is_foreign or foreign.is_quantized(node)


def _check_quantizer(quantizer: OwnQuantizer) -> Iterator[Finding]:
    node, zeropt = quantizer.node, quantizer.get_parameter(Role.ZERO_POINT)
    if not quantizer.static:
        problem = "a parameter is computed at run time; FINN builds hardware for known ones"
        yield make_error(
            node, "run-time-parameter", problem, "run anybit clean, or export constants"
        )
        return
    if zeropt is not None and (zeropt != 0).any():
        problem = f"zero-point {zeropt[zeropt != 0][0]:g}; FINN supports only 0"
        yield make_error(node, "zero-point", problem, "quantize again with a zero-point of 0")
    if _requantizes(quantizer):
        yield from _check_trunc(quantizer)
        return
    if not isinstance(quantizer.grid, IntegerGrid):
        problem = "FINN supports one bit-width per tensor"
        yield make_error(node, "granularity", problem, "use one bit-width for the whole tensor")
        return
    findings_of = _check_weight if quantizer.constant else _check_activation
    yield from findings_of(quantizer, quantizer.grid)


def _check_activation(quantizer: OwnQuantizer, grid: IntegerGrid) -> Iterator[Finding]:
    node, shape = quantizer.node, None if quantizer.x is None else quantizer.x.shape
    if not _is_per_channel(grid.scale, 1, None if shape is None else len(shape)):
        problem = f"scale of shape {list(grid.scale.shape)}; FINN supports one, or one per channel"
        yield make_error(node, "granularity", problem, "use a scale per tensor or per channel")
    if grid.coding is Coding.SIGN:
        is_one = grid.scale.size == 1 and grid.scale.item() == 1
        if quantizer.preceding not in ("Relu", "Selu") and not is_one:
            problem = "scale is not 1, which FINN requires of bipolar activations"
            yield make_error(node, "scale", problem, "quantize again with a scale of 1")
        return
    if grid.coding is Coding.OTHER:
        mode = quantizer.attributes.get("rounding_mode")
        problem = f"rounding mode {mode}; FINN's thresholds silently round to nearest"
        yield make_error(node, "rounding-mode", problem, "quantize again with ROUND")
    signed, narrow = grid.lowest < 0, quantizer.attributes.get("narrow", False)
    if quantizer.preceding == "Relu" and (signed or narrow):
        problem = "signed or narrow after Relu; FINN requires unsigned, full-range quantizers there"
        yield make_error(node, "range", problem, "quantize again without signed and narrow")
    elif quantizer.preceding not in ("Relu", "Selu") and not signed:
        preceding = quantizer.preceding or "an input"
        problem = f"unsigned after {preceding}; FINN requires signed quantizers there"
        yield make_error(node, "range", problem, "use a signed quantizer, or put a Relu before it")
    bits = grid.bits
    if bits > _WIDEST_ACTIVATION:
        problem = f"{bits} bits; FINN makes thresholds of at most {_WIDEST_ACTIVATION} by default"
        yield make_warning(
            node, "too-wide", problem, "quantize to 8 bits, or raise max_multithreshold_bit_width"
        )


def _check_weight(quantizer: OwnQuantizer, grid: IntegerGrid) -> Iterator[Finding]:
    node = quantizer.node
    readers = _find_readers(node)
    if len(readers) != 1:
        problem = f"the weight has {len(readers)} readers; FINN supports one"
        yield make_error(node, "fork", problem, "give each reader a quantizer of its own")
        return
    if (grid.scale == 1).all():
        return
    reader = readers[0]
    if reader.op_type not in _READERS:
        problem = f"FINN cannot move the scale of a weight past {reader.op_type}"
        yield make_error(
            node, "reader", problem, f"use a scale of 1, or quantize after {reader.op_type}"
        )
    if reader.op_type == "Conv" and not _is_per_channel(grid.scale, 0, grid.scale.ndim):
        problem = f"scale of shape {list(grid.scale.shape)}; FINN supports one per output channel"
        yield make_error(node, "granularity", problem, "use a scale per tensor or output channel")


def _check_trunc(quantizer: OwnQuantizer) -> Iterator[Finding]:
    node = quantizer.node
    if quantizer.operator.version != 1:
        problem = "six inputs; FINN reads the fifth as the width of the result"
        yield make_error(node, "version", problem, "export with version 1 (five inputs) for FINN")
    if quantizer.attributes["rounding_mode"] != "FLOOR":
        problem = f"rounding mode {quantizer.attributes['rounding_mode']}; FINN supports FLOOR"
        yield make_error(node, "rounding-mode", problem, "export with rounding mode FLOOR")
    product = None if quantizer.x is None else quantizer.x.producer()
    mean = product.inputs[0].producer() if product and product.inputs[0] else None
    if quantizer.preceding != "Mul" or mean is None or mean.op_type != "AveragePool":
        problem = "FINN supports it after AveragePool and Mul only"
        yield make_error(
            node, "place", problem, "replace it by a Quant of the result's scale and width"
        )


def _requantizes(quantizer: OwnQuantizer) -> bool:
    """Return whether a node converts from one scale and width to another."""
    return any(declared.role is Role.IN_BITWIDTH for declared in quantizer.operator.inputs)


def _find_readers(node: ir.Node) -> list[ir.Node]:
    """Return the readers of the result; transpositions of weights are folded into them."""
    readers = []
    for reader, _ in node.outputs[0].uses():
        readers += _find_readers(reader) if reader.op_type == "Transpose" else [reader]
    return readers


def _is_per_channel(scale: Array, axis: int, rank: int | None) -> bool:
    """Return whether there is one value, or one per channel of that axis of x."""
    varying = [at - scale.ndim for at, size in enumerate(np.shape(scale)) if size != 1]
    return not varying or (len(varying) == 1 and (rank is None or varying[0] == axis - rank))
