"""A device's visit: hello, a task, its blobs, its work, its report, and again.

    hello --> next_task --task--> fetch --> perform --> outbox --> upload --> report --> next_task
                        --idle--> wait in the server's window ------------------------> next_task

Everything that is interrupted continues where it stopped: a call is repeated until the server answers,
downloads and uploads resume at the last chunk, and a finished result stays on the disk until the server has
taken it. If the session is lost, the work continues and finds its lease again after a new hello. While the
disk is full, the device reports it, keeps what it has and tries again; if necessary the server closes the
round without it.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from random import Random
from typing import TypeVar

from fedclient import SOFTWARE
from fedclient.agent.allowance import DEFAULT, Allowance
from fedclient.agent.reporter import REFUSALS, Reporter, named
from fedclient.agent.transfers import Transfers
from fedclient.faults import NoPart, TaskFailed, UnreadableTask
from fedclient.net.backoff import FIRST_WAIT, Backoff, heard, patiently
from fedclient.store.blobs import BlobStore
from fedclient.store.state import Mark, Outbox
from fedclient.work.executor import Executor
from fedclient.work.failures import outgoing
from shoal.core.engine.timeouts import MOMENT
from shoal.core.errors import (
    ConfigError,
    DiskFull,
    LedgerFault,
    NoConsent,
    NotFound,
    Refused,
    SessionLost,
    ShoalError,
    StorageFault,
    TooManyFiles,
    Unavailable,
)
from shoal.core.exchange.link import (
    Failure,
    Hello,
    Idle,
    Link,
    Outcome,
    Receipt,
    Report,
    Task,
    Welcome,
)
from shoal.core.exchange.payload import BlobRef, Payload
from shoal.core.exchange.wire import work_key
from shoal.core.types import Bytes, RunId
from shoal.shell import crash

T = TypeVar("T")


REST_SECONDS = 600.0
"""Seconds until an agent outside of its hours looks at the clock again, in case it was changed."""


class Until(Enum):
    """When the agent ends on its own: never, after one report, or when no run needs this device any more, or
    can have it."""

    STOPPED = "stopped"
    ONCE = "once"
    FINISHED = "finished"


@dataclass(frozen=True)
class _Work:
    """began: clock time; of a result that waits in the outbox, when it was put there."""

    key: str
    result: "asyncio.Task[Payload | Failure]"
    began: float


class _NotWantedError(Exception):
    """The server no longer wants the result."""


class Agent:
    """Serves one server over one link, one task at a time."""

    def __init__(
        self,
        link: Link,
        executor: Executor,
        store: BlobStore,
        outbox: Outbox,
        mark: Mark,
        reporter: Reporter,
        allowance: Allowance = DEFAULT,
        chance: Random | None = None,
        note_failure: Callable[[RunId, str], None] = lambda run, code: None,
        check_consent: Callable[[RunId, float], None] = lambda run, began: None,
        keep_reserved: Callable[[Collection[RunId]], None] = lambda runs: None,
        when_free: Callable[[], Awaitable[None]] | None = None,
        waiting: Callable[[], Iterable[RunId]] = tuple,
    ) -> None:
        """note_failure: writes the code of a failure into the ledger, before the server learns of it.

        check_consent: see `fedclient.store.consent.Consents.check_since`. keep_reserved: gives back what is
        reserved in the ledger for all runs but these. when_free: awaited before the server is asked for work
        while none is in progress. waiting: the runs that wait for the owner's consent.
        """
        self._link, self._executor, self._store, self._outbox = link, executor, store, outbox
        self._mark, self._reporter, self._allowance = mark, reporter, allowance
        self._note_failure, self._check_consent = note_failure, check_consent
        self._keep_reserved, self._when_free, self._waiting = keep_reserved, when_free, waiting
        # Failures in a row: of calls that no one answers, of sessions in which nothing was done, of tasks.
        self._chance = chance or Random()
        self._calls, self._sessions, self._faults = (Backoff(self._chance) for _ in range(3))
        self._transfers = Transfers(
            link, store, self._patiently, allowance.download_bytes, allowance.bandwidth
        )
        self._welcome: Welcome | None = None
        self._refused: dict[RunId, Failure] = {}
        self._work: _Work | None = None
        self._models: dict[RunId, list[set[BlobRef]]] = {}

    async def run(self, until: Until = Until.STOPPED) -> None:
        """Serve. If canceled, the agent says goodbye to the server; a finished result stays in the outbox.

        Raises Refused if the server rejects this device; NoPart if it is to serve until the runs are over,
        and refuses all of them; and, if `until` sets an end, any error that keeps the agent from reaching it,
        such as Unavailable after `give_up_after` seconds.
        """
        try:
            while await self._step(until):
                pass
        finally:
            await self._give_up()
            await self._leave()

    async def _step(self, until: Until) -> bool:
        """One task, or one wait for it. Returns False when there is nothing left to do."""
        try:
            if closed := self._closed_for():
                await self._rest(closed)
                return True
            if self._welcome is None:
                self._reporter.doing("saying hello to the server")
                hello = Hello(SOFTWARE, mark=self._mark.read())
                self._welcome = await self._patiently(lambda: self._link.hello(hello))
                crash.point("device.welcomed")
                self._mark.keep(self._welcome.mark)
                self._calls.first = self._sessions.first = max(FIRST_WAIT, self._welcome.spread)
            if self._work is None and self._when_free is not None:
                await self._when_free()
            poll, heartbeat = self._welcome.poll, self._welcome.heartbeat
            if self._refused and until is Until.FINISHED:
                poll = 0.0  # which runs go on is to be known now, and not when the next round opens
            answer = await self._patiently(lambda: self._ask(poll))
            if answer is None:
                return True
            if isinstance(answer, Task):
                crash.point("device.task-taken")
                reported = await self._serve(answer, heartbeat)
                self._sessions.reset()
                return not (reported and until is Until.ONCE)
            self._sessions.reset()
            if answer.going_on is not None:
                self._outbox.memory.forget(answer.going_on)
                self._models = {run: used for run, used in self._models.items() if run in answer.going_on}
                with contextlib.suppress(LedgerFault, ConfigError):  # damaged, or in use: the next time
                    self._keep_reserved(answer.going_on)
            if answer.finished and until is not Until.STOPPED:
                return False
            if until is Until.FINISHED:
                self._check_needed(answer.going_on)
            await self._idle(answer)
        except SessionLost as lost:
            self._reporter.doing(f"the session was lost: {lost}; saying hello again")
            self._welcome = None
            await asyncio.sleep(self._sessions.next())
        except (Unavailable, Refused, ConfigError):
            raise
        except ShoalError as error:
            if until is not Until.STOPPED:
                raise
            await self._recover(error)
        return True

    def _check_needed(self, going_on: Collection[RunId] | None) -> None:
        """Raises NoPart where this device refuses every run that goes on. One that it has refused is asked
        about no more, in case that another one goes on for long."""
        refused, self._refused = self._refused, {}
        if refused and going_on and refused.keys() >= {*going_on}:
            run = next(reversed(refused))
            raise NoPart(run, refused[run])

    def _closed_for(self) -> float:
        """Seconds until the owner's hours begin; 0 within them, and until all work is reported."""
        return self._allowance.hours.closed_for() if self._work is None else 0.0

    async def _ask(self, poll: float) -> Task | Idle | None:
        """The server's answer; None outside of the owner's hours, where no work is left to be reported."""
        if self._closed_for():  # by now: the server may not have answered for long
            return None
        try:
            answer = await self._link.next_task(min(poll, self._allowance.hours.open_for()))
        except UnreadableTask as error:  # the server's round must not wait for it
            failed = Failure(error.code, str(error))
            await self._link.report(Report(*error.lease, outgoing(failed)))
            await self._recover(TaskFailed(failed))
            return None
        mine = isinstance(answer, Task) and self._work is not None and work_key(answer) == self._work.key
        if self._work is not None and not mine and self._allowance.hours.closed_for():
            await self._give_up()  # it is not wanted any more, and no other work is begun now
            return None
        return answer

    async def _rest(self, closed: float) -> None:
        """Be away outside of the owner's hours, so that no round waits for this device."""
        await self._leave()
        self._reporter.doing(f"waiting for limits.hours to begin ({self._allowance.hours})")
        await asyncio.sleep(min(closed, REST_SECONDS))

    async def _leave(self) -> None:
        if self._welcome is not None:
            self._welcome = None
            with contextlib.suppress(ShoalError, TimeoutError):
                await asyncio.wait_for(self._link.leave(), MOMENT)

    async def _idle(self, idle: Idle) -> None:
        if not self._asks_owner(idle.going_on or ()):  # who matters more than what the server waits for
            self._reporter.doing(f"waiting: {idle.reason}" if idle.reason else "waiting for a task")
        await asyncio.sleep(self._calls.between(idle.earliest, idle.latest))

    def _asks_owner(self, runs: Collection[RunId]) -> bool:
        """Report which of these runs wait for the owner's consent. Returns whether one does."""
        asking: list[RunId] = []
        with contextlib.suppress(NoConsent, StorageFault):  # a task that needs it says so
            asking = [run for run in self._waiting() if run in runs]
        if asking:
            give = "asks for your consent: fedclient consent give"
            self._reporter.doing("; ".join(f"run {run} {give} {run}" for run in asking))
        return bool(asking)

    async def _recover(self, error: ShoalError) -> None:
        self._reporter.failed(error)
        await asyncio.sleep(self._faults.next())

    # -- one task ---------------------------------------------------------------------------------------

    async def _serve(self, task: Task, heartbeat: float) -> bool:
        """Do a task, or continue it under a new lease. Returns whether it was reported."""
        key, inline = work_key(task), task.payload.blobs_in(task.inline)
        task = replace(task, inline=())
        if self._work is not None and self._work.key != key:
            await self._give_up()
        if self._work is None:
            self._reporter.began(task)
            began = self._outbox.kept_at(key) or time.time()
            self._work = _Work(key, asyncio.create_task(self._do(key, task, inline, began)), began)
        work = self._work
        try:
            result = await self._while_wanted(task, heartbeat, work.result)
            await self._deliver(task, heartbeat, result, work.began)
        except _NotWantedError:
            self._reporter.doing(f"{named(task)}: the run continues without this device")
            await self._give_up()
            return False
        except SessionLost:
            if work.result.done() and work.result.exception() is not None:
                self._work = None
            raise  # otherwise the work continues, and is reported under the next lease
        except BaseException:
            await self._give_up()
            raise
        return True

    async def _do(self, key: str, task: Task, inline: Mapping[str, Bytes], began: float) -> Payload | Failure:
        """The result of a task: the one that waits in the outbox, or a new one, which is put there.

        inline: blobs that came with the task.

        Order matters. The outbox is emptied before the work, so that a crash leaves one result at most; and a
        result is in the outbox, on the disk, before any byte of it is sent, so that work whose report was
        interrupted is never done twice. What the task remembers counts from that same moment.
        """
        kept = self._kept(key)
        if kept is not None:
            return kept
        try:
            self._outbox.clear()
            crash.point("device.outbox-emptied")
            wanted = task.payload.weights()
            self._store.make_room((weights.blob for weights in wanted), self._allowance.kept_bytes)
            for weights in wanted:
                fetch = partial(self._transfers.fetch, weights.blob, inline)
                await self._with_disk_space(fetch)
            crash.point("device.fetched")
            result = await self._with_disk_space(lambda: self._perform(task))
            crash.point("device.performed")
            if isinstance(result, Payload):
                self._check_consent(task.run, began)
                report = Report(task.run, task.round, task.attempt, result)
                await self._with_disk_space(lambda: self._keep(key, report))
                crash.point("device.result-kept")
        except (Unavailable, SessionLost):
            raise
        except ShoalError as error:
            return Failure(error.code, str(error))
        return result

    async def _perform(self, task: Task) -> Payload | Failure:
        result = await self._executor.perform(task)
        if isinstance(result, Failure) and result.code == DiskFull.code:
            raise DiskFull(result.message)
        return result

    async def _keep(self, key: str, report: Report) -> None:
        self._outbox.keep(key, report)

    async def _with_disk_space(self, step: Callable[[], Awaitable[T]]) -> T:
        """Do this step; while the disk lacks space for it, report that and try again."""
        full = Backoff(self._chance)
        while True:
            try:
                return await step()
            except DiskFull as error:
                wait = full.next()
                self._reporter.note(error)
                self._reporter.doing(f"waiting for disk space: {error}; trying again in {wait:.0f} s")
                await asyncio.sleep(wait)

    def _kept(self, key: str) -> Payload | None:
        """The result in the outbox, if it belongs to this work and is complete."""
        pending = self._outbox.pending()
        if pending is None or pending[0] != key or isinstance(pending[1].result, Failure):
            return None
        payload = pending[1].result
        return payload if all(self._store.has(weights.blob) for weights in payload.weights()) else None

    async def _deliver(self, task: Task, heartbeat: float, result: Payload | Failure, began: float) -> None:
        """Upload a result and report it. Both are repeated if the server lost some of it before it was
        counted. Consent may be taken back at any time, also while the server is away.
        """
        most, check = task.inline_report, partial(self._check_consent, task.run, began)
        again = Backoff(self._chance)
        while True:
            inline: dict[str, Bytes] = {}
            try:
                check()
                inline = await self._transfers.inline(result, most)
                uploading = asyncio.create_task(self._transfers.upload(result, inline, check))
                await self._while_wanted(task, heartbeat, uploading)
            except (Unavailable, SessionLost, TooManyFiles):  # which pass, and the result waits
                raise
            except ShoalError as error:  # a result that the server rejects must still be reported
                result, inline = Failure(error.code, str(error)), {}
            try:
                await self._report(task, result, inline, check)
            except NoConsent as error:
                if isinstance(result, Failure):  # then it is the server that says so
                    raise
                result = Failure(error.code, str(error))
            except NotFound as error:
                most = 0  # what the report carried itself may have been damaged on its way
                self._reporter.doing(f"{named(task)}: uploading the result again: {error.message}")
                await asyncio.sleep(again.next())
            else:
                return

    async def _report(
        self, task: Task, result: Payload | Failure, inline: Mapping[str, Bytes], check: Callable[[], None]
    ) -> None:
        async def once() -> Receipt:
            if isinstance(result, Payload):
                check()
            return await self._link.report(report)

        sent = result
        if isinstance(result, Failure):
            sent = failed = outgoing(result)
            await self._with_disk_space(lambda: self._noted(task, failed))
        report = Report(task.run, task.round, task.attempt, sent, tuple(inline.values()))
        crash.point("device.uploaded")
        receipt = await self._patiently(once)
        crash.point("device.receipt-came")
        self._mark.keep(receipt.mark)
        self._work = None
        if receipt.outcome is not Outcome.LATE:  # a late task may come again under another lease
            self._outbox.clear()
        crash.point("device.outbox-cleared")
        if receipt.outcome is not Outcome.LATE:
            self._delete_unused(task, result)
        self._store.trim(self._allowance.kept_bytes)
        crash.point("device.trimmed")
        self._reporter.ended(task, receipt, result)
        self._refused.pop(task.run, None)
        if isinstance(result, Failure):
            if result.code in REFUSALS:
                self._refused[task.run] = result
                self._asks_owner({task.run})
            await self._recover(TaskFailed(result))
        elif receipt.outcome is Outcome.REFUSED:
            await self._recover(Refused(f"{named(task)}: {receipt.reason}", "ask the server's operator"))
        else:
            self._faults.reset()

    def _delete_unused(self, task: Task, result: Payload | Failure) -> None:
        """Delete what no later task needs: a result that was taken, and models that the last two tasks of
        their run did without. The two may take turns, as training and describing do, with a model each."""
        last = self._models.setdefault(task.run, [])
        last.append({weights.blob for weights in task.payload.weights()})
        made = result.weights() if isinstance(result, Payload) else ()
        gone = {weights.blob for weights in made}
        if len(last) > 2:
            gone |= last.pop(0)
        gone = gone.difference(*(used for each in self._models.values() for used in each))
        for blob in gone.intersection(weights.blob for weights in made):
            self._store.retire(blob)  # no one has mapped it: the working process has only written it
        self._store.remove(sorted(gone, key=lambda blob: blob.sha256))  # in an order that is always the same

    async def _noted(self, task: Task, failed: Failure) -> None:
        busy = Backoff(self._chance)
        while True:
            try:
                with contextlib.suppress(LedgerFault):  # then the code tells only that
                    self._note_failure(task.run, failed.code)
                return
            except ConfigError:  # another process has the ledger for longer than this one waits for it
                await asyncio.sleep(busy.next())

    async def _while_wanted(self, task: Task, heartbeat: float, step: "asyncio.Task[T]") -> T:
        """The outcome of a step, with heartbeats until then. Raises _NotWantedError, SessionLost.

        A step other than the work itself is canceled when this call ends in any way.
        """
        try:
            while not step.done():
                await asyncio.wait({step}, timeout=heartbeat)
                if step.done():
                    break
                with contextlib.suppress(Unavailable):
                    if not await heard(self._link.alive(task.run, task.round, task.attempt)):
                        raise _NotWantedError
            return step.result()
        finally:
            if self._work is None or step is not self._work.result:
                step.cancel()

    async def _give_up(self) -> None:
        """End the work in progress, if any."""
        work, self._work = self._work, None
        if work is not None:
            work.result.cancel()
            await asyncio.gather(work.result, return_exceptions=True)

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call until the server answers, for at most the owner's `give_up_after`."""
        seconds, doing = self._allowance.give_up_after, self._reporter.doing
        return await patiently(lambda: heard(call()), self._calls, seconds, doing)
