"""Reducers: worker processes that combine reports, each some ranges of the parameters of all of them.

They read the reports' files themselves, so only the ranges of the model before and after travel between
processes. A pool that breaks, because a worker ran out of memory for example, costs nothing but time: the
server does the jobs itself, and the next round starts new workers. Workers end when the server does.
"""

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from shoal.core.server_kit.aggregation.parallel import Job
from shoal.core.types import Array

log = logging.getLogger("shoal.server")


class Reducers:
    """A pool of `count` processes, which start at the first round that is worth it."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ProcessPoolExecutor | None = None
        self._starting = threading.Lock()

    def map(self, jobs: Sequence[Job]) -> list[list[Array]]:
        """What came of the jobs, in their order. Called by the threads that reduce."""
        try:
            return list(self._running().map(Job.done, jobs))
        except BrokenProcessPool as error:
            log.error("a reducer has ended, and the server combines this round itself: %s", error)
            self.close()
            return [job.done() for job in jobs]

    def close(self) -> None:
        """End the workers, after the jobs that they are at."""
        with self._starting:
            if self._pool is not None:
                self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def _running(self) -> ProcessPoolExecutor:
        with self._starting:
            if self._pool is None:
                spawn = multiprocessing.get_context("spawn")  # a fork would copy gRPC's threads half-way
                self._pool = ProcessPoolExecutor(self.count, spawn, _prepare)
            return self._pool


def _prepare() -> None:
    """In a worker: leave the end to the server, and end with it even if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with_the_server, daemon=True).start()


def _end_with_the_server() -> None:
    server = multiprocessing.parent_process()
    if server is not None:
        server.join()
        os._exit(1)
