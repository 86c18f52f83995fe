"""python -m tests.histories SEED [--verbose], or --count N [--first SEED]: see the package's docstring."""

import argparse
import gc
import sys
import time
from contextlib import nullcontext

from tests.histories.world import World, play
from tests.postgresql import cluster

COLLECTED = 8
"""Histories after which what they left behind is collected; after each, that takes a sixth of the time."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.histories")
    parser.add_argument("seed", nargs="?", type=int, help="play this one, and show its trace")
    parser.add_argument(
        "--verbose", action="store_true", help="print the whole trace instead of only its end"
    )
    parser.add_argument("--count", type=int, default=0, help="play this many")
    parser.add_argument("--first", type=int, default=1, help="the first seed of them")
    parser.add_argument(
        "--postgresql",
        nargs="?",
        const="",
        metavar="URL",
        help="the store is in a PostgreSQL, in this database, whose contents are lost, or in one of its own",
    )
    arguments = parser.parse_args()
    gc.disable()  # what ends when must not depend on the allocator
    with cluster() if arguments.postgresql == "" else nullcontext() as running:
        url = running.database() if running else arguments.postgresql or ""
        if arguments.count:
            return many(range(arguments.first, arguments.first + arguments.count), url)
        world = play(arguments.seed or 0, arguments.verbose, url)
    print("\n".join(world.trace))
    print(world.plan)
    return _verdict(world)


def many(seeds: range, url: str = "") -> int:
    """Play them all; how many failed. url: as in `play`."""
    began, failed, steps, missed, reports, equalled = time.perf_counter(), [], 0, 0, 0, 0
    for seed in seeds:
        world = play(seed, url=url)
        steps += world.steps
        missed += world.invariants.missed
        reports += len(world.invariants.acknowledged)
        equalled += world.equalled
        if world.bugs:
            failed.append(seed)
            _verdict(world)
        if (seed - seeds.start) % COLLECTED == 0:
            gc.collect()
        if seed == seeds.start:
            gc.freeze()  # the modules, all loaded by now: from here on a collection looks at one history
    took = time.perf_counter() - began
    print(
        f"{len(seeds)} histories, {len(failed)} failed; {steps} steps, {reports} acknowledged reports, "
        f"{missed} missed, {equalled} runs compared with one without faults; {took:.0f} s"
    )
    return 1 if failed else 0


def _verdict(world: World) -> int:
    print(f"seed {world.plan.seed}: trace {world.digest.hexdigest()[:16]}, {world.steps} steps")
    for bug in world.bugs[:3]:
        print(f"  FAILED: {bug}")
    if world.bugs:
        print(f"  again: python -m tests.histories {world.plan.seed} --verbose", flush=True)
    return 1 if world.bugs else 0


if __name__ == "__main__":
    sys.exit(main())
