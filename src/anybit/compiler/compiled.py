# SPDX-License-Identifier: Apache-2.0
"""Compiled models."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

import numpy as np
import onnx_ir as ir

from anybit.compiler.backends.c.source import CSource
from anybit.compiler.c_source import explain_float_nodes, make_source, write_source
from anybit.compiler.encode import Region
from anybit.compiler.report import Report
from anybit.compiler.rewrite.regions import expose_tensors
from anybit.errors import ModelError
from anybit.inputs import TensorInfo, get_tensor_info, list_inputs
from anybit.model import Engine, Model, RuntimeEngine
from anybit.onnx import save
from anybit.onnx.files.reader import read_copy
from anybit.onnx.graph.constants import Array
from anybit.onnx.preparation import name_errors_after
from anybit.onnx.qdq.codes.emitter import FileCodes


class CompiledModel(Model):
    """A model whose integer regions run as programs. Made by `compile`.

    One that is a single region takes any number of rows at once, also of a fixed number or 0.

    Attributes:
        model: The ONNX model, in which each region is one node.
        report: The layers, their guarantees, and the reasons of those that stay float32.
        source_sha256: SHA-256 of the file that was compiled, in hexadecimal; empty without a file.
    """

    def __init__(
        self,
        engine: Engine,
        model: ir.Model,
        report: Report,
        regions: Mapping[str, Region],
        source_sha256: str = "",
        integers: Mapping[str, FileCodes] = MappingProxyType({}),
    ) -> None:
        super().__init__(engine)
        self.model = model
        self.report = report
        self.source_sha256 = source_sha256
        self._regions, self._integers = regions, integers
        if isinstance(engine, NetworkEngine) and engine.has_one_input_and_output:
            # Small networks take less time than a frame of Python does.
            ordinary = engine.network.named(self.outputs[0].name, Model(engine).run)
            self.run = ordinary  # type: ignore[method-assign]

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a compiled model cannot be pickled: write it with save(), and read that with load()"
        )

    @property
    def codes(self) -> frozenset[str]:
        """The names of the tensors that its regions hold as codes."""
        names = frozenset().union(*(region.codes for region in self._regions.values()))
        return frozenset(self._get_file_name(name) for name in names)

    @property
    def session_model(self) -> ir.Model | None:
        """The graph that a session runs; None if the whole network runs without one."""
        return None if isinstance(self.engine, NetworkEngine) else self.model

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model, as `anybit.save` does.

        It is an ordinary ONNX file, for any program with ONNX Runtime 1.17 or newer that registers
        the library (`anybit.onnxruntime.library_path`), on any processor.
        """
        save(self.model, path)

    def to_c(
        self,
        folder: str | os.PathLike[str],
        *,
        name: str = "net",
        io: str = "floats",
        layout: str = "size",
        limits: Mapping[str, int] | None = None,
    ) -> CSource:
        """Write the network as C99 source with a test and build files, for microcontrollers.

        The whole network has to be integers from its inputs to its outputs. Nothing is written on
        an error.

        Args:
            folder: The folder, which is created if its parent exists. Files are overwritten.
            name: Prefix of the files and functions, an identifier of C.
            io: "floats" for the inputs and outputs of the graph; "codes" for their integer codes,
                height x width x channels, without any float.
            layout: "size" for the fewest bytes: layers of equal form share a function, and five
                ternary weights a byte. "speed": a function per layer, ternary weights of 2 bits.
            limits: The most bytes of "flash" (constants) and "ram" (the arena).

        Returns:
            The files, sizes and layers.

        Raises:
            ModelError: Nodes stay float, or the network is larger than a limit.
            OptionError: An option has an unsupported value.
        """
        if not isinstance(self.engine, NetworkEngine):
            raise ModelError(explain_float_nodes(self.model, self.report))
        engine = self.engine
        source = make_source(
            engine.region,
            name,
            io,
            (engine.input_names, engine.output_names),
            layout=layout,
            sha256=self.source_sha256,
            limits=limits or {},
        )
        write_source(source, Path(folder))
        return source

    def rename_codes(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs of a `saved` model, with codes as operators of the file have them."""
        return {
            self._get_file_name(name): self._integers[name].encode(array)
            if name in self._integers
            else array
            for name, array in arrays.items()
        }

    def _get_file_name(self, name: str) -> str:
        return self._integers[name].name if name in self._integers else name

    def saved(self, path: str | os.PathLike[str]) -> Model:
        """Load the model that `save` wrote, with all tensors of codes as further outputs.

        Raises:
            ModelError: The file holds another model.
        """
        model = read_copy(path)
        with name_errors_after(path):
            expose_tensors(model, self._regions)
        return Model(RuntimeEngine(model, str(path)))


class NetworkEngine:
    """Runs a model that is one region: without a session, on any number of rows."""

    def __init__(
        self, region: Region, inputs: tuple[TensorInfo, ...], outputs: tuple[TensorInfo, ...]
    ) -> None:
        self.region = region
        self.network = region.network
        # Rows are independent, whatever number of them the file declares.
        self.inputs, self.outputs = (
            tuple(map(_make_rows_dynamic, tensors)) for tensors in (inputs, outputs)
        )
        self.input_names = [value.name or "" for value in region.inputs]
        self.output_names = [value.name or "" for value in region.outputs]

    @property
    def has_one_input_and_output(self) -> bool:
        """True if the network has one input and one output, the output of the model."""
        return len(self.input_names) == len(self.output_names) == 1

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs for arrays by the names of the inputs."""
        arrays = [np.ascontiguousarray(feeds[name]) for name in self.input_names]
        try:
            results = self.network.run(arrays)
        except ValueError as error:
            raise ModelError(f"the model cannot be run: {error}") from error
        named = dict(zip(self.output_names, results, strict=True))
        return {output.name: named[output.name] for output in self.outputs}


def make_network_engine(
    model: ir.Model, regions: Sequence[Region], where: str
) -> NetworkEngine | None:
    """Return the engine of a model that is one region; None for other models."""
    if len(regions) != 1:
        return None
    (region,) = regions
    graph = model.graph
    inputs = [value for value in graph.inputs if not value.is_initializer()]
    if set(inputs) != set(region.inputs) or not set(graph.outputs) <= set(region.outputs):
        return None
    outputs = tuple(get_tensor_info(value, where) for value in graph.outputs)
    return NetworkEngine(region, list_inputs(graph, where), outputs)


def _make_rows_dynamic(tensor: TensorInfo) -> TensorInfo:
    assert tensor.shape is not None, "regions have known sizes"
    return replace(tensor, shape=(None, *tensor.shape[1:]))
