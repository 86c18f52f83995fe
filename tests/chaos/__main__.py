"""`python -m tests.chaos`: see the package."""

import argparse
import asyncio
import logging
import signal
import sys
import time
from collections.abc import Coroutine
from pathlib import Path

from tests.chaos import grounds


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description="Real processes under real faults."
    )
    parser.add_argument("--runs", type=int, help="how many trials  [default: 100, or one of each --kind]")
    parser.add_argument("--seed", type=int, default=42, help="of everything that is drawn  [default: 42]")
    parser.add_argument(
        "--kind", action="append", default=[], help="only this kind of fault, or all crash-points; repeatable"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/chaos"), help="folder of what comes out")
    parser.add_argument("--insecure", action="store_true", help="in plain text, without mutual TLS")
    parser.add_argument("--resume", action="store_true", help="go on with the campaign that is in --out")
    parser.add_argument("--list", action="store_true", help="name the kinds of faults and end")
    arguments = parser.parse_args()
    grounds.enter()

    from tests.chaos.campaign import TRIALS, Campaign
    from tests.chaos.kinds import KINDS, named
    from tests.chaos.report import table, write

    if arguments.list:
        for name, kind in KINDS.items():
            print(f"{name:32} {kind.forbidden() or (kind.strike.__doc__ or '').splitlines()[0]}")
        return 0
    try:
        kinds = named(arguments.kind)
    except KeyError as unknown:
        parser.error(f"no such kind: {unknown}; see --list")
    runs = arguments.runs or len(kinds) or 100
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of sockets that we cut
    arguments.out.mkdir(parents=True, exist_ok=True)
    campaign = Campaign(
        arguments.out, arguments.seed, lambda text: print(text, flush=True), not arguments.insecure
    )
    plan = campaign.plan(runs, kinds)
    if arguments.resume:
        plan = campaign.resume(plan)
        campaign.say(f"{len(campaign.trials)} trials are there, {len(plan)} are left")
    else:
        (arguments.out / TRIALS).unlink(missing_ok=True)
    began = time.monotonic()
    try:
        asyncio.run(until_stopped(campaign.play(plan)))
    except asyncio.CancelledError:
        campaign.say("ended by a signal")
        return 128 + signal.SIGTERM
    finally:
        write(arguments.out / "chaos.json", campaign, time.monotonic() - began)
        print(f"\n{table(campaign)}\n\n{arguments.out / 'chaos.json'}")
    return 0 if campaign.good else 1


async def until_stopped(work: Coroutine[None, None, None]) -> None:
    """Do this until it is done, or SIGTERM comes, which the first process of a namespace must handle."""
    task = asyncio.ensure_future(work)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await task


if __name__ == "__main__":
    sys.exit(main())
