"""The runs that a server knows: those that it has restored, that it still checks, or that it cannot read."""

from fedserver.coordinator.repair.recovery import Recovery
from fedserver.coordinator.runs import Run
from shoal.core.errors import NotFound, Unavailable
from shoal.core.types import RunId


class KnownRuns(dict[RunId, Run]):
    """The runs that can be used, by name, oldest first. recovery: has those that cannot, yet or any more."""

    def __init__(self, recovery: Recovery) -> None:
        super().__init__()
        self.recovery = recovery

    def enter(self, run: Run) -> None:
        """Add a run that is new, or that was found at the start."""
        self[run.run] = run
        ordered = sorted(self.items(), key=lambda item: self.recovery.age(item[0]))
        self.clear()
        self.update(ordered)

    def active(self) -> list[Run]:
        """Those that are not over."""
        return [run for run in self.values() if run.active]

    def named(self, run: RunId) -> Run:
        """The run of that name. Raises NotFound, or Unavailable while it is being restored after a start."""
        if run not in self:
            self.check_recovered(run)
            if run in self.recovery.unreadable:
                raise NotFound(f"run {run!r} cannot be read: {self.recovery.unreadable[run][1]}")
            raise NotFound(f"there is no run {run!r}", f"known runs: {', '.join(self) or 'none'}")
        return self[run]

    def check_recovered(self, run: RunId) -> None:
        """Raises Unavailable while the files of this run are being checked after a start."""
        if run in self.recovery.pending:
            raise Unavailable(f"run {run} is being checked after the server's start", "try again in a moment")

    def check_all_recovered(self) -> None:
        """Raises Unavailable while any run is being checked after a start: what is unknown may be of that."""
        for run in self.recovery.pending:
            self.check_recovered(run)
