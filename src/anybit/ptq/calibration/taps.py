# SPDX-License-Identifier: Apache-2.0
"""Inference sessions whose outputs are inner tensors of a model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

import onnx_ir as ir

from anybit.data.readers import Sample
from anybit.errors import ModelError
from anybit.onnx.files.message import serialize
from anybit.onnx.graph.constants import Array, is_constant
from anybit.onnx.graph.walk import get_inner_graphs
from anybit.onnx.preparation import make_runnable
from anybit.onnx.process import trim_heap
from anybit.onnx.runtime import extract_reason, make_session_from_message, run_session
from anybit.ptq.graph.branches import expose_branch_tensors


class ActivationTap:
    """Inference session whose outputs are inner tensors of a model.

    Args:
        spec: The model and the tensors.
        single_thread: Whether each run takes one thread. The division of sums among threads
            determines their last bits, which should not depend on the machine.

    Raises:
        ModelError: The model cannot be loaded.
    """

    def __init__(self, spec: "TapSpec", single_thread: bool) -> None:
        self._label, self._names = spec.label, spec.names
        trim_heap(spec.nbytes)  # an earlier session
        try:
            self._session = make_session_from_message(
                spec.message, spec.tensors, spec.nodes, threads=int(single_thread)
            )
        except Exception as error:  # the runtime's exceptions have no common base
            raise ModelError(f"{spec.label} cannot be loaded: {extract_reason(error)}") from error

    def run(
        self, sample: Sample, names: Sequence[str] | None = None, *, kept: bool = True
    ) -> dict[str, Array]:
        """Return the tensors for one sample by name, without constants and strings.

        Without `kept`, arrays are views of the memory of the runtime.

        Raises:
            ModelError: ONNX Runtime fails.
        """
        try:
            outputs = run_session(self._session, sample, names, kept=kept)
        except Exception as error:  # the runtime's exceptions have no common base
            raise ModelError(f"{self._label} cannot be run: {extract_reason(error)}") from error
        tensors = sample | outputs
        return {name: tensors[name] for name in names or self._names if name in tensors}


@dataclass(frozen=True)
class TapSpec:
    """Specification of a tap, which may be sent to another process.

    Attributes:
        names: The names of the tensors.
        label: The name of the model in messages.
        message, tensors: The model, as a runtime takes it.
        nodes: The number of nodes.
    """

    names: tuple[str, ...]
    label: str
    message: bytes
    tensors: Mapping[str, Array]
    nodes: int

    def open(self, *, single_thread: bool = True) -> ActivationTap:
        """Open the tap, which one thread may use at a time.

        Raises:
            ModelError: The model cannot be loaded.
        """
        return ActivationTap(self, single_thread)

    @property
    def nbytes(self) -> int:
        """Return the size of the model."""
        return len(self.message) + sum(array.nbytes for array in self.tensors.values())

    @cached_property
    def digest(self) -> bytes:
        """A hash of the model and of the names of the tensors."""
        state = sha256(repr(self.names).encode())
        state.update(sha256(self.message).digest())
        for name, array in self.tensors.items():
            state.update(repr((name, array.dtype.str, array.shape)).encode())
            state.update(array.data)
        return state.digest()


def make_tap_spec(model: ir.Model, values: Sequence[ir.Value], label: str) -> TapSpec:
    """Return the specification of a tap on some tensors of a model."""
    names = tuple(str(value.name) for value in values)
    copy = _extract(model, names)
    make_runnable(copy, copy)
    return TapSpec(names, label, *serialize(copy, spare=True), len(copy.graph))


def _extract(model: ir.Model, names: Sequence[str]) -> ir.Model:
    """Return a copy with these tensors as outputs; tensors that it lacks are left out."""
    copy = model.clone()
    expose_branch_tensors(copy, set(names) - _get_outputs(copy).keys())
    made = _get_outputs(copy)
    outputs = [made[name] for name in dict.fromkeys(names) if name in made]
    copy.graph.outputs[:] = outputs or list(copy.graph.outputs)
    _hoist_constants(copy.graph)
    return copy


def _hoist_constants(graph: ir.Graph) -> None:
    """Move nodes that depend on constants alone to the front.

    The runtime computes the last input of a node first. Else all quantized weights would be in
    memory before the first of them is used.
    """
    tensors: set[ir.Value] = set()
    first = []
    for node in graph:
        read = [value for value in node.inputs if value is not None]
        if get_inner_graphs(node):  # which read what is around them
            continue
        if all(value in tensors or is_constant(value) for value in read):
            first.append(node)
            tensors.update(node.outputs)
    if 0 < len(first) < len(graph):
        graph.remove(first)
        graph.insert_before(graph[0], first)


def _get_outputs(model: ir.Model) -> dict[str, ir.Value]:
    return {str(value.name): value for node in model.graph for value in node.outputs}
