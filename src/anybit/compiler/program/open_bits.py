# SPDX-License-Identifier: Apache-2.0
"""Functions of float32 that programs define to the last bit, and ONNX does not."""

from collections.abc import Iterable

from anybit.compiler.program import program as p

OPEN_OPERATORS = frozenset({"Erf", "Gelu", "Pow", "Sigmoid", "Tanh"})
"""Operators whose last bits ONNX leaves open, and that steps compute: all but Gelu and Sigmoid only
as parts of GELU."""

_OPEN = (p.Operation.SIGMOID, p.Operation.GELU)
_HAS_STEPS = p.Elementwise | p.Arithmetic | p.Rounded


def is_open(at: p.Instruction) -> bool:
    """Return whether ONNX leaves the last bits of the results of an instruction open."""
    return isinstance(at, p.Softmax | p.LayerNorm | p.SpatialMean) or has_open_bits(list_steps(at))


def has_open_bits(steps: Iterable[p.Step]) -> bool:
    """Return whether ONNX leaves the last bits of the results of steps open."""
    return any(step.operation in _OPEN for step in steps)


def list_steps(at: p.Instruction) -> list[p.Step]:
    """Return the steps of an instruction and of its epilogue."""
    records = (at, getattr(at, "epilogue", None))
    return [step for record in records if isinstance(record, _HAS_STEPS) for step in record.steps]
