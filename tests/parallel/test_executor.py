# SPDX-License-Identifier: Apache-2.0
"""Threads as an executor: the order of results, exceptions and cancellation."""

import threading
from collections.abc import Callable, Iterator

import parallel_tasks
import pytest

from anybit import ModelError
from anybit.parallel import Executor, ThreadExecutor, open_executor


def test_open_executor_uses_threads_by_default() -> None:
    with open_executor() as executor:
        assert isinstance(executor, ThreadExecutor)


@pytest.mark.parametrize("executor", [ThreadExecutor(1), ThreadExecutor(3)])
def test_map_yields_in_order_and_takes_few_tasks(executor: Executor) -> None:
    taken = []

    def tasks() -> Iterator[int]:
        for task in range(40):
            taken.append(task)
            yield task

    results = executor.map(parallel_tasks.make_adder, 5, tasks())
    assert next(results) == 5
    assert len(taken) <= 6
    assert list(results) == list(range(6, 45))


@pytest.mark.parametrize(("num_threads", "expected"), [(1, 1), (3, 3), (100, 8)])
def test_threads_follow_num_threads_up_to_eight(num_threads: int, expected: int) -> None:
    with parallel_tasks.num_threads(num_threads):
        executor = ThreadExecutor()
    barrier = threading.Barrier(expected)

    def make_worker(context: None) -> Callable[[int], int]:
        def run(task: int) -> int:
            barrier.wait(60)  # passes only if `expected` tasks run at the same time
            return threading.get_ident()

        return run

    threads = set(executor.map(make_worker, None, range(2 * expected)))
    assert len(threads) == expected


@pytest.mark.parametrize("threads", [1, 3])
def test_map_raises_the_first_exception_in_the_order_of_tasks(threads: int) -> None:
    def make_worker(context: None) -> Callable[[int], int]:
        def run(task: int) -> int:
            if task >= 2:
                raise ModelError(f"task {task}")
            return task

        return run

    results = ThreadExecutor(threads).map(make_worker, None, range(20))
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(ModelError, match=r"^task 2$"):
        next(results)


def test_closing_the_iterator_starts_no_more_tasks() -> None:
    started = []
    results = ThreadExecutor(2).map(lambda _: lambda task: started.append(task), None, range(100))
    next(results)
    results.close()  # type: ignore[attr-defined]
    assert len(started) <= 4
    assert not any("ThreadPoolExecutor" in thread.name for thread in threading.enumerate())
