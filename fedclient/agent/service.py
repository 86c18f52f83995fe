"""What the verbs of the command line do, put together from the parts: link, training process, folder."""

import asyncio
import math
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fedclient.agent.agent import SOFTWARE, Agent, Allowance, Until
from fedclient.agent.reporter import Reporter
from fedclient.config import ClientConfig
from fedclient.faults import Stopped
from fedclient.identity.connection import Endpoint, endpoint
from fedclient.identity.keyring import Keyring
from fedclient.identity.link import SecureLink
from fedclient.net.backoff import Backoff, patiently
from fedclient.net.rpc import RpcLink
from fedclient.placing.placement import PlacementResult, Placer, save
from fedclient.store import privacy_report
from fedclient.store.agent_log import AgentLog
from fedclient.store.blobs import BlobStore
from fedclient.store.state import DeviceFolder, Outbox, Status
from fedclient.work.executor import Spawned
from fedclient.work.pipes import WorkerInfo
from fedclient.work.settings import work_config
from shoal.core.errors import ConfigError, DataFault, Refused, ShoalError
from shoal.core.exchange.link import Hello, ObservedRun
from shoal.core.identity.joining import Role
from shoal.shell.console import Console

LOOK = 2.0
"""Seconds between two requests of an observer."""


async def serve(settings: ClientConfig, console: Console, until: Until, give_up_after: float) -> Reporter:
    """Run an agent until it ends, and return what it did. Raises Stopped if a signal ended it too early."""
    folder = DeviceFolder(settings.state)
    with folder.locked():
        reached = endpoint(settings)
        device = folder.device(reached.device)
        status, log = Status(device, reached.address), AgentLog(folder.root)
        reporter = Reporter(status, folder.root, log.noting(console.progress), log.noting(console.say))
        try:
            _check_role(reached)
            if settings.learner is None:
                raise ConfigError(
                    "no learner is given", "set `learner`, for example learner: {file: learner.py}"
                )
            executor = Spawned(work_config(settings, selfcheck="quick", joined=reached.identity is not None))
            async with _link(reached, folder, console) as link, _stopped_at_the_end(executor):
                reporter.doing("loading the learner and the data")
                if not (await executor.start()).labelled:
                    hint = "use `fedclient place` for unlabeled data"
                    raise DataFault("the data have no labels to train on", hint)
                store, outbox = BlobStore(folder.blobs), Outbox(folder.outbox)
                limits = settings.limits
                allowance = Allowance(
                    limits.download_bytes, limits.kept_bytes, give_up_after, limits.bandwidth or math.inf
                )
                ledger = privacy_report.ledger_of(settings)
                agent = Agent(
                    link,
                    executor,
                    store,
                    outbox,
                    folder.mark,
                    reporter,
                    allowance,
                    note_failure=ledger.failed,
                    check_consent=settings.consents.check_since,
                    keep_reserved=ledger.keep_only,
                )
                await until_signal(agent.run(until), until)
        except ShoalError as error:
            reporter.note(error)
            log.add(f"error[{error.code}]: {error.message}")
            raise
        finally:
            reporter.doing("stopped")
        return reporter


async def check(settings: ClientConfig) -> WorkerInfo:
    """Load the learner and the data and try them on one batch. No server is asked.

    Raises ConfigError, DataFault, DeviceFault or LearnerFault, by what is at fault.
    """
    config = work_config(settings, selfcheck="full")
    with TemporaryDirectory(prefix="fedclient-check-") as folder:  # the device's own stays untouched
        executor = Spawned(replace(config, blobs=Path(folder) / "blobs", account=Path(folder)))
        async with _stopped_at_the_end(executor):
            return await executor.start()


