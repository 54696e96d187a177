# SPDX-License-Identifier: Apache-2.0
"""Work on a model by those who have it, or a copy: what is sent refers to its nodes and values.

Layers and tensors that are sent are those of the receiver's model, and what comes back speaks of
those of the sender's. Who works in the same process gets the things themselves.
"""

import io
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import onnx_ir as ir

from anybit.onnx.files.message import restored, serialize
from anybit.onnx.graph.constants import Array
from anybit.onnx.graph.walk import nodes_in
from anybit.workers import Workers

Common = TypeVar("Common")
Piece = TypeVar("Piece")
Result = TypeVar("Result")
Content = TypeVar("Content")

# A node, one of its outputs, or a value that no node computes.
_Reference: TypeAlias = tuple[int, int | None] | str | None

Hire = Callable[[ir.Model, Common], Callable[[Piece], Result]]


def on_copies(
    workers: Workers,
    model: ir.Model,
    hire: Hire[Common, Piece, Result],
    common: Common,
    pieces: Iterable[Piece],
) -> Iterator[Result]:
    """The results of all pieces, in order.

    Args:
        workers: Who does them.
        model: What they work on. Its values have names of their own.
        hire: Makes a worker of a model and of what is common; a function of a module.
        common: The same for all pieces.
        pieces: Taken a few at a time.
    """
    known = _Known(model)
    job = known, hire, _Parcel(known, common)
    for each in workers.map(_hired, job, (_Parcel(known, piece) for piece in pieces)):
        found: Result = each.opened(known)
        yield found


class _Known:
    """A model whose nodes and values sender and receiver call the same. It is sent as a copy."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.nodes = tuple(nodes_in(model.graph))
        self.places = {node: place for place, node in enumerate(self.nodes)}

    def given(self, name: str) -> ir.Value:
        """A value that no node computes."""
        constant = self.model.graph.initializers.get(name)
        return constant or next(each for each in self.model.graph.inputs if each.name == name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, serialize(self.model)


def _received(message: bytes, tensors: Mapping[str, Array]) -> _Known:
    return _Known(restored(message, tensors))


class _Parcel(Generic[Content]):
    """What refers to nodes and values of a model; on its way these are their places and names."""

    def __init__(self, known: _Known, content: Content) -> None:
        self._known, self._content = known, content

    def __reduce__(self) -> tuple[Any, ...]:
        file = io.BytesIO()
        _Pickler(file, self._known).dump(self._content)
        return _Closed, (file.getvalue(),)

    def opened(self, known: _Known) -> Content:
        """What is in it, for who knows the model."""
        return self._content


@dataclass(frozen=True)
class _Closed:
    message: bytes

    def opened(self, known: _Known) -> Any:
        return _Unpickler(io.BytesIO(self.message), known).load()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, known: _Known) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._known = known

    def persistent_id(self, each: object) -> _Reference | None:
        if isinstance(each, ir.Node):
            return self._known.places[each], None
        if not isinstance(each, ir.Value):
            return None
        maker = each.producer()
        return each.name if maker is None else (self._known.places[maker], each.index())


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, known: _Known) -> None:
        super().__init__(file)
        self._known = known

    def persistent_load(self, reference: _Reference) -> ir.Node | ir.Value:
        if not isinstance(reference, tuple):
            return self._known.given(str(reference))
        place, output = reference
        node = self._known.nodes[place]
        return node if output is None else node.outputs[output]


def _hired(
    job: tuple[_Known, Hire[Any, Any, Any], _Parcel[Any]],
) -> Callable[[_Parcel[Any]], _Parcel[Any]]:
    known, hire, common = job
    worker = hire(known.model, common.opened(known))
    return lambda piece: _Parcel(known, worker(piece.opened(known)))
