"""An event loop without waiting: time jumps to the next timer, and threads' work is done in turn.

The same seed gives the same order of everything. Nothing here is real: no selector, no thread, no clock.
"""

import asyncio
import heapq
from collections.abc import Callable
from contextvars import Context, copy_context
from random import Random
from typing import Any

from tests.histories.processes import Crashed, Process, current, process_of

SPIN = 200_000
"""Steps without a moment passing after which something is taken to run in a circle."""


class Stuck(Exception):
    """Nothing would ever happen again, or everything forever at one moment."""


class SimLoop(asyncio.BaseEventLoop):
    """stall: seconds that a thread's work takes at most, now and then. after_work: called after each."""

    def __init__(self, chance: Random, stall: float) -> None:
        super().__init__()
        self.now = 0.0
        self.after_work: Callable[[], None] = lambda: None
        self._chance, self._stall, self._steps = chance, stall, 0
        self._busy: dict[Any, float] = {}
        self.set_task_factory(_task_of_its_process)  # type: ignore[arg-type]

    def time(self) -> float:
        return self.now

    def resume(self, process: Process) -> None:
        """A process that was stopped goes on with all that has come due meanwhile."""
        process.paused = False
        self._ready.extend(process.held)  # type: ignore[attr-defined]
        process.held.clear()

    def _run_once(self) -> None:
        ready, timers = self._ready, self._scheduled  # type: ignore[attr-defined]
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            while timers and timers[0]._cancelled:
                heapq.heappop(timers)._scheduled = False
            if not timers:
                raise Stuck("everything waits, and no timer is set")
            if timers[0]._when > self.now:
                self.now, self._steps = timers[0]._when, 0
        while timers and timers[0]._when <= self.now:
            handle = heapq.heappop(timers)
            handle._scheduled = False
            ready.append(handle)
        self._steps += len(ready)
        if self._steps > SPIN:
            raise Stuck(f"{self._steps} steps at one moment: something runs in a circle")
        for _ in range(len(ready)):
            handle = ready.popleft()
            process = process_of(handle._context)
            if process is not None and process.paused:
                process.held.append(handle)
            elif not handle._cancelled:
                handle._run()

    def _write_to_self(self) -> None:
        """There is no other thread that would have to be woken for."""

    # -- threads ----------------------------------------------------------------------------------------

    def run_in_executor(self, executor: Any, function: Any, *args: Any) -> Any:  # type: ignore[override]
        """Work for a thread, done a little later in one go: in order where the executor has one thread."""
        took = self._chance.random() * (0.004 if self._chance.random() < 0.99 else self._stall)
        when = self.now + took
        if executor is not None:
            when = self._busy[executor] = max(when, self._busy.get(executor, 0.0) + 1e-9)
        future = self.create_future()
        self.call_at(when, self._work, current(), copy_context(), lambda: function(*args), future)
        return future

    def _work(
        self, process: Process | None, context: Context, job: Callable[[], Any], future: "asyncio.Future[Any]"
    ) -> None:
        if future.cancelled() and self._chance.random() < 0.5:
            return  # it was called off before its thread began
        try:
            if process is not None:
                process.step("job")
            result = context.run(job)
            self.after_work()
            if process is not None:
                process.step("job done")
        except Crashed:
            future.cancel()
        except Exception as error:
            if not future.cancelled():
                future.set_exception(error)
        else:
            if not future.cancelled():
                future.set_result(result)


def _task_of_its_process(loop: Any, coroutine: Any, context: Context | None = None) -> "asyncio.Task[Any]":
    """Remembers a task with the process that it runs in."""
    task = asyncio.Task(coroutine, loop=loop, context=context)
    process = process_of(context) if context is not None else current()
    if process is not None:
        process.tasks[task] = None
        task.add_done_callback(lambda done: process.tasks.pop(done, None))
        if not process.alive:
            task.cancel()
    return task
