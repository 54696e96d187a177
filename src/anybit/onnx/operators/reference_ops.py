# SPDX-License-Identifier: Apache-2.0
"""The operators for `onnx.reference.ReferenceEvaluator`."""

import functools
from typing import TYPE_CHECKING, Any

import onnx
import onnx_ir as ir

from anybit.errors import ModelError
from anybit.onnx.graph.names import describe
from anybit.onnx.operators.registry import CANONICAL_DOMAINS, find_operator
from anybit.ops import OPERATORS, Operator

if TYPE_CHECKING:
    from onnx.reference.op_run import OpRun


def reference_ops() -> list[type["OpRun"]]:
    """Return the operators for `onnx.reference.ReferenceEvaluator(model, new_ops=...)`.

    They have all names and domains that occur in files, so models need not be normalized; the
    evaluator requires an import of each used domain. The number of inputs distinguishes versions.
    Results are bit-identical to the functions of the operators.

    Invalid inputs raise `ModelError`; a wrong number of inputs does so when the evaluator is
    created.
    """
    return list(_make_classes())


@functools.cache
def _make_classes() -> tuple[type["OpRun"], ...]:
    # This import fails after the registration of one operator name in two domains.
    from onnx.reference.op_run import OpRun

    class Evaluation(OpRun):
        """One node. The evaluator creates it, and passes arrays and the node's attributes."""

        # Without a schema, the evaluator passes the attributes of the node under their names in the
        # file; the defaults are those of the function.
        op_schema = None

        def __init__(
            self, onnx_node: onnx.NodeProto, run_params: dict[str, Any], schema: Any = None
        ) -> None:
            super().__init__(onnx_node, run_params, schema)
            self._node = _detach(onnx_node)
            self._operator = find_operator(self._node)

        def _run(self, *arrays: Any, **attributes: Any) -> tuple[Any]:
            assert self._operator is not None, "it has one of our names"
            try:
                keywords = _read_keywords(self._operator, attributes)
                return (self._operator.function(*arrays, **keywords),)
            except (TypeError, ValueError) as error:
                raise ModelError(f"{describe(self._node)}: {error}") from error

    return tuple(
        type(name, (Evaluation,), {"op_domain": domain})
        for name, domain in dict.fromkeys(
            (name, domain)
            for operator in OPERATORS
            for name in (operator.onnx_name, *operator.onnx_aliases)
            for domain in _list_domains(operator)
        )
    )


def _detach(node: onnx.NodeProto) -> ir.Node:
    """Return the node by itself, without attributes, for the registry."""
    return ir.Node(
        node.domain,
        node.op_type,
        [ir.Value(name=name) if name else None for name in node.input],
        outputs=[ir.Value(name=name) for name in node.output],
        name=node.name,
    )


def _list_domains(operator: Operator) -> list[str]:
    legacy = [old for old, new in CANONICAL_DOMAINS.items() if new == operator.onnx_domain]
    return [operator.onnx_domain, *legacy]


def _read_keywords(operator: Operator, attributes: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of a node, in any spelling, as keywords of the operator's function."""
    keywords = {}
    for declared in operator.attributes:
        for name in (*reversed(declared.aliases), declared.onnx_name):
            if name in attributes:
                keywords[declared.name] = declared.decode(attributes[name], name)
    return keywords
