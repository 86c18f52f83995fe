"""The state folder: the server stores each fact here before anyone sees it.

shoal.db   the database, one transaction for each transition     lock   held while a server uses the folder
blobs/ partial/ tmp/   see `fedserver.store.content.blobs`

With `Elsewhere`, the database is on PostgreSQL and the blobs are in a folder or a bucket that several servers
reach; the state folder then has the keys, the lock and the addresses of one server, and of a bucket's blobs
those that it uses.

`Store` is the folder itself, for use by one thread. `Storage` offers the same to callers on an event loop:
each method of a part becomes an awaitable call on the one thread that owns the store.

    await storage.reports.add(record)
    await storage.runs.save_round.when_space(run, closed, checkpoint, 0)
"""

import asyncio
import contextlib
import contextvars
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, Generic, ParamSpec, TypeVar

from fedserver.store.content.blob_cache import BlobCache
from fedserver.store.content.blobs import References
from fedserver.store.disk_space import DiskSpace
from fedserver.store.engines import Elsewhere, open_blobs, open_database
from fedserver.store.engines.blob_folder import is_claimed
from fedserver.store.history import History
from fedserver.store.identities.audit import AuditLog
from fedserver.store.identities.identities import Identities
from fedserver.store.integrity.records import RoundRecord, Standing
from fedserver.store.integrity.redundancy import DamagedRow
from fedserver.store.journal.journal import Journal
from fedserver.store.releases import Releases
from fedserver.store.reports import Reports
from fedserver.store.runs import Runs
from shoal.core.errors import BucketAway, DiskFull, TooManyFiles
from shoal.core.privacy.report import Statement
from shoal.core.types import DeviceId, RunId
from shoal.shell import disk

P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger("shoal.server")

LOCK = "lock"
"""The file in the state folder that a server locks while it uses the folder, with its process number."""
RETRY = 1.0
"""Seconds between two attempts at a write for which the disk has no space."""


def own(state: Path) -> IO[str]:
    """Lock a state folder until the file that is returned is closed. Raises ConfigError if it is in use."""
    with disk.storing(state):
        disk.make_folder(state)
        return disk.lock(state / LOCK)


class Store:
    """One state folder. After a StorageFault, only a restart can find out what is stored.

    elsewhere: where the database and the blobs are if not in the folder. Raises ConfigError, and NotLeader
    while another server uses that database.
    """

    def __init__(self, state: Path, elsewhere: Elsewhere | None = None) -> None:
        self._lock = None if elsewhere else own(state)  # a session with the database is a lock itself
        self._in_shared_folder = elsewhere is not None and isinstance(elsewhere.blobs, Path)
        try:
            self.database = open_database(state, elsewhere.database if elsewhere else "")
        except BaseException:
            self._release()
            raise
        try:
            self.blobs = open_blobs(state, self.database, elsewhere)
        except BaseException:
            self.database.close()
            self._release()
            raise
        try:
            self.history = History(self.database)
            audit, references = AuditLog(self.database, state), References(self.database, self.blobs)
            self.journal, self.identities = Journal(self.database), Identities(self.database, audit)
            self.releases = Releases(self.database, references, audit)
            self.runs = Runs(self.database, self.blobs, references, self.history, audit, self.releases)
            self.reports = Reports(self.database, self.blobs, references, self.history)
        except BaseException:
            self.close()
            raise

    def is_deposed(self) -> bool:
        """Whether another server has taken over, or may have, so that what is missing here may be there. Any
        thread may ask."""
        if self.database.lost.done() or self.database.is_silent():
            return True
        return self._in_shared_folder and not is_claimed(self.blobs.folder)

    def close(self) -> None:
        self.blobs.copies.close()
        self.database.close()
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.close()

    def clean_up(self) -> str:
        """Remove the files that a crash left behind. Returns a line for the log; "" if there were none."""
        needed = {name for (name,) in self.database.query("SELECT sha256 FROM needed_blobs")}
        asked = [
            device
            for record in self.runs.all()
            for group in (record.asked, *record.stepped_in)
            for device in group
        ]
        files, size = self.blobs.clean_up(needed, asked)
        return f"removed {files} unfinished files ({size} bytes) left by the last stop" if files else ""

    def check_rows(self) -> None:
        """Compare the rows of the database on the disk with their checksums, and restore damaged ones."""
        self.database.check()

    def recover(self) -> list[RunId]:
        """Accept this state as the one to continue from. Returns the runs whose open rounds were abandoned.

        Safe to repeat after an interruption: the acceptance itself is written last.
        """
        conflicts, found = ", ".join(self.history.conflicts()), []
        said = "the restored state is accepted"
        said += f", although devices have seen a newer one: {conflicts}" if conflicts else ""
        for record in self.runs.all():
            if record.standing is Standing.ACTIVE:
                self.journal.log(record.run, said)
            if record.asked:
                why = "the server was restored from an older state"
                reported = len(self.reports.of_round(record.run, record.round))
                closed = RoundRecord(record.round, record.title, len(record.asked), reported, {}, why, 0.0)
                self.runs.save_round(
                    record.run,
                    closed,
                    self.runs.checkpoint(record.run),
                    record.abandoned_in_a_row,
                    record.memory,
                )
                found.append(record.run)
        self.identities.gap.accept()
        self.history.accept()
        return found


