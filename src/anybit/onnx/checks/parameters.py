# SPDX-License-Identifier: Apache-2.0
"""Constant parameters that operators refuse, or that are valid but unusual."""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.checks.finding import Finding, make_error, make_warning
from anybit.onnx.checks.subject import Subject
from anybit.onnx.graph.constants import Array, read_array
from anybit.onnx.graph.names import describe
from anybit.onnx.graph.walk import iter_nodes
from anybit.onnx.operators.multi_threshold import is_multi_threshold, read_staircase
from anybit.onnx.quantizers.quantizer import OwnQuantizer
from anybit.ops import Input
from anybit.ops.domain import Role

# Checking larger shapes takes too long; running the model reports them.
_MOST_ELEMENTS = 2**22


def check(subject: Subject) -> Iterator[Finding]:
    for quantizer in subject.quantizers:
        parameters = quantizer.parameters
        wrong = [
            finding
            for declared in quantizer.operator.inputs[1:]
            if declared.name in parameters
            for finding in _check_values(quantizer, declared, parameters[declared.name])
        ]
        wrong += _check_shapes(quantizer)
        yield from wrong
        if not any(finding.severity == "error" for finding in wrong):
            yield from _iter_remarks(quantizer)
    for node in iter_nodes(subject.model.graph):
        if is_multi_threshold(node):
            yield from _check_thresholds(node)


def _check_thresholds(node: ir.Node) -> Iterator[Finding]:
    try:
        values = read_staircase(node).values
    except ModelError as refusal:
        problem, _, remedy = str(refusal).removeprefix(describe(node)).lstrip(": ").partition("; ")
        yield make_error(node, "bad-thresholds", problem, remedy or "export the model again")
        return
    wrong = values[~np.isfinite(values)]
    if wrong.size:
        problem = f"out_scale and out_bias give {wrong[0]:g} as a result"
        yield make_warning(node, "result-not-finite", problem, "export it with finite numbers")


def _check_values(quantizer: OwnQuantizer, declared: Input, array: Array) -> Iterator[Finding]:
    node = quantizer.node
    name, domain = declared.name, declared.domain
    number = array.dtype.kind in "fiub" or array.dtype.name == "bfloat16"
    if not number or (domain.dtypes and array.dtype.name not in domain.dtypes):
        problem = f"{name} must be {domain.description}, got {array.dtype}"
        yield make_error(node, "bad-type", problem, "store it in that type")
        return
    values = array.astype(np.float64).ravel()
    unlimited = not domain.integer and domain.minimum == -np.inf
    if domain.integer:
        bad = ~np.isfinite(values) | (values != np.rint(values))
    else:
        # Infinite scales and zero-points are defined, but never intended.
        bad = ~np.isfinite(values) if unlimited else np.isnan(values)
    bad |= (values < domain.minimum) | (values > domain.maximum)
    if bad.any():
        code, expected = (
            ("not-finite", "finite") if unlimited else ("not-in-domain", domain.description)
        )
        problem = f"{name} must be {expected}, got {values[bad][0]:g}"
        yield make_error(node, code, problem, f"look where {name} comes from, and export it again")
    if declared.role in (Role.SCALE, Role.IN_SCALE):
        yield from _check_scales(quantizer, name, values[~bad])


def _check_scales(quantizer: OwnQuantizer, name: str, values: Array) -> Iterator[Finding]:
    node = quantizer.node
    wrong = values[values <= 0]
    if wrong.size:
        of_zero = "makes all values 0" if quantizer.operator.is_dequantizer else "divides by 0"
        meaning = of_zero if wrong[0] == 0 else "mirrors the codes"
        problem = f"{name} must be > 0, got {wrong[0]:g}, which {meaning}"
        yield make_error(node, "scale-not-positive", problem, "export with a positive scale")
    tiny = values[(values > 0) & (values < np.finfo(np.float32).tiny)]
    if tiny.size:
        problem = f"{name} {tiny[0]:g} is a subnormal float32, which fast hardware takes for 0"
        yield make_warning(node, "scale-subnormal", problem, "use a larger scale")


def _check_shapes(quantizer: OwnQuantizer) -> Iterator[Finding]:
    """Yield errors of the operator for x and parameters of these shapes, whatever their values."""
    shape, x, node = _find_x_shape(quantizer), quantizer.x, quantizer.node
    if shape is None or not quantizer.static or np.prod(shape, dtype=float) > _MOST_ELEMENTS:
        return
    # 1 is in every domain, so only shapes, types and attributes can be refused.
    arguments = [
        None if value is None else np.ones_like(quantizer.parameters[declared.name])
        for declared, value in zip(quantizer.operator.inputs[1:], node.inputs[1:], strict=False)
    ]
    if any(argument is not None and argument.dtype.kind in "OSU" for argument in arguments):
        return
    try:
        operator = quantizer.operator
        usual = np.dtype(operator.inputs[0].domain.dtypes[0])
        dtype = usual if x is None or x.dtype is None else x.dtype.numpy()
        operator.function(np.zeros(shape, dtype), *arguments, **quantizer.attributes)
    except (TypeError, ValueError) as refusal:
        yield make_error(node, "bad-shape", str(refusal), "correct the parameter or the shape of x")


def _find_x_shape(quantizer: OwnQuantizer) -> tuple[int, ...] | None:
    """Return the shape of x. A dynamic number of rows becomes that of the parameters."""
    if quantizer.x is None or quantizer.x.shape is None:
        return None
    sizes = list(quantizer.x.shape)
    if sizes and not isinstance(sizes[0], int):
        rows = [
            parameter.shape[0]
            for parameter in quantizer.parameters.values()
            if parameter.ndim == len(sizes)
        ]
        sizes[0] = max(rows, default=1)
    numbers = tuple(size for size in sizes if isinstance(size, int))
    return numbers if len(numbers) == len(sizes) else None


def _iter_remarks(quantizer: OwnQuantizer) -> Iterator[Finding]:
    if quantizer.operator.remarks is None:
        return
    for remark in quantizer.operator.remarks(quantizer.call):
        if remark.beyond is not None and _has_codes_up_to(quantizer, remark.beyond):
            continue
        finding = make_error if remark.error else make_warning
        yield finding(quantizer.node, remark.code, remark.problem, remark.remedy)


def _has_codes_up_to(quantizer: OwnQuantizer, most: int) -> bool:
    """Return whether a constant is quantized to integers of at most `most`."""
    x, grid = quantizer.x, quantizer.grid
    if x is None or x.const_value is None or grid is None:
        return False
    codes = np.abs(grid.count_steps(read_array(x).astype(np.float64)))
    return bool((codes + np.abs(grid.zeropt).max() <= most).all())
