"""What the verbs of the command line do, put together from the parts: link, training process, folder."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from fedclient.agent.agent import Agent, Until
from fedclient.agent.reporter import Reporter
from fedclient.agent.signals import until_signal
from fedclient.config import ClientConfig
from fedclient.faults import Stopped
from fedclient.identity.connection import Endpoint, endpoint
from fedclient.identity.link import opened
from fedclient.net.backoff import Backoff, patiently
from fedclient.software import updates_of
from fedclient.store import privacy_report
from fedclient.store.agent_log import AgentLog
from fedclient.store.blobs import BlobStore
from fedclient.store.state import DeviceFolder, Outbox, Status
from fedclient.work.executor import Spawned, stopped_after
from fedclient.work.pipes import WorkerInfo
from fedclient.work.settings import work_config
from shoal.core.errors import ConfigError, DataFault, Refused, ShoalError
from shoal.core.exchange.link import ObservedRun
from shoal.core.identity.joining import Role
from shoal.shell.console import Console
from shoal.shell.memory import freeze_loaded

POLL_SECONDS = 2.0
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
            async with opened(reached, folder, console.say) as link, stopped_after(executor):
                reporter.doing("loading the learner and the data")
                if not (await executor.start()).labelled:
                    hint = "use `fedclient place` for unlabeled data"
                    raise DataFault("the data have no labels to train on", hint)
                store, outbox = BlobStore(folder.blobs), Outbox(folder.outbox)
                ledger = privacy_report.ledger_of(settings)
                updates = updates_of(settings, reporter.say) if until is Until.STOPPED else None

                async def when_free() -> None:
                    if updates is not None and status.tasks and reporter.failure is None:
                        await updates.between()

                agent = Agent(
                    link,
                    executor,
                    store,
                    outbox,
                    folder.mark,
                    reporter,
                    settings.limits.allowance(give_up_after),
                    note_failure=ledger.failed,
                    check_consent=settings.consents.check_since,
                    keep_reserved=ledger.keep_only,
                    when_free=when_free,
                    waiting=settings.consents.waiting,
                )
                freeze_loaded()
                caught = await until_signal(agent.run(until))
                if caught is not None and until is not Until.STOPPED:
                    raise Stopped(caught)
                if updates is not None:
                    updates.stopped()
        except ShoalError as error:
            reporter.note(error)
            log.add(f"error[{error.code}]: {error.message}")
            raise
        finally:
            reporter.stopped()
        return reporter


async def check(settings: ClientConfig) -> WorkerInfo:
    """Load the learner and the data and try them on one batch. No server is asked.

    Raises ConfigError, DataFault, DeviceFault or LearnerFault, by what is at fault.
    """
    config = work_config(settings, selfcheck="full")
    with TemporaryDirectory(prefix="fedclient-check-") as folder:  # the device's own stays untouched
        executor = Spawned(replace(config, blobs=Path(folder) / "blobs", account=Path(folder)))
        async with stopped_after(executor):
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
        async with opened(reached, folder, console.say) as link:
            backoff = Backoff()
            while True:
                runs = await patiently(link.observe, backoff, give_up_after, console.progress)
                if once or all(run.over for run in runs):
                    return runs
                console.progress(text(runs))
                await asyncio.sleep(POLL_SECONDS)


def _check_role(reached: Endpoint) -> None:
    """Refuse early, before the learner and the data are loaded. The server enforces the role itself."""
    if reached.identity is not None and reached.identity.role is not Role.TRAIN:
        raise Refused(
            f"{reached.device} joined as {reached.identity.role.value}, and may not train",
            "use `fedclient place`; to train, join as another device with a token for --role train",
        )