class Call(Generic[P, T]):
    """A method of the store that is awaited: calls run one after another on the store's thread."""

    def __init__(self, storage: "Storage", method: Callable[P, T]) -> None:
        self._storage, self._method = storage, method

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._storage.on_thread(functools.partial(self._method, *args, **kwargs))

    async def when_space(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """The same for a write that has been decided: on a full disk it waits until there is space."""
        return await self._storage.when_space(functools.partial(self._method, *args, **kwargs))


class Storage:
    """A store for callers that must not block. Created by `open`.

    full: the error of what waits, for disk space in most cases, or None. space: of the state folder's disk.
    repaired: what was found damaged since the start, and what became of it, for people. lost: done once this
    process may not write any more. blobs: these are only files, so any thread may use them.
    """

    def __init__(self, store: Store, thread: ThreadPoolExecutor, space: DiskSpace) -> None:
        self._store, self._thread, self.space = store, thread, space
        self._ending = asyncio.Event()
        self.lost, self.is_deposed = asyncio.wrap_future(store.database.lost), store.is_deposed
        self._waiting: dict[object, DiskFull] = {}
        self._filled = asyncio.Event()
        self._stood, self._stood_since = 0.0, 0.0
        self.blobs = store.blobs
        self.runs, self.reports = RunCalls(self, store.runs), ReportCalls(self, store.reports)
        self.journal, self.history = JournalCalls(self, store.journal), HistoryCalls(self, store.history)
        self.identities = IdentityCalls(self, store.identities)
        self.releases = ReleaseCalls(self, store.releases)
        self.clean_up, self.check_rows = Call(self, store.clean_up), Call(self, store.check_rows)

    @classmethod
    async def open(cls, state: Path, elsewhere: Elsewhere | None = None) -> "Storage":
        """Open a state folder.

        Raises ConfigError if it is in use or of another version, NotLeader while another server uses
        the database elsewhere, StorageFault if it cannot be read.
        """
        shared = elsewhere.blobs if elsewhere else state
        space = DiskSpace(shared if isinstance(shared, Path) else state)
        thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        try:
            await asyncio.to_thread(space.make_way)
            store = await asyncio.get_running_loop().run_in_executor(thread, Store, state, elsewhere)
        except BaseException:
            thread.shutdown()
            raise
        return cls(store, thread, space)

    @property
    def repaired(self) -> list[str]:
        return [*self._store.database.repaired, *self.blobs.restored]

    async def on_thread(self, work: Callable[[], T]) -> T:
        """Do this on the store's thread, with the context of this call, such as an operator's name."""
        within = contextvars.copy_context().run
        return await asyncio.get_running_loop().run_in_executor(self._thread, within, _repairing, work)

    async def damage(self, name: str, within: float = 0.0) -> str:
        """`Blobs.damage`, on a thread. It waits as long as what it needs cannot be fetched or written."""
        return await self._until_possible(lambda: asyncio.to_thread(self.blobs.damage, name, within))

    async def send_copies(self, device: DeviceId, names: Sequence[str]) -> None:
        """`Blobs.send`, on a thread. Raises DiskFull if it is not possible at the moment."""
        if self.blobs.copies.are_complete:
            await asyncio.to_thread(self.blobs.send, device, names)

    async def until_reachable(self) -> None:
        """Wait as long as the bucket of blobs is away; `full` says so meanwhile."""
        if self.blobs.copies.away is not None:
            await self._until_possible(lambda: asyncio.to_thread(self.blobs.copies.probe))

    async def when_space(self, work: Callable[[], T]) -> T:
        """Run `work` on the store's thread; repeat it as long as the disk is full, no file can be opened, or
        the bucket is away.

        Raises DiskFull only if the server stops meanwhile. Nothing else is decided while this waits, and no
        device has seen the decision, so the server can decide the same again after a restart.
        """
        return await self._until_possible(lambda: self.on_thread(work))

    @property
    def full(self) -> DiskFull | None:
        return next(iter(self._waiting.values()), None)

    async def unless_full(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
        """What `work` returns; None if the disk is full, or becomes so before it is done.

        What is under way then waits for space, and whatever waits for its turn after that does, too. The work
        goes on meanwhile, and its result is dropped.
        """
        if self._waiting:
            return None
        doing, filled = asyncio.create_task(work()), asyncio.create_task(self._filled.wait())
        doing.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            await asyncio.wait((doing, filled), return_when=asyncio.FIRST_COMPLETED)
        finally:
            filled.cancel()
        return doing.result() if doing.done() else None

    def without_waits(self, now: float) -> float:
        """A time of the monotonic clock, less the seconds in which something had to wait, as `full` says: a
        clock that stands meanwhile."""
        return (self._stood_since if self._waiting else now) - self._stood

    async def _until_possible(self, attempt: Callable[[], Awaitable[T]]) -> T:
        this = object()
        try:
            while True:
                try:
                    return await attempt()
                except DiskFull as full:
                    is_space = not isinstance(full, TooManyFiles | BucketAway)
                    if is_space and await asyncio.to_thread(self.space.release):
                        log.warning("the disk is full; the reserve is used up: %s", full)
                    elif self._ending.is_set():
                        raise
                    else:
                        if not self._waiting:
                            log.error("the server has to wait, and tries again: %s", full)
                            self._stood_since = time.monotonic()
                        self._waiting[this] = full
                        self._filled.set()
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(self._ending.wait(), RETRY)
        finally:
            if self._waiting.pop(this, None) is not None and not self._waiting:
                self._stood += time.monotonic() - self._stood_since
                self._filled.clear()

    def blob_cache(self, run: RunId) -> "BlobCacheCalls":
        """A new blob cache for a run."""
        return BlobCacheCalls(self, BlobCache(self._store.runs, self._store.blobs, run))

    def stop_waiting(self) -> None:
        """Let writes that wait for space fail; they are decided again after the next start."""
        self._ending.set()

    async def close(self) -> None:
        """Finish all pending calls, and release the folder."""
        await self.on_thread(self._store.close)
        self._thread.shutdown()


def _repairing(work: Callable[[], T]) -> T:
    """Do this; once more if a row that it would have changed was damaged, and is restored now."""
    try:
        return work()
    except DamagedRow:
        return work()


class BlobCacheCalls:
    """`BlobCache`, awaited."""

    def __init__(self, on: Storage, part: BlobCache) -> None:
        self.payload, self.question = Call(on, part.payload), Call(on, part.question)
        self.weights, self.load = Call(on, part.weights), Call(on, part.load)
        self.store_state, self.load_state = Call(on, part.store_state), Call(on, part.load_state)
        self.load_structure = Call(on, part.load_structure)
        self.models_of, self.restore = Call(on, part.models_of), Call(on, part.restore)
        self.names_of = Call(on, part.names_of)


class RunCalls:
    """`Runs`, awaited."""

    def __init__(self, on: Storage, part: Runs) -> None:
        self.add, self.end, self.all = Call(on, part.add), Call(on, part.end), Call(on, part.all)
        self.names, self.get = Call(on, part.names), Call(on, part.get)
        self.pause, self.change = Call(on, part.pause), Call(on, part.change)
        self.reactivate = Call(on, part.reactivate)
        self.prune, self.remove = Call(on, part.prune), Call(on, part.remove)
        self.removed = Call(on, part.removed)
        self.adopt, self.release = Call(on, part.adopt), Call(on, part.release)
        self.open_round, self.save_round = Call(on, part.open_round), Call(on, part.save_round)
        self.rounds, self.versions = Call(on, part.rounds), Call(on, part.versions)
        self.checkpoints, self.outcomes = Call(on, part.checkpoints), Call(on, part.outcomes)
        self.statements, self._statements_of_all = Call(on, part.statements), Call(on, part.statements_of_all)
        self.drop_checkpoint, self.step_in = Call(on, part.drop_checkpoint), Call(on, part.step_in)
        self.checkpoint = Call(on, part.checkpoint)

    async def statements_of_all(self) -> dict[DeviceId, Statement]:
        """What each device has released over all runs. Other calls come in between."""
        while (found := await self._statements_of_all()) is None:
            pass
        return found


class ReportCalls:
    """`Reports`, awaited."""

    def __init__(self, on: Storage, part: Reports) -> None:
        self.add, self.get, self.of_round = Call(on, part.add), Call(on, part.get), Call(on, part.of_round)
        self.withdraw, self.rounds_of = Call(on, part.withdraw), Call(on, part.rounds_of)


class ReleaseCalls:
    """`Releases`, awaited."""

    def __init__(self, on: Storage, part: Releases) -> None:
        self.add, self.use, self.remove = Call(on, part.add), Call(on, part.use), Call(on, part.remove)
        self.get, self.all, self.names = Call(on, part.get), Call(on, part.all), Call(on, part.names)
        self.moves, self.channels = Call(on, part.moves), Call(on, part.channels)


class JournalCalls:
    """`Journal`, awaited."""

    def __init__(self, on: Storage, part: Journal) -> None:
        self.log, self.log_lines = Call(on, part.log), Call(on, part.log_lines)
        self.note_devices, self.devices = Call(on, part.note_devices), Call(on, part.devices)
        self.add_traffic, self.traffic = Call(on, part.add_traffic), Call(on, part.traffic)
        self.note_releases, self.releases = Call(on, part.note_releases), Call(on, part.releases)
        self.standings = Call(on, part.standings)
        self.trainers, self.rounds = Call(on, part.trainers), Call(on, part.timeline.read)
        self.note_placement = Call(on, part.placements.add)
        self.placements = Call(on, part.placements.read)
        self.unplaced = Call(on, part.placements.unplaced)


class HistoryCalls:
    """`History`, awaited."""

    def __init__(self, on: Storage, part: History) -> None:
        self.begin_start, self.mark = Call(on, part.begin_start), Call(on, part.mark)
        self.check_mark, self.conflicts = Call(on, part.check_mark), Call(on, part.conflicts)


class IdentityCalls:
    """`Identities`, awaited."""

    def __init__(self, on: Storage, part: Identities) -> None:
        tokens, registry, admission = part.tokens, part.registry, part.admission
        self.add_token, self.tokens = Call(on, tokens.add), Call(on, tokens.all)
        self.revoke_token, self.has_token = Call(on, tokens.revoke), Call(on, tokens.has)
        self.devices, self.device = Call(on, registry.all), Call(on, registry.get)
        self.approve, self.revoke = Call(on, registry.approve), Call(on, registry.revoke)
        self.rename, self.spend_placement = Call(on, registry.rename), Call(on, registry.spend_placement)
        self.models_of_today = Call(on, registry.models_of_today)
        self.count_models_of_today = Call(on, registry.count_models_of_today)
        self.spend_models = Call(on, registry.spend_models)
        self.use_certificate = Call(on, registry.use_certificate)
        self.join, self.rejoin = Call(on, admission.join), Call(on, admission.rejoin)
        self.renew = Call(on, admission.renew)
        self.gap_was_accepted, self.take_up = Call(on, part.gap.was_accepted), Call(on, part.gap.take_up)
        self.note_event, self.newest_line = Call(on, part.audit.note), Call(on, part.audit.newest)
        operators = part.operators
        self.operators, self.add_operator = Call(on, operators.all), Call(on, operators.add)
        self.renew_operator = Call(on, operators.renew)
        self.revoke_operator = Call(on, operators.revoke)
