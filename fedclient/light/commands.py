"""`fedclient run --serve`, put together from the parts."""

import asyncio
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedclient.agent.signals import until_signal
from fedclient.config import ClientConfig
from fedclient.light.follow import Follower, Place
from fedclient.light.remembering import Remembering
from fedclient.light.serving import Endpoint, listening
from fedclient.light.shadow import Shadow
from fedclient.placing.placement import PlacementResult
from fedclient.placing.service import newcomer, permitting, placed
from fedclient.software import updates_of
from fedclient.store.agent_log import AgentLog
from fedclient.store.blobs import BlobStore
from fedclient.store.state import MODEL, DeviceFolder, read_json
from fedclient.work.data import state_of
from fedclient.work.executor import Spawned
from fedclient.work.genuine import checked_apart
from fedclient.work.settings import light_config
from shoal.core.exchange.choosing import Counted
from shoal.shell.console import Become, Console

GIVE_UP_AFTER = 10.0
"""Seconds without a server after which one question is given up; the next one comes anyway."""


async def serve(
    settings: ClientConfig, console: Console, address: str, run: str, every: float
) -> dict[str, Any]:
    """Answer predictions at `address` until stopped, with the model that fits the settings' data, by their
    learner or, without one, by the run's graph."""
    folder, console.repeats = DeviceFolder(settings.state), True
    with folder.locked(), listening(address) as at, TemporaryDirectory(prefix="fedclient-serve-") as account:
        work = light_config(settings, None, folder.blobs, Path(account))
        endpoint = Endpoint(replace(work, learner=settings.learner), at, console.say)
        if endpoint.can_use(folder.model):
            if refused := await checked_apart(folder.model / MODEL, folder.identity):
                console.say(f"the stored model is not used: {refused}")
            else:
                endpoint.model = folder.model

        async def use(model: Path) -> str:
            refused = await endpoint.use(model)
            endpoint.model = endpoint.model if refused else folder.model
            return refused

        data = newcomer(settings, None)
        executor = Remembering(Spawned(data), lambda: state_of(data))
        place = _placing(settings, console, executor, run)
        store = BlobStore(folder.blobs)

        async def fetch(release: str) -> PlacementResult:
            return await _placing(settings, console, executor, release)(None)

        shadow = Shadow(folder, store, endpoint, fetch, permitting(settings), console.say)
        updates = updates_of(settings, AgentLog(folder.root).noting(console.say))
        answered = False

        async def asked(counted: Counted | None) -> PlacementResult:
            nonlocal answered
            if updates is not None and answered:
                await updates.between()
            found = await place(counted)
            answered = True
            return found

        follower = Follower(folder, store, asked, use, console.say, shadow)
        console.say(f"predictions are answered at {_shown(address, at.getsockname())}")
        try:
            await endpoint.start()
            await until_signal(_both(endpoint, follower, every))
            if updates is not None:
                updates.stopped()
        finally:
            await endpoint.stop()
            await executor.stop()
    return {"address": address, "model": read_json(folder.model / "placement.json").get("model")}


def _placing(settings: ClientConfig, console: Console, executor: Remembering, run: str) -> Place:
    store = BlobStore(DeviceFolder(settings.state).blobs)

    async def place(counted: Counted | None) -> PlacementResult:
        found = await placed(
            settings, console, executor, run, True, GIVE_UP_AFTER, counted=counted, follows=True
        )
        blobs = [*(each.blob for each in found.models), *filter(None, [found.graph])]
        store.trim(settings.limits.kept_bytes, [blob.sha256 for blob in blobs])
        return found

    return place


async def _both(endpoint: Endpoint, follower: Follower, every: float) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(endpoint.watch())
            group.create_task(follower.follow(every))
    except BaseExceptionGroup as raised:
        if becoming := raised.subgroup(Become):
            raise becoming.exceptions[0] from None
        raise


def _shown(address: str, bound: Any) -> str:
    return address if isinstance(bound, str) else f"http://{bound[0]}:{bound[1]}"
