# SPDX-License-Identifier: Apache-2.0
"""How many inputs and outputs operators take that are not ours."""

from collections.abc import Iterator
from functools import cache

import onnx
import onnx_ir as ir
from onnxruntime.capi import onnxruntime_pybind11_state  # type: ignore[import-untyped]

from anybit.errors import ModelError
from anybit.onnx.graph.names import described
from anybit.onnx.graph.walk import nodes_in
from anybit.text import counted


def check_counts(model: ir.Model) -> None:
    """Refuse standard nodes with a wrong number of inputs or outputs: no runtime loads them.

    Raises:
        ModelError: The first such node.
    """
    for node, problem in wrong_counts(model):
        if node.domain == "":
            raise ModelError(f"{described(node)} {problem}; {REMEDY}")


REMEDY = "export the model again"


def wrong_counts(model: ir.Model) -> Iterator[tuple[ir.Node, str]]:
    """Nodes with a wrong number of inputs or outputs, as far as that is known, and what is wrong.

    A model that imports no standard operators gets the newest, as in ONNX Runtime.
    """
    opset = model.graph.opset_imports.get("", onnx.defs.onnx_opset_version())
    for node in nodes_in(model.graph):
        problem = _wrong_count(node, opset)
        if problem:
            yield node, problem


def _wrong_count(node: ir.Node, opset: int) -> str:
    schema = _schema(node, opset)
    if schema is None:
        return ""
    inputs = _count([value is not None for value in node.inputs])
    outputs = _count([bool(value.name) for value in node.outputs])
    for noun, count, least, most in (
        ("input", inputs, schema.min_input, schema.max_input),
        ("output", outputs, schema.min_output, schema.max_output),
    ):
        if not least <= count <= most:
            wanted = counted(least, noun) if least == most else f"{least} to {most} {noun}s"
            wanted = f"at least {counted(least, noun)}" if most > 2**16 else wanted
            return f"must have {wanted}, got {count}"
    return ""


def _count(present: list[bool]) -> int:
    """How many there are up to the last that is not left out."""
    return max((index + 1 for index, each in enumerate(present) if each), default=0)


def _schema(node: ir.Node, opset: int) -> onnx.defs.OpSchema | None:
    if node.domain == "com.microsoft":
        return _contributed().get(node.op_type)
    return _standard(node.op_type, opset) if node.domain == "" else None


@cache
def _standard(name: str, opset: int) -> onnx.defs.OpSchema | None:
    # The installed onnx gives the last schema that it knows for newer opsets, too.
    known = opset <= onnx.defs.onnx_opset_version() and onnx.defs.has(name, opset)
    return onnx.defs.get_schema(name, opset) if known else None


@cache
def _contributed() -> dict[str, onnx.defs.OpSchema]:
    """The operators of ONNX Runtime's own domain, as far as it lists them."""
    listed = getattr(onnxruntime_pybind11_state, "get_all_operator_schema", list)
    return {each.name: each for each in listed() if each.domain == "com.microsoft"}
