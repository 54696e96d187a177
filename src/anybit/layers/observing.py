# SPDX-License-Identifier: Apache-2.0
"""What data show of the layers of a model."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from anybit.errors import ModelError
from anybit.inputs import Feeds, declared_inputs, fitted, slice_of
from anybit.layers.layer import Seen
from anybit.onnx.analysis.abstract_values import AbstractValue
from anybit.onnx.analysis.analysis import Analysis
from anybit.onnx.analysis.products import ProductAnalysis
from anybit.onnx.analysis.ranges import codes_of, violation
from anybit.onnx.graph.constants import Array
from anybit.onnx.operators.known import check_known
from anybit.onnx.preparation import runnable
from anybit.onnx.quantizers.quantizer import Quantizer
from anybit.onnx.runtime import make_session, reason, run_session
from anybit.ops.grids import Coding, IntegerGrid
from anybit.ops.rounding import RoundingMode, round_to_integer

_MOST_SHARES = 2**8


@dataclass
class _Extremes:
    """The lowest and the highest of what has been seen so far, per row of what is added."""

    lowest: Array | None = None
    highest: Array | None = None

    def add(self, rows: Array) -> None:
        low, high = rows.min(axis=1), rows.max(axis=1)
        if self.lowest is not None and self.highest is not None:
            if low.shape != self.lowest.shape:
                low, high = low.min(keepdims=True), high.max(keepdims=True)
            low, high = np.minimum(low, self.lowest), np.maximum(high, self.highest)
        self.lowest, self.highest = low, high


@dataclass
class _Layer:
    """What one layer's tensors have shown so far; the axis is that of what its quantizer gives."""

    x: str
    x_carrier: AbstractValue | None
    y: str
    quantizer: Quantizer | None
    axis: int | None
    x_seen: _Extremes = field(default_factory=_Extremes)
    y_seen: _Extremes = field(default_factory=_Extremes)
    q_seen: _Extremes = field(default_factory=_Extremes)
    counts: Counter[int] = field(default_factory=Counter)
    clipped: int = 0
    elements: int = 0

    @property
    def grid(self) -> IntegerGrid | None:
        grid = None if self.quantizer is None else self.quantizer.grid
        return grid if isinstance(grid, IntegerGrid) else None

    def add(self, arrays: dict[str, Array]) -> None:
        for name, extremes in ((self.x, self.x_seen), (self.y, self.y_seen)):
            array = arrays.get(name)
            if array is not None and array.size:
                extremes.add(array.reshape(1, -1))
        if self.quantizer is None or self.grid is None or self.quantizer.x is None:
            return
        grid = self.grid
        quantized = arrays.get(str(self.quantizer.node.outputs[0].name))
        if quantized is None or not quantized.size:
            return
        codes = codes_of(quantized, grid)
        self.q_seen.add(_by_channel(codes, self.axis))
        values, counts = np.unique(codes, return_counts=True)
        if len(self.counts) <= _MOST_SHARES:
            self.counts.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
        self.elements += codes.size
        before = arrays.get(str(self.quantizer.x.name))
        if before is not None and grid.coding is not Coding.SIGN:
            mode = str(self.quantizer.attributes.get("rounding_mode", RoundingMode.ROUND))
            with np.errstate(all="ignore"):
                rounded = round_to_integer(before / grid.scale + grid.zeropt, mode)
            beyond = (rounded > grid.highest) | (rounded < grid.lowest)
            self.clipped += int(np.count_nonzero(beyond))

    def seen(self) -> Seen | None:
        y = self.y_seen
        if y.lowest is None or y.highest is None:
            return None
        q, grid = self.q_seen, self.grid
        dead: list[int] = []
        channels = 0
        output = None
        if q.lowest is not None and q.highest is not None:
            channels = q.lowest.size
            dead = np.flatnonzero(q.lowest == q.highest).tolist() if channels > 1 else []
            output = int(q.lowest.min()), int(q.highest.max())
        clips = grid is not None and grid.coding is not Coding.SIGN and self.elements
        shares = self.counts if len(self.counts) <= _MOST_SHARES else {}
        return Seen(
            input_codes=self._input_codes(),
            output_codes=output,
            sums=(float(y.lowest.min()), float(y.highest.max())),
            clipped=self.clipped / self.elements if clips else None,
            dead=tuple(dead),
            channels=channels,
            shares={code: shares[code] / self.elements for code in sorted(shares)},
        )

    def _input_codes(self) -> tuple[int, int] | None:
        x = self.x_seen
        grid = None if self.x_carrier is None else self.x_carrier.whole().grid
        if grid is None or x.lowest is None or x.highest is None or grid.scale.size > 1:
            return None
        ends = np.asarray([x.lowest.min(), x.highest.max()])
        low, high = sorted(codes_of(ends, grid).ravel().tolist())
        return low, high


