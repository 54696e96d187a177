# SPDX-License-Identifier: Apache-2.0
"""The protocol of executors, and the default one: threads of this process."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

from anybit._native import num_threads

TaskContext = TypeVar("TaskContext")
Task = TypeVar("Task")
TaskResult = TypeVar("TaskResult")
Handle = TypeVar("Handle")

# More threads would hold more tensors in memory than they save time.
_MAX_THREADS = 8


class Executor(Protocol):
    """Runs a function on many tasks at a time.

    Order: `map` yields results in the order of the tasks, for any number of threads or machines.
    Tasks are taken from their iterable as workers become free, so that few are in memory at a time.

    Exceptions: the first exception of a task, in the order of the tasks, is raised by the iterator
    with its type and message. Results of later tasks are dropped.

    Cancellation: a caller may close the iterator at any time. Tasks that wait are not started.
    Tasks that run are finished, and their results are dropped.

    Pickling: threads take any object. A cluster pickles the context, tasks and results.
    A node or value of an `onnx_ir.Model` would bring its whole graph: see `quantization.copies`.
    """

    @property
    def is_local(self) -> bool:
        """Return whether tasks run in this process and see its temporary files."""

    def map(
        self,
        make_worker: Callable[[TaskContext], Callable[[Task], TaskResult]],
        context: TaskContext,
        tasks: Iterable[Task],
    ) -> Iterator[TaskResult]:
        """Yield the result of each task, in order.

        Args:
            make_worker: Makes the function that runs tasks, once per process and context. Other
                machines must be able to import it.
            context: Data that all tasks share, such as a model. It is sent once per process.
            tasks: The arguments of that function.

        Raises:
            ChildProcessError: Remote processes end again and again before their tasks are done.
        """


class ThreadExecutor:
    """Threads of this process: fast for ONNX Runtime sessions, which release the interpreter lock.

    Args:
        threads: Their number; None for `anybit.num_threads()`, but at most 8. One is the caller.
    """

    is_local = True

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or min(num_threads(), _MAX_THREADS)

    def map(
        self,
        make_worker: Callable[[TaskContext], Callable[[Task], TaskResult]],
        context: TaskContext,
        tasks: Iterable[Task],
    ) -> Iterator[TaskResult]:
        """Yield the result of each task, in order. See `Executor.map`."""
        worker = make_worker(context)
        if self._threads == 1:
            yield from map(worker, tasks)
            return
        pool = ThreadPoolExecutor(self._threads)
        try:
            yield from iterate_ordered(
                lambda task: pool.submit(worker, task), Future.result, tasks, 2 * self._threads
            )
        finally:
            pool.shutdown(cancel_futures=True)


def iterate_ordered(
    submit: Callable[[Task], Handle],
    result: Callable[[Handle], TaskResult],
    tasks: Iterable[Task],
    limit: int,
) -> Iterator[TaskResult]:
    """Yield results in the order of the tasks, with at most `limit` tasks submitted at a time."""
    pending: deque[Handle] = deque()
    for task in tasks:
        pending.append(submit(task))
        if len(pending) >= limit:
            yield result(pending.popleft())
    while pending:
        yield result(pending.popleft())
