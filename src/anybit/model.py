# SPDX-License-Identifier: Apache-2.0
"""A model that runs: `load` it, call `run`."""

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from anybit import onnxruntime
from anybit.errors import ModelError
from anybit.onnx import Source, read
from anybit.onnx.operators.known import check_known
from anybit.onnxruntime import reason
from anybit.tensors import converted, derived, misfit, tensor_of

Array: TypeAlias = npt.NDArray[Any]
Feeds: TypeAlias = npt.ArrayLike | Mapping[str, npt.ArrayLike]


def load(source: Source) -> "Model":
    """Load a model, normalise it, fold its quantized weights and make it ready to run.

    Args:
        source: A path, the bytes of a file, an `onnx.ModelProto` or an `onnx_ir.Model`.

    Raises:
        ModelError: The model cannot be run; the message says why and what to do.
    """
    return Model(source)


class Model:
    """An ONNX model that is ready to run. Made by `load`; safe to use from several threads.

    Attributes:
        inputs, outputs: What the model takes and gives, in its own order.
        session: The `onnxruntime.InferenceSession` underneath.
    """

    def __init__(self, source: Source) -> None:
        where = str(source) if isinstance(source, str | os.PathLike) else "the model"
        model = read(source)
        check_known(model, where)
        constants = set(model.graph.initializers.values())
        self.inputs = tuple(
            tensor_of(value, where) for value in model.graph.inputs if value not in constants
        )
        try:
            self.session = onnxruntime.session(model)
        except ModelError as error:
            raise ModelError(f"{where}: {error}") from error
        except Exception as error:  # the runtime's exceptions have no common base
            raise ModelError(f"{where} cannot be loaded: {reason(error)}") from error
        known = {argument.name: argument for argument in self.session.get_outputs()}
        self.outputs = tuple(
            tensor_of(value, where) if value.type is not None else derived(known[value.name or ""])
            for value in model.graph.outputs
        )
        self._input_shapes = {each.name: each.shape for each in self.inputs}
        self._output_names = [each.name for each in self.outputs]
        # The usual input of a small network, which needs no further look at.
        first = self.inputs[0] if len(self.inputs) == 1 else None
        self._ordinary = None if first is None else (first.dtype, first.shape)

    def run(
        self, inputs: Feeds, *, progress: Callable[[int, int], None] | None = None
    ) -> dict[str, Array]:
        """The outputs by name.

        Args:
            inputs: One array per input by name, or just the array where there is one input.
                Floats are rounded to the input's dtype as NumPy does it (float64 to float32);
                integers and booleans are converted where the dtype holds them exactly. Where the
                model fixes the first size of its inputs to n, any multiple of n rows runs: slice
                by slice, with the outputs concatenated. That takes the first axis of inputs and
                outputs for rows that do not depend on one another.
            progress: Called with the number of slices done and of all slices, after each.

        Raises:
            ModelError: A name, shape or dtype that the model does not take, an array without
                elements, or what the runtime reports while it runs.
        """
        if type(inputs) is np.ndarray and (inputs.dtype, inputs.shape) == self._ordinary:
            return self._run_once({self.inputs[0].name: inputs})
        feeds = self._feeds(inputs)
        self._check_names(feeds)
        slices = self._slices(feeds)
        if slices == 1:
            return self._run_once(feeds)
        parts = []
        for index in range(slices):
            part = {}
            for name, array in feeds.items():
                rows = len(array) // slices
                part[name] = array[index * rows : (index + 1) * rows]
            parts.append(self._run_once(part))
            if progress is not None:
                progress(index + 1, slices)
        return {name: self._joined(name, parts, feeds, slices) for name in self._output_names}

    def _run_once(self, feeds: dict[str, Array]) -> dict[str, Array]:
        try:
            results = self.session.run(self._output_names, feeds)
        except Exception as error:  # the runtime's exceptions have no common base
            raise ModelError(f"the model cannot be run: {reason(error)}") from error
        return dict(zip(self._output_names, results, strict=True))

    def _feeds(self, inputs: Feeds) -> dict[str, Array]:
        if isinstance(inputs, Mapping):
            given = inputs
        elif len(self.inputs) == 1:
            given = {self.inputs[0].name: inputs}
        else:
            raise ModelError(
                f"the model takes {len(self.inputs)} inputs: pass a dict of "
                f"{', '.join(self._input_shapes)}"
            )
        if given.keys() != self._input_shapes.keys():
            missing = ", ".join(sorted(self._input_shapes.keys() - given.keys())) or "none"
            unknown = ", ".join(sorted(map(str, given.keys() - self._input_shapes.keys())))
            raise ModelError(
                f"the model takes the inputs {', '.join(self._input_shapes)}; "
                f"missing: {missing}; not known: {unknown or 'none'}"
            )
        return {each.name: converted(given[each.name], each) for each in self.inputs}

    def _check_names(self, feeds: dict[str, Array]) -> None:
        """A size of one name must be the same wherever it stands."""
        sizes: dict[str, int] = {}
        for declared in self.inputs:
            for size, name in zip(feeds[declared.name].shape, declared.shape or (), strict=False):
                if isinstance(name, str) and sizes.setdefault(name, size) != size:
                    raise ModelError(
                        f"input {declared.name!r} has {name} = {size}, another input {sizes[name]}"
                    )

    def _slices(self, feeds: dict[str, Array]) -> int:
        """How many runs the rows need. Shapes that no number of runs fits raise."""
        counts = set()
        for declared in self.inputs:
            array, shape = feeds[declared.name], declared.shape
            if array.shape == shape or shape is None:
                counts.add(1)
                continue
            fits = array.ndim == len(shape) and all(
                size == wanted or not isinstance(wanted, int)
                for size, wanted in zip(array.shape[1:], shape[1:], strict=False)
            )
            rows = shape[0] if shape and isinstance(shape[0], int) else None
            if not fits or (rows is not None and (array.ndim == 0 or len(array) % rows)):
                raise ModelError(misfit(declared, array))
            counts.add(1 if rows is None else len(array) // rows)
        if len(counts) > 1:
            raise ModelError(f"the inputs have different numbers of rows: they need {counts} runs")
        return counts.pop() if counts else 1

    def _joined(
        self, name: str, parts: list[dict[str, Array]], feeds: dict[str, Array], slices: int
    ) -> Array:
        arrays = [part[name] for part in parts]
        rows = {len(array) // slices for array in feeds.values()}
        if any(array.ndim == 0 or len(array) not in rows for array in arrays):
            raise ModelError(
                f"output {name!r} has no row per input row, so that the results of "
                f"{slices} slices cannot be joined: pass one slice at a time"
            )
        return np.concatenate(arrays)
