"""What reducers gain: seconds to combine the same updates without and with worker processes, in one run.

Updates lie in files, as reports do on the server. The numbers of workers take turns, so that a machine that
slows down slows all. Each combination must have the same SHA-256. Workers are started, and the files read
once, before anything is timed. The server's processor time is that of this process, with all of its threads.

    python -m benchmarks.reducers [--megabytes 64] [--updates 16] [--workers 0 1 2 4] [--turns 3]

--rules: those of `combine`.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.robust_memory import model
from fedserver.coordinator.aggregation.reducers import Reducers
from fedserver.store.content.mapped import MappedTensors
from shoal.core.exchange.tensors import digest, manifest_of, pack
from shoal.core.server_kit.aggregation.parallel import spread_over
from shoal.core.server_kit.aggregation.robust import RULES, Update, combine


def main() -> None:
    parser = argparse.ArgumentParser(description="Time combining with and without worker processes.")
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--updates", type=int, default=16)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2, 4])
    parser.add_argument("--rules", nargs="+", default=["mean", "median", "trimmed"], choices=RULES)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    base = model(options.megabytes, 0, 0.0)
    pools = {count: Reducers(count) if count else None for count in options.workers}
    try:
        with tempfile.TemporaryDirectory() as folder:
            updates = {}
            for number in range(options.updates):
                tensors, path = model(options.megabytes, number + 1, 0.01), Path(folder) / str(number)
                path.write_bytes(b"".join(pack(tensors)))
                updates[f"d{number:03}"] = Update(
                    MappedTensors(path, manifest_of(tensors)), 10.0 + number % 3
                )
            print(
                f"{options.updates} updates of {options.megabytes} MB; seconds (server's processor time), "
                f"median of {options.turns}",
                flush=True,
            )
            for rule in options.rules:
                took: dict[int, list[tuple[float, float]]] = {count: [] for count in pools}
                digests = set()
                for turn in range(options.turns + 1):
                    for count, pool in pools.items():
                        began, used = time.perf_counter(), time.process_time()
                        with spread_over(pool):
                            combined = combine(rule, base, updates).model
                        spent = time.perf_counter() - began, time.process_time() - used
                        digests.add(digest(combined))
                        if turn:  # the first one starts the workers
                            took[count].append(spent)
                line = ", ".join(
                    f"{count}: {statistics.median(wall for wall, _ in each):.2f} "
                    f"({statistics.median(cpu for _, cpu in each):.2f})"
                    for count, each in took.items()
                )
                same = "same" if len(digests) == 1 else "DIFFERENT"
                print(f"{rule:8} by workers {line}; {same} SHA-256 {sorted(digests)[0][:12]}", flush=True)
    finally:
        for pool in pools.values():
            if pool is not None:
                pool.close()


if __name__ == "__main__":
    main()
