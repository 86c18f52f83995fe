"""What must be so after a trial: nothing acknowledged is lost or counted twice, and the models are true."""

import hashlib
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass, field
from signal import SIGTERM
from typing import Any

from fedserver.store.store import Store
from shoal.core.exchange.wire import payload_from_bytes
from shoal.core.server_kit.history.packed import unpack
from tests.chaos import work
from tests.chaos.fleet import Fleet
from tests.chaos.ledger import account
from tests.chaos.programs import marked
from tests.chaos.proxy import UP
from tests.chaos.trial import Trial

AGAIN = 5 << 19
"""Bytes of a result that a cut connection may cost: all of it, which is 2.4 MB. What is under way begins at
512 KiB and grows on a busy machine, where bytes wait as they do on a long line, so the server may not have
had the first piece of it. tests/e2e/test_bad_lines.py shows that at most one piece which it has had is sent
again. A kill cuts its connections."""
CONNECTION, SHARE = 64 << 10, 100
"""Framing: bytes for the handshake and the calls of a connection, and a share of what is carried."""
STOPPED = (0, -SIGTERM)
"""How a program may end after a signal; by the signal itself while it is still loading."""


@dataclass
class Facts:
    """Of one trial. acknowledged, lost, twice: see `ledger.Account`.

    equal: the models are those of the rounds that there were. undisturbed: no round went on without a device
    or was given up, so the models are those of a run without faults. resumed: seconds from the end of each
    fault to the next receipt of a device that it hit (of any, for the server). restarted: seconds from each
    start of the server to its first accepted call. resent: bytes that each device sent beyond those of its
    results, with all framing and all other calls. allowed: the most of these that is good, for a device of
    which connections were cut and nothing else was broken: AGAIN for each. cut: how many of them.
    """

    kind: str
    seed: int
    secure: bool
    algorithm: str
    strikes: list[dict[str, Any]]
    seconds: float = 0.0
    acknowledged: int = 0
    lost: int = 0
    twice: int = 0
    equal: bool = False
    undisturbed: bool = False
    resumed: list[float] = field(default_factory=list)
    restarted: list[float] = field(default_factory=list)
    resent: dict[str, int] = field(default_factory=dict)
    allowed: dict[str, int] = field(default_factory=dict)
    cut: dict[str, int] = field(default_factory=dict)
    exits: dict[str, list[int]] = field(default_factory=dict)
    missing: dict[int, dict[str, str]] = field(default_factory=dict)
    abandoned: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.problems


def examine(trial: Trial) -> Facts:
    """All checks of a trial whose run is over."""
    facts = Facts(
        trial.kind, trial.seed, trial.fleet.secure, trial.algorithm, [each.facts() for each in trial.strikes]
    )
    facts.seconds, facts.notes = round(time.monotonic() - trial.began, 3), trial.notes
    facts.problems += trial.wrong
    _count(trial, facts)
    _compare(trial, facts)
    _time(trial, facts)
    _look_at_exits(trial, facts)
    return facts


async def examine_fleet(fleet: Fleet) -> list[str]:
    """End a fleet in the orderly way; what was wrong with that, and with what it leaves."""
    codes = await fleet.stop()
    problems = [
        f"{name} ended with {code} when stopped" for name, code in codes.items() if code not in STOPPED
    ]
    if left := marked(fleet.mark):
        problems.append(f"processes are left: {', '.join(map(str, left))}")
    store = Store(fleet.state)
    try:
        if found := store.clean_up():
            problems.append(f"the stopped server's folder: {found}")
    finally:
        store.close()
    with closing(sqlite3.connect(fleet.state / "shoal.db")) as database:
        (sound,) = database.execute("PRAGMA integrity_check").fetchone()
        needed = [name for (name,) in database.execute("SELECT DISTINCT sha256 FROM needed_blobs")]
    if sound != "ok":
        problems.append(f"the database: {sound}")
    for name in needed:
        path = store.blobs.path(name)
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != name:
            problems.append(f"blob {name[:12]} is damaged or gone")
    return problems


