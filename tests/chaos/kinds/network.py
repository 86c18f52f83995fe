"""The network between a device and the server: cut, silent, slow, or damaging what it carries."""

import asyncio

from tests.chaos import work
from tests.chaos.fleet import Device
from tests.chaos.kinds.kind import Kind
from tests.chaos.proxy import DOWN, UP, Trap, flip, half_close, reset, silence
from tests.chaos.trial import Trial
from tests.waiting import HANG

END = 4 << 10
"""Bytes around the end of an upload in which its last chunk, its answer and its report pass."""


async def cut_anywhere(trial: Trial) -> None:
    """A reset at byte k of what a device sends or fetches, one to three times."""
    await trial.begin()
    device = trial.pick()
    for _ in range(trial.chance.randint(1, 3)):
        way, at = trial.chance.choice([UP, DOWN]), _somewhere(trial)
        trap = device.proxy.trap(way, trial.at(device, way, at), reset)
        await _spring(trial, device, "reset", trap, at, cut=1)


async def cut_after_last_chunk(trial: Trial) -> None:
    """The connection goes when the last chunk of an upload has come and its answer has not.

    Everything that the server says is held back from a byte near the end of an upload on; a moment later the
    connection is reset.
    """
    await trial.begin()
    device = trial.pick()
    at = trial.chance.randint(1, 3) * work.MODEL + trial.chance.randint(0, END)
    seconds = trial.chance.uniform(0.0, 0.3)
    trap = device.proxy.trap(UP, trial.at(device, UP, at), silence(device.proxy, DOWN))
    if await _sprung(trial, trap):
        strike = trial.struck("cut after the last chunk", (device.name,), None, at=at, seconds=seconds)
        await asyncio.sleep(seconds)
        strike.details["cut"] = device.proxy.cut()
        device.proxy.heal()
        strike.heal()


async def half_closed(trial: Trial) -> None:
    """One direction ends in good order at byte k; the other one goes on."""
    await trial.begin()
    device, way, at = trial.pick(), trial.chance.choice([UP, DOWN]), _somewhere(trial)
    trap = device.proxy.trap(way, trial.at(device, way, at), half_close(way))
    await _spring(trial, device, f"half-closed {way}", trap, at)


async def stalled(trial: Trial) -> None:
    """The network goes silent at byte k, in one or both directions, and comes back after up to 20 seconds."""
    await trial.begin()
    device, way, at = trial.pick(), trial.chance.choice([UP, DOWN]), _somewhere(trial)
    ways = trial.chance.choice([(UP,), (DOWN,), (UP, DOWN)])
    seconds = trial.chance.choice([trial.chance.uniform(0.2, 3.0), trial.chance.uniform(3.0, 20.0)])
    trap = device.proxy.trap(way, trial.at(device, way, at), silence(device.proxy, *ways))
    if await _sprung(trial, trap):
        strike = trial.struck("silence", (device.name,), None, at=at, ways=ways, seconds=seconds)
        await asyncio.sleep(seconds)
        device.proxy.heal()
        strike.heal()


async def partitioned(trial: Trial) -> None:
    """Every connection is reset and new ones are refused, for up to 10 seconds."""
    await trial.begin()
    device = trial.pick()
    moment, seconds = trial.moment(device.name), trial.chance.uniform(0.5, 10.0)
    if await trial.until(moment):
        strike = trial.struck("partition", (device.name,), moment, seconds=seconds)
        device.proxy.refusing = True
        strike.details["cut"] = device.proxy.cut()
        await asyncio.sleep(seconds)
        device.proxy.heal()
        strike.heal()


async def delayed(trial: Trial) -> None:
    """Every byte of every device takes 50 to 400 ms, for the whole run."""
    latencies = {name: trial.chance.uniform(0.05, 0.4) for name in work.NAMES}
    for name, latency in latencies.items():
        trial.fleet.devices[name].proxy.latency = latency
    strike = trial.struck("delay", tuple(work.NAMES), None, latencies=latencies)
    await trial.begin()
    await trial.over.wait()
    strike.heal()


async def throttled(trial: Trial) -> None:
    """One device has 256 to 1024 kB/s in each direction, for the whole run."""
    device = trial.pick()
    device.proxy.rate = trial.chance.uniform(256e3, 1024e3)
    strike = trial.struck("throttle", (device.name,), None, rate=device.proxy.rate)
    await trial.begin()
    await trial.over.wait()
    strike.heal()


async def corrupted(trial: Trial) -> None:
    """One bit is flipped on the way, one to three times."""
    await trial.begin()
    device = trial.pick()
    for _ in range(trial.chance.randint(1, 3)):
        way, at, bit = trial.chance.choice([UP, DOWN]), _somewhere(trial), trial.chance.randrange(8)
        await _spring(trial, device, "flip", device.proxy.trap(way, trial.at(device, way, at), flip(bit)), at)


def _somewhere(trial: Trial) -> int:
    """A byte of those that a device moves in one direction in a run."""
    return trial.chance.randrange(int(2.9 * work.MODEL))


async def _spring(trial: Trial, device: Device, what: str, trap: Trap, at: int, **details: int) -> None:
    if await _sprung(trial, trap):
        trial.struck(what, (device.name,), None, way=trap.way, at=at, **details).heal()


async def _sprung(trial: Trial, trap: Trap) -> bool:
    """Wait for a trap to spring. False if the run was over before."""
    waits = [asyncio.create_task(event.wait()) for event in (trap.sprung, trial.over)]
    await asyncio.wait(waits, timeout=HANG, return_when=asyncio.FIRST_COMPLETED)
    for each in waits:
        each.cancel()
    if not trap.sprung.is_set():
        trial.notes.append(f"byte {trap.at} {trap.way} never passed")
    return trap.sprung.is_set()


KINDS = (
    Kind("cut-anywhere", cut_anywhere, 5),
    Kind("cut-after-last-chunk", cut_after_last_chunk, 5),
    Kind("half-closed", half_closed, 2),
    Kind("stalled", stalled, 3),
    Kind("partitioned", partitioned, 2),
    Kind("delayed", delayed),
    Kind("throttled", throttled, 2),
    Kind("corrupted", corrupted, 3),
)
