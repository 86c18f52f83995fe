"""Reports what an agent does: to people on a console, and to `fedclient status` in a file."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fedclient.store.state import Status
from shoal.core.errors import (
    LearnerFault,
    NoConsent,
    NoNewData,
    OverBudget,
    ShoalError,
    StorageFault,
    TooFewSamples,
    Unprotected,
)
from shoal.core.exchange.link import Failure, Outcome, Receipt, Task
from shoal.core.exchange.payload import Payload, Settings
from shoal.core.texts import measure
from shoal.core.types import RunId
from shoal.shell.console import continued

REFUSALS = (NoConsent.code, NoNewData.code, OverBudget.code, Unprotected.code, TooFewSamples.code)
"""The failures with which a device refuses a run, as it will until its owner or the run's operator acts."""
PAUSE = 1.0
"""Seconds between two writes of the status, which many short tasks would have written all the time."""


class Reporter:
    """Keeps the status of an agent, on an event loop. progress: shows what is going on; say: prints what
    people may read later.
    """

    def __init__(
        self, status: Status, root: Path, progress: Callable[[str], None], say: Callable[[str], None]
    ) -> None:
        self.status = status
        self.failure: ShoalError | None = None
        """Why the last task has no result that counts; None if it has one."""
        self._root, self._progress, self.say = root, progress, say
        self._refusals: dict[RunId, str] = {}
        """What was said last of each run that this device refuses."""
        self._next = 0.0
        self._later: asyncio.Task[None] | None = None

    def doing(self, text: str) -> None:
        """Report what is going on, or what the agent waits for."""
        self.status.doing = text
        self._progress(text)
        self._save()

    def stopped(self) -> None:
        """The agent has ended, and what was reported is written."""
        self._next = 0.0
        if self._later is not None:
            self._later.cancel()
        self.doing("stopped")

    def began(self, task: Task) -> None:
        """A task was leased. Its payload may name the cluster that the device trains with."""
        self.failure = None
        status, cluster = self.status, task.payload.parts.get("cluster")
        status.run, status.round, status.title, status.outcome = task.run, task.round, task.title, ""
        if isinstance(cluster, str) and cluster:
            status.cluster = cluster
        self.doing(named(task))

    def ended(self, task: Task, receipt: Receipt, result: Payload | Failure) -> None:
        """The report of a result was answered."""
        self.status.outcome = receipt.outcome.value
        if isinstance(result, Failure) and receipt.outcome is Outcome.ACCEPTED:
            self.status.outcome = result.code  # what was accepted is that there is no result
        self.status.tasks += 1
        if isinstance(result, Payload) and (said := self._refusals.pop(task.run, "")):
            error = self.status.error
            if (error.get("code"), error.get("message")) == (NoConsent.code, said):
                self.status.error = {}  # the owner has consented since
        if receipt.outcome in (Outcome.LATE, Outcome.REFUSED):
            said = f"{named(task)}: the result was {receipt.outcome.value}: {receipt.reason}"
            self.say(continued(said))
        elif isinstance(result, Payload) and (found := figures(result)):
            self.say(continued(f"{named(task)}: {found}"))
        self._save()

    def failed(self, error: ShoalError) -> None:
        """Something went wrong; the agent continues. That a run asks again for what is refused is not printed
        again."""
        self.failure = error
        self.note(error)
        if error.code in REFUSALS:
            if self._refusals.get(self.status.run) == error.message:
                return
            self._refusals[self.status.run] = error.message
        lines = [f"error[{error.code}]: {continued(error.message)}"]
        if isinstance(error, LearnerFault) and error.details:
            lines.insert(0, error.details.rstrip())
        if error.hint:
            lines.append(f"  hint: {continued(error.hint)}")
        self.say("\n".join(lines))

    def note(self, error: ShoalError) -> None:
        """Record an error for `fedclient status` without printing it."""
        when = time.strftime("%Y-%m-%d %H:%M:%S")
        self.status.error = {"code": error.code, "message": error.message, "hint": error.hint, "when": when}
        if details := getattr(error, "details", ""):
            self.status.error["details"] = details
        self._save()

    def _save(self) -> None:
        """Write the status, at once or as soon as `PAUSE` allows."""
        pause = self._next - asyncio.get_running_loop().time()
        if pause <= 0.0:
            self._write()
        elif self._later is None or self._later.done():
            self._later = asyncio.create_task(self._write_after(pause))

    async def _write_after(self, pause: float) -> None:
        await asyncio.sleep(pause)
        self._write()

    def _write(self) -> None:
        """The status must not stop the work: on a full disk the previous one stays."""
        self._next = asyncio.get_running_loop().time() + PAUSE
        with suppress(StorageFault):
            self.status.save(self._root)


def figures(result: Payload) -> str:
    """What a result says of learning, as it left the device; "" if it says nothing.

    Example:
        >>> figures(Payload("evaluated", {"accuracy": 0.912, "loss": 0.31, "examples": 80}))
        'accuracy 91.2 %, loss 0.3100, 80 samples'
        >>> of_numbers = {"accuracy": 0.912, "loss": 0.31, "examples": 80, "baseline": 0.0}
        >>> figures(Payload("evaluated", of_numbers))
        'variance explained 91.2 %, loss 0.3100, 80 samples'
        >>> held_out = Settings({"accuracy": 0.875, "loss": 0.4, "examples": 16})
        >>> figures(Payload("trained", {"loss": 0.31, "examples": 80, "held_out": held_out}))
        'loss 0.3100, 80 samples, 87.5 % on held-out samples before'
    """
    accuracy, loss, examples = (result.parts.get(name) for name in ("accuracy", "loss", "examples"))
    found = []
    if isinstance(accuracy, float):
        noise = " with noise" if result.parts.get("rho") is not None else ""
        what = measure(result.parts.get("baseline") == 0.0)
        found.append(f"{what}{noise} {100 * accuracy:.1f} %")
    private = result.parts.get("private") is not None or result.parts.get("rho") is not None
    if isinstance(loss, float) and not private:  # with a guarantee it does not leave; 0 stands in its place
        found.append(f"loss {loss:.4f}")
    if found and isinstance(examples, int):
        found.append(f"{examples} {'sample' if examples == 1 else 'samples'}")
    if isinstance(held_out := result.parts.get("held_out"), Settings):
        found.append(f"{100 * float(held_out.values['accuracy']):.1f} % on held-out samples before")
    return ", ".join(found)


def named(task: Task) -> str:
    """A task, for people. Its title counts rounds as the algorithm does; the engine's number is for
    programs.
    """
    return f"{task.run}: {task.title or task.payload.kind}"
