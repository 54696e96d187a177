# SPDX-License-Identifier: Apache-2.0
"""Replacement of products with dequantized weights by ONNX Runtime's MatMulNBits."""

import onnx_ir as ir
from onnx_ir.passes import InPlacePass
from onnx_ir.passes.common import RemoveUnusedNodesPass

from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.names import get_label
from anybit.onnx.graph.require import require_input
from anybit.onnx.graph.walk import iter_nodes
from anybit.onnx.qdq.pack_nbits import (
    LARGE_BITS,
    SMALL_BITS,
    NBitsWeight,
    find_weight,
    pack_weight,
)
from anybit.onnx.qdq.packed_weights import (
    DOMAIN,
    IN_FLOAT32,
    NAME,
    ROUNDED_TO_INT8,
    SAME_WEIGHTS,
    describe_rounding,
)
from anybit.onnx.quantizers.grids import Inexpressible
from anybit.onnx.report import ConversionReport, ConversionStep

_FLOAT = ir.DataType.FLOAT
_UNPACKED_BITS = 2
_STORED_WIDER = "codes of {} bits are stored in {}, for which ONNX Runtime has faster kernels"


class ToNBits(InPlacePass):
    """Replacement of MatMul and Gemm whose weight is a DequantizeLinear of constant codes.

    Codes of up to 4 bits are stored in 4. With accuracy_level 1, which computes in float32, codes
    of 8 bits stay: ONNX Runtime 1.32 then takes 10 to 20 times the time of a float32 MatMul, and
    0.7 times at 4 bits (one row, 2048 x 2048, AVX2). Codes of 2 bits give the same values there,
    in 160 times the time of 4 bits, and with accuracy_level 4 in 1.4 times (32 rows: 6 times).

    A Gemm becomes MatMulNBits and Add, if neither alpha nor beta scales. Others stay, with the
    reason in the report.

    Args:
        rounded: Write accuracy_level 4, which lets the runtime round the input to 8 bits, and
            codes of 8 bits, too.

    Raises:
        ModelError: Parameters are inconsistent, or an attribute has another type than ONNX's.
    """

    def __init__(self, *, rounded: bool = False) -> None:
        self._rounded = rounded

    def call(self, model: ir.Model) -> ConversionReport:
        editor = Editor(model)
        steps = []
        for node in list(iter_nodes(model.graph)):
            if (node.domain, node.op_type) not in (("", "MatMul"), ("", "Gemm")):
                continue
            weight = find_weight(node.inputs[1] if len(node.inputs) > 1 else None)
            if weight is not None:
                steps.append(self._convert(editor, node, weight))
        if any(step.action.startswith(NAME) for step in steps):
            model.graph.opset_imports.setdefault(DOMAIN, 1)
        modified = bool(steps) | RemoveUnusedNodesPass()(model).modified
        return ConversionReport(model, modified, tuple(steps))

    def _convert(self, editor: Editor, node: ir.Node, weight: ir.Node) -> ConversionStep:
        """Replace a node if MatMulNBits computes it."""
        label, kind = get_label(node), node.op_type
        try:
            _check_product(node)
            packing = pack_weight(
                weight,
                transposed=bool(get_attribute(node, "transB", 0)),
                most_bits=LARGE_BITS if self._rounded else SMALL_BITS,
            )
        except Inexpressible as reason:
            return ConversionStep(label, kind, "kept", str(reason))
        level = ROUNDED_TO_INT8 if self._rounded else IN_FLOAT32
        _replace(editor, node, str(weight.outputs[0].name), packing, level)
        action = f"{NAME}, {packing.bits} bits"
        difference = describe_rounding(level) if self._rounded else SAME_WEIGHTS
        if packing.least_bits <= _UNPACKED_BITS:
            difference += f"; {_STORED_WIDER.format(packing.least_bits, packing.bits)}"
        return ConversionStep(label, kind, action, difference, exact=not self._rounded)


def _check_product(node: ir.Node) -> None:
    """Compare a product with what MatMulNBits computes.

    Raises:
        Inexpressible: It computes something else.
    """
    x = require_input(node)
    if x.dtype != _FLOAT:
        raise Inexpressible("its input is not known to be float32")
    if x.shape is None or len(x.shape) < 2:
        raise Inexpressible("its input is not known to have two axes or more")
    if get_attribute(node, "transA", 0):
        raise Inexpressible("its input is transposed (transA)")
    has_bias = len(node.inputs) > 2 and node.inputs[2] is not None
    factors = {"alpha": 1.0, **({"beta": 1.0} if has_bias else {})}
    for name, neutral in factors.items():
        value = get_attribute(node, name, neutral)
        if value != neutral:
            raise Inexpressible(f"its {name} is {value}, not {neutral}")


def _replace(editor: Editor, node: ir.Node, name: str, packing: NBitsWeight, level: int) -> None:
    tensors = {"packed": packing.codes, "scales": packing.scales, "zeropts": packing.zeropts}
    constants = [
        editor.share_constant(role, f"{name}_{role}", array)
        for role, array in tensors.items()
        if array is not None
    ]
    sizes = {
        "K": packing.k,
        "N": packing.n,
        "bits": packing.bits,
        "block_size": packing.block,
        "accuracy_level": level,
    }
    result, bias = node.outputs[0], node.inputs[2] if len(node.inputs) > 2 else None
    product = editor.insert(
        node,
        NAME,
        [require_input(node), *constants],
        node.name or f"{result.name}_product",
        like=result,
        dtype=_FLOAT,
        attributes=[ir.AttrInt64(key, value) for key, value in sizes.items()],
        domain=DOMAIN,
    )
    if bias is not None:
        product = editor.insert(
            node, "Add", [product, bias], f"{result.name}_bias", like=result, dtype=_FLOAT
        )
    editor.replace(node, product)
