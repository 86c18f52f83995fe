"""What must be so after a trial: nothing acknowledged is lost or counted twice, and the models are the true ones."""

import hashlib
import json
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from fedserver.store import Store
from tests.chaos import work
from tests.chaos.fleet import Fleet
from tests.chaos.programs import marked
from tests.chaos.proxy import UP
from tests.chaos.trial import Trial

CHUNK = 1 << 20
COUNTED = ("accepted", "duplicate")
"""Receipts that say that a report counts."""


@dataclass
class Facts:
    """Of one trial. acknowledged: reports that a device has a receipt for. lost: those of them that did not
    count. twice: reports that were accepted more than once.

    equal: the models are those of the rounds that there were. undisturbed: no round went on without a device or
    was given up, so the models are those of a run without faults. resumed: seconds from the end of each fault to the
    next receipt of a device that it hit (of any, for the server). restarted: seconds from each start of the
    server to its first accepted call. resent: bytes that each device sent beyond those of its results.
    """

    kind: str
    seed: int
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
    facts = Facts(trial.kind, trial.seed, trial.algorithm, [each.facts() for each in trial.strikes])
    facts.seconds, facts.notes = time.monotonic() - trial.began, trial.notes
    _count(trial, facts)
    _compare(trial, facts)
    _time(trial, facts)
    _look_at_exits(trial, facts)
    return facts


async def examine_fleet(fleet: Fleet) -> list[str]:
    """End a fleet in the orderly way; what was wrong with that, and with what it leaves."""
    codes = await fleet.stop()
    problems = [f"{name} ended with exit code {code} when it was stopped" for name, code in codes.items() if code]
    if left := marked(fleet.mark):
        problems.append(f"processes are left: {', '.join(map(str, left))}")
    store = Store(fleet.state)
    try:
        if found := store.scrub():
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
    """What the devices were told against what the database holds."""
    rounds, rows = _database(trial.fleet, trial.run)
    facts.abandoned = {number: row["abandoned"] for number, row in rounds.items() if row["abandoned"]}
    facts.missing = {number: row["missing"] for number, row in rounds.items() if row["missing"]}
    accepted: dict[tuple[str, int], int] = {}
    acknowledged: dict[tuple[str, int], list[str]] = {}
    for device in trial.fleet.devices.values():
        for receipt in device.receipts():
            if receipt["run"] != trial.run or receipt["failed"] or receipt["outcome"] not in COUNTED:
                continue
            key = (device.name, receipt["round"])
            acknowledged[key] = receipt["blobs"]
            accepted[key] = accepted.get(key, 0) + (receipt["outcome"] == "accepted")
    facts.acknowledged = len(acknowledged)
    facts.twice = sum(times > 1 for times in accepted.values())
    oldest = min((number for _, number in rows), default=0)
    for (device_name, number), blobs in sorted(acknowledged.items()):
        row = rounds.get(number)
        if row is not None and row["abandoned"]:
            continue  # the round came to nothing, and says so
        stored = rows.get((device_name, number), "")
        here = number < oldest or (stored and all(blob in stored for blob in blobs))
        if row is None or device_name in row["missing"] or not here:
            facts.lost += 1
            facts.problems.append(f"lost: the report of {device_name} in round {number}")
    for number, row in rounds.items():
        if row["reported"] + len(row["missing"]) != row["asked"]:
            facts.problems.append(f"round {number} asked {row['asked']} and counted {row['reported']}")
        kept = sum(of == number for _, of in rows)
        if number >= oldest and not row["abandoned"] and kept != row["reported"]:
            facts.problems.append(f"round {number} counted {row['reported']} reports and {kept} are stored")
    if facts.twice:
        facts.problems.append(f"{facts.twice} reports were accepted twice")


def _compare(trial: Trial, facts: Facts) -> None:
    assert trial.status is not None
    if trial.status.summary.stage != "finished":
        facts.problems.append(f"the run {trial.status.summary.stage}: {trial.status.summary.waiting_for}")
        return
    missing = {number: frozenset(names) for number, names in facts.missing.items()}
    true = work.truth(trial.algorithm, trial.model_seed, missing)
    facts.equal = {key: model.blob.sha256 for key, model in trial.status.models.items()} == true.models
    facts.undisturbed = not facts.missing and not facts.abandoned
    if not facts.equal:
        facts.problems.append("the models are not those of the rounds that the server says there were")
    for device in trial.fleet.devices.values():
        facts.resent[device.name] = trial.carried(device, UP) - true.up[device.name]


def _time(trial: Trial, facts: Facts) -> None:
    receipts = {device.name: device.receipts() for device in trial.fleet.devices.values()}
    for strike in trial.strikes:
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
            facts.problems.append(f"{program.name} ended with exit code {code}; see {program.log}")


def _database(fleet: Fleet, run: str) -> tuple[dict[int, dict[str, Any]], dict[tuple[str, int], str]]:
    """The rounds of a run by number, and the reports that are still there by device and round, as JSON."""
    with closing(sqlite3.connect(f"file:{fleet.state}/shoal.db?mode=ro", uri=True)) as database:
        database.row_factory = sqlite3.Row
        rounds = {}
        for row in database.execute("SELECT * FROM rounds WHERE run = ?", (run,)):
            rounds[row["round"]] = {**dict(row), "missing": json.loads(row["missing"])}
        rows = {}
        for row in database.execute("SELECT device, round, payload FROM reports WHERE run = ?", (run,)):
            rows[row["device"], row["round"]] = row["payload"]
    return rounds, rows
