# SPDX-License-Identifier: Apache-2.0
"""Work in pieces: done here, by processes of this machine, or by a cluster.

Whoever has such work says what is the same for all pieces, and how a worker is made of it; what
comes back is in the order of the pieces, so that merging it gives the same bits whoever did it.
A piece that is lost with its worker is done again by another one.
"""

from anybit.errors import ModelError
from anybit.workers.here import Here
from anybit.workers.interface import Workers
from anybit.workers.processes import Processes

__all__ = ["Here", "Processes", "Workers", "chosen"]


def chosen(workers: int | None, cluster: str | None = None) -> Workers:
    """Who does the work: threads of this process, so many processes, or a Ray cluster.

    Raises:
        ModelError: A number below 1, or processes and a cluster.
        ImportError: There is no Ray.
    """
    if cluster is not None:
        if workers is not None:
            raise ModelError(f"workers={workers} and a cluster: a cluster has workers of its own")
        from anybit.workers.cluster import Cluster

        return Cluster(cluster)
    if workers is not None and workers < 1:
        raise ModelError(f"workers must be at least 1, got {workers}")
    return Here(workers) if workers in (None, 1) else Processes(workers)
