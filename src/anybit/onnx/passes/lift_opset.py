# SPDX-License-Identifier: Apache-2.0
"""Conversion to a newer version of the standard operators."""

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.errors import ModelError
from anybit.onnx.graph.attributes import get_attribute
from anybit.onnx.graph.names import EXPORTED_NAME_KEY, describe
from anybit.onnx.graph.op_traits import is_onnx_op
from anybit.onnx.passes.infer_shapes import InferShapes
from anybit.onnx.process import silence_onnx_logs

# From this version on, Hardmax has one axis. The converters rewrite Softmax and LogSoftmax, which
# changed in the same way, but not Hardmax.
_HARDMAX_OPSET = 13


class LiftOpset(InPlacePass):
    """Conversion of the standard operators to at least an opset; newer models stay.

    A Softmax over the last axis stays one node. Nodes keep the names that their file gave them.

    Raises:
        ModelError: An operator in the model cannot be converted, or not with the same values.
    """

    def __init__(self, opset: int) -> None:
        self._opset = opset

    def call(self, model: ir.Model) -> PassResult:
        present = model.graph.opset_imports.get("", 0)
        if present >= self._opset:
            return PassResult(model, False)
        if not any(node.domain == "" for node in model.graph.all_nodes()):
            model.graph.opset_imports[""] = self._opset
            return PassResult(model, True)
        if not present:
            raise ModelError("the model does not say which opset it has; export it again")
        if present < _HARDMAX_OPSET <= self._opset:
            _check_hardmax(model)
            _spell_last_axes(model)
        from onnxscript.version_converter import ConvertVersionPass

        exported = _list_exported_names(model)
        imports = dict(model.graph.opset_imports)
        # A file with two versions of an operator declares none, but the converter requires one.
        undeclared = {node.domain for node in model.graph.all_nodes()} - imports.keys()
        model.graph.opset_imports.update(dict.fromkeys(undeclared, 1))
        problem = "its operators have no newer form"
        try:
            with silence_onnx_logs():
                ConvertVersionPass(self._opset, fallback=True)(model)
        except Exception as error:  # the converters have no error class of their own
            problem = str(error)
        if model.graph.opset_imports.get("", 0) < self._opset:
            raise ModelError(
                f"the model has opset {present} and cannot be brought to {self._opset}, which the "
                f"result needs: {problem}; export it with opset {self._opset}"
            )
        # The converter drops the imports of unknown domains.
        model.graph.opset_imports.update({**imports, "": self._opset})
        for domain in undeclared:
            model.graph.opset_imports.pop(domain, None)
        for node in model.graph.all_nodes():
            if node.name in exported:
                node.metadata_props.setdefault(EXPORTED_NAME_KEY, exported[node.name])
        return PassResult(model, True)


def _list_exported_names(model: ir.Model) -> dict[str, str]:
    """Return the names that the file gave nodes, by their names."""
    names = {
        str(node.name): node.metadata_props.get(EXPORTED_NAME_KEY)
        for node in model.graph.all_nodes()
    }
    return {name: exported for name, exported in names.items() if exported}


def _spell_last_axes(model: ir.Model) -> None:
    """Let Softmax and LogSoftmax over the last axis have the axis -1, which converters keep.

    They flatten other axes, and also the last one if they do not know the rank.
    """
    nodes = [node for node in model.graph.all_nodes() if is_onnx_op(node, "Softmax", "LogSoftmax")]
    if nodes:
        InferShapes()(model)
    for node in nodes:
        x, axis = node.inputs[0], get_attribute(node, "axis", 1)
        rank = None if x is None or x.shape is None else x.shape.rank()
        if rank is not None and axis % rank == rank - 1:
            node.attributes.add(ir.AttrInt64("axis", -1))


def _check_hardmax(model: ir.Model) -> None:
    for node in model.graph.all_nodes():
        if not is_onnx_op(node, "Hardmax"):
            continue
        x, axis = node.inputs[0], get_attribute(node, "axis", 1)
        rank = None if x is None or x.shape is None else x.shape.rank()
        if axis != -1 and (rank is None or axis != rank - 1):
            raise ModelError(
                f"{describe(node)} takes the largest over all axes from {axis} on, and no longer "
                f"does from opset {_HARDMAX_OPSET} on; export the model with that opset"
            )
