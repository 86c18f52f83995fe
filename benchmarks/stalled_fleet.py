"""A real server and a fleet of which a part stalls: how long its rounds take.

    python -m benchmarks.stalled_fleet [--devices 10] [--share 0.3] [--infer-only 2] [--rounds 30] [--seed 0]

One process is the server (`fedserver up`), and this one is the fleet: devices without data, each with a
certificate and a connection of its own, over mutual TLS. A task takes them 3 to 4 s. The policy is the
default one, and the initial weights are given. Devices that stall take their tasks, give signs of life and
never answer; those that only infer say hello and fetch a blob every few seconds. The same fleet without them
is measured first.

`python -m tests.fleets.stalls` does the same in virtual time, with up to a thousand devices.
"""

import argparse
import asyncio
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from random import Random

from benchmarks.reconnect import HOST, started
from benchmarks.silence import joined
from fedclient.identity.link import SecureLink
from fedserver.authority.setup import init
from fedserver.coordinator.status_types import RunStatus
from fedserver.rpc.client import OperatorClient
from fedserver.store.records import RunSpec
from shoal.core.errors import ShoalError
from shoal.core.exchange.link import Idle
from shoal.core.exchange.payload import BlobRef
from shoal.core.identity.joining import Role
from tests.server.toys import MODEL, Hands, honest

FASTEST, SLOWEST = 3.0, 4.0
"""Seconds that a task takes."""
BEAT = 5.0
"""Seconds between two signs of life of a device that stalls, and between two fetches of one that infers."""


async def linked(state: Path, folder: Path, name: str, role: Role) -> SecureLink:
    """The link of a device that has joined."""
    keyring = await joined(state, folder, name, role)
    identity = keyring.identity()
    assert identity is not None
    return SecureLink(keyring, identity, lambda text: None)


async def works(link: SecureLink, number: int, seed: int) -> None:
    """A device that does its tasks."""
    chance, hands = Random(f"{seed} {number}"), await Hands(link).hello()
    while True:
        found = await link.next_task(20.0)
        if isinstance(found, Idle):
            continue
        await asyncio.sleep(chance.uniform(FASTEST, SLOWEST))
        with suppress(ShoalError):  # the task may have been withdrawn
            await hands.do(found, honest(number))


async def stalls(link: SecureLink) -> None:
    """A device that takes its tasks and never answers."""
    await Hands(link).hello()
    while True:
        found = await link.next_task(20.0)
        wanted = not isinstance(found, Idle)
        while wanted and not isinstance(found, Idle):
            await asyncio.sleep(BEAT)
            wanted = await link.alive(found.run, found.round, found.attempt)


async def infers(link: SecureLink) -> None:
    """A device that may not train, with a session, that fetches what it may not have."""
    await Hands(link).hello()
    while True:
        with suppress(ShoalError):
            [piece async for piece in link.fetch(BlobRef("ab" * 32, 4), 0)]
        await asyncio.sleep(BEAT)


async def measured(
    devices: int, stalling: int, inferring: int, rounds: int, seed: int
) -> tuple[float, RunStatus]:
    """Seconds from the start of a run to its end, and its status then."""
    with tempfile.TemporaryDirectory() as folder:
        state, own = Path(folder) / "server", Path(folder)
        init(state, (HOST,), f"{HOST}:0", f"{HOST}:0", "benchmark")
        with started(state, secure=True):
            links = [await linked(state, own, f"d{number}", Role.TRAIN) for number in range(devices)]
            others = [await linked(state, own, f"i{n}", Role.INFER_ONLY) for n in range(inferring)]
            playing = [
                *(works(link, number, seed) for number, link in enumerate(links[stalling:], stalling)),
                *map(stalls, links[:stalling]),
                *map(infers, others),
            ]
            tasks = [asyncio.create_task(each) for each in playing]
            await asyncio.sleep(BEAT)  # until all have said hello
            try:
                spec = RunSpec("run", "fedavg", parameters={"rounds": rounds, "evaluate": False}, seed=seed)
                began = time.monotonic()
                await asyncio.to_thread(_start, state, spec)
                while not (status := await asyncio.to_thread(_show, state)).summary.over:
                    assert not [task.result() for task in tasks if task.done()]
                    await asyncio.sleep(0.5)
                return time.monotonic() - began, status
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await asyncio.gather(*(link.close() for link in (*links, *others)))


def _start(state: Path, spec: RunSpec) -> None:
    with OperatorClient(state) as operator:
        operator.start_run(spec, MODEL)


def _show(state: Path) -> RunStatus:
    with OperatorClient(state) as operator:
        return operator.show("run")


async def compared(options: argparse.Namespace) -> None:
    given = options.devices, options.rounds, options.seed
    stalling = round(options.share * options.devices)
    print(f"{given[0]} devices, {given[1]} rounds of training, seed {given[2]}, default policy, mutual TLS")
    print("stall  only infer  stage     rounds closed  time     ratio")
    quiet = 0.0
    for slow, inferring in ((0, 0), (stalling, options.infer_only)):
        took, status = await measured(options.devices, slow, inferring, options.rounds, options.seed)
        quiet = quiet or took
        rounds = status.summary.round - 1
        closed = 1.0 - len(status.abandoned) / max(1, rounds)
        stage = status.summary.stage
        print(
            f"{slow:5}  {inferring:10}  {stage:8}  {closed:13.0%}  {took:5.1f} s  {took / quiet:5.2f}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stalled_fleet")
    parser.add_argument("--devices", type=int, default=10)
    parser.add_argument("--share", type=float, default=0.3, help="of the devices that stall")
    parser.add_argument("--infer-only", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    asyncio.run(compared(parser.parse_args()))


if __name__ == "__main__":
    main()
