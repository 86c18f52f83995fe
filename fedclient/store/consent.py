"""The owner's consent, run by run, to what leaves without a privacy guarantee.

<state>/consent/asked.json   {"RUN": {"WHAT": seconds since 1970}}: what runs asked for, the newest run last
<state>/consent/given.json   {"RUN": ["WHAT", ...]}, or ["*"]: to everything that the run asks for

The training process writes only the first file, and `fedclient consent` only the second. Without consent
nothing of the kind leaves: the run learns that the owner has not consented, and goes on without the device.
"""

import json
import time
from collections.abc import Mapping
from pathlib import Path

from shoal.core.errors import NotFound
from shoal.core.types import RunId
from shoal.shell.disk import make_folder, storing, write

ASKED, GIVEN = "asked.json", "given.json"
EVERYTHING = "*"
RUNS = 100
"""Runs whose requests are kept: a hostile server must not fill the disk with names."""


class Consents:
    """The consent that is kept in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def asked(self) -> dict[RunId, dict[str, float]]:
        """What each run has asked for, and when it first did. Raises StorageFault."""
        found = self._read(ASKED)
        return {run: {what: float(at) for what, at in whats.items()} for run, whats in found.items()}

    def given(self) -> dict[RunId, list[str]]:
        """What each run may have. Raises StorageFault."""
        return {run: list(whats) for run, whats in self._read(GIVEN).items()}

    def allows(self, run: RunId, what: str) -> bool:
        """Whether the owner has consented that this leaves for this run; if not, the request is kept."""
        if {what, EVERYTHING} & set(self.given().get(run, ())):
            return True
        asked = self.asked()
        if what not in asked.get(run, {}):
            asked[run] = {**asked.pop(run, {}), what: time.time()}
            self._write(ASKED, dict(list(asked.items())[-RUNS:]))
        return False

    def give(self, run: RunId, everything: bool = False) -> list[str]:
        """Consent to what the run has asked for so far, or to everything that it may ask for.

        Returns what it now may have. Raises NotFound for a run that has asked for nothing.
        """
        known = self.asked()
        if run not in known and not everything:
            raise NotFound(
                f"run {run!r} has asked for nothing that takes your consent",
                f"runs that have: {', '.join(known) or 'none'}; --everything consents in advance",
            )
        given = self.given()
        given[run] = sorted({*given.get(run, ()), *known.get(run, {}), *([EVERYTHING] if everything else ())})
        self._write(GIVEN, given)
        return given[run]

    def revoke(self, run: RunId) -> None:
        """Take consent back: nothing more leaves. Raises NotFound if none was given."""
        given = self.given()
        if run not in given:
            raise NotFound(f"you have not consented to run {run!r}", f"given: {', '.join(given) or 'none'}")
        del given[run]
        self._write(GIVEN, given)

    def _read(self, name: str) -> Mapping[str, Mapping[str, float]]:
        """An unreadable file counts as empty: then there is no consent."""
        path = self._folder / name
        with storing(path):
            data = path.read_bytes() if path.exists() else b"{}"
        try:
            found = json.loads(data)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def _write(self, name: str, value: object) -> None:
        with storing(self._folder):
            make_folder(self._folder)
        write(self._folder / name, json.dumps(value).encode())
