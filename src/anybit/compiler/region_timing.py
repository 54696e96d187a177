# SPDX-License-Identifier: Apache-2.0
"""Times of a model with all integer regions, and with some of them left in float32."""

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial

import onnx_ir as ir

from anybit.compiler.compiled import make_network_engine
from anybit.compiler.encode import Region
from anybit.compiler.prepare.codes.lifting import LiftedOperators, restore_code_operators
from anybit.compiler.rewrite.dynamic_matmuls import replace_dynamic_pairs
from anybit.compiler.rewrite.regions import replace_regions
from anybit.compiler.selection import Left, LeftRegion, describe_left, select_regions
from anybit.compiler.timing import (
    TimedCall,
    limit_threads,
    make_session_call,
    measure_best,
    profile_nodes,
)
from anybit.data.random_inputs import generate_random_inputs
from anybit.inputs import list_inputs
from anybit.onnx import Source
from anybit.onnx.preparation import make_runnable
from anybit.onnx.process import silence_onnx_logs

_SECONDS = 0.1
"""About how long two candidates are measured."""


@silence_onnx_logs()
def measure_regions(
    model: ir.Model,
    regions: Sequence[Region],
    pairs: Collection[str],
    codes: LiftedOperators,
    source: Source,
) -> dict[Region, LeftRegion]:
    """Return the regions that are slower than their float nodes, in runs of one row on one thread.

    Args:
        model: The model in which the regions are not replaced yet. It is not changed.
        regions: All regions of the model.
        pairs: Outputs of products that nodes of their own compute on integers.
        codes: Operators on codes, which run as such where no region has them.
        source: The quantized model.
    """
    times = _RegionTimes(model, regions, pairs, codes, source)
    saved = select_regions(len(regions), times.measure)
    return describe_left(regions, saved, times.profile() if saved else {})


class _RegionTimes:
    """Sessions of a model without some of its regions, on the same random inputs."""

    def __init__(
        self,
        model: ir.Model,
        regions: Sequence[Region],
        pairs: Collection[str],
        codes: LiftedOperators,
        source: Source,
    ) -> None:
        self._model, self._regions, self._pairs = model, regions, pairs
        self._codes, self._source = codes, source
        self._feeds = generate_random_inputs(list_inputs(model.graph, "the model"))
        self._calls: dict[Left, TimedCall] = {}

    def measure(self, candidates: Sequence[Left]) -> list[float]:
        """Return the seconds of a run of each candidate, measured in turns."""
        self._calls = {left: self._calls.get(left) or self._make_call(left) for left in candidates}
        with limit_threads(1):
            best = measure_best(self._calls, _SECONDS, time.thread_time)
        return [best[left] for left in candidates]

    def profile(self) -> dict[int, float]:
        """Return the seconds of each region in a run with all of them."""
        model, regions = self._rewrite(frozenset())
        names = {name: number for number, name in enumerate(regions)}
        seconds = profile_nodes(model, self._feeds)
        return {names[name]: own for name, own in seconds.items() if name in names}

    def _make_call(self, left: Left) -> TimedCall:
        network = None if left else make_network_engine(self._model, self._regions, "the model")
        if network is not None:
            return partial(network.run, self._feeds)
        model, _ = self._rewrite(left)
        return make_session_call(model, self._feeds, 1)

    def _rewrite(self, left: Left) -> tuple[ir.Model, dict[str, Region]]:
        """Return a copy of the model with nodes for the other regions, and these by their names."""
        model = self._model.clone()
        values = {value.name: value for node in model.graph for value in node.outputs}
        values |= {value.name: value for value in model.graph.inputs}
        copies = [
            replace(
                region,
                inputs=tuple(values[value.name] for value in region.inputs),
                outputs=tuple(values[value.name] for value in region.outputs),
            )
            for number, region in enumerate(self._regions)
            if number not in left
        ]
        regions = replace_regions(model, copies)
        restore_code_operators(model, self._codes)
        replace_dynamic_pairs(model, self._pairs)
        return make_runnable(model, self._source), regions
