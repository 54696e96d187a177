# SPDX-License-Identifier: Apache-2.0
"""Parallel tasks that refer to nodes and values of a model.

Threads share the model. Each worker process of a cluster gets a copy of it. Messages to and from
these processes refer to nodes by position, and to values by name.
"""

import io
import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias, TypeVar

import onnx_ir as ir

from anybit.onnx.files.message import deserialize, serialize
from anybit.onnx.graph.walk import iter_nodes
from anybit.parallel import Executor
from anybit.parallel.executor import Task, TaskResult

Common = TypeVar("Common")

# The place of a node and the index of one of its outputs, or the name of another value.
_Reference: TypeAlias = tuple[int, int | None] | str | None

MakeWorker = Callable[[ir.Model, Common], Callable[[Task], TaskResult]]


def map_on_copies(
    executor: Executor,
    model: ir.Model,
    make_worker: MakeWorker[Common, Task, TaskResult],
    context: Common,
    tasks: Iterable[Task],
) -> Iterator[TaskResult]:
    """Yield the result of each task on a model, in order.

    Args:
        executor: The executor of the tasks.
        model: The model. The names of its values are unique.
        make_worker: Makes the function that runs tasks, from the model and the context. Other
            machines must be able to import it.
        context: Data that all tasks share.
        tasks: The arguments of that function, taken as workers become free.
    """
    if executor.is_local:
        yield from executor.map(lambda shared: make_worker(model, shared), context, tasks)
        return
    local = _ModelPickles(model)
    job = serialize(model), make_worker, local.dumps(context)
    for message in executor.map(_make_remote_worker, job, map(local.dumps, tasks)):
        result: TaskResult = local.loads(message)
        yield result


def _make_remote_worker(
    job: tuple[Any, MakeWorker[Any, Any, Any], bytes],
) -> Callable[[bytes], bytes]:
    message, make_worker, context = job
    remote = _ModelPickles(deserialize(*message))
    worker = make_worker(remote.model, remote.loads(context))
    return lambda task: remote.dumps(worker(remote.loads(task)))


class _ModelPickles:
    """Pickles in which nodes and values of a model are references, the same for its copies."""

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.nodes = tuple(iter_nodes(model.graph))
        self.places = {node: place for place, node in enumerate(self.nodes)}

    def dumps(self, content: object) -> bytes:
        """Return the pickle of an object."""
        file = io.BytesIO()
        _Pickler(file, self).dump(content)
        return file.getvalue()

    def loads(self, message: bytes) -> Any:
        """Return the object of a pickle, with the nodes and values of this model."""
        return _Unpickler(io.BytesIO(message), self).load()


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, pickles: _ModelPickles) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._places = pickles.places

    def persistent_id(self, content: object) -> _Reference | None:
        if isinstance(content, ir.Node):
            return self._places[content], None
        if not isinstance(content, ir.Value):
            return None
        producer = content.producer()
        return content.name if producer is None else (self._places[producer], content.index())


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, pickles: _ModelPickles) -> None:
        super().__init__(file)
        self._nodes, self._graph = pickles.nodes, pickles.model.graph

    def persistent_load(self, reference: _Reference) -> ir.Node | ir.Value:
        if not isinstance(reference, tuple):
            constant = self._graph.initializers.get(str(reference))
            return constant or next(
                value for value in self._graph.inputs if value.name == reference
            )
        place, output = reference
        node = self._nodes[place]
        return node if output is None else node.outputs[output]
