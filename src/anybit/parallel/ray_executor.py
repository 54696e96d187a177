# SPDX-License-Identifier: Apache-2.0
"""An executor on a Ray cluster. Ray schedules tasks, moves objects and retries lost tasks."""

import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from types import TracebackType
from typing import Any, Self

from anybit.errors import DependencyError, ModelError
from anybit.parallel.executor import Task, TaskContext, TaskResult, iterate_ordered

# How often Ray repeats a task whose process ended.
_RETRIES = 3
# Tasks submitted per core. While the first result is awaited, the other cores need tasks.
_TASKS_PER_CORE = 4
# Seconds to wait for an answer, and between two tries.
_TIMEOUT, _RETRY_INTERVAL = 20.0, 0.2


class RayExecutor:
    """Processes of a Ray cluster, one core each.

    Args:
        address: A Ray address ("auto", "HOST:PORT", "ray://HOST:PORT"), or "local" to start
            a cluster on this machine that ends with this process or `close`. If the program is
            connected to Ray already, that connection is used and stays open.

    Raises:
        DependencyError: Ray or its client is not installed.
        ModelError: The address does not answer.
        ConnectionError: "auto" finds no cluster.
    """

    is_local = False

    def __init__(self, address: str) -> None:
        # Ray would log the errors of tasks after the first that fails, whose results nobody reads.
        os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
        options = {"include_dashboard": False} if address == "local" else {}
        try:
            import ray
        except ImportError as error:
            raise DependencyError('a cluster needs Ray: pip install "anybit[ray]"') from error
        self._ray: Any = ray
        self._connected_here = not ray.is_initialized()
        if self._connected_here:
            _check_answers(address)
            try:
                ray.init(
                    address=address, log_to_driver=False, logging_level=logging.ERROR, **options
                )
            except ImportError as error:  # ray:// needs more packages than ray itself
                raise DependencyError(
                    f'{address} needs the client of Ray ({error}): pip install "anybit[ray]"'
                ) from error
            except ConnectionError:
                raise
            except Exception as error:  # Ray's exceptions have no common base
                reason = next(iter(str(error).splitlines()), type(error).__name__)
                raise ModelError(f"cluster {address}: Ray cannot connect: {reason}") from error

    def map(
        self,
        make_worker: Callable[[TaskContext], Callable[[Task], TaskResult]],
        context: TaskContext,
        tasks: Iterable[Task],
    ) -> Iterator[TaskResult]:
        """Yield the result of each task, in order. See `Executor.map`."""
        ray = self._ray
        job = ray.put((make_worker, context))
        remote = ray.remote(num_cpus=1, max_retries=_RETRIES)(_run_task)

        def submit(task: Task) -> Any:
            return remote.remote([job], task)  # in a list, so that the process loads the job itself

        def result(handle: Any) -> TaskResult:
            try:
                value: TaskResult = ray.get(handle)
                return value
            except ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except ray.exceptions.RayError as error:
                reason = str(error).splitlines()[0]
                raise ChildProcessError(f"the cluster lost a task: {reason}") from error

        cores = int(ray.cluster_resources().get("CPU", 1))
        # Tasks are not cancelled if the caller stops early: Ray (2.60) may end this process if it
        # cancels a task at the moment when that ends.
        yield from iterate_ordered(submit, result, tasks, _TASKS_PER_CORE * cores)

    def close(self) -> None:
        """Close the connection if it was opened here; that ends a cluster started by "local"."""
        if self._connected_here:
            self._ray.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _check_answers(address: str) -> None:
    """Raise ModelError if nothing listens at HOST:PORT: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdecimal()):
        return  # "auto", "local"
    deadline = time.monotonic() + _TIMEOUT
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), _TIMEOUT).close()
        except ConnectionRefusedError as error:  # it may be starting
            if time.monotonic() > deadline:
                raise ModelError(f"no cluster answers at {address}: {error.strerror}") from error
            time.sleep(_RETRY_INTERVAL)
        except (OSError, OverflowError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ModelError(f"no cluster answers at {address}: {reason}") from error
        else:
            return


@lru_cache(maxsize=1)
def _make_worker(job: Any) -> Callable[[Any], Any]:
    """Return the worker of a job, made once per process."""
    import ray

    make_worker, context = ray.get(job)
    worker: Callable[[Any], Any] = make_worker(context)
    return worker


def _run_task(job: list[Any], task: object) -> object:
    return _make_worker(job[0])(task)