def _count(trial: Trial, facts: Facts) -> None:
    """What the devices were sent, against what the database holds."""
    with closing(sqlite3.connect(f"file:{trial.fleet.state}/shoal.db?mode=ro", uri=True)) as database:
        database.row_factory = sqlite3.Row
        rows = database.execute("SELECT * FROM timeline WHERE run = ?", (trial.run,)).fetchall()
        stored = database.execute("SELECT * FROM reports WHERE run = ?", (trial.run,)).fetchall()
    rounds = {row["round"]: unpack(row["summary"], row["devices"]) for row in rows}
    facts.abandoned = {number: each.abandoned for number, each in rounds.items() if each.abandoned}
    facts.missing = {number: each.missing for number, each in rounds.items() if each.missing}
    facts.undisturbed = not facts.missing and not facts.abandoned
    receipts = {
        device.name: [each for each in device.receipts() if each["run"] == trial.run]
        for device in trial.fleet.devices.values()
    }
    reports = {(row["device"], row["round"]): _blobs_of(row["message"]) for row in stored}
    found = account(receipts, rounds, reports)
    facts.acknowledged, facts.lost, facts.twice = found.acknowledged, found.lost, found.twice
    facts.problems += found.problems


def _compare(trial: Trial, facts: Facts) -> None:
    """The models with those of the same rounds in the simulator."""
    assert trial.status is not None
    if trial.status.summary.stage != "finished":
        facts.problems.append(f"the run {trial.status.summary.stage}: {trial.status.summary.waiting_for}")
        return
    missing = {number: frozenset(names) for number, names in facts.missing.items()}
    ledgers = {device.name: device.ledger for device in trial.fleet.devices.values()}
    true = work.truth(trial.algorithm, trial.model_seed, ledgers, missing)
    facts.equal = {key: model.blob.sha256 for key, model in trial.status.models.items()} == true.models
    if not facts.equal:
        facts.problems.append("the models are not those of the rounds that the server says there were")
    for device in trial.fleet.devices.values():
        facts.resent[device.name] = trial.carried(device, UP) - true.up[device.name]
    _weigh(trial, facts, true)


def _weigh(trial: Trial, facts: Facts, true: work.Truth) -> None:
    """Whether more than AGAIN was sent again for each connection that was cut."""
    cuts = [strike for strike in trial.strikes if "cut" in strike.details]
    if len(cuts) < len(trial.strikes):
        return
    for strike in cuts:
        for name in true.up if "server" in strike.whom else strike.whom:
            facts.cut[name] = facts.cut.get(name, 0) + strike.details["cut"]
    for name, number in facts.cut.items():
        framing = true.up[name] // SHARE + (number + 1) * CONNECTION
        facts.allowed[name] = number * AGAIN + framing
        if facts.resent[name] > facts.allowed[name]:
            sizes = f"{facts.resent[name]} bytes, where {facts.allowed[name]} are good"
            facts.problems.append(f"{name} sent too much again after {number} cuts: {sizes}")


def _time(trial: Trial, facts: Facts) -> None:
    receipts = {device.name: device.receipts() for device in trial.fleet.devices.values()}
    for strike in (strike for strike in trial.strikes if strike.whom):
        names = set(receipts) if "server" in strike.whom else set(receipts) & set(strike.whom)
        times = [each["at"] for name in names for each in receipts[name] if each["at"] > strike.healed]
        facts.resumed.append(round(max(0.0, min([*times, trial.ended]) - strike.healed), 3))
    restarts = [each for each in trial.fleet.restarts if each.began > trial.began]
    facts.restarted = [round(each.seconds, 3) for each in restarts]


def _look_at_exits(trial: Trial, facts: Facts) -> None:
    programs = [trial.fleet.server, *(device.program for device in trial.fleet.devices.values())]
    for program in programs:
        codes = [end.code for end in program.ends if end.at > trial.began]
        if codes:
            facts.exits[program.name] = codes
        for code in set(codes) - trial.expected.get(program.name, set()):
            facts.problems.append(f"{program.name} ended with exit code {code}; see {program.log.name}")


def _blobs_of(message: bytes) -> str:
    """The names of the blobs of a stored payload, in one text."""
    return " ".join(weights.blob.sha256 for weights in payload_from_bytes(message).weights())