def observe(
    model: ir.Model,
    name: str,
    analysis: Analysis,
    quantizers: Sequence[Quantizer | None],
    data: Feeds,
    ranges: Mapping[str, AbstractValue],
) -> tuple[list[Seen | None], int]:
    """What data show of each product and the quantizer behind it, and how many rows were run.

    Raises:
        ModelError: Data that hold NaN, or do not fit the model or the ranges, or what the runtime
            reports.
    """
    check_known(model, name)
    inputs = declared_inputs(model.graph, name)
    feeds, slices = fitted(inputs, data)
    _check(feeds, ranges)
    layers = []
    for product, quantizer in zip(analysis.products, quantizers, strict=True):
        at = 0 if product.layout is None else product.layout.x
        x = product.node.inputs[at] if at < len(product.node.inputs) else None
        y = product.node.outputs[0]
        names = "" if x is None else str(x.name), str(y.name)
        axis = _axis(product, quantizer, analysis)
        layers.append(_Layer(names[0], product.x, names[1], quantizer, axis))
    fragment, wanted = _with_outputs(model, layers)
    try:
        session = make_session(runnable(fragment, fragment))
        for index in range(slices):
            part = slice_of(feeds, index, slices)
            arrays = run_session(session, part) | part
            for layer in layers:
                layer.add({each: arrays[each] for each in wanted if each in arrays})
    except ModelError:
        raise
    except Exception as error:  # the runtime's exceptions have no common base
        raise ModelError(f"{name} cannot be run: {reason(error)}") from error
    rows = max((len(array) for array in feeds.values() if array.ndim), default=1)
    return [layer.seen() for layer in layers], rows


def _check(feeds: Mapping[str, Array], ranges: Mapping[str, AbstractValue]) -> None:
    """ModelError for NaN, which hides what other elements show, and for what is out of range."""
    for name, array in feeds.items():
        if np.isnan(array).any():
            raise ModelError(f"input {name!r} holds NaN; leave it out of the data")
    for name, carrier in ranges.items():
        why = violation(name, feeds[name], carrier)
        if why:
            raise ModelError(f"{why}; correct the range, or the data")


def _with_outputs(model: ir.Model, layers: Sequence[_Layer]) -> tuple[ir.Model, list[str]]:
    """The model with the tensors of layers for outputs."""
    names = dict.fromkeys(
        name
        for layer in layers
        for name in (
            layer.x,
            layer.y,
            *(
                ()
                if layer.quantizer is None or layer.quantizer.x is None
                else (str(layer.quantizer.x.name), str(layer.quantizer.node.outputs[0].name))
            ),
        )
    )
    fragment = model.clone()
    made = {str(value.name): value for node in fragment.graph for value in node.outputs}
    wanted = [made[name] for name in names if name in made]
    fragment.graph.outputs[:] = wanted or list(fragment.graph.outputs)
    return fragment, list(names)


def _axis(product: ProductAnalysis, quantizer: Quantizer | None, analysis: Analysis) -> int | None:
    """The axis of the channels of what a quantizer gives, from the end; None if it is not known.

    It is that of several scales, of what is known per channel, or that of the layer itself.
    """
    if quantizer is None or product.layout is None:
        return None
    channels = None if quantizer.grid is None else quantizer.grid.channels
    known = analysis.values.get(quantizer.node.outputs[0])
    found = (None if each is None else each.axis for each in (channels, known))
    return next((axis for axis in found if axis is not None), product.layout.y_axis)


def _by_channel(array: Array, axis: int | None) -> Array:
    """Channels x the rest: those of a matrix are its columns, else they are one if not known."""
    if axis is None or -axis > array.ndim:
        if array.ndim != 2:
            return array.reshape(1, -1)
        axis = -1
    return np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
