# SPDX-License-Identifier: Apache-2.0
"""Put the bodies of local functions in the place of their calls."""

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult
from onnx_ir.passes.common import InlinePass

from anybit.errors import ModelError
from anybit.onnx.operators.registry import versions_of


class InlineFunctions(InPlacePass):
    """Inline all local functions but those with an operator's name.

    With the bodies, the constants in them can be folded and the operators in them converted.
    Functions of our names only stand in for the operator: `Normalize` drops them.

    Raises:
        ModelError: A function cannot be inlined.
    """

    def call(self, model: ir.Model) -> PassResult:
        ours = {
            key: model.functions.pop(key) for key in list(model.functions) if versions_of(*key[:2])
        }
        try:
            modified = InlinePass()(model).modified
        except Exception as error:  # onnx_ir has no class for what is wrong with a function
            raise ModelError(f"a local function cannot be inlined: {error}") from error
        finally:
            model.functions.update(ours)
        return PassResult(model, modified)
