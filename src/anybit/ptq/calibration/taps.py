# SPDX-License-Identifier: Apache-2.0
"""What the float model computes on the way, for the data of a user."""

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
    """A session of a model with some of its tensors for outputs.

    Args:
        of: The model and the tensors.
        alone: Whether each run takes one thread. How a runtime divides sums among threads
            determines their last bits, and these should not depend on the machine.

    Raises:
        ModelError: The model cannot be loaded.
    """

    def __init__(self, of: "TapSpec", alone: bool) -> None:
        self._where, self._names = of.where, of.names
        trim_heap(of.nbytes)  # an earlier session
        try:
            self._session = make_session_from_message(
                of.message, of.tensors, of.nodes, threads=int(alone)
            )
        except Exception as error:  # the runtime's exceptions have no common base
            raise ModelError(f"{of.where} cannot be loaded: {extract_reason(error)}") from error

    def run(
        self, sample: Sample, names: Sequence[str] | None = None, *, kept: bool = True
    ) -> dict[str, Array]:
        """The tensors for one sample, by name: all, or some of them. Constants and texts are not
        among them. Those that are not kept are not copied out of the runtime's memory.

        Raises:
            ModelError: What the runtime reports.
        """
        try:
            found = run_session(self._session, sample, names, kept=kept)
        except Exception as error:  # the runtime's exceptions have no common base
            raise ModelError(f"{self._where} cannot be run: {extract_reason(error)}") from error
        known = sample | found
        return {name: known[name] for name in names or self._names if name in known}


@dataclass(frozen=True)
class TapSpec:
    """What a Recorder is made of, also by those whom it is sent to.

    Attributes:
        names: Of the tensors.
        where: What to call the model in messages.
        message, tensors: The model, as a runtime takes it.
        nodes: How many it has.
    """

    names: tuple[str, ...]
    where: str
    message: bytes
    tensors: Mapping[str, Array]
    nodes: int

    def open(self, alone: bool = True) -> ActivationTap:
        """It, for one thread at a time.

        Raises:
            ModelError: The model cannot be loaded.
        """
        return ActivationTap(self, alone)

    @property
    def nbytes(self) -> int:
        """Return the size of the model."""
        return len(self.message) + sum(array.nbytes for array in self.tensors.values())

    @cached_property
    def digest(self) -> bytes:
        """A hash of the model and of what is recorded of it."""
        state = sha256(repr(self.names).encode())
        state.update(sha256(self.message).digest())
        for name, array in self.tensors.items():
            state.update(repr((name, array.dtype.str, array.shape)).encode())
            state.update(array.data)
        return state.digest()


def make_tap_spec(model: ir.Model, values: Sequence[ir.Value], where: str) -> TapSpec:
    """What is to be sent for some tensors of a model."""
    names = tuple(str(value.name) for value in values)
    copy = _extract(model, names)
    make_runnable(copy, copy)
    return TapSpec(names, where, *serialize(copy, spare=True), len(copy.graph))


def _extract(model: ir.Model, names: Sequence[str]) -> ir.Model:
    """A copy with those tensors for outputs that it computes."""
    copy = model.clone()
    expose_branch_tensors(copy, set(names) - _get_outputs(copy).keys())
    made = _get_outputs(copy)
    wanted = [made[name] for name in dict.fromkeys(names) if name in made]
    copy.graph.outputs[:] = wanted or list(copy.graph.outputs)
    _hoist_constants(copy.graph)
    return copy


def _hoist_constants(graph: ir.Graph) -> None:
    """Let what is computed of constants alone stand before the rest.

    Of what a node reads the runtime computes that first which stands last: quantized weights would
    all be there before the first of them is used.
    """
    known: set[ir.Value] = set()
    first = []
    for node in graph:
        read = [value for value in node.inputs if value is not None]
        if get_inner_graphs(node):  # which read what is around them
            continue
        if all(value in known or is_constant(value) for value in read):
            first.append(node)
            known.update(node.outputs)
    if 0 < len(first) < len(graph):
        graph.remove(first)
        graph.insert_before(graph[0], first)


def _get_outputs(model: ir.Model) -> dict[str, ir.Value]:
    return {str(value.name): value for node in model.graph for value in node.outputs}
