"""Which release a device runs, which one is on trial, and what comes next.

    arrived --due--> begun --adopted--> begun --settled
                       |                  |
                       v                  v
                    rejected           rejected, and the former one again

A trial is begun only after the version that runs has had a result accepted, so that one that fails has failed
where the other works. How often it may fail is counted in starts: a process that is killed, or a machine that
goes down, has had one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from shoal.core.errors import BadPayload
from shoal.core.identity.release import numbers

STARTS = 3
"""How often a release is started without a result that was accepted, until it is not started again."""


@dataclass(frozen=True)
class Standing:
    """What is stored. Versions are MAJOR.MINOR.PATCH; "" is the installed package.

    current: what runs. former: what ran before it, as long as `settled` is false, that is until a result of
    `current` was accepted. trial: what is to be tried; "" for nothing. due: whether it may be begun now.
    starts: of `trial`, or of a `current` that has not settled. failed: what is not tried again, and why.
    """

    current: str = ""
    former: str = ""
    settled: bool = True
    trial: str = ""
    due: bool = False
    starts: int = 0
    failed: Mapping[str, str] = field(default_factory=dict)

    def wants(self, version: str, running: str) -> bool:
        """Whether this release is to be fetched: it is newer than what runs and what is here, and has not
        failed."""
        here = max(numbers(running), numbers(self.trial or running))
        return numbers(version) > here and version not in self.failed

    def arrived(self, version: str) -> "Standing":
        return replace(self, trial=version, due=False, starts=0)

    def now_due(self) -> "Standing":
        return replace(self, due=True)

    def begun(self) -> "Standing":
        """Before it is started: a start from which no one comes back has counted."""
        return replace(self, due=False, starts=self.starts + 1)

    def stopped(self) -> "Standing":
        """The start says nothing: the owner ended it, or no run needed the device."""
        return replace(self, starts=max(0, self.starts - 1))

    def adopted(self) -> "Standing":
        """`trial` runs from now on, and `former` is kept until it has settled."""
        return replace(
            self, current=self.trial, former=self.current, settled=False, trial="", due=False, starts=0
        )

    def settle(self) -> "Standing":
        """A result of `current` was accepted. Those that are older than it are not needed any more."""
        left = {version: why for version, why in self.failed.items() if self._is_newer(version)}
        return replace(self, former="", settled=True, starts=0, failed=left)

    def rejected(self, why: str) -> "Standing":
        """The one on trial is not tried again."""
        failed = {**self.failed, self.trial: why}
        return replace(self, trial="", due=False, starts=0, failed=failed)

    def dropped(self) -> "Standing":
        """The one on trial is not here as it should be, and may be fetched again."""
        return replace(self, trial="", due=False, starts=0)

    def gone_back(self, why: str) -> "Standing":
        """`current` is not started again, and `former` runs."""
        failed = {**self.failed, self.current: why}
        return replace(self, current=self.former, former="", settled=True, starts=0, failed=failed)

    def lost(self) -> "Standing":
        """`current` is damaged: `former` runs, or the package, and it may be fetched again."""
        return replace(self, current=self.former, former="", settled=True, starts=0)

    def for_package(self, installed: str) -> "Standing":
        """The same beside this version of the package: releases that are not newer are not needed."""
        found = self
        if found.current and numbers(found.current) <= numbers(installed):
            found = replace(found, current="", former="", settled=True, starts=0)
        if found.trial and numbers(found.trial) <= numbers(found.current or installed):
            found = replace(found, trial="", due=False, starts=0)
        return found

    def needed(self) -> set[str]:
        """The versions of which something has to be kept."""
        return {self.current, self.former, self.trial} - {""}

    def _is_newer(self, version: str) -> bool:
        return not self.current or numbers(version) > numbers(self.current)


def from_json(found: Mapping[str, Any]) -> Standing:
    """What another version may have stored: fields that are unknown here are ignored. Damage gives the
    installed package, which needs nothing of what is here."""
    kinds: dict[str, type] = {"settled": bool, "due": bool, "starts": int, "failed": dict}
    known = {item.name: found[item.name] for item in fields(Standing) if item.name in found}
    if all(type(value) is kinds.get(name, str) for name, value in known.items()):
        try:
            standing = Standing(**known)
            for version in (*standing.needed(), *standing.failed):
                numbers(version)
        except BadPayload:
            return Standing()
        if all(type(why) is str for why in standing.failed.values()):
            return standing
    return Standing()