async def watch(
    settings: ClientConfig,
    console: Console,
    once: bool,
    give_up_after: float,
    text: Callable[[Sequence[ObservedRun]], str],
) -> tuple[ObservedRun, ...]:
    """The runs at the last look: the first one, or the first at which all are over. Raises Refused.

    text: how the console shows the runs, at each change.
    """
    folder = DeviceFolder(settings.state)
    with folder.locked():
        reached = endpoint(settings)
        if reached.identity is None or reached.identity.role is not Role.OBSERVER:
            hint = "join as another device with a token for --role observer"
            raise Refused(f"{reached.device} may not watch runs: only an observer may", hint)
        async with _link(reached, folder, console) as link:
            backoff = Backoff()
            while True:
                runs = (await patiently(link.observe, backoff, give_up_after, console.progress)).runs
                if once or all(run.over for run in runs):
                    return runs
                console.progress(text(runs))
                await asyncio.sleep(LOOK)


async def place(
    settings: ClientConfig,
    console: Console,
    file: Path | None,
    run: str,
    accept_nearest: bool,
    give_up_after: float,
) -> tuple[PlacementResult, Path | None]:
    """Find the model for the data and store it; its path, or None if the server abstained."""
    folder = DeviceFolder(settings.state)
    with folder.locked():
        found = await placed(settings, console, file, run, accept_nearest, give_up_after)
        store = BlobStore(folder.blobs)
        path = save(found, store, folder.model) if found.model else None
        store.trim(settings.limits.kept_bytes)
        return found, path


async def placed(
    settings: ClientConfig,
    console: Console,
    file: Path | None,
    run: str,
    accept_nearest: bool,
    give_up_after: float,
) -> PlacementResult:
    """Find the model for the data; it is among the folder's blobs, and the folder is locked by the caller."""
    folder, reached = DeviceFolder(settings.state), endpoint(settings)
    folder.device(reached.device)
    work = work_config(settings, file, labels=False, joined=reached.identity is not None)
    store, executor = BlobStore(folder.blobs), Spawned(replace(work, newcomer=True))
    async with _link(reached, folder, console) as link, _stopped_at_the_end(executor):
        limit, light = settings.limits.download_bytes, settings.learner is None
        placer = Placer(link, executor, store, console.progress, limit, give_up_after, light)
        found = await placer.place(run, accept_nearest)
        if (
            isinstance(link, SecureLink) and link.identity.role is not Role.TRAIN
        ):  # a training device's agent does it
            await link.renew_if_required(Hello(SOFTWARE, mark=folder.mark.read()))
    return replace(found, privacy=privacy_report.summary(settings))


async def until_signal(work: Coroutine[Any, Any, None], until: Until = Until.STOPPED) -> None:
    """Run this until its end; SIGTERM or SIGINT cancels it, and an agent then says goodbye to the server."""
    caught: list[signal.Signals] = []
    serving = asyncio.ensure_future(work)

    def stop(number: signal.Signals) -> None:
        caught.append(number)
        serving.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    try:
        await serving
    except asyncio.CancelledError:
        if not caught:
            raise
        if until is not Until.STOPPED:
            raise Stopped(caught[0]) from None
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


def _check_role(reached: Endpoint) -> None:
    """Refuse early, before the learner and the data are loaded. The server enforces the role itself."""
    if reached.identity is not None and reached.identity.role is not Role.TRAIN:
        raise Refused(
            f"{reached.device} joined as {reached.identity.role.value}, and may not train",
            "use `fedclient place`; to train, join as another device with a token for --role train",
        )


@asynccontextmanager
async def _link(reached: Endpoint, folder: DeviceFolder, console: Console) -> AsyncIterator[RpcLink]:
    """A link to the server, closed at the end. The folder must already have the device's name."""
    if reached.identity is None:
        link = RpcLink(reached.address, folder.device(reached.device))
    else:
        link = SecureLink(Keyring(folder.identity), reached.identity, console.say, reached.server)
    try:
        yield link
    finally:
        await link.close()


@asynccontextmanager
async def _stopped_at_the_end(executor: Spawned) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await executor.stop()
