# SPDX-License-Identifier: Apache-2.0
"""Bring a model to a newer version of the standard operators."""

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.errors import ModelError
from anybit.onnx._quiet import quiet


class RaiseOpset(InPlacePass):
    """Convert the standard operators to at least that version; newer models stay as they are.

    Raises:
        ModelError: An operator in the model cannot be converted.
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
        from onnxscript.version_converter import ConvertVersionPass

        imports = dict(model.graph.opset_imports)
        problem = "its operators have no newer form"
        try:
            with quiet():
                ConvertVersionPass(self._opset, fallback=True)(model)
        except Exception as error:  # neither converter has a class for what it cannot do
            problem = str(error)
        if model.graph.opset_imports.get("", 0) < self._opset:
            raise ModelError(
                f"the model has opset {present} and cannot be brought to {self._opset}, which the "
                f"result needs: {problem}; export it with opset {self._opset}"
            )
        # The converter drops the versions of domains that it does not know.
        model.graph.opset_imports.update({**imports, "": self._opset})
        return PassResult(model, True)
