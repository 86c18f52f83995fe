"""Between two tasks, a device looks for a newer release, and makes way for one that is to be tried."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import Random

from fedclient.config import ClientConfig
from fedclient.software.folder import SoftwareFolder
from fedclient.software.launching import become
from fedclient.software.requirements import lacking, metadata_in
from fedclient.software.source import Source
from fedclient.software.standing import Standing
from shoal import __version__
from shoal.core.errors import BadPayload, Missing, NotFound, ShoalError, StorageFault
from shoal.core.identity.release import LONGEST, statements
from shoal.shell import crash

LOOK_SECONDS = 6 * 3600.0
"""Seconds between two looks, or half as many, so that a fleet does not come all at once."""


class Updates:
    """folder: where releases are kept. say: tells the owner."""

    def __init__(self, settings: ClientConfig, folder: SoftwareFolder, say: Callable[[str], None]) -> None:
        assert settings.updates is not None
        self._folder, self._say = folder, say
        self._source = Source(settings.updates.source, settings.limits.allowance(0.0).bandwidth)
        self._extra = "infer" if settings.learner is None else "client"
        self._standing: Standing | None = None
        self._next_look, self._said = 0.0, set[str]()
        self._metadata = dict[bytes, bytes]()  # by statement, of wheels that need what was not here

    async def between(self) -> None:
        """To be called when the device has no work, once the server has accepted a result of this process.

        Raises Become for a release that is to be tried. What goes wrong is said once, and this one goes on.
        """
        clock = asyncio.get_running_loop().time
        try:
            standing = self._standing = self._standing or self._settled()
            if not standing.trial and clock() >= self._next_look:
                self._next_look = clock() + LOOK_SECONDS * Random().uniform(0.5, 1.0)
                await self._look(standing)
                standing = self._standing = self._folder.standing()
            if standing.trial:
                self._folder.note(standing.now_due())
                crash.point("device.trial-due")
                raise become(self._folder)
        except ShoalError as error:
            self._tell(error)

    def stopped(self) -> None:
        """The owner stopped this process, which says nothing about the release that it runs."""
        standing = self._folder.standing()
        if not standing.settled:
            with suppress(StorageFault):
                self._folder.note(standing.stopped())

    def _settled(self) -> Standing:
        """A result of this process was accepted, so what it runs works."""
        standing = self._folder.standing()
        if not standing.settled:
            standing = standing.settle()
            self._folder.note(standing)
            crash.point("device.release-settled")
        self._folder.tidy()
        return standing

    async def _look(self, standing: Standing) -> None:
        for name in statements(__version__):
            try:
                if await self._take(name, standing):
                    return
            except ShoalError as error:
                self._tell(error)

    async def _take(self, name: str, standing: Standing) -> bool:
        """Fetch the release of a statement, unless it is not wanted. Returns whether it is here now."""
        statement = await self._source.get(name, LONGEST)
        if statement is None:
            return False
        release = self._folder.read(statement)
        if release.statement != name:
            raise BadPayload(f"{name} is the statement of version {release.version}", "publish it again")
        if not standing.wants(release.version, __version__):
            return False
        if known := self._metadata.get(statement):  # the owner may have installed it meanwhile
            await self._check(release.version, known)
        self._say(f"version {release.version} is fetched")
        wheel = await self._source.get(release.wheel, release.size)
        if wheel is None:
            raise NotFound(f"there is no {release.wheel} beside {name}", "publish it, too")
        release.check(wheel)
        self._metadata[statement] = await asyncio.to_thread(metadata_in, wheel)
        await self._check(release.version, self._metadata[statement])
        self._folder.keep(release, statement, wheel)
        return True

    async def _check(self, version: str, metadata: bytes) -> None:
        """Raises Missing if this device lacks what a release needs."""
        if missing := await asyncio.to_thread(lacking, metadata, self._extra):
            hint = "install them on this device, or the next package of fedclient"
            raise Missing(f"version {version} needs what is not here: {', '.join(missing)}", hint)

    def _tell(self, error: ShoalError) -> None:
        if str(error) not in self._said:
            self._say(f"no update: {error}")
        self._said.add(str(error))
