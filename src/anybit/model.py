# SPDX-License-Identifier: Apache-2.0
"""Models that run: `load` and `Model.run`."""

import os
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from anybit import onnxruntime
from anybit.errors import AnybitError, ModelError
from anybit.inputs import (
    Feeds,
    TensorInfo,
    bind_batches,
    get_tensor_info,
    infer_tensor_info,
    list_inputs,
    select_run,
)
from anybit.onnx import Source, read
from anybit.onnx.graph.constants import Array
from anybit.onnx.operators.empty_tensors import check_fatal_nodes, find_fatal_nodes
from anybit.onnx.operators.known import check_known
from anybit.onnx.operators.opsets import find_obstacle
from anybit.onnx.ort_values import is_numpy_dtype
from anybit.onnx.process import relax_gc, silence_onnx_logs
from anybit.onnx.quantizers.float4 import find_float4_obstacle
from anybit.onnx.runtime import (
    exact_session_options,
    extract_reason,
    run_session,
    set_threads,
)


class Engine(Protocol):
    """The interface of engines that run a model."""

    @property
    def inputs(self) -> tuple[TensorInfo, ...]:
        """The inputs, in the order of the model."""

    @property
    def outputs(self) -> tuple[TensorInfo, ...]:
        """The outputs, in the order of the model."""

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs by name, for one array of the declared dtype and shape per input.

        It may be called from several threads.

        Raises:
            ModelError: The model fails on these inputs.
        """


@silence_onnx_logs()
@relax_gc()
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
        where: The name of the model in messages.
        threads: The number of threads of a run; 0 for the default of `set_threads`.
    """

    def __init__(self, model: ir.Model, where: str, threads: int = 0) -> None:
        check_known(model, where)
        self.inputs = list_inputs(model.graph, where)
        options = exact_session_options() if threads else None
        if options is not None:
            set_threads(options, threads)
        try:
            self.session = onnxruntime.session(model, session_options=options)
        except AnybitError as error:
            raise type(error)(f"{where}: {error}") from error
        except Exception as error:  # the runtime's exceptions have no common base
            causes = (extract_reason(error), find_obstacle(model), find_float4_obstacle(model))
            message = "; ".join(cause for cause in causes if cause)
            raise ModelError(f"{where} cannot be loaded: {message}") from error
        inferred = {argument.name: argument for argument in self.session.get_outputs()}
        self.outputs = tuple(
            get_tensor_info(value, where)
            if value.type is not None
            else infer_tensor_info(inferred[value.name or ""])
            for value in model.graph.outputs
        )
        self._fatal_nodes = find_fatal_nodes(model)
        self._names = [tensor.name for tensor in self.outputs]
        tensors = (*self.inputs, *self.outputs)
        self._plain = all(is_numpy_dtype(tensor.dtype) for tensor in tensors)
        self.run_options: Any = None  # of the runtime, to end a run early

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        if self._fatal_nodes:
            check_fatal_nodes(self._fatal_nodes, feeds)
        try:
            if not self._plain:
                return run_session(self.session, feeds, options=self.run_options)
            results = self.session.run(self._names, feeds, self.run_options)
        except Exception as error:  # the runtime's exceptions have no common base
            reason = extract_reason(error) + _describe_empty(feeds)
            raise ModelError(f"the model cannot be run: {reason}") from error
        return dict(zip(self._names, results, strict=True))


class Model:
    """A model that is ready to run. Made by `load`; safe to use from several threads.

    Attributes:
        engine: The engine that runs it.
        inputs, outputs: The declared inputs and outputs, in the order of the model.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.inputs, self.outputs = engine.inputs, engine.outputs
        # The usual input of a small network needs no further check.
        first = self.inputs[0] if len(self.inputs) == 1 else None
        self._ordinary = None if first is None else (first.dtype, first.shape)

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(map(str, side)) for side in (self.inputs, self.outputs))
        return f"<anybit.{type(self).__name__}: {inputs} -> {outputs}>"

    @property
    def session(self) -> Any:
        """The `onnxruntime.InferenceSession` underneath.

        Raises:
            AttributeError: The engine has no session.
        """
        return self.engine.session  # type: ignore[attr-defined]

    def run(
        self, inputs: Feeds, *, progress: Callable[[int, int], None] | None = None
    ) -> dict[str, Array]:
        """Run the model and return its outputs by name.

        Args:
            inputs: One array per input by name, or just the array if there is one input. Floats
                are rounded to the input's dtype as by NumPy (float64 to float32); integers and
                booleans are converted if the dtype holds them exactly. Types that NumPy lacks, such
                as int4 and float8, have the dtypes of ml_dtypes. If the model fixes the first size
                of its inputs to n, any multiple of n rows runs, n at a time, and the outputs are
                concatenated. This assumes that rows (the first axis) are independent. Dynamic sizes
                may be 0, as the number of tokens.
            progress: Called after each slice with the number of slices done and of all slices.

        Raises:
            DataError: A name, shape or dtype does not fit the model, or ONNX Runtime would end the
                process on an input without elements.
            ModelError: The runtime fails, or the outputs of slices cannot be concatenated.
        """
        if type(inputs) is np.ndarray and (inputs.dtype, inputs.shape) == self._ordinary:
            return self.engine.run({self.inputs[0].name: inputs})
        feeds, slices = bind_batches(self.inputs, inputs)
        if slices == 1:
            return self.engine.run(feeds)
        parts = []
        for index in range(slices):
            parts.append(self.engine.run(select_run(feeds, index, slices)))
            if progress is not None:
                progress(index + 1, slices)
        rows = {len(array) // slices for array in feeds.values()}
        return {tensor.name: _join_runs(tensor.name, parts, rows) for tensor in self.outputs}


def _describe_empty(feeds: Mapping[str, Array]) -> str:
    """Return a note on inputs without elements, which few models take; empty for none."""
    shapes = [
        f"{name!r} has shape {array.shape}" for name, array in feeds.items() if not array.size
    ]
    return f" (input {', '.join(shapes)}: it has no elements)" if shapes else ""


def _join_runs(name: str, parts: list[dict[str, Array]], rows: set[int]) -> Array:
    arrays = [part[name] for part in parts]
    if any(array.ndim == 0 or len(array) not in rows for array in arrays):
        raise ModelError(
            f"output {name!r} does not have one row per input row, so that the results of "
            f"{len(parts)} runs cannot be joined: pass the rows of one run at a time"
        )
    return np.concatenate(arrays)
