# SPDX-License-Identifier: Apache-2.0
"""The difference of two sides: tensor pairs, their figures, and the first pair that differs."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import onnx_ir as ir

from anybit.comparison.match import Pair, match_tensors
from anybit.comparison.measure import Figures, Tolerance, measure
from anybit.comparison.report.hints import compare_parameters, explain_first_difference
from anybit.comparison.results import Difference, NodeInput, Outcome, TensorDifference
from anybit.comparison.sides.network import Side
from anybit.comparison.steps import QuantizationStep, find_step
from anybit.errors import ModelError
from anybit.metrics.arrays import squeeze_shape
from anybit.onnx.quantizers.trace import Traces
from anybit.text import escape_name

_NOT_COMPARABLE = Figures(0, 0, np.inf, np.inf, -np.inf, None, None, 0, 0, ())
_LOG2_OF_10 = np.log2(10)
_ORDER = (Outcome.EQUAL, Outcome.TOLERATED, Outcome.DIFFERENT)


def compare_sides(
    a: Side,
    b: Side,
    tolerance: Tolerance,
    notes: tuple[str, ...],
    progress: Callable[[float], None],
) -> Difference:
    """Pair the tensors of two sides and compare the pairs, in the order in which A computes them.

    `progress` is called with the share that is done.

    Raises:
        ModelError: There is no pair.
    """
    return _SideComparison(a, b, tolerance).result(notes, progress)


class _SideComparison:
    def __init__(self, a: Side, b: Side, tolerance: Tolerance) -> None:
        self._a, self._b, self._tolerance = a, b, tolerance
        constants = a.network is not b.network  # one file has one set of constants
        self._pairs = {pair.a: pair for pair in match_tensors(a, b, constants=constants)}
        if not self._pairs:
            raise ModelError(
                f"nothing to compare: no tensor of {b.label} has the name, or the position, of one "
                f"of {a.label}; {b.label} holds {', '.join(list(b.arrays)[:8]) or 'nothing'}"
            )
        self._values_b = (
            {} if b.network is None else {value.name: value for value in b.network.values}
        )
        self._arrays_a = {**a.arrays, **a.feeds}
        self._arrays_b = {**b.arrays, **b.feeds}
        self._traces = Traces()
        self._outcomes: dict[ir.Value, Outcome] = {}
        # Noise over signal, as powers.
        self._noise: dict[ir.Value, float] = {}

    def result(self, notes: tuple[str, ...], progress: Callable[[float], None]) -> Difference:
        assert self._a.network is not None
        values = self._a.network.values
        tensors = []
        for done, value in enumerate(values):
            progress(done / len(values))
            pair = self._pairs.get(value.name or "")
            input_outcome, input_noise = self._worst_input(value)
            if pair is None:
                self._outcomes[value], self._noise[value] = input_outcome, input_noise
                continue
            tensor = self._compare(value, pair, input_outcome, input_noise)
            self._outcomes[value], self._noise[value] = (
                tensor.outcome,
                _convert_sqnr_to_noise(tensor.sqnr),
            )
            tensors.append(tensor)
        first = next((tensor for tensor in tensors if tensor.outcome is Outcome.DIFFERENT), None)
        by_name = {value.name: value for value in values}
        matched = {pair.b for pair in self._pairs.values()}
        return Difference(
            a=self._a.label,
            b=self._b.label,
            tensors=tuple(tensors),
            unmatched_a=_find_unmatched(self._a, set(self._pairs)),
            unmatched_b=self._unmatched_b(matched),
            inputs=() if first is None else self._inputs(by_name[first.name]),
            hints=() if first is None else self._hints(first, by_name[first.name]),
            notes=(*notes, *self._hidden_parameters(tensors, by_name)),
            tolerated_steps=self._tolerance.steps,
            atol=self._tolerance.atol,
        )

    def _worst_input(self, value: ir.Value) -> tuple[Outcome, float]:
        """Return the worst outcome and the largest noise among the inputs of a tensor's node."""
        node = value.producer()
        inputs = (
            [] if node is None else [tensor for tensor in node.inputs if tensor in self._outcomes]
        )
        outcomes = (self._outcomes[tensor] for tensor in inputs if tensor is not None)
        noises = (self._noise[tensor] for tensor in inputs if tensor is not None)
        return max(outcomes, key=_ORDER.index, default=Outcome.EQUAL), max(noises, default=0.0)

    def _compare(
        self, value: ir.Value, pair: Pair, input_outcome: Outcome, input_noise: float
    ) -> TensorDifference:
        a, b = self._a.arrays[pair.a], self._b.arrays[pair.b]
        step = find_step(value, self._arrays_a, self._traces)
        if step is None and a.shape == b.shape and pair.b in self._values_b:
            step = find_step(self._values_b[pair.b], self._arrays_b, self._traces)
        other_shape = b.shape
        if squeeze_shape(a.shape) == squeeze_shape(b.shape):
            b = b.reshape(a.shape)
            figures = measure(a, b, step, self._tolerance)
        else:
            figures = replace(_NOT_COMPARABLE, differing=a.size)
        outcome = self._outcome(figures, step, input_outcome)
        node = value.producer()
        return TensorDifference(
            name=pair.a,
            other_name=pair.b,
            matched=pair.matched,
            node=(node.name or "") if node is not None else "",
            operator=node.op_type if node is not None else "",
            shape=a.shape,
            other_shape=other_shape,
            dtype=_get_dtype_name(a.dtype),
            other_dtype=_get_dtype_name(b.dtype),
            elements=a.size,
            differing=figures.differing,
            tolerated=figures.tolerated,
            largest=figures.largest,
            relative=figures.relative,
            sqnr=figures.sqnr,
            added_noise=_compute_added_noise(_convert_sqnr_to_noise(figures.sqnr), input_noise),
            ulps=figures.ulps,
            steps=figures.steps,
            step_quantizer="" if step is None else step.quantizer,
            nans=figures.nans,
            zero_signs=figures.zero_signs,
            outcome=outcome,
            is_origin=outcome is not Outcome.EQUAL and input_outcome is Outcome.EQUAL,
            samples=figures.samples,
            a=a,
            b=b,
            step=step,
        )

    def _outcome(
        self, figures: Figures, step: QuantizationStep | None, input_outcome: Outcome
    ) -> Outcome:
        if not figures.differing:
            return Outcome.TOLERATED if figures.tolerated else Outcome.EQUAL
        follows = step is None and input_outcome is Outcome.TOLERATED
        return Outcome.TOLERATED if follows and self._tolerance.steps > 0 else Outcome.DIFFERENT

    def _unmatched_b(self, matched: set[str]) -> tuple[str, ...]:
        if self._b.network is None:
            assert self._a.network is not None
            inputs = {tensor.name for tensor in self._a.network.inputs} | {"x"}
            return tuple(name for name in self._b.arrays if name not in matched | inputs)
        return _find_unmatched(self._b, matched)

    def _inputs(self, value: ir.Value) -> tuple[NodeInput, ...]:
        node = value.producer()
        if node is None:
            return ()
        inputs = [tensor for tensor in node.inputs if tensor is not None]
        return tuple(NodeInput(tensor.name or "", self._input_outcome(tensor)) for tensor in inputs)

    def _input_outcome(self, value: ir.Value) -> Outcome | None:
        """Return the outcome of an input of a node; None if it was not compared."""
        if value.name in self._pairs:
            return self._outcomes[value]
        # Both sides get the same model inputs, and one file has one set of constants.
        same = self._a.network is self._b.network and value.producer() is None
        return Outcome.EQUAL if same or value.is_graph_input() else None

    def _hints(self, first: TensorDifference, value: ir.Value) -> tuple[str, ...]:
        if not first.is_origin:
            return ()
        other = self._values_b.get(first.other_name)
        return tuple(explain_first_difference(first, value, other, self._arrays_a, self._arrays_b))

    def _hidden_parameters(
        self, tensors: list[TensorDifference], by_name: Mapping[str | None, ir.Value]
    ) -> Iterator[str]:
        """Yield notes on quantizers with different parameters and equal results."""
        if self._a.network is self._b.network:
            return
        for tensor in tensors:
            node_a = by_name[tensor.name].producer()
            value_b = self._values_b.get(tensor.other_name)
            node_b = None if value_b is None else value_b.producer()
            if tensor.outcome is not Outcome.EQUAL or node_a is None or node_b is None:
                continue
            parameters = ", ".join(
                compare_parameters(node_a, node_b, self._arrays_a, self._arrays_b)
            )
            if parameters:
                yield f"{escape_name(tensor.name)} is equal with these inputs, but {parameters}"


@cache
def _get_dtype_name(dtype: np.dtype[Any]) -> str:
    return dtype.name  # NumPy would build the name at every access


def _convert_sqnr_to_noise(sqnr: float) -> float:
    return float(np.exp2(-sqnr / 10 * _LOG2_OF_10))


def _compute_added_noise(noise: float, input_noise: float) -> float:
    return 0.0 if noise <= input_noise else math.sqrt(noise - input_noise)


def _find_unmatched(side: Side, matched: set[str]) -> tuple[str, ...]:
    """Return the names of computed tensors that have no counterpart."""
    names = (value.name or "" for value in side.computed())
    return tuple(name for name in names if name not in matched)
