"""Who hears what an agent does: people through a console, and `fedclient status` through a file."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fedclient.store.state import Status
from shoal.core.errors import LearnerFault, ShoalError, StorageFault
from shoal.core.exchange.link import Outcome, Receipt, Task


class Reporter:
    """Keeps the status of an agent. progress: told what goes on; say: told what people should read later."""

    def __init__(
        self, status: Status, root: Path, progress: Callable[[str], None], say: Callable[[str], None]
    ) -> None:
        self.status = status
        self.failure: ShoalError | None = None
        """Why the last task has no result that counts; None when it has."""
        self._root, self._progress, self._say = root, progress, say

    def doing(self, text: str) -> None:
        """What goes on, or what is waited for."""
        self.status.doing = text
        self._progress(text)
        self._save()

    def began(self, task: Task) -> None:
        """A task is leased. Its payload may name the cluster that the device is trained with."""
        self.failure = None
        status, cluster = self.status, task.payload.parts.get("cluster")
        status.run, status.round, status.title, status.outcome = task.run, task.round, task.title, ""
        if isinstance(cluster, str) and cluster:
            status.cluster = cluster
        self.doing(named(task))

    def ended(self, task: Task, receipt: Receipt) -> None:
        """A report was answered."""
        self.status.outcome = receipt.outcome.value
        self.status.tasks += 1
        if receipt.outcome in (Outcome.LATE, Outcome.REFUSED):
            self._say(f"{named(task)}: the result was {receipt.outcome.value}: {receipt.reason}")
        self._save()

    def failed(self, error: ShoalError) -> None:
        """Something went wrong; the agent goes on."""
        self.failure = error
        self.note(error)
        lines = [f"error[{error.code}]: {error.message}"]
        if isinstance(error, LearnerFault) and error.details:
            lines.insert(0, error.details.rstrip())
        if error.hint:
            lines.append(f"  hint: {error.hint}")
        self._say("\n".join(lines))

    def note(self, error: ShoalError) -> None:
        """Keep an error for `fedclient status`, without a word to people."""
        self.status.error = {"code": error.code, "message": error.message, "hint": error.hint}
        self._save()

    def _save(self) -> None:
        """What people look at must not stop the work: on a full disk they see what was there before."""
        with suppress(StorageFault):
            self.status.save(self._root)


def named(task: Task) -> str:
    """A task, for people. Its title counts as the run's author does; the engine's number is for machines."""
    return f"{task.run}: {task.title or task.payload.kind}"
