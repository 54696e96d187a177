# SPDX-License-Identifier: Apache-2.0
"""Sums of products that float32 does not compute exactly, so that they depend on their order.

A quantized tensor holds integers times a step. If all steps are powers of two, products are exact,
and so are sums of at most 2^24 units. The order, the machine and the runtime do not matter.
"""

import math
from collections.abc import Iterator

import onnx_ir as ir

from anybit.onnx.analysis.products import count_bits
from anybit.onnx.analysis.units import EXACT
from anybit.onnx.checks.finding import Finding, make_warning
from anybit.onnx.checks.subject import Subject
from anybit.onnx.checks.sums import LongSum, find_means, find_sums
from anybit.onnx.graph.constants import are_powers_of_two
from anybit.onnx.graph.walk import iter_nodes
from anybit.onnx.qdq.packed_weights import describe_level, is_nbits

_ORDER = "float32 results depend on the order of the sum"


def check(subject: Subject) -> Iterator[Finding]:
    """Yield each reason for rounding; the longest of the long sums comes first."""
    for node, long_sum in sorted(find_sums(subject), key=lambda pair: -pair[1].longest):
        yield from _check_sum(node, long_sum)
    for node, count in find_means(subject):
        if not are_powers_of_two(count):
            problem = f"the mean of {count} values rounds; runtimes divide, or multiply by the"
            remedy = "average a power of two of values, or sum and requantize"
            yield make_warning(node, "mean-rounds", f"{problem} reciprocal", remedy)
    for node in iter_nodes(subject.model.graph):
        level = describe_level(node) if is_nbits(node) else ""
        if level:
            remedy = "set accuracy_level to 1 where results must be those of floats"
            yield make_warning(node, "accuracy-level", level, remedy)


def _check_sum(node: ir.Node, long_sum: LongSum) -> Iterator[Finding]:
    if long_sum.inexact_step is not None:
        step = f"a step of {long_sum.inexact_step:.6g} is not a power of two"
        problem = f"{step}: products round, and {_ORDER}"
        remedy = "train with power-of-two scales where every bit must agree on every machine"
        yield make_warning(node, "products-round", problem, remedy)
    if long_sum.bias is not None:
        problem = (
            f"the bias {long_sum.bias:.6g} is not a multiple of the products' step: "
            f"adding it rounds, and {_ORDER}"
        )
        remedy = "quantize the bias with the product of the two scales"
        yield make_warning(node, "bias-off-grid", problem, remedy)
    if long_sum.longest <= EXACT:
        return
    if long_sum.floating:
        problem = (
            "products of floats of few bits are exact in float32, but their sum rounds where large "
            f"ones meet small ones: {_ORDER}, in the last bits"
        )
        remedy = (
            "nothing, if such differences do not matter; quantize to integers where every bit "
            "must agree"
        )
        yield make_warning(node, "float-sums", problem, remedy)
        return
    longest = math.ceil(long_sum.longest)
    problem = (
        f"sums reach {long_sum.longest:.4g} steps of the products, more than the 2^24 up to which "
        f"float32 is exact; an accumulator needs {count_bits(-longest, longest)} bits"
    )
    remedy = "use fewer bits or smaller weights, or integer accumulators that wide"
    yield make_warning(node, "accumulator-width", problem, remedy)
