# SPDX-License-Identifier: Apache-2.0
"""Passes that reject models that no file or no runtime can have."""

import onnx_ir as ir
from onnx_ir.passes import InPlacePass, PassResult

from anybit.errors import ModelError
from anybit.onnx.operators.registry import find_operators, find_versions
from anybit.ops import Operator

_RANDOM = {
    *("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike"),
    *("RandomUniform", "RandomUniformLike"),
}


class RefuseVersions(InPlacePass):
    """Pass that rejects two versions of one operator: a file can declare only one."""

    def call(self, model: ir.Model) -> PassResult:
        used: dict[tuple[str, str], set[Operator]] = {}
        for _, operator in find_operators(model):
            used.setdefault((operator.onnx_domain, operator.onnx_name), set()).add(operator)
        for (domain, name), operators in used.items():
            if len(operators) > 1:
                versions = sorted(operators, key=lambda operator: operator.version)
                names = " and ".join(operator.name for operator in versions)
                raise ModelError(
                    f"the model uses {names}, which are versions of the ONNX operator {name}: a "
                    f"file can import one version of {domain!r} only; use {versions[-1].name} "
                    "throughout"
                )
        return PassResult(model, False)


class RefuseUnknown(InPlacePass):
    """Pass that rejects random numbers, and operators that no runtime has."""

    def call(self, model: ir.Model) -> PassResult:
        for node in model.graph.all_nodes():
            if node.domain == "" and (node.op_type in _RANDOM or _drops_at_random(node)):
                raise ModelError(
                    f"the model draws random numbers in eval mode ({node.op_type}); pass "
                    "training=self.training to functions such as dropout"
                )
            if node.domain != "" and not find_versions(node.domain, node.op_type):
                raise ModelError(
                    f"the exporter wrote the operator {node.op_type} of {node.domain!r}, which no "
                    "runtime has; replace the operation in forward"
                )
        return PassResult(model, False)


def _drops_at_random(node: ir.Node) -> bool:
    training = node.inputs[2] if node.op_type == "Dropout" and len(node.inputs) > 2 else None
    tensor = None if training is None else training.const_value
    return training is not None and (tensor is None or bool(tensor.numpy()))
