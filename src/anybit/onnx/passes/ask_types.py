# SPDX-License-Identifier: Apache-2.0
"""Types that ONNX's inference does not derive, from ONNX Runtime."""

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.onnx.runtime import FAILURES, make_session

_SPELLED = {"float": "FLOAT", "double": "DOUBLE"}


class AskTypes(InPlacePass):
    """Inference of the types of other domains' operators by the runtime.

    The model is loaded once, if a value of its main graph has no type. A model that the runtime
    cannot load stays as it is.
    """

    def call(self, model: ir.Model) -> PassResult:
        unknown = {value.name: value for value in _find_untyped(model)}
        if not unknown:
            return PassResult(model, False)
        copy = model.clone()
        copy.graph.outputs[:] = list(_find_untyped(copy))
        try:
            arguments = make_session(copy, threads=1).get_outputs()
        except FAILURES:
            return PassResult(model, False)
        for argument in arguments:
            spelled = argument.type.removeprefix("tensor(").removesuffix(")")
            name = _SPELLED.get(spelled, spelled.upper())
            if name in ir.DataType.__members__:
                unknown[argument.name].type = ir.TensorType(ir.DataType[name])
        return PassResult(model, any(value.type is not None for value in unknown.values()))


def _find_untyped(model: ir.Model) -> list[ir.Value]:
    return [
        value for node in model.graph for value in node.outputs if value.name and value.type is None
    ]
