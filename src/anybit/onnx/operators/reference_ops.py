# SPDX-License-Identifier: Apache-2.0
"""The operators for `onnx.reference.ReferenceEvaluator`."""

import functools
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.graph.names import described
from anybit.onnx.operators.registry import CANONICAL_DOMAINS, operator_of
from anybit.ops import OPERATORS, Operator

if TYPE_CHECKING:
    from onnx.reference.op_run import OpRun


def reference_ops() -> list[type["OpRun"]]:
    """The operators for `onnx.reference.ReferenceEvaluator(model, new_ops=reference_ops())`.

    They are there under all names and domains that are found in files, so that models need not
    be normalized; the evaluator itself asks for an import of each domain in use. Versions are told
    apart by the number of inputs. Results are those of the operators' functions, bit for bit.

    What an operator refuses raises `ModelError`, a wrong number of inputs as soon as the evaluator
    is made.
    """
    return list(_classes())


@functools.cache
def _classes() -> tuple[type["OpRun"], ...]:
    # This import fails once somebody has registered one operator name in two domains.
    from onnx.reference.op_run import OpRun

    class Evaluation(OpRun):
        """One node. The evaluator makes it, and hands it arrays and the node's attributes."""

        # Without a schema the evaluator gives the attributes that the node has, under the names
        # that the node uses; the defaults are the function's.
        op_schema = None

        def __init__(
            self, onnx_node: onnx.NodeProto, run_params: dict[str, Any], schema: Any = None
        ) -> None:
            super().__init__(onnx_node, run_params, schema)
            self._node = _detached(onnx_node)
            self._operator = operator_of(self._node)

        def _run(self, *arrays: Any, **attributes: Any) -> tuple[Any]:
            assert self._operator is not None, "it has one of our names"
            try:
                keywords = _keywords(self._operator, attributes)
                return (self._operator.function(*arrays, **keywords),)
            except (TypeError, ValueError) as error:
                raise ModelError(f"{described(self._node)}: {error}") from error

    return tuple(
        type(name, (Evaluation,), {"op_domain": domain})
        for name, domain in dict.fromkeys(
            (name, domain)
            for operator in OPERATORS
            for name in (operator.onnx_name, *operator.onnx_aliases)
            for domain in _domains(operator)
        )
    )


def _detached(node: onnx.NodeProto) -> ir.Node:
    """The node by itself, without attributes: what the registry asks about."""
    return ir.Node(
        node.domain,
        node.op_type,
        [ir.Value(name=name) if name else None for name in node.input],
        outputs=[ir.Value(name=name) for name in node.output],
        name=node.name,
    )


def _domains(operator: Operator) -> list[str]:
    legacy = [old for old, new in CANONICAL_DOMAINS.items() if new == operator.onnx_domain]
    return [operator.onnx_domain, *legacy]


def _keywords(operator: Operator, attributes: dict[str, Any]) -> dict[str, Any]:
    """The attributes of a node, in any spelling, as keywords of the operator's function."""
    keywords = {}
    for declared in operator.attributes:
        for name in (*reversed(declared.aliases), declared.onnx_name):
            if name in attributes:
                keywords[declared.name] = declared.restored(attributes[name], name)
    return keywords
