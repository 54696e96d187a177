# SPDX-License-Identifier: Apache-2.0
"""A model that runs: `load` it, call `run`."""

import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from anybit import onnxruntime
from anybit.errors import ModelError
from anybit.inputs import (
    Array,
    Feeds,
    Tensor,
    declared,
    declared_inputs,
    derived,
    fitted,
    slice_of,
)
from anybit.onnx import Source, read
from anybit.onnx.operators.known import check_known
from anybit.onnx.operators.opsets import obstacle
from anybit.onnx.ort_values import is_numpy_dtype
from anybit.onnx.process import relaxed_gc, silence_onnx_logs
from anybit.onnx.quantizers.float4 import float4_obstacle
from anybit.onnx.runtime import exact_session_options, reason, run_session


class Engine(Protocol):
    """What computes a model."""

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """What it takes, in the model's order."""

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """What it gives, in the model's order."""

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name, for one array of the declared dtype and sizes per input.

        It may be called from several threads.

        Raises:
            ModelError: What cannot be computed.
        """


@silence_onnx_logs()
@relaxed_gc()
def load(source: Source) -> "Model":
    """Load a model, normalize it, fold its quantized weights and make it ready to run.

    Args:
        source: A path, the bytes of a file, an `onnx.ModelProto` or an `onnx_ir.Model`.

    Raises:
        ModelError: The model cannot be run; the message says why and what to do.
    """
    where = str(source) if isinstance(source, str | os.PathLike) else "the model"
    return Model(RuntimeEngine(read(source), where))


class RuntimeEngine:
    """A session of ONNX Runtime, with the model's own names and types of inputs and outputs.

    Args:
        model: The model.
        where: What to call it in messages.
        threads: How many take part in a run; 0 for one per core.
    """

    def __init__(self, model: ir.Model, where: str, threads: int = 0) -> None:
        check_known(model, where)
        self.inputs = declared_inputs(model.graph, where)
        options = exact_session_options() if threads else None
        if options is not None:
            options.intra_op_num_threads = threads
        try:
            self.session = onnxruntime.session(model, session_options=options)
        except ModelError as error:
            raise ModelError(f"{where}: {error}") from error
        except Exception as error:  # the runtime's exceptions have no common base
            why = "; ".join(filter(None, (reason(error), obstacle(model), float4_obstacle(model))))
            raise ModelError(f"{where} cannot be loaded: {why}") from error
        known = {argument.name: argument for argument in self.session.get_outputs()}
        self.outputs = tuple(
            declared(value, where) if value.type is not None else derived(known[value.name or ""])
            for value in model.graph.outputs
        )
        self._names = [each.name for each in self.outputs]
        ends = (*self.inputs, *self.outputs)
        self._plain = all(is_numpy_dtype(each.dtype) for each in ends)
        self.run_options: Any = None  # of the runtime, to end a run early

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        try:
            if not self._plain:
                return run_session(self.session, feeds, options=self.run_options)
            results = self.session.run(self._names, feeds, self.run_options)
        except Exception as error:  # the runtime's exceptions have no common base
            raise ModelError(f"the model cannot be run: {reason(error)}") from error
        return dict(zip(self._names, results, strict=True))


class Model:
    """A model that is ready to run. Made by `load`; safe to use from several threads.

    Attributes:
        engine: What computes it.
        inputs, outputs: What the model takes and gives, in its own order.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.inputs, self.outputs = engine.inputs, engine.outputs
        # The usual input of a small network, which needs no further look at.
        first = self.inputs[0] if len(self.inputs) == 1 else None
        self._ordinary = None if first is None else (first.dtype, first.shape)

    def __repr__(self) -> str:
        takes, gives = (", ".join(map(str, each)) for each in (self.inputs, self.outputs))
        return f"<anybit.{type(self).__name__}: {takes} -> {gives}>"

    @property
    def session(self) -> Any:
        """The `onnxruntime.InferenceSession` underneath.

        Raises:
            AttributeError: The engine is another one.
        """
        return self.engine.session  # type: ignore[attr-defined]

    def run(
        self, inputs: Feeds, *, progress: Callable[[int, int], None] | None = None
    ) -> dict[str, Array]:
        """The outputs by name.

        Args:
            inputs: One array per input by name, or just the array where there is one input.
                Floats are rounded to the input's dtype as NumPy does it (float64 to float32);
                integers and booleans are converted where the dtype holds them exactly. Types that
                NumPy lacks, such as int4 and float8, have the dtypes of ml_dtypes. Where the
                model fixes the first size of its inputs to n, any multiple of n rows runs: slice
                by slice, with the outputs concatenated. That takes the first axis of inputs and
                outputs for rows that do not depend on one another.
            progress: Called with the number of slices done and of all slices, after each.

        Raises:
            ModelError: A name, shape or dtype that the model does not take, an array without
                elements (a `Compiled` may take 0 rows), or what the runtime reports while it runs.
        """
        if type(inputs) is np.ndarray and (inputs.dtype, inputs.shape) == self._ordinary:
            return self.engine.run({self.inputs[0].name: inputs})
        feeds, slices = fitted(self.inputs, inputs)
        if slices == 1:
            return self.engine.run(feeds)
        parts = []
        for index in range(slices):
            parts.append(self.engine.run(slice_of(feeds, index, slices)))
            if progress is not None:
                progress(index + 1, slices)
        rows = {len(array) // slices for array in feeds.values()}
        return {each.name: _joined(each.name, parts, rows) for each in self.outputs}


def _joined(name: str, parts: list[dict[str, Array]], rows: set[int]) -> Array:
    arrays = [part[name] for part in parts]
    if any(array.ndim == 0 or len(array) not in rows for array in arrays):
        raise ModelError(
            f"output {name!r} does not have one row per input row, so that the results of "
            f"{len(parts)} slices cannot be joined: pass one slice at a time"
        )
    return np.concatenate(arrays)
