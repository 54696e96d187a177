# SPDX-License-Identifier: Apache-2.0
"""A Ray cluster. Scheduling, transport, and doing again what was lost are Ray's."""

import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

from anybit.errors import ModelError
from anybit.workers.interface import Common, Piece, Result, Workers, in_order

# So often a piece is done again whose worker ended.
_RETRIES = 3
# Pieces on their way per core: those that are waited for should not leave the others idle.
_PER_CORE = 4
# Seconds until somebody should answer, and between tries.
_PATIENCE, _PAUSE = 20.0, 0.2


class Cluster(Workers):
    """The workers of a Ray cluster, one core each.

    Args:
        address: As Ray has it ("auto", "ray://HOST:PORT"); "local" starts one on this machine,
            which ends with the work. A connection that the program already has is used instead.

    Raises:
        ModelError: Ray is not installed, or nobody answers there.
        ConnectionError: There is no cluster.
    """

    near = False

    def __init__(self, address: str) -> None:
        # Errors of pieces behind the first that fails, which nobody asks for any more.
        os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
        options = {"include_dashboard": False} if address == "local" else {}
        try:
            import ray

            self._ray: Any = ray
            self._ours = not ray.is_initialized()
            if self._ours:
                _check(address)
                ray.init(
                    address=address, log_to_driver=False, logging_level=logging.ERROR, **options
                )
        except ImportError as error:
            raise ModelError("a cluster needs Ray: pip install anybit[ray]") from error

    def map(
        self,
        hire: Callable[[Common], Callable[[Piece], Result]],
        common: Common,
        pieces: Iterable[Piece],
    ) -> Iterator[Result]:
        ray = self._ray
        job = ray.put((hire, common))
        task = ray.remote(num_cpus=1, max_retries=_RETRIES)(_done)

        def submit(piece: Piece) -> Any:
            return task.remote([job], piece)  # in a list, so that Ray leaves it to the worker

        def result(ticket: Any) -> Result:
            try:
                found: Result = ray.get(ticket)
                return found
            except ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except ray.exceptions.RayError as error:
                lines = str(error).splitlines()
                raise ChildProcessError(f"the cluster lost work: {lines[0]}") from error

        cores = int(ray.cluster_resources().get("CPU", 1))
        # What nobody waits for any more is done in vain, or ends with the connection. To cancel it
        # is worse: where a piece is done at that moment, Ray (2.60) ends this process.
        yield from in_order(submit, result, pieces, _PER_CORE * cores)

    def close(self) -> None:
        if self._ours:
            self._ray.shutdown()


def _check(address: str) -> None:
    """Ray tries for minutes to reach an address where nobody is."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdecimal()):
        return  # a word of Ray's
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()
        except ConnectionRefusedError as error:  # it may be starting
            if time.monotonic() > end:
                raise ModelError(f"no cluster answers at {address}: {error.strerror}") from error
            time.sleep(_PAUSE)
        except (OSError, OverflowError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ModelError(f"no cluster answers at {address}: {reason}") from error
        else:
            return


@lru_cache(maxsize=1)
def _worker(job: Any) -> Callable[[Any], Any]:
    import ray

    hire, common = ray.get(job)
    worker: Callable[[Any], Any] = hire(common)
    return worker


def _done(job: list[Any], piece: object) -> object:
    return _worker(job[0])(piece)
