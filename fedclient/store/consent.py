"""The owner's consent, run by run, to what leaves without a privacy guarantee.

<state>/consent/asked.json   {"RUN": {"WHAT": seconds since 1970}}: what runs asked for, the newest run last
<state>/consent/given.json   {"RUN": ["WHAT", ...]}, or ["*"]: to everything that the run asks for
<state>/consent/terms.json   {"RUN": {...}}: what all of a run asks for and costs, as far as it says so
<state>/consent/revoked.json {"RUN": seconds since 1970}: when the run was last refused, or consent taken back
<state>/consent/lock         held while one of them is read and written

The training process writes `asked` and `terms`, and `fedclient consent` the others; only what was given for
other terms, the training process takes away. Without consent
nothing of the kind leaves: the run learns that the owner has not consented, and goes on without the device.
A result that was begun before consent was taken back does not leave either.
"""

import json
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shoal.core.errors import NoConsent, NotFound
from shoal.core.types import RunId
from shoal.shell.disk import lock_within, make_folder, storing, write

ASKED, GIVEN, REVOKED, TERMS = "asked.json", "given.json", "revoked.json", "terms.json"
EVERYTHING = "*"
WAIT = 2.0
"""Seconds to wait for another process of this device, which holds the lock for milliseconds."""
RUNS = 100
"""Runs whose requests are kept, and those whose terms are kept without a request or consent: a hostile server
must not fill the disk with names."""


