"""What reducers gain: seconds to combine the same updates without them, with processes of this machine, and
with `fedserver reducer up`, which works in the same way on other machines.

Updates lie in files, as reports do on the server. The ways take turns, so that a machine that slows down
slows all. Each combination must have the same SHA-256. Processes are started, and the files read once, before
anything is timed. The server's processor time is that of the process that leads, with all of its threads.

    python -m benchmarks.reducers [--megabytes 64] [--updates 16] [--workers 0 1 2 4] [--remote 1 2]

With --remote, it starts a PostgreSQL of its own; updates are in a shared folder, or with --bucket in the
stand-in for a server of the S3 API that the tests use, which is slow. --rules: those of `combine`.
"""

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.robust_memory import model
from fedserver.coordinator.aggregation.reducers import Reducers
from fedserver.store.content.bucket import BucketAddress
from fedserver.store.content.mapped import StoredTensors
from fedserver.store.engines import Elsewhere
from fedserver.store.store import Store
from shoal.core.exchange.tensors import digest
from shoal.core.server_kit.aggregation.pieces import Workers, spread_over
from shoal.core.server_kit.aggregation.robust import RULES, Update, combine
from tests import buckets, postgresql


def main() -> None:
    parser = argparse.ArgumentParser(description="Time combining with and without reducers.")
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--updates", type=int, default=16)
    parser.add_argument("--workers", type=int, nargs="*", default=[0, 1, 2, 4])
    parser.add_argument("--remote", type=int, nargs="*", default=[])
    parser.add_argument("--bucket", action="store_true")
    parser.add_argument("--rules", nargs="+", default=["mean", "median", "trimmed"], choices=RULES)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    base = model(options.megabytes, 0, 0.0)
    with contextlib.ExitStack() as at_the_end:
        folder = Path(at_the_end.enter_context(tempfile.TemporaryDirectory()))
        elsewhere = at_the_end.enter_context(_elsewhere(folder, options.bucket)) if options.remote else None
        store = at_the_end.enter_context(contextlib.closing(Store(folder / "state", elsewhere)))
        updates = {}
        for number in range(options.updates):
            weights = store.blobs.keep(model(options.megabytes, number + 1, 0.01))
            path = store.blobs.path(weights.blob.sha256)
            updates[f"d{number:03}"] = Update(StoredTensors(path, weights), 10.0 + number % 3)
        ways: dict[str, Workers | None] = {}
        for count in options.workers:
            ways[f"{count} here"] = pool = Reducers(count) if count else None
            if pool is not None:
                at_the_end.callback(pool.close)
        for count in options.remote:
            assert elsewhere is not None
            ways[f"{count} elsewhere"] = _Elsewhere(elsewhere, store, count)
        print(
            f"{options.updates} updates of {options.megabytes} MB; seconds (server's processor time), "
            f"median of {options.turns}",
            flush=True,
        )
        for rule in options.rules:
            took: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
            digests = set()
            for turn in range(options.turns + 1):
                for name, workers in ways.items():
                    with workers.there() if isinstance(workers, _Elsewhere) else contextlib.nullcontext():
                        began, used = time.perf_counter(), time.process_time()
                        with spread_over(workers):
                            combined = combine(rule, base, updates).model
                        spent = time.perf_counter() - began, time.process_time() - used
                    digests.add(digest(combined))
                    if turn:  # the first one starts the workers
                        took[name].append(spent)
            line = ", ".join(
                f"{name}: {statistics.median(wall for wall, _ in each):.2f} "
                f"({statistics.median(cpu for _, cpu in each):.2f})"
                for name, each in took.items()
            )
            same = "same" if len(digests) == 1 else "DIFFERENT"
            print(f"{rule:8} {line}; {same} SHA-256 {sorted(digests)[0][:12]}", flush=True)


class _Elsewhere:
    """Reducers of a database, as `Workers`: processes that are there within `there`."""

    def __init__(self, elsewhere: Elsewhere, store: Store, number: int) -> None:
        from fedserver.coordinator.aggregation.remote import RemoteReducers

        self._elsewhere, self._number = elsewhere, number
        self._reducers = RemoteReducers(elsewhere.database, store.blobs)
        self.map = self._reducers.map

    @property
    def count(self) -> int:
        return self._reducers.count

    @contextlib.contextmanager
    def there(self) -> Iterator[None]:
        """Between two turns the processes end, since any server of the database would use them."""
        where = ["--database", self._elsewhere.database, "--blobs", str(self._elsewhere.blobs)]
        command = [sys.executable, "-m", "fedserver", "reducer", "up", *where]
        running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(self._number)]
        try:
            for each in running:
                assert each.stdout is not None
                assert each.stdout.readline().startswith("waiting for jobs")
            self._reducers._looked = float("-inf")
            assert self.count == self._number
            yield
        finally:
            for each in running:
                each.terminate()
            for each in running:
                each.wait()


@contextlib.contextmanager
def _elsewhere(folder: Path, in_a_bucket: bool) -> Iterator[Elsewhere]:
    """A database and a place for blobs of this program's own."""
    with contextlib.ExitStack() as at_the_end:
        blobs: Path | BucketAddress = folder / "shared"
        if in_a_bucket:
            blobs = at_the_end.enter_context(buckets.buckets()).bucket()
        yield Elsewhere(at_the_end.enter_context(postgresql.cluster()).database(), blobs)


if __name__ == "__main__":
    main()
