"""Following a run: the model that fits is asked for again and again, and exchanged when it changes.

place --> another model? --> try it on the device's data --> use it, or keep the earlier one
"""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

from fedclient.light.shadow import Shadow
from fedclient.placing.placement import PlacementResult, save
from fedclient.store.blobs import BlobStore
from fedclient.store.state import DeviceFolder
from shoal.core.errors import ShoalError, StorageFault
from shoal.core.exchange.choosing import Counted

Place = Callable[[Counted | None], Awaitable[PlacementResult]]
"""Asks the server, and tells it what was counted in a rollout; None: this device can take part in none."""
Use = Callable[[Path], Awaitable[str]]
"""Takes the folder of a new model: "" if it is used from now on, or else why it is not."""
NEXT = "model-next"


class Follower:
    """Exchanges the model in a device's folder. place: asks the server. use: tries and uses a model. say:
    tells people what changed. shadow: the device's part in rollouts; None: it takes none."""

    def __init__(
        self,
        folder: DeviceFolder,
        store: BlobStore,
        place: Place,
        use: Use,
        say: Callable[[str], None],
        shadow: Shadow | None = None,
    ) -> None:
        self._folder, self._store, self._place, self._use, self._say = folder, store, place, use, say
        self._shadow = shadow
        self._seen: tuple[object, ...] = ()
        self._trouble = ""

    async def follow(self, every: float) -> None:
        """Ask every `every` seconds, until canceled."""
        while True:
            await self.look()
            await asyncio.sleep(every)

    async def look(self) -> None:
        """Ask once. An error is said once, and the present model stays."""
        try:
            counted = await self._shadow.counted() if self._shadow else None
            found = await self._place(counted)
            await self._exchange(found)
            if self._shadow:
                await self._shadow.take(found)
            self._trouble = ""
        except ShoalError as error:
            if str(error) != self._trouble:
                self._say(f"no newer model: {error}")
            self._trouble = str(error)

    async def _exchange(self, found: PlacementResult) -> None:
        used = (found.model, found.mixture)
        if found.model is None or used == self._seen:
            return
        staged = self._folder.root / NEXT
        save(found, self._store, staged)
        self._seen = used  # a model that was refused is not tried again
        where = f"the model of {found.assignment.cluster} in run {found.run}"
        try:
            if refused := await self._use(staged):
                self._say(f"{where} is not used, and the earlier one stays: {refused}")
                return
            try:
                save(found, self._store, self._folder.model)
            except StorageFault:  # else a restart of the process would go back to the model before, for good
                self._seen = ()
                raise
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        self._say(f"{where} is used from now on")
