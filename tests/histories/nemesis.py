"""Who breaks the world for a while: its processes, machines, disks and network, as the plan says."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.histories.processes import SERVER, Process

if TYPE_CHECKING:
    from tests.histories.world import World

MOST, FEW = 400, 20
"""Steps that a process with a lit fuse lives at most: of any kind, and of one."""
TENDER = (
    "commit",
    "commit done",
    "begin",
    "rename",
    "rename done",
    "link",
    "link done",
    "sync",
    "sync done",
    "answered",
    "answer",
)
"""Steps between which something is half done."""


class Nemesis:
    """Everything that it broke is whole again after `end`."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._chance = world.chance("nemesis")
        self._repairs: set[asyncio.Task[None]] = set()
        self._twins: set[asyncio.Task[None]] = set()

    async def rage(self, seconds: float) -> None:
        """Break something now and then, until it is over or the time is up."""
        world, chance = self._world, self._chance
        troubles, until = world.plan.troubles, world.loop.now + seconds
        while troubles and world.loop.now < until and not world.over() and not world.bugs:
            await asyncio.sleep(chance.expovariate(1.0 / world.plan.every))
            trouble = chance.choices(list(troubles), list(troubles.values()))[0]
            world.say("nemesis", trouble)
            getattr(self, f"_{trouble.replace(' ', '_')}")()

    async def end(self) -> None:
        """The faults are over."""
        world = self._world
        for task in [*self._repairs, *self._twins]:
            task.cancel()
        await asyncio.gather(*self._repairs, *self._twins, return_exceptions=True)
        weather = world.network.weather
        weather.lost = weather.unheard = weather.late = weather.cut = weather.swept = 0.0
        weather.reset = 1.0
        world.network.clogged.clear()
        for disk in world.disks.values():
            disk.full, disk.fail_in = False, 0
        for process in world.processes.values():
            process.fuse = 0
            world.loop.resume(process)

    # -- processes --------------------------------------------------------------------------------------

    def _victim(self, machine: str = "") -> Process | None:
        process = self._world.processes.get(machine or self._chance.choice(self._world.devices()))
        return process if process is not None and process.alive else None

    def _end(self, process: Process | None, power: bool) -> None:
        """At once, or at one of the next steps, or at one that is a little later."""
        if process is None:
            return
        process.power = power
        process.fuse_on = self._chance.choice(("", self._chance.choice(TENDER)))
        far = MOST if not process.fuse_on else FEW
        process.fuse = self._chance.choice((1, self._chance.randint(1, 20), self._chance.randint(1, far)))

    def _kill_server(self) -> None:
        self._end(self._victim(SERVER), power=False)

    def _cut_server(self) -> None:
        self._end(self._victim(SERVER), power=True)

    def _kill_device(self) -> None:
        self._end(self._victim(), power=False)

    def _cut_device(self) -> None:
        self._end(self._victim(), power=True)

    def _stop_server(self) -> None:
        self._stop(self._victim(SERVER))

    def _stop_device(self) -> None:
        self._stop(self._victim())

    def _stop(self, process: Process | None) -> None:
        """What SIGTERM does: the process takes leave."""
        if process is not None and process.tasks:
            next(iter(process.tasks)).cancel()

    def _pause_server(self) -> None:
        self._pause(self._victim(SERVER))

    def _pause_device(self) -> None:
        self._pause(self._victim())

    def _pause(self, process: Process | None) -> None:
        """What SIGSTOP does, and SIGCONT some time later."""
        if process is not None and not process.paused:
            process.paused = True
            self._later(self._chance.choice((5.0, 30.0, 120.0)), lambda: self._world.loop.resume(process))

    # -- disks ------------------------------------------------------------------------------------------

    def _server_disk(self) -> None:
        self._disk(SERVER)

    def _device_disk(self) -> None:
        self._disk(self._chance.choice(self._world.devices()))

    def _disk(self, machine: str) -> None:
        disk = self._world.disks[machine]
        if self._chance.random() < 0.5:
            disk.fail_in = self._chance.randint(1, 40)
        else:
            disk.full = True
            self._later(self._chance.uniform(1.0, 30.0), lambda: setattr(disk, "full", False))

    # -- the network ------------------------------------------------------------------------------------

    def _clog(self) -> None:
        self._part(self._chance.choice(self._world.devices()), self._chance.choice((1.0, 10.0, 90.0)))

    def _part(self, machine: str, seconds: float) -> None:
        clogged = self._world.network.clogged
        clogged.add(machine)
        self._later(seconds, lambda: clogged.discard(machine))

    def _swizzle(self) -> None:
        """Clog some devices one after another, and let them go in another order."""
        devices = self._world.devices()
        some = self._chance.sample(devices, self._chance.randint(1, len(devices)))
        for place, machine in enumerate(some):
            after = self._chance.uniform(10.0, 40.0)
            self._later(place * 2.0, lambda machine=machine, after=after: self._part(machine, after))  # type: ignore[misc]

    def _revoke(self) -> None:
        """An operator ends the identity of a device, once, where the runs can do without it."""
        world, identities = self._world, self._world.identities
        if identities is None or identities.ending or identities.api is None or world.gone:
            return
        if not world.spares_one():
            return
        device = self._chance.choice(world.devices())
        identities.ending.add(device)
        world.processes[SERVER].spawn(identities.revoke(identities.api, device))

    def _gone(self) -> None:
        """A device dies for good, once, where the runs can do without it."""
        world = self._world
        if world.gone or (world.identities is not None and world.identities.ending) or not world.spares_one():
            return
        device = self._chance.choice(world.devices())
        world.gone.add(device)
        self._end(self._victim(device), power=self._chance.random() < 0.5)

    def _twin(self) -> None:
        """A second process with a device's name, on a machine of its own: a copied disk image."""
        world = self._world
        number = self._chance.randrange(world.plan.devices)
        machine = f"d{number}-twin"
        if any(task.get_name() == machine for task in self._twins):
            return
        keeping = world.keep(machine, f"d{number}", world.device(machine, number))
        task = asyncio.create_task(keeping, name=machine)
        self._twins.add(task)
        task.add_done_callback(self._twins.discard)
        self._later(self._chance.uniform(5.0, 40.0), lambda: _cancel(task))

    def _rot(self) -> None:
        """A bit of a model that the server goes on from, or of its copy. Both at once would cost a round."""
        world = self._world
        state, disk = world.folders[SERVER], world.disks[SERVER]
        copies = sorted((state / "copies").glob("??/*"))
        if not copies or world.rotten:
            return
        copy = self._chance.choice(copies)
        path = self._chance.choice((copy, state / "blobs" / copy.parent.name / copy.name))
        if not path.is_file() or not (data := bytearray(path.read_bytes())):
            return
        world.rotten = True
        data[self._chance.randrange(len(data))] ^= 1 << self._chance.randrange(8)
        path.write_bytes(data)
        disk.sync(path)

    def _later(self, seconds: float, hint: Callable[[], None]) -> None:
        async def repair() -> None:
            await asyncio.sleep(seconds)
            hint()

        task = asyncio.create_task(repair())
        self._repairs.add(task)
        task.add_done_callback(self._repairs.discard)


def _cancel(task: "asyncio.Task[None]") -> None:
    task.cancel()
