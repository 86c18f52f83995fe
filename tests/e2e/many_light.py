"""Devices without PyTorch that share a process: python -m tests.e2e.many_light ROOT FIRST COUNT ASLEEP EVERY

Each has a folder, a key and a certificate of its own, asks over a TLS connection of its own, and follows,
checks, tries and counts by the code of `fedclient run --serve`. What they share is this process: the models
of each are opened here and not in a process of its own, and no one reaches them over HTTP.

Each asks every EVERY seconds, and predicts samples in between whose labels come at once. The first ASLEEP of
them are silent while there is a file ROOT/night.
"""

import asyncio
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedclient.config import ClientConfig, DataConfig, LimitsConfig, PrivacyConfig
from fedclient.light.endpoint import Predictions
from fedclient.light.follow import Follower
from fedclient.light.runtime import LightRuntime
from fedclient.light.shadow import Shadow
from fedclient.placing.asking import asking
from fedclient.placing.placement import PlacementResult, Placer
from fedclient.placing.service import newcomer, permitting
from fedclient.store.blobs import BlobStore
from fedclient.store.state import GRAPH, MODEL, PLACEMENT, DeviceFolder, read_json
from fedclient.work.settings import light_config
from shoal.core.errors import ShoalError
from shoal.core.exchange.choosing import Counted
from shoal.core.rollout import Counts
from tests.client.in_process import InProcess
from tests.e2e.after_training import NIGHT, samples

PATIENCE, LABELS = 10.0, 25


def settings_of(root: Path, name: str) -> ClientConfig:
    """The settings that the file of a device with this data and these rules would give."""
    return ClientConfig(
        state=root / name / "state",
        data=DataConfig(npz=root / name / "data.npz"),
        privacy=PrivacyConfig(allow_unprotected=True),
        limits=LimitsConfig(memory_bytes=16 << 30),
    )


class Inside:
    """What `fedclient.light.serving.Endpoint` is, in this process."""

    def __init__(self, predictions: Predictions) -> None:
        self.predictions = predictions
        self.shadow: object = None

    def can_use(self, folder: Path) -> bool:
        return (folder / MODEL).is_file() and (folder / GRAPH).is_file()

    async def use(self, folder: Path) -> str:
        return await self._tried(
            self.predictions.use, folder / GRAPH, folder / MODEL, read_json(folder / PLACEMENT)
        )

    async def try_out(self, folder: Path | None, counts: Counts) -> str:
        files = None if folder is None else (folder / GRAPH, folder / MODEL)
        return await self._tried(self.predictions.try_out, files, counts)

    async def counts(self) -> Counts:
        return self.predictions.counts

    async def _tried(self, do: Any, *given: object) -> str:
        try:
            await asyncio.to_thread(do, *given)
        except ShoalError as error:
            return str(error)
        return ""


class Light:
    """One device."""

    def __init__(self, root: Path, name: str) -> None:
        self.settings, self.name = settings_of(root, name), name
        folder = DeviceFolder(self.settings.state)
        store = BlobStore(folder.blobs)
        work = light_config(self.settings, None, folder.blobs, folder.root / "account")
        self._executor = InProcess(LightRuntime(newcomer(self.settings, None)))
        self.inside = Inside(Predictions(work))
        endpoint: Any = self.inside
        shadow = Shadow(folder, store, endpoint, self._fetch, permitting(self.settings), self._say)
        self.follower = Follower(folder, store, self._place, self.inside.use, self._say, shadow)

    async def _fetch(self, release: str) -> PlacementResult:
        return await self._placed(release, None)

    async def _place(self, counted: Counted | None) -> PlacementResult:
        return await self._placed("", counted)

    async def _placed(self, run: str, counted: Counted | None) -> PlacementResult:
        async with asking(self.settings, self._quiet, self._say, PATIENCE) as asker:
            placer = Placer(asker, self._executor, self._quiet, light=True)
            return await placer.place(run, True, counted=counted)

    def predict(self) -> None:
        """What a program of its owner does."""
        x, y = samples(self.name, LABELS)
        said = self.inside.predictions.answer(x)
        self.inside.predictions.compare(x, said["classes"])
        self.inside.predictions.label(x, y)

    async def live(self, every: float, is_silent: Callable[[], bool]) -> None:
        await asyncio.sleep(random.uniform(0.0, every))
        while True:
            if not is_silent():
                await self.follower.look()
                if self.inside.predictions.used is not None:
                    await asyncio.to_thread(self.predict)
            await asyncio.sleep(every)

    def _say(self, text: str) -> None:
        print(f"{self.name}: {text}", flush=True)

    def _quiet(self, text: str) -> None:
        pass


async def main(root: Path, first: int, count: int, asleep: int, every: float) -> None:
    devices = [Light(root, f"light-{number}") for number in range(first, first + count)]
    night = (root / NIGHT).exists
    sleepers = [each.live(every, night) for each in devices[:asleep]]
    await asyncio.gather(*sleepers, *(each.live(every, lambda: False) for each in devices[asleep:]))


if __name__ == "__main__":
    np.seterr(all="ignore")
    first, count, asleep = map(int, sys.argv[2:5])
    asyncio.run(main(Path(sys.argv[1]), first, count, asleep, float(sys.argv[5])))
