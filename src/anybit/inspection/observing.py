# SPDX-License-Identifier: Apache-2.0
"""One run of a model over data: statistics of factors, codes and sums of layers."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from anybit.data.dataset import Dataset, DataSource
from anybit.data.readers import Sample
from anybit.data.row_independence import make_independence_test
from anybit.data.splits import is_selected
from anybit.errors import DataError
from anybit.inputs import list_inputs
from anybit.inspection.factors import Factor, Target
from anybit.inspection.gauge import Gauge
from anybit.inspection.model_report import DataSummary, Observation
from anybit.onnx.analysis.abstract_values import AbstractValue
from anybit.onnx.analysis.analysis import Analysis
from anybit.onnx.analysis.ranges import describe_violation, encode_nearest
from anybit.onnx.graph.constants import Array
from anybit.onnx.operators.known import check_known
from anybit.ops.grids import Coding, IntegerGrid
from anybit.ops.rounding import RoundingMode, round_to_integer
from anybit.ptq.calibration.random_tokens import expand_random_tokens
from anybit.ptq.calibration.taps import make_tap_spec
from anybit.ptq.config import RandomTokensConfig

# More samples change little.
_MAX_SAMPLES = 64
_MAX_SHARES = 2**8


@dataclass(frozen=True)
class DataRun:
    """Results of a run.

    Attributes:
        summary: The data.
        observations: Codes and sums of each layer; None where the model does not compute them.
        gauges: Statistics of the computed factors.
    """

    summary: DataSummary
    observations: tuple[Observation | None, ...]
    gauges: Mapping[Factor, Gauge]


def run_on_data(
    model: ir.Model,
    targets: Sequence[Target],
    analysis: Analysis,
    ranges: Mapping[str, AbstractValue],
    data: DataSource,
    where: str,
    progress: Callable[[float], None],
) -> DataRun:
    """Run a model on at most 64 samples, evenly chosen, and observe its layers.

    Raises:
        DataError: The data do not fit the model or the ranges.
        ModelError: The model cannot be run.
    """
    check_known(model, where)
    data = expand_random_tokens(data, model, where, RandomTokensConfig())
    samples = Dataset(data, list_inputs(model.graph, where))
    whole = make_tap_spec(model, model.graph.outputs, where).open(single_thread=False)
    samples.verify_row_independence(make_independence_test(whole.run))
    factors = dict.fromkeys(
        factor for target in targets for factor in target.factors if not factor.is_constant
    )
    gauges = {factor: Gauge(factor) for factor in factors}
    observers = [_Observer(target, analysis) for target in targets]
    top = set(model.graph)  # values inside branches and loops are not recorded
    values = [value for factor in factors for value in (factor.x, _get_output(factor))]
    values += [value for observer in observers for value in observer.values]
    values = [
        value for value in values if (producer := value.producer()) is None or producer in top
    ]
    recorder = make_tap_spec(model, list(dict.fromkeys(values)), where).open(single_thread=False)
    shortest, count = float("inf"), 0
    step = -(-len(samples) // _MAX_SAMPLES)
    for number, sample in enumerate(samples):
        _check_ranges(sample, ranges)
        if is_selected(number, step):
            count += 1
            start = time.perf_counter()
            whole.run(sample)
            shortest = min(shortest, time.perf_counter() - start)
            arrays = recorder.run(sample) if values else {}
            for factor, gauge in gauges.items():
                x = arrays.get(str(factor.x.name))
                if x is not None and x.dtype.kind == "f":
                    gauge.add(x, arrays.get(str(_get_output(factor).name)))
            for observer in observers:
                observer.add(arrays)
        progress((number + 1) / len(samples))
    summary = DataSummary(len(samples), count, shortest)
    observations = tuple(observer.observation() for observer in observers)
    return DataRun(summary, observations, gauges)


def _get_output(factor: Factor) -> ir.Value:
    return factor.quantizer.node.outputs[0]


def _check_ranges(sample: Sample, ranges: Mapping[str, AbstractValue]) -> None:
    for name, value in ranges.items():
        problem = describe_violation(name, sample[name], value)
        if problem:
            raise DataError(f"{problem}; correct the range, or the data")


@dataclass
class _Extremes:
    """Smallest and largest value per row so far; of all rows once their number changes."""

    lowest: Array | None = None
    highest: Array | None = None

    def add(self, rows: Array) -> None:
        low, high = rows.min(axis=1), rows.max(axis=1)
        if self.lowest is not None and self.highest is not None:
            if low.shape != self.lowest.shape:
                low, high = low.min(keepdims=True), high.max(keepdims=True)
            low, high = np.minimum(low, self.lowest), np.maximum(high, self.highest)
        self.lowest, self.highest = low, high

    @property
    def ends(self) -> tuple[float, float] | None:
        if self.lowest is None or self.highest is None:
            return None
        return float(self.lowest.min()), float(self.highest.max())


@dataclass
class _Observer:
    """Codes and sums of a layer so far."""

    target: Target
    analysis: Analysis
    inputs: _Extremes = field(default_factory=_Extremes)
    sums: _Extremes = field(default_factory=_Extremes)
    codes: _Extremes = field(default_factory=_Extremes)
    counts: Counter[int] = field(default_factory=Counter)
    clipped: int = 0
    elements: int = 0

    @property
    def values(self) -> list[ir.Value]:
        """Return the tensors to record."""
        if self.target.product is None:
            return []
        after = self.target.after
        quantizer = [] if after is None else [after.x, after.node.outputs[0]]
        return [value for value in (self._x, self._y, *quantizer) if value is not None]

    @property
    def _x(self) -> ir.Value | None:
        product = self.target.product
        if product is None:
            return None
        index = 0 if product.layout is None else product.layout.x
        return product.node.inputs[index] if index < len(product.node.inputs) else None

    @property
    def _y(self) -> ir.Value | None:
        return None if self.target.product is None else self.target.product.node.outputs[0]

    @property
    def _grid(self) -> IntegerGrid | None:
        grid = None if self.target.after is None else self.target.after.grid
        return grid if isinstance(grid, IntegerGrid) else None

    def add(self, arrays: Mapping[str, Array]) -> None:
        for value, extremes in ((self._x, self.inputs), (self._y, self.sums)):
            array = None if value is None else arrays.get(str(value.name))
            if array is not None and array.size and array.dtype.kind == "f":
                extremes.add(array.reshape(1, -1))
        after, grid = self.target.after, self._grid
        if after is None or grid is None or after.x is None:
            return
        quantized = arrays.get(str(after.node.outputs[0].name))
        if quantized is None or not quantized.size:
            return
        codes = encode_nearest(quantized, grid)
        self.codes.add(_split_channels(codes, self._axis()))
        values, counts = np.unique(codes, return_counts=True)
        if len(self.counts) <= _MAX_SHARES:
            self.counts.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
        self.elements += codes.size
        before = arrays.get(str(after.x.name))
        if before is not None and grid.coding is not Coding.SIGN:
            mode = str(after.attributes.get("rounding_mode", RoundingMode.ROUND))
            with np.errstate(all="ignore"):
                rounded = round_to_integer(before / grid.scale + grid.zeropt, mode)
            self.clipped += int(
                np.count_nonzero((rounded > grid.highest) | (rounded < grid.lowest))
            )

    def observation(self) -> Observation | None:
        """Return the codes and sums; None if the layer did not run."""
        if self.sums.ends is None:
            return None
        grid, codes = self._grid, self.codes
        constant: list[int] = []
        channels = 0
        if codes.lowest is not None and codes.highest is not None:
            channels = codes.lowest.size
            constant = (
                np.flatnonzero(codes.lowest == codes.highest).tolist() if channels > 1 else []
            )
        clips = grid is not None and grid.coding is not Coding.SIGN and self.elements
        shares = self.counts if len(self.counts) <= _MAX_SHARES else {}
        return Observation(
            input_codes=self._input_codes(),
            output_codes=None if codes.ends is None else (int(codes.ends[0]), int(codes.ends[1])),
            sums=self.sums.ends,
            clipped=self.clipped / self.elements if clips else None,
            constant_channels=tuple(constant),
            channels=channels,
            shares={code: shares[code] / self.elements for code in sorted(shares)},
        )

    def _input_codes(self) -> tuple[int, int] | None:
        product, ends = self.target.product, self.inputs.ends
        value = None if product is None else product.x
        grid = None if value is None else value.merge_channels().grid
        if grid is None or ends is None or grid.scale.size > 1:
            return None
        low, high = sorted(encode_nearest(np.asarray(ends), grid).ravel().tolist())
        return low, high

    def _axis(self) -> int | None:
        """Return the channel axis of the quantized result from the end; None if unknown.

        Several scales or values per channel show it, otherwise the layer.
        """
        after, product = self.target.after, self.target.product
        if after is None or product is None or product.layout is None:
            return None
        channels = None if after.grid is None else after.grid.channels
        value = self.analysis.values.get(after.node.outputs[0])
        axes = (None if owner is None else owner.axis for owner in (channels, value))
        return next((axis for axis in axes if axis is not None), product.layout.y_axis)


def _split_channels(array: Array, axis: int | None) -> Array:
    """Return channels x the rest; without a channel axis, columns of a matrix, else one channel."""
    if axis is None or -axis > array.ndim:
        if array.ndim != 2:
            return array.reshape(1, -1)
        axis = -1
    return np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)
