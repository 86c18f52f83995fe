"""What the verbs of the command line do, put together from the parts: link, training process, folder."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from fedclient import placing as enrolling
from fedclient.agent import SOFTWARE, Agent, Allowance, Until
from fedclient.cli import privacy_report
from fedclient.cli import watch as watching
from fedclient.config import ClientConfig, SelfCheck, WorkConfig
from fedclient.faults import Stopped
from fedclient.identity.keyring import Keyring
from fedclient.identity.link import SecureLink
from fedclient.net.backoff import Backoff, patiently
from fedclient.net.connection import Access, access
from fedclient.net.rpc import RpcLink
from fedclient.placing import Enrolment, Placer
from fedclient.reporter import Reporter
from fedclient.store.blobs import BlobStore
from fedclient.store.state import DeviceFolder, Outbox, Status
from fedclient.work.executor import Facts, Spawned
from shoal.core.errors import ConfigError, DataFault, Refused, ShoalError
from shoal.core.exchange.link import Hello, ObservedRun
from shoal.core.identity.enrolled import Role
from shoal.shell.console import Console

LOOK = 2.0
"""Seconds between two looks of an observer."""


async def serve(settings: ClientConfig, console: Console, until: Until, patience: float) -> Reporter:
    """Run an agent until it ends; what it did. Raises Stopped when a signal ended it too early."""
    folder = DeviceFolder(settings.state)
    with folder.locked():
        way = access(settings)
        device = folder.device(way.device)
        reporter = Reporter(Status(device, way.address), folder.root, console.progress, console.say)
        try:
            _check_role(way)
            executor = Spawned(work_config(settings, trial="quick"))
            async with _link(way, folder, console) as link, _stopped_at_the_end(executor):
                reporter.doing("loading the learner and the data")
                if not (await executor.start()).labelled:
                    hint = "use `fedclient enroll` for such data"
                    raise DataFault("the data have no labels to train on", hint)
                store, outbox = BlobStore(folder.blobs), Outbox(folder.outbox)
                limits = settings.limits
                allowance = Allowance(limits.download_bytes, limits.kept_bytes, patience)
                agent = Agent(link, executor, store, outbox, folder.mark, reporter, allowance)
                await _until_signal(agent, until)
        except ShoalError as error:
            reporter.note(error)
            raise
        finally:
            reporter.doing("stopped")
        return reporter


async def check(settings: ClientConfig) -> Facts:
    """Load the learner and the data and try them on one batch. Raises whose fault it is; asks no server."""
    config = work_config(settings, trial="full")
    with TemporaryDirectory(prefix="fedclient-check-") as folder:  # the device's own is left alone
        executor = Spawned(replace(config, blobs=Path(folder) / "blobs", account=Path(folder)))
        async with _stopped_at_the_end(executor):
            return await executor.start()


async def watch(
    settings: ClientConfig, console: Console, once: bool, patience: float
) -> tuple[ObservedRun, ...]:
    """How the runs stand, once, or again at each change until all are over. Raises Refused."""
    folder = DeviceFolder(settings.state)
    with folder.locked():
        way = access(settings)
        if way.identity is None or way.identity.role is not Role.OBSERVER:
            hint = "join as another device by a token for --role observer"
            raise Refused(f"{way.device} may not see how runs stand: only an observer may", hint)
        async with _link(way, folder, console) as link:
            backoff, told = Backoff(), ""
            while True:
                runs = (await patiently(link.observe, backoff, patience, console.progress)).runs
                if once or all(run.over for run in runs):
                    return runs
                if (said := watching.text(runs)) != told:
                    console.progress(said)
                    told = said
                await asyncio.sleep(LOOK)


async def enroll(
    settings: ClientConfig,
    console: Console,
    file: Path | None,
    run: str,
    accept_nearest: bool,
    patience: float,
) -> tuple[Enrolment, Path | None]:
    """Find the model for the data and store it; where it is, None if the server abstained."""
    folder = DeviceFolder(settings.state)
    with folder.locked():
        way = access(settings)
        folder.device(way.device)
        store, executor = BlobStore(folder.blobs), Spawned(work_config(settings, file, labels=False))
        async with _link(way, folder, console) as link, _stopped_at_the_end(executor):
            limit = settings.limits.download_bytes
            placer = Placer(link, executor, store, console.progress, limit, patience)
            enrolment = await placer.enroll(run, accept_nearest)
            if isinstance(link, SecureLink) and link.identity.role is not Role.TRAIN:  # its agent does
                await link.renew_if_due(Hello(SOFTWARE, mark=folder.mark.read()))
        enrolment = replace(enrolment, privacy=privacy_report.told(settings))
        path = enrolling.save(enrolment, store, folder.model) if enrolment.model else None
        store.trim(settings.limits.kept_bytes)
        return enrolment, path


def work_config(
    settings: ClientConfig, file: Path | None = None, labels: bool = True, trial: SelfCheck = "none"
) -> WorkConfig:
    """What the training process is told. Raises ConfigError where the settings lack it."""
    if settings.learner is None:
        raise ConfigError("no learner is given", "set `learner`, for example learner: {file: learner.py}")
    if settings.data is None and file is None:
        raise ConfigError("no data are given", "set `data`, for example data: {npz: train.npz}")
    folder, compute, privacy = DeviceFolder(settings.state), settings.compute, settings.privacy
    return WorkConfig(
        folder.blobs,
        folder.privacy,
        settings.learner,
        settings.data,
        file,
        labels,
        compute,
        privacy,
        trial,
    )


async def _until_signal(agent: Agent, until: Until) -> None:
    """Run the agent; on SIGTERM or SIGINT it takes leave."""
    caught: list[signal.Signals] = []
    serving = asyncio.ensure_future(agent.run(until))

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


def _check_role(way: Access) -> None:
    """Said before learner and data are loaded; the server holds to it whatever is said here."""
    if way.identity is not None and way.identity.role is not Role.TRAIN:
        raise Refused(
            f"{way.device} joined as {way.identity.role.value}, and may not train",
            "use `fedclient enroll`; to train, join as another device by a token for --role train",
        )


@asynccontextmanager
async def _link(way: Access, folder: DeviceFolder, console: Console) -> AsyncIterator[RpcLink]:
    """The folder has the device's name by now."""
    if way.identity is None:
        link = RpcLink(way.address, folder.device(way.device))
    else:
        link = SecureLink(Keyring(folder.identity), way.identity, console.say, way.server)
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
