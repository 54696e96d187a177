# SPDX-License-Identifier: Apache-2.0
"""Replacement of BatchNormalization by Mul and Add."""

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.onnx.folding.evaluation import evaluate_standard
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.constants import Array, is_constant, read_array
from anybit.onnx.graph.editor import Editor
from anybit.onnx.graph.op_traits import is_onnx_op
from anybit.onnx.graph.require import require_input, require_shape

# Before, attributes selected the normalized axes.
_OPSET = 9
EPSILON = 1e-5
"""The default epsilon."""
_PROBES = 16


class BatchNormToAffine(InPlacePass):
    """Replacement of BatchNormalization with known parameters by x * a + b, if exact.

    a = scale * (1 / sqrt(variance + epsilon)) and b = bias - mean * a, each operation rounded to
    float32: so ONNX Runtime computes it on x86-64. Each node is run on this machine with numbers of
    all magnitudes; a node with a different bit stays.
    """

    def call(self, model: ir.Model) -> PassResult:
        opset = model.graph.opset_imports.get("", 1)
        if opset < _OPSET:
            return PassResult(model, False)
        editor = Editor(model)
        count = 0
        for node in list(model.graph.all_nodes()):
            parameters = read_parameters(node)
            if parameters is None:
                continue
            factor, offset = compute_affine(node, *parameters)
            if _is_exact(node, parameters, factor, offset, opset, model.ir_version or 8):
                _replace(node, factor, offset, editor)
                count += 1
        return PassResult(model, bool(count))


def read_parameters(node: ir.Node) -> list[Array] | None:
    """Return scale, bias, mean and variance; None for other nodes or unknown parameters."""
    if not is_onnx_op(node, "BatchNormalization") or len(node.outputs) != 1:
        return None
    if get_attribute(node, "training_mode", 0) or len(node.inputs) != 5:
        return None
    x = node.inputs[0]
    if x is None or x.shape is None or len(x.shape) < 2:
        return None
    parameters = [value for value in node.inputs[1:] if value is not None and is_constant(value)]
    arrays = [read_array(value) for value in parameters]
    same = {(array.shape, array.dtype) for array in arrays}
    if len(arrays) != 4 or len(same) != 1 or arrays[0].dtype != np.float32:
        return None
    return arrays if arrays[0].ndim == 1 else None


def compute_affine(
    node: ir.Node, scale: Array, bias: Array, mean: Array, variance: Array
) -> tuple[Array, Array]:
    """Return the factor and the offset of x."""
    epsilon = np.float32(get_attribute(node, "epsilon", EPSILON))
    with np.errstate(all="ignore"):
        factor = np.float32(1) / np.sqrt(variance + epsilon) * scale
        return factor, bias - mean * factor


def _is_exact(
    node: ir.Node,
    parameters: list[Array],
    factor: Array,
    offset: Array,
    opset: int,
    ir_version: int,
) -> bool:
    random = np.random.default_rng(0)
    exponents = random.uniform(-6, 6, (_PROBES, 1))
    x = random.standard_normal((_PROBES, len(factor))) * 10.0**exponents
    # Also near the mean, because most of the sum cancels there.
    x = np.concatenate([x, parameters[2] + 1e-3 * x]).astype(np.float32)
    expected = evaluate_standard(node, [x, *parameters], opset, ir_version)
    with np.errstate(all="ignore"):
        got = x * factor + offset
    return expected is not None and expected.tobytes() == got.tobytes()


def _replace(node: ir.Node, factor: Array, offset: Array, editor: Editor) -> None:
    x, result, name = require_input(node), node.outputs[0], node.name or node.op_type
    shape = (1, -1, *([1] * (len(require_shape(x)) - 2)))
    y = x
    for kind, array in (("Mul", factor), ("Add", offset)):
        constant = editor.add_constant(f"{name}_{kind.lower()}", ir.tensor(array.reshape(shape)))
        inputs = [y, constant]
        title = f"{name}_{kind}"
        y = editor.insert(node, kind, inputs, title, like=result, dtype=ir.DataType.FLOAT)
    editor.replace(node, y)
