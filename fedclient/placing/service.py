"""`fedclient place`, put together from the parts: settings, the server, and the process that has the data."""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from fedclient.config import ClientConfig, WorkConfig
from fedclient.identity.connection import check_joined
from fedclient.placing.asking import Asks, asking
from fedclient.placing.asking_process import AskerProcess
from fedclient.placing.placement import PlacementResult, Placer, save
from fedclient.placing.watching import Watcher
from fedclient.store import privacy_report
from fedclient.store.blobs import BlobStore
from fedclient.store.ledger import Ledger
from fedclient.store.state import DeviceFolder
from fedclient.work.executor import Executor, Spawned, stopped_after
from fedclient.work.settings import work_config
from shoal.core.errors import LedgerFault
from shoal.core.exchange.choosing import Counted
from shoal.core.exchange.link import run_of
from shoal.core.privacy.report import OPEN
from shoal.core.types import RunId
from shoal.shell.console import Console


async def place(
    settings: ClientConfig,
    console: Console,
    file: Path | None,
    run: str,
    accept_nearest: bool,
    give_up_after: float,
    tune: bool = True,
    follows: bool = False,
) -> tuple[PlacementResult, Path | None]:
    """Find the model for the data and store it; its path, or None if the server abstained. tune: fine-tune
    the model of a device that trains in the run, where `file` is None. follows: see `placed`.
    """
    check_joined(settings)
    folder, executor = DeviceFolder(settings.state), Spawned(newcomer(settings, file))
    own = Spawned(trainer(settings)) if file is None and settings.learner is not None else None
    with folder.locked():
        async with stopped_after(executor, *([own] if own is not None else [])):
            found = await placed(
                settings, console, executor, run, accept_nearest, give_up_after, own, tune, follows=follows
            )
        store = BlobStore(folder.blobs)
        path = save(found, store, folder.model) if found.model else None
        store.trim(settings.limits.kept_bytes)
        return found, path


def newcomer(settings: ClientConfig, file: Path | None) -> WorkConfig:
    """The settings of a process that tries models on the data of `file`, or on those of the settings."""
    work = work_config(settings, file, labels=False, joined=not settings.insecure_loopback)
    return replace(work, newcomer=True)


def trainer(settings: ClientConfig) -> WorkConfig:
    """The settings of a process that fine-tunes on the device's own data, with their labels."""
    return replace(work_config(settings, joined=not settings.insecure_loopback), newcomer=True)


async def placed(
    settings: ClientConfig,
    console: Console,
    executor: Executor,
    run: str,
    accept_nearest: bool,
    give_up_after: float,
    own: Executor | None = None,
    tune: bool = True,
    counted: Counted | None = None,
    follows: bool = False,
) -> PlacementResult:
    """Find the model, which is among the folder's blobs then; the caller has locked the folder, and stops the
    executors. own, tune: see `Placer`. counted: see `Wish`. follows: it will be asked for again, and the data
    are watched meanwhile.

    A device without a learner has little memory, so there the server is asked by a process of its own.
    """

    watcher = Watcher(settings)

    async def by(asks: Asks) -> PlacementResult:
        light, moved = settings.learner is None, watcher.findings.waiting if follows else None
        placer = Placer(asks, executor, console.progress, light, noting(settings), own, tune, moved)
        found = await placer.place(run, accept_nearest, counted=counted)
        if follows:
            watcher.sent(moved)
            data = own if own is not None and found.tuning is not None else executor  # whose process is there
            await watcher.look(found, data, BlobStore(DeviceFolder(settings.state).blobs))
        return replace(found, privacy=privacy_report.summary(settings))

    if settings.learner is None:
        return await by(AskerProcess(settings, executor, console.progress, console.say, give_up_after))
    async with asking(settings, console.progress, console.say, give_up_after) as asker:
        return await by(asker)


def permitting(settings: ClientConfig) -> Callable[[str, str], None]:
    """Asks the owner's rules and consent whether counts of a release may leave for a rollout, and notes it in
    the ledger; it raises NoConsent, Unprotected or LedgerFault where they may not."""
    budget = settings.privacy.towards(not settings.insecure_loopback)
    ledger = Ledger(settings.account, budget, consents=settings.consents)

    def permit(release: str, rollout: str) -> None:
        data = hashlib.sha256(rollout.encode()).hexdigest()
        ledger.of(run_of(release)).unprotected(OPEN["counts"], data)

    return permit


def noting(settings: ClientConfig) -> Callable[[RunId, str], None]:
    """Writes a failure into the ledger, if that is not damaged."""

    def note(run: RunId, code: str) -> None:
        with suppress(LedgerFault):
            privacy_report.ledger_of(settings).failed(run, code)

    return note
