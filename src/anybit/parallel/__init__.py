# SPDX-License-Identifier: Apache-2.0
"""Parallel execution of tasks: threads of this process, or a Ray cluster.

Results come in the order of the tasks. Whatever merges them computes the same bits for any number
of threads or machines.

open_executor   the executor that a command uses
Executor        what executors have in common
ThreadExecutor  threads of this process
"""

from collections.abc import Iterator
from contextlib import contextmanager

from anybit.parallel.executor import Executor, ThreadExecutor

__all__ = ["Executor", "ThreadExecutor", "open_executor"]


@contextmanager
def open_executor(cluster: str | None = None) -> Iterator[Executor]:
    """Yield threads of this process, or a connection to a Ray cluster that is closed at the end.

    Args:
        cluster: The address of the cluster, "local" to start one on this machine, or None for
            threads.

    Raises:
        DependencyError: Ray is not installed.
        ModelError: The address does not answer.
        ConnectionError: "auto" finds no cluster.
    """
    if cluster is None:
        yield ThreadExecutor()
        return
    from anybit.parallel.ray_executor import RayExecutor

    with RayExecutor(cluster) as executor:
        yield executor
