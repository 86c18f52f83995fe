"""The state folder: the server stores each fact here before anyone sees it.

shoal.db   the database, one transaction for each transition     lock   held while a server uses the folder
blobs/ partial/ tmp/   see `fedserver.store.content.blobs`

With `Elsewhere`, the database is on PostgreSQL and the blobs are in a folder or a bucket that several servers
reach; the state folder then has the keys, the lock and the addresses of one server, and of a bucket's blobs
those that it uses.

`Store` is the folder itself, for use by one thread. `Storage` is for callers on an event loop: they await
calls of the store's methods, which run one after another on the one thread that owns it.

    await storage.call(storage.reports.add, record)
    await storage.when_space(storage.runs.save_round, run, closed, checkpoint, 0, memory)
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
from typing import IO, Any, ParamSpec, TypeVar

from fedserver.ha.blob_folder import is_claimed
from fedserver.store.content.blob_cache import BlobCache
from fedserver.store.content.blobs import References
from fedserver.store.disk_space import DiskSpace
from fedserver.store.engines import Elsewhere, open_blobs, open_database
from fedserver.store.history import History
from fedserver.store.identities.audit import AuditLog, Event
from fedserver.store.identities.dead_keys import beside
from fedserver.store.identities.identities import Identities
from fedserver.store.integrity.redundancy import DamagedRow
from fedserver.store.journal.journal import Journal
from fedserver.store.journal.timeline import BEGIN, Place
from fedserver.store.records import Standing
from fedserver.store.releases import Releases
from fedserver.store.reports import Reports
from fedserver.store.runs import Runs
from shoal.core.errors import BucketAway, DiskFull, TooManyFiles
from shoal.core.privacy.report import Statement
from shoal.core.server_kit.history.records import Digest, RoundHistory
from shoal.core.types import DeviceId, RunId
from shoal.shell import crash, disk

P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger("shoal.server")

LOCK = "lock"
"""The file in the state folder that a server locks while it uses the folder, with its process number."""
RETRY = 1.0
"""Seconds between two attempts at a write for which the disk has no space."""


def own(state: Path) -> IO[str]:
    """Lock a state folder until the file that is returned is closed. Raises InUse if it is in use."""
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
            audit = AuditLog(self.database, state)
            self._references = references = References(self.database, self.blobs)
            self.journal = Journal(self.database)
            self.identities = Identities(self.database, audit, beside(state))
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

    def forget_figures(self, device: DeviceId, after: Place) -> Place | None:
        """Delete what a device has measured in some rounds after this one: see `Timeline.forget`."""
        with self.database.transaction():
            return self.journal.timeline.forget(device, after)

    def forget(self, device: DeviceId) -> None:
        """Delete all else that is stored of a device that was withdrawn, but for what states of runs contain,
        and what has to be accounted for: its name in the registry, what it has paid, logs. Safe to repeat."""
        with self.database.transaction():
            names = self.reports.forget(device)
            for table in ("newcomers", "rollout_counts", "answered"):
                self.database.execute(f"DELETE FROM {table} WHERE device = ?", (device,))  # noqa: S608
            crash.point("server.device-forgetting")
        self._references.remove_unneeded(names)
        self.blobs.discard_all(device)

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
                closed = RoundHistory(
                    record.round,
                    record.title,
                    ended=time.time(),
                    asked=len(record.asked),
                    reported=reported,
                    abandoned=why,
                    digest=Digest(),
                )
                self.runs.save_round(
                    record.run,
                    closed,
                    self.runs.checkpoint(record.run),
                    record.abandoned_in_a_row,
                    record.memory,
                )
                found.append(record.run)
        self.identities.tokens.revoke_open()
        self.history.accept()
        return found


class Storage:
    """A store for callers that must not block. Created by `open`.

    store, runs, reports, journal, history, identities: for `call` only. full: the error of what waits, for
    disk space in most cases, or None. space: of the state folder's disk. repaired: what was found damaged
    since the start, and what became of it, for people. lost: done once this process may not write any more.
    blobs: these are only files, so any thread may use them.
    """

    def __init__(self, store: Store, thread: ThreadPoolExecutor, space: DiskSpace) -> None:
        self.store, self._thread, self.space = store, thread, space
        self._ending = asyncio.Event()
        self.lost, self.is_deposed = asyncio.wrap_future(store.database.lost), store.is_deposed
        self._waiting: dict[object, DiskFull] = {}
        self._filled = asyncio.Event()
        self._stood, self._stood_since = 0.0, 0.0
        self.blobs = store.blobs
        self.runs, self.reports, self.journal = store.runs, store.reports, store.journal
        self.history, self.identities = store.history, store.identities
        self.releases = store.releases

    @classmethod
    async def open(cls, state: Path, elsewhere: Elsewhere | None = None) -> "Storage":
        """Open a state folder.

        Raises InUse, ConfigError if it is of another version, NotLeader while another server uses the
        database elsewhere, and StorageFault if it cannot be read.
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
        return [*self.store.database.repaired, *self.blobs.restored]

    async def call(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do this on the store's thread, with the context of this call, such as an operator's name."""
        within, work = contextvars.copy_context().run, functools.partial(method, *args, **kwargs)
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

    async def when_space(self, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same for a write that has been decided; it is repeated as long as the disk is full, no file can
        be opened, or the bucket is away.

        Raises DiskFull only if the server stops meanwhile. Nothing else is decided while this waits, and no
        device has seen the decision, so the server can decide the same again after a restart.
        """
        return await self._until_possible(lambda: self.call(method, *args, **kwargs))

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

    async def note(self, event: Event, /, **facts: Any) -> None:
        """Add a line to the audit log."""
        await self.call(self.identities.audit.note, event, **facts)

    async def statements_of_all(self) -> dict[DeviceId, Statement]:
        """What each device has released over all runs. Other calls come in between."""
        while (found := await self.call(self.runs.statements.of_all)) is None:
            pass
        return found

    async def forget(self, device: DeviceId) -> None:
        """Delete what is stored of a device: see `Store.forget_figures` and `Store.forget`. Other calls come
        in between. Safe to repeat."""
        after: Place | None = BEGIN
        while after is not None:
            after = await self.when_space(self.store.forget_figures, device, after)
        await self.when_space(self.store.forget, device)

    def blob_cache(self, run: RunId) -> BlobCache:
        """A new blob cache for a run, whose methods are for `call`, too."""
        return BlobCache(self.runs, self.blobs, run)

    def stop_waiting(self) -> None:
        """Let writes that wait for space fail; they are decided again after the next start."""
        self._ending.set()

    async def close(self) -> None:
        """Finish all pending calls, and release the folder."""
        await self.call(self.store.close)
        self._thread.shutdown()


def _repairing(work: Callable[[], T]) -> T:
    """Do this; once more if a row that it would have changed was damaged, and is restored now."""
    try:
        return work()
    except DamagedRow:
        return work()
