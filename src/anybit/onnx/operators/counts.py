# SPDX-License-Identifier: Apache-2.0
"""Numbers of inputs and outputs of other operators."""

from collections.abc import Iterator
from functools import cache

import onnx
import onnx_ir as ir
from onnxruntime.capi import onnxruntime_pybind11_state  # type: ignore[import-untyped]

from anybit.errors import ModelError
from anybit.onnx.graph.names import describe
from anybit.onnx.graph.walk import iter_nodes
from anybit.text import format_count


def check_counts(model: ir.Model) -> None:
    """Refuse standard nodes with a wrong number of inputs or outputs: no runtime loads them.

    Raises:
        ModelError: A node has a wrong number; the message names the first one.
    """
    for node, problem in find_wrong_counts(model):
        if node.domain == "":
            raise ModelError(f"{describe(node)} {problem}; {REMEDY}")


REMEDY = "export the model again"


def find_wrong_counts(model: ir.Model) -> Iterator[tuple[ir.Node, str]]:
    """Yield nodes with a wrong number of inputs or outputs, and the problem.

    A model without an import of standard operators uses the newest, as in ONNX Runtime.
    """
    opset = model.graph.opset_imports.get("", onnx.defs.onnx_opset_version())
    for node in iter_nodes(model.graph):
        problem = _describe_wrong_count(node, opset)
        if problem:
            yield node, problem


def _describe_wrong_count(node: ir.Node, opset: int) -> str:
    schema = _find_schema(node, opset)
    if schema is None:
        return ""
    inputs = _count_present([value is not None for value in node.inputs])
    outputs = _count_present([bool(value.name) for value in node.outputs])
    for noun, count, least, most in (
        ("input", inputs, schema.min_input, schema.max_input),
        ("output", outputs, schema.min_output, schema.max_output),
    ):
        if not least <= count <= most:
            expected = format_count(least, noun) if least == most else f"{least} to {most} {noun}s"
            expected = f"at least {format_count(least, noun)}" if most > 2**16 else expected
            return f"must have {expected}, got {count}"
    return ""


def _count_present(present: list[bool]) -> int:
    """Return the number of values up to the last one present."""
    return max((index + 1 for index, is_present in enumerate(present) if is_present), default=0)


def _find_schema(node: ir.Node, opset: int) -> onnx.defs.OpSchema | None:
    if node.domain == "com.microsoft":
        return _list_contributed_schemas().get(node.op_type)
    return _find_standard_schema(node.op_type, opset) if node.domain == "" else None


@cache
def _find_standard_schema(name: str, opset: int) -> onnx.defs.OpSchema | None:
    # The installed onnx returns its last schema for newer opsets, too.
    is_listed = opset <= onnx.defs.onnx_opset_version() and onnx.defs.has(name, opset)
    return onnx.defs.get_schema(name, opset) if is_listed else None


@cache
def _list_contributed_schemas() -> dict[str, onnx.defs.OpSchema]:
    """Return the operators that ONNX Runtime lists for its domain."""
    listed = getattr(onnxruntime_pybind11_state, "get_all_operator_schema", list)
    return {schema.name: schema for schema in listed() if schema.domain == "com.microsoft"}
