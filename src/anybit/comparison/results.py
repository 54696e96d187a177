# SPDX-License-Identifier: Apache-2.0
"""The result of a comparison."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

import numpy as np

from anybit.comparison.measure import ElementDifference
from anybit.comparison.steps import QuantizationStep
from anybit.onnx.graph.constants import Array


class Match(StrEnum):
    """Kinds of matches of two tensors."""

    NAME = "name"
    OUTPUT = "output"
    """Both are the output at the same position of their models."""
    POSITION = "position"
    """Both have the same shape, type and kind of node, and the same position between tensors that
    were matched by name or as outputs."""


class Outcome(StrEnum):
    """The outcome of the comparison of two tensors."""

    EQUAL = "equal"
    TOLERATED = "tolerated"
    """They differ by no more than the tolerance, or as a consequence of tolerated differences."""
    DIFFERENT = "different"


@dataclass(frozen=True)
class NodeInput:
    """An input of a node. The outcome is None if it was not compared."""

    name: str
    outcome: Outcome | None


@dataclass(frozen=True)
class TensorDifference:
    """A pair of tensors. NaN equals NaN, and 0 equals -0.

    Attributes:
        name, other_name: The names in A and in B.
        matched: The rule that matched the two: name, output or position.
        node, operator: The node that computes the tensor in A; "" for a stored constant.
        shape, other_shape, dtype, other_dtype: The shapes and types in A and in B.
        elements: The number of elements in A.
        differing: The number of elements that differ by more than the tolerance; all of them if the
            shapes differ by more than sizes of 1.
        tolerated: The number of elements that differ by no more than the tolerance.
        largest: The largest absolute difference; infinite for NaN against a number.
        relative: The largest difference over the largest magnitude in A.
        sqnr: The signal-to-noise ratio in dB, with A as the signal and B - A as the noise:
            infinite for equal tensors, minus infinity where NaN or infinity meets a number.
        added_noise: The relative noise that this tensor adds to that of its inputs:
            sqrt(noise / signal, minus the largest noise / signal of the inputs), as powers.
        ulps: The largest number of floats between the two values, plus 1, in their own type; for
            integers the plain difference. None if the types differ, or only NaN meets numbers.
        steps: The largest difference in quantization steps; None without a step.
        step_quantizer: The quantizer with that step: "itself" if it computes the tensor, else the
            name of a quantizer that reads it.
        nans: Elements that are NaN on one side only.
        zero_signs: Elements that are 0 on one side and -0 on the other. They count as equal.
        outcome: Whether the two count as equal.
        is_origin: Whether the tensors differ although all inputs of the node are equal.
        samples: A few elements that differ, the largest differences first.
        a, b: The tensors, in one shape.
        step: The step per element, as an array that broadcasts.
    """

    name: str
    other_name: str
    matched: Match
    node: str
    operator: str
    shape: tuple[int, ...]
    other_shape: tuple[int, ...]
    dtype: str
    other_dtype: str
    elements: int
    differing: int
    tolerated: int
    largest: float
    relative: float
    sqnr: float
    added_noise: float
    ulps: int | None
    steps: float | None
    step_quantizer: str
    nans: int
    zero_signs: int
    outcome: Outcome
    is_origin: bool
    samples: tuple[ElementDifference, ...]
    a: Array = field(repr=False, compare=False)
    b: Array = field(repr=False, compare=False)
    step: QuantizationStep | None = field(repr=False, compare=False)

    @property
    def made_by(self) -> str:
        """Return the operator and name of the node; "constant" for a stored tensor."""
        return f"{self.operator} {self.node}".strip() or "constant"

    @property
    def same_shape(self) -> bool:
        return self.a.shape == self.b.shape


@dataclass(frozen=True)
class Difference:
    """The result of `anybit.diff`.

    Attributes:
        a, b: The file and the runner of each side.
        tensors: All pairs, in the order in which A computes them.
        unmatched_a, unmatched_b: Computed tensors without a counterpart.
        inputs: The inputs of the node that computes the first differing tensor.
        hints: Evident causes of the first difference.
        notes: Remarks on the comparison.
        tolerated_steps, atol: The tolerance.
    """

    a: str
    b: str
    tensors: tuple[TensorDifference, ...]
    unmatched_a: tuple[str, ...]
    unmatched_b: tuple[str, ...]
    inputs: tuple[NodeInput, ...]
    hints: tuple[str, ...]
    notes: tuple[str, ...]
    tolerated_steps: float
    atol: float

    @property
    def equal(self) -> bool:
        """Return whether no pair differs by more than the tolerance, unmatched tensors aside."""
        return self.first is None

    @property
    def different(self) -> tuple[TensorDifference, ...]:
        return tuple(tensor for tensor in self.tensors if tensor.outcome is Outcome.DIFFERENT)

    @property
    def first(self) -> TensorDifference | None:
        """Return the first pair that differs, in the order in which A computes."""
        return next(iter(self.different), None)

    @property
    def ranked(self) -> tuple[TensorDifference, ...]:
        """Return the pairs that differ, by decreasing added noise."""
        return tuple(sorted(self.different, key=lambda tensor: -tensor.added_noise))

    @property
    def worst(self) -> TensorDifference | None:
        """Return the pair that adds the most noise."""
        return next(iter(self.ranked), None)

    def __getitem__(self, name: str) -> TensorDifference:
        """Return the pair with that name in A."""
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        raise KeyError(name)

    def to_json(self) -> dict[str, Any]:
        """Return all figures, without the tensors, as a dict for `json.dump`.

        NaN and infinities are None: JSON does not have them.
        """
        counts = {
            "compared": len(self.tensors),
            **{
                str(outcome): sum(tensor.outcome is outcome for tensor in self.tensors)
                for outcome in Outcome
            },
        }
        record = dict(_iter_entries(self))
        record["tensors"] = [dict(_iter_entries(tensor)) for tensor in self.tensors]
        record |= {
            "equal": self.equal,
            "counts": counts,
            "first": self.first.name if self.first else None,
            "worst": self.worst.name if self.worst else None,
            "ranked": [tensor.name for tensor in self.ranked],
        }
        plain: dict[str, Any] = _to_plain(record)
        return plain


def _iter_entries(record: Any) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a dataclass that take part in comparisons: those without tensors."""
    for entry in fields(record):
        if entry.compare:
            yield entry.name, getattr(record, entry.name)


def _to_plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain(item) for item in value]
    if isinstance(value, ElementDifference | NodeInput):
        return {name: _to_plain(item) for name, item in _iter_entries(value)}
    if isinstance(value, float | np.floating) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, StrEnum) else value
