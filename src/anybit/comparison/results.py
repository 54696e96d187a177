# SPDX-License-Identifier: Apache-2.0
"""What a comparison finds."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

import numpy as np

from anybit.comparison.arrays import Array
from anybit.comparison.measure import Sample
from anybit.comparison.steps import Step


class Match(StrEnum):
    """How the tensor of B that belongs to one of A was found."""

    NAME = "name"
    OUTPUT = "output"
    """Both are the same output of their models, by position."""
    POSITION = "position"
    """Both have the same shape and type, come from the same kind of node, and lie alike between
    the tensors that were matched otherwise."""


class Verdict(StrEnum):
    """What was found for a pair of tensors."""

    EQUAL = "equal"
    TOLERATED = "tolerated"
    """They differ, but only as far as is allowed, or as follows from what is allowed."""
    DIFFERENT = "different"


@dataclass(frozen=True)
class NodeInput:
    """An input of a node; `verdict` is None for one that was not compared."""

    name: str
    verdict: Verdict | None


@dataclass(frozen=True)
class TensorDifference:
    """A pair of tensors. NaN equals NaN, and 0 equals -0.

    Attributes:
        name, other_name: In A and in B.
        matched: How the two were found to belong together.
        node, operator: What made the tensor in A; "" for a stored constant.
        shape, other_shape, dtype, other_dtype: Of both.
        elements: How many A has.
        differing: How many elements differ by more than is allowed; all of them if the shapes
            differ by more than sizes of 1.
        within: How many differ by what is allowed.
        largest: The largest absolute difference; infinite for NaN against a number.
        relative: That over the largest magnitude in A.
        sqnr: The signal-to-noise ratio in dB, with A as the signal and B - A as the noise:
            infinite for equal tensors, minus infinity where NaN or infinity meets a number.
        harm: How much noise comes in here: the root of what noise / signal, as powers, is more
            than that of the noisiest tensor that this one is computed from.
        ulps: The largest number of floats between the two values, plus 1, in their own type; for
            integers the plain difference. None if the types differ, or only NaN meets numbers.
        steps: The largest difference in quantization steps; None if the step is not known.
        step_of: Whose step that is: "itself" if a quantizer made the tensor, else the name of a
            quantizer that reads it.
        nans: Elements that are NaN on one side only.
        zero_signs: Elements that are 0 on one side and -0 on the other. They count as equal.
        verdict: What follows.
        starts: Whether the two are not equal although all that they are computed from is.
        samples: A few elements that differ, the largest differences first.
        a, b: The tensors themselves, in one shape.
        step: The step as a number per element, as far as it broadcasts.
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
    within: int
    largest: float
    relative: float
    sqnr: float
    harm: float
    ulps: int | None
    steps: float | None
    step_of: str
    nans: int
    zero_signs: int
    verdict: Verdict
    starts: bool
    samples: tuple[Sample, ...]
    a: Array = field(repr=False, compare=False)
    b: Array = field(repr=False, compare=False)
    step: Step | None = field(repr=False, compare=False)

    @property
    def made_by(self) -> str:
        """The node in words; "constant" for a stored tensor."""
        return f"{self.operator} {self.node}".strip() or "constant"

    @property
    def same_shape(self) -> bool:
        return self.a.shape == self.b.shape


@dataclass(frozen=True)
class Difference:
    """The result of `anybit.diff`.

    Attributes:
        a, b: What was compared: a file, and what ran it.
        tensors: All pairs, in the order in which A computes them.
        unmatched_a, unmatched_b: Computed tensors that the other side lacks.
        inputs: The inputs of the node that made the first differing tensor.
        hints: What explains the first difference, where that is evident.
        notes: What the reader of the figures must know.
        tolerated_steps, atol: What was allowed.
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
        """Whether no pair differs by more than is allowed. Unmatched tensors do not count."""
        return self.first is None

    @property
    def different(self) -> tuple[TensorDifference, ...]:
        return tuple(each for each in self.tensors if each.verdict is Verdict.DIFFERENT)

    @property
    def first(self) -> TensorDifference | None:
        """The first pair that differs, in the order in which A computes."""
        return next(iter(self.different), None)

    @property
    def ranked(self) -> tuple[TensorDifference, ...]:
        """The pairs that differ, the most harmful first: where most noise comes in."""
        return tuple(sorted(self.different, key=lambda each: -each.harm))

    @property
    def worst(self) -> TensorDifference | None:
        """The most harmful pair."""
        return next(iter(self.ranked), None)

    def __getitem__(self, name: str) -> TensorDifference:
        """The pair with that name in A."""
        for each in self.tensors:
            if each.name == name:
                return each
        raise KeyError(name)

    def to_json(self) -> dict[str, Any]:
        """All of it but the tensors themselves, as what `json.dump` takes.

        NaN and infinities, which JSON does not have, are None.
        """
        counts = {
            "compared": len(self.tensors),
            **{str(kind): sum(each.verdict is kind for each in self.tensors) for kind in Verdict},
        }
        record = dict(_entries(self))
        record["tensors"] = [dict(_entries(each)) for each in self.tensors]
        record |= {
            "equal": self.equal,
            "counts": counts,
            "first": self.first.name if self.first else None,
            "worst": self.worst.name if self.worst else None,
            "ranked": [each.name for each in self.ranked],
        }
        plain: dict[str, Any] = _plain(record)
        return plain


def _entries(record: Any) -> Iterator[tuple[str, Any]]:
    """The fields that are compared: those without the tensors."""
    for each in fields(record):
        if each.compare:
            yield each.name, getattr(record, each.name)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Sample | NodeInput):
        return {name: _plain(each) for name, each in _entries(value)}
    if isinstance(value, float | np.floating) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, StrEnum) else value
