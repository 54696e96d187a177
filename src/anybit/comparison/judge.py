# SPDX-License-Identifier: Apache-2.0
"""From the tensors of both sides to what is different, and where that starts."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import onnx_ir as ir

from anybit.comparison.arrays import squeezed
from anybit.comparison.match import Pair, match
from anybit.comparison.measure import Measured, Tolerance, measure
from anybit.comparison.report.hints import hidden, hints
from anybit.comparison.results import Difference, NodeInput, TensorDifference, Verdict
from anybit.comparison.sides.network import Side
from anybit.comparison.steps import Step, step_of
from anybit.errors import ModelError
from anybit.onnx.quantizers.trace import Traces
from anybit.text import shown

_NOT_COMPARABLE = Measured(0, 0, np.inf, np.inf, -np.inf, None, None, 0, 0, ())
_LOG2_OF_10 = np.log2(10)
_ORDER = (Verdict.EQUAL, Verdict.TOLERATED, Verdict.DIFFERENT)


def judged(
    a: Side,
    b: Side,
    tolerance: Tolerance,
    notes: tuple[str, ...],
    progress: Callable[[float], None],
) -> Difference:
    """Pair the tensors, measure the pairs in the order in which A computes them, and judge them.

    `progress` is called with the share that is done.

    Raises:
        ModelError: There is no pair.
    """
    return _Judgement(a, b, tolerance).result(notes, progress)


class _Judgement:
    def __init__(self, a: Side, b: Side, tolerance: Tolerance) -> None:
        self._a, self._b, self._tolerance = a, b, tolerance
        constants = a.network is not b.network  # one file stores one set of them
        self._pairs = {pair.a: pair for pair in match(a, b, constants=constants)}
        if not self._pairs:
            raise ModelError(
                f"nothing to compare: no tensor of {b.label} has the name, or the place, of one "
                f"of {a.label}; {b.label} holds {', '.join(list(b.arrays)[:8]) or 'nothing'}"
            )
        self._values_b = {} if b.network is None else {v.name: v for v in b.network.values}
        self._known_a = {**a.arrays, **a.feeds}
        self._known_b = {**b.arrays, **b.feeds}
        self._traces = Traces()
        self._verdicts: dict[ir.Value, Verdict] = {}
        # Noise over signal, as powers.
        self._noise: dict[ir.Value, float] = {}

    def result(self, notes: tuple[str, ...], progress: Callable[[float], None]) -> Difference:
        assert self._a.network is not None
        values = self._a.network.values
        tensors = []
        for done, value in enumerate(values):
            progress(done / len(values))
            pair = self._pairs.get(value.name or "")
            upstream, noise = self._upstream(value)
            if pair is None:
                self._verdicts[value], self._noise[value] = upstream, noise
                continue
            found = self._compared(value, pair, upstream, noise)
            self._verdicts[value], self._noise[value] = found.verdict, _noise(found.sqnr)
            tensors.append(found)
        first = next((each for each in tensors if each.verdict is Verdict.DIFFERENT), None)
        by_name = {value.name: value for value in values}
        matched = {pair.b for pair in self._pairs.values()}
        return Difference(
            a=self._a.label,
            b=self._b.label,
            tensors=tuple(tensors),
            unmatched_a=_others(self._a, set(self._pairs)),
            unmatched_b=self._unmatched_b(matched),
            inputs=() if first is None else self._inputs(by_name[first.name]),
            hints=() if first is None else self._hints(first, by_name[first.name]),
            notes=(*notes, *self._hidden(tensors, by_name)),
            tolerated_steps=self._tolerance.steps,
            atol=self._tolerance.atol,
        )

    def _upstream(self, value: ir.Value) -> tuple[Verdict, float]:
        """The worst verdict, and the most noise, of what a tensor is computed from."""
        node = value.producer()
        given = [] if node is None else [each for each in node.inputs if each in self._verdicts]
        verdicts = (self._verdicts[each] for each in given if each is not None)
        noises = (self._noise[each] for each in given if each is not None)
        return max(verdicts, key=_ORDER.index, default=Verdict.EQUAL), max(noises, default=0.0)

    def _compared(
        self, value: ir.Value, pair: Pair, upstream: Verdict, noise: float
    ) -> TensorDifference:
        a, b = self._a.arrays[pair.a], self._b.arrays[pair.b]
        step = step_of(value, self._known_a, self._traces)
        if step is None and a.shape == b.shape and pair.b in self._values_b:
            step = step_of(self._values_b[pair.b], self._known_b, self._traces)
        if squeezed(a.shape) == squeezed(b.shape):
            measured = measure(a, b.reshape(a.shape), step, self._tolerance)
            other = b.reshape(a.shape)
        else:
            measured, other = _NOT_COMPARABLE, b
            measured = replace(measured, differing=a.size)
        verdict = self._verdict(measured, step, upstream)
        node = value.producer()
        return TensorDifference(
            name=pair.a,
            other_name=pair.b,
            matched=pair.matched,
            node=(node.name or "") if node is not None else "",
            operator=node.op_type if node is not None else "",
            shape=a.shape,
            other_shape=b.shape,
            dtype=_name_of(a.dtype),
            other_dtype=_name_of(b.dtype),
            elements=a.size,
            **{name: getattr(measured, name) for name in Measured.__dataclass_fields__},
            harm=_harm(_noise(measured.sqnr), noise),
            step_of="" if step is None else step.quantizer,
            verdict=verdict,
            starts=verdict is not Verdict.EQUAL and upstream is Verdict.EQUAL,
            a=a,
            b=other,
            step=step,
        )

    def _verdict(self, measured: Measured, step: Step | None, upstream: Verdict) -> Verdict:
        if not measured.differing:
            return Verdict.TOLERATED if measured.within else Verdict.EQUAL
        follows = step is None and upstream is Verdict.TOLERATED
        return Verdict.TOLERATED if follows and self._tolerance.steps > 0 else Verdict.DIFFERENT

    def _unmatched_b(self, matched: set[str]) -> tuple[str, ...]:
        if self._b.network is None:
            assert self._a.network is not None
            inputs = {each.name for each in self._a.network.inputs} | {"x"}
            return tuple(name for name in self._b.arrays if name not in matched | inputs)
        return _others(self._b, matched)

    def _inputs(self, value: ir.Value) -> tuple[NodeInput, ...]:
        node = value.producer()
        if node is None:
            return ()
        given = [each for each in node.inputs if each is not None]
        return tuple(NodeInput(each.name or "", self._state(each)) for each in given)

    def _state(self, value: ir.Value) -> Verdict | None:
        """Both sides get the same model inputs, and one file's constants are the same."""
        if value.name in self._pairs:
            return self._verdicts[value]
        same = self._a.network is self._b.network and value.producer() is None
        return Verdict.EQUAL if same or value.is_graph_input() else None

    def _hints(self, first: TensorDifference, value: ir.Value) -> tuple[str, ...]:
        if not first.starts:
            return ()
        other = self._values_b.get(first.other_name)
        return tuple(hints(first, value, other, self._known_a, self._known_b))

    def _hidden(
        self, tensors: list[TensorDifference], by_name: Mapping[str | None, ir.Value]
    ) -> Iterator[str]:
        """Quantizers that are set differently although these inputs do not show it."""
        if self._a.network is self._b.network:
            return
        for tensor in tensors:
            ours = by_name[tensor.name].producer()
            other = self._values_b.get(tensor.other_name)
            theirs = None if other is None else other.producer()
            if tensor.verdict is not Verdict.EQUAL or ours is None or theirs is None:
                continue
            found = ", ".join(hidden(ours, theirs, self._known_a, self._known_b))
            if found:
                name = shown(tensor.name)
                yield f"{name} is equal with these inputs, but {found}"


@cache
def _name_of(dtype: np.dtype[Any]) -> str:
    return dtype.name  # which NumPy puts together every time


def _noise(sqnr: float) -> float:
    return float(np.exp2(-sqnr / 10 * _LOG2_OF_10))


def _harm(noise: float, upstream: float) -> float:
    return 0.0 if noise <= upstream else math.sqrt(noise - upstream)


def _others(side: Side, matched: set[str]) -> tuple[str, ...]:
    """What a side computes besides."""
    names = (value.name or "" for value in side.computed())
    return tuple(name for name in names if name not in matched)
