"""What `fedclient.placing.watching` has found out about the device's data, as it is kept in the state folder.

It stands apart from what compares, so that `fedclient status` does not load the code that places devices.
"""

import time
from dataclasses import dataclass
from pathlib import Path

from fedclient.store.state import read_json
from shoal.core.data.from_json import value_of
from shoal.core.errors import ShoalError
from shoal.core.exchange.choosing.watching import Moved

FOLDER, STATE = "watch", "state.json"
CAVEAT = ", which is too low for data that differ from week to week by themselves, as prices do"
"""Of p: see "When data drift" in docs/results.md."""


@dataclass(frozen=True)
class Findings:
    """What is known of the device's data. Times are seconds since 1970, 0 for never.

    subject: the release, or else the run, whose model it has. cluster: of that model. reference: the name of
    its file; "" for none yet. taken: when. looked: when it was compared last. chance: how probable so large a
    difference is by chance. fresh: how many samples were new. since: when the data were first found to have
    moved; 0: they have not. due: when the next answer is. waiting: what the next request is to say. trouble:
    why nothing was compared or paid; "" if it was.
    """

    subject: str = ""
    cluster: str = ""
    reference: str = ""
    taken: float = 0.0
    looked: float = 0.0
    chance: float = 1.0
    fresh: int = 0
    since: float = 0.0
    due: float = 0.0
    waiting: Moved | None = None
    trouble: str = ""


def findings_in(state: Path) -> Findings:
    """What was found last by the device whose state folder this is; nothing where that cannot be read."""
    try:
        found: Findings = value_of(Findings, read_json(state / FOLDER / STATE))
        return found
    except (ValueError, TypeError, KeyError, ShoalError):
        return Findings()


def line(found: Findings) -> str:
    """For people."""
    if not found.reference:
        return found.trouble or "not watched"
    when = time.strftime("%Y-%m-%d", time.localtime(found.since or found.taken))
    by = f"{found.fresh} new samples, p {found.chance:.3f}"
    said = f"others since {when} than the model was chosen for" if found.since else f"as on {when}"
    doubt = CAVEAT if found.since else ""
    return f"{said} ({by}{doubt})" + (f"; {found.trouble}" if found.trouble else "")