class Consents:
    """The consent that is kept in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def holder(self) -> str:
        """Names this device among those of the machine, which may share a ledger."""
        return str(self._folder.parent)

    def asked(self) -> dict[RunId, dict[str, float]]:
        """What each run has asked for, and when it first did. Raises StorageFault."""
        return self._read(ASKED, dict)

    def given(self) -> dict[RunId, list[str]]:
        """What each run may have. Raises StorageFault."""
        found = self._read(GIVEN, list)
        return {run: what for run, what in found.items() if all(isinstance(each, str) for each in what)}

    def allows(self, run: RunId, what: str) -> bool:
        """Whether the owner has consented that this leaves for this run; if not, the request is kept."""
        if {what, EVERYTHING} & set(self.given().get(run, ())):
            return True
        if what not in self.asked().get(run, {}):
            with self._locked():
                asked = self.asked()
                asked[run] = {**asked.pop(run, {}), what: time.time()}
                self._write(ASKED, dict(list(asked.items())[-RUNS:]))
        return False

    def note(self, run: RunId, terms: dict[str, Any]) -> None:
        """Keep what a run asks for in all, the newest run last. Raises StorageFault.

        The terms of a run that has consent, or waits for it, are not forgotten for those of others: a server
        that names enough runs could add less noise than the owner was shown.
        """
        if self.terms().get(run) == terms:
            return
        with self._locked():
            known = self.terms()
            known.pop(run, None)
            known[run] = terms
            held = {*self.given(), *self.asked()}
            newest = [each for each in known if each not in held][-RUNS:]
            kept = held.union(newest)
            self._write(TERMS, {each: found for each, found in known.items() if each in kept})

    def ask_again(self, run: RunId, what: str) -> None:
        """Forget that the owner has consented that this leaves: it was for other terms. An owner who has
        allowed a run everything is not asked. Raises StorageFault."""
        if what not in self.given().get(run, ()):
            return
        with self._locked():  # or what the owner takes back meanwhile would be given again
            given = self.given()
            given[run] = [each for each in given.get(run, ()) if each != what]
            self._write(GIVEN, given)

    def terms(self) -> dict[RunId, dict[str, Any]]:
        """What `note` was given, by run. Raises StorageFault."""
        return self._read(TERMS, dict)

    def give(self, run: RunId, everything: bool = False) -> list[str]:
        """Consent to what the run has asked for so far, or to everything that it may ask for. A run that was
        refused may go on.

        Returns what it now may have. Raises NotFound for a run that has asked for nothing.
        """
        known = self.asked()
        if run not in {*known, *self._refusals()} and not everything:
            raise NotFound(
                f"run {run!r} has asked for nothing that takes your consent",
                f"runs that have: {', '.join(known) or 'none'}; --everything consents in advance",
            )
        with self._locked():
            given, revoked, now = self.given(), self._refusals(), time.time()
            if revoked.get(run, 0.0) > now:  # by a clock that was ahead: nothing would leave until then
                self._write(REVOKED, {**revoked, run: now})
            may_have = {*given.get(run, ()), *known.get(run, {}), *([EVERYTHING] if everything else ())}
            given[run] = sorted(may_have)
            self._write(GIVEN, given)
        return given[run]

    def revoke(self, run: RunId, unseen: bool = False) -> None:
        """Take consent back, or refuse a run that needs none: nothing more leaves for it until `give`.

        unseen: also a run that is not listed, since it has not come yet, or since many newer ones have.
        Raises NotFound for such a run otherwise, and for one that is refused already.
        """
        with self._locked():
            self._revoke(run, unseen)

    def _revoke(self, run: RunId, unseen: bool) -> None:
        given, revoked = self.given(), self._refusals()
        if run in revoked and run not in given:
            raise NotFound(
                f"you have refused run {run!r} already", f"`fedclient consent give {run}` lets it go on"
            )
        known = {*given, *({*self.terms(), *self.asked()} - {*revoked})}
        if run not in known and not unseen:
            listed = ", ".join(sorted(known)) or "none"
            raise NotFound(
                f"run {run!r} has not asked this device for anything, as far as is still known",
                f"runs that you can refuse: {listed}; --unseen refuses any other run",
            )
        revoked.pop(run, None)
        # First this: results that were begun with consent must not leave from now on. None is ever forgotten,
        # as only the owner adds to it.
        self._write(REVOKED, {**revoked, run: time.time()})
        if given.pop(run, None) is not None:
            self._write(GIVEN, given)

    def refused(self) -> list[RunId]:
        """The runs to which consent was taken back, and not given again. Raises NoConsent, StorageFault."""
        given = self.given()
        return [run for run in self._refusals() if run not in given]

    def waiting(self) -> dict[RunId, list[str]]:
        """What each run waits for. A run that its owner has refused waits for nothing. Raises NoConsent,
        StorageFault."""
        given, refused = self.given(), self.refused()
        found = {
            run: [what for what in asked if not {what, EVERYTHING} & {*given.get(run, ())}]
            for run, asked in self.asked().items()
            if run not in refused
        }
        return {run: missing for run, missing in found.items() if missing}

    def check_not_refused(self, run: RunId) -> None:
        """Raises NoConsent for a run to which consent was taken back, and not given again."""
        self._check_among(self._refusals(), run)

    def _check_among(self, refusals: Collection[RunId], run: RunId) -> None:
        if run in refusals and run not in self.given():
            raise NoConsent(
                f"you have refused run {run}",
                f"`fedclient consent give {run}` lets this device take part",
            )

    def check_since(self, run: RunId, began: float) -> None:
        """Raises NoConsent if consent was taken back after `began`, seconds since 1970, or not given again
        since. Where it was taken back once, nothing leaves that was begun later than now: the clock was set
        back, and which came first is not known."""
        refusals = self._refusals()
        self._check_among(refusals, run)
        if run in refusals and not refusals[run] < began <= time.time():
            raise NoConsent(
                f"you have taken back your consent to run {run} since this was begun",
                f"`fedclient consent give {run}` lets the next results leave",
            )

    def _refusals(self) -> dict[RunId, float]:
        """When each run was refused last. Raises NoConsent where that cannot be read: if it counted as
        missing, refused runs would go on."""
        found = self._json(REVOKED)
        if found is None or not all(isinstance(each, float) and each >= 0.0 for each in found.values()):
            raise NoConsent(
                f"{self._folder / REVOKED} cannot be read, so which runs you have refused is not known",
                "restore it from a backup; or remove it, and refuse those runs again with `fedclient consent "
                "revoke RUN --unseen`. Until then this device takes part in no run",
            )
        return found

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """While no other process writes. Raises InUse if one does not stop, and StorageFault."""
        path = self._folder / "lock"
        with storing(path):
            make_folder(self._folder)
            file = lock_within(path, WAIT)
        with file:
            yield

    def _read(self, name: str, kind: type) -> dict[RunId, Any]:
        """What is stored for each run. What cannot be read counts as missing: then there is no consent."""
        return {run: value for run, value in (self._json(name) or {}).items() if isinstance(value, kind)}

    def _json(self, name: str) -> dict[RunId, Any] | None:
        """What a file has, by run; None if it cannot be read. Raises StorageFault."""
        path = self._folder / name
        with storing(path):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                data = b"{}"
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def _write(self, name: str, value: object) -> None:
        write(self._folder / name, json.dumps(value).encode())
