"""What must hold whatever happens, looked at after every commit, at every answer, and at the end.

I1  a report that was acknowledged is on disk, stays, and counts once, or its round is abandoned
I2  the next state is what the algorithm makes of the last one and of the reports that count, bit for bit
I3  what counts was made by that device, for that round, from that round's models
I4  nothing counts of a device after its identity was ended
I6  once faults stop, every run comes to its end; it fails only after too many abandoned rounds in a row
I7  what is kept is what is needed; nothing grows with the number of crashes
I8  the audit log is whole
and: rounds and standings never go back, no run gets lost, no device is blamed for what others did, no report
gets two different answers.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedserver.store.content.spool import Spool
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1.device_service_pb2 import ReportRequest
from shoal.core.exchange.link import Failure, Outcome, Task
from shoal.core.exchange.messages import Message
from shoal.core.exchange.payload import Payload
from shoal.core.exchange.wire import payload_from_bytes, payload_to_bytes
from shoal.core.server_kit.history.packed import unpack
from shoal.core.types import DeviceId, RunId, Tensors
from tests.histories.database import Looked
from tests.histories.devices import base_of
from tests.histories.expected import Expected
from tests.histories.plan import Plan as WorldPlan

Key = tuple[RunId, int, DeviceId]
OWN_FAULTS = ("it failed:", "its report was refused:")


class Violation(AssertionError):
    """An invariant does not hold."""


def check(holds: object, what: str) -> None:
    if not holds:
        raise Violation(what)


class Invariants:
    """Watches one server's database and folder, and what is said on the network."""

    def __init__(self, plan: WorldPlan, looked: Looked, initial: Tensors | None) -> None:
        self._world, self._looked, self._initial = plan, looked, initial
        self._specs = {run.name: run for run in plan.runs}
        self.runs: dict[RunId, Expected] = {}
        self.counted: dict[Key, bytes] = {}
        self.acknowledged: set[Key] = set()
        self.started: set[RunId] = set()
        self.revoked: set[DeviceId] = set()
        self.missed = 0
        self._performed: dict[Key, list[tuple[Payload, Message, str]]] = {}
        self._seen = 0

    # -- what devices did, and were sent --------------------------------------------------------------------

    def performed(
        self, device: DeviceId, task: Task, message: Message, payload: Payload, reply: Message
    ) -> None:
        made = self._performed.setdefault((task.run, task.round, device), [])
        made.append((payload, reply, base_of(message)))

    def answered(self, path: str, device: DeviceId, request: bytes, response: Any) -> None:
        """The server has answered a call."""
        if not path.endswith("/Report"):
            return
        report = wire.report_from_pb(ReportRequest.FromString(request).report)
        receipt = wire.receipt_from_pb(response.receipt)
        key = (report.run, report.round, device)
        if isinstance(report.result, Failure):
            return
        if receipt.outcome in (Outcome.ACCEPTED, Outcome.DUPLICATE):
            check(key in self.counted, f"I1: {key} was acknowledged before it was on disk")
            self.acknowledged.add(key)
        stood = self.runs.get(report.run)
        if receipt.outcome is Outcome.LATE and stood is not None and report.round + 2 > stood.round:
            check(key not in self.counted, f"I1: {key} counts, and was called late: {receipt.reason}")
        known = "twin" in self._world.troubles or receipt.reason == "the device was revoked"
        check(known or receipt.outcome is not Outcome.REFUSED, f"{key} was refused: {receipt.reason}")

    # -- the database ---------------------------------------------------------------------------------------

    def look(self) -> None:
        """Compare what was committed since the last look with what had to be."""
        try:
            version = self._looked.version()
            if version == self._seen:
                return
            self._seen, rows = version, self._looked.query("SELECT * FROM runs")
        except self._looked.not_yet:  # the tables are being made
            return
        for row in rows:
            self._look_at(row)
        ended = self._looked.query("SELECT device FROM identities WHERE standing = 'revoked'")
        self.revoked = {row["device"] for row in ended}

    def close(self) -> None:
        self._looked.close()

    def _look_at(self, row: Any) -> None:
        run: RunId = row["run"]
        expected = self.runs.get(run)
        if expected is None:
            expected = self.runs[run] = Expected(self._specs[run], self._initial)
            self._compare(run, expected)
        check(
            row["round"] in (expected.round, expected.round + 1),
            f"{run}: round {expected.round}, then {row['round']}",
        )
        check(
            expected.standing in ("active", row["standing"]), f"{run}: it was {expected.standing}, is not now"
        )
        if row["round"] > expected.round:
            self._close(run, expected)
        expected.standing = row["standing"]
        asked = json.loads(row["asked"])
        first, later = (
            [each for each in asked if isinstance(each, str)],
            [e for e in asked if isinstance(e, list)],
        )
        for group in (first, *later)[expected.groups :] if asked else ():
            expected.ask(group)
        self._count(run, expected)

    def _close(self, run: RunId, expected: Expected) -> None:
        stored = self._one("SELECT * FROM timeline WHERE run = ? AND round = ?", run, expected.round)
        closed = unpack(stored["summary"], stored["devices"])
        abandoned, missing = bool(closed.abandoned), closed.missing
        self.missed += len(missing) + abandoned
        if self._world.blameless:
            blamed = {device: why for device, why in missing.items() if why.startswith(OWN_FAULTS)}
            check(not blamed, f"{run}: devices are blamed that did nothing wrong: {blamed}")
        if not abandoned:
            check(closed.reported == len(expected.reports), f"I1: {run}: {closed}")
        expected.close(abandoned)
        self._compare(run, expected)

    def gave_up(self, run: RunId) -> bool:
        """Whether a run has failed for the reason for which it has to: too many abandoned rounds in a row."""
        expected, most = self.runs[run], self._specs[run].policy.max_abandoned_rounds
        return expected.standing == "failed" and expected.abandoned_in_a_row == most

    def compare_with_simulation(self) -> int:
        """How many runs had the same devices in all rounds: they end as without faults, bit by bit."""
        compared = 0
        for run, expected in self.runs.items():
            simulated = None if self._world.fresh else expected.simulated(self._world.values)
            if simulated is not None:
                check(simulated == expected.structure(), f"I2: {run}: without faults it ends otherwise")
                compared += 1
        return compared

    def _compare(self, run: RunId, expected: Expected) -> None:
        stored = self._one(
            "SELECT structure FROM checkpoints WHERE run = ? AND round = ?", run, expected.round
        )
        found = json.dumps(json.loads(stored["structure"]), sort_keys=True)
        what = f"I2: {run}: the state before round {expected.round} is another one"
        check(found == expected.structure(), what)

    def _count(self, run: RunId, expected: Expected) -> None:
        query = "SELECT * FROM reports WHERE run = ? AND round = ? ORDER BY device"
        rows = self._looked.query(query, run, expected.round)
        found = {row["device"]: row["message"] for row in rows}
        for device, payload in expected.rows.items():
            check(found.get(device) == payload, f"I1: {run}: the report of {device} counted and is gone")
        for device in sorted(found.keys() - expected.rows.keys()):
            self._add(run, expected, device, found[device])

    def _add(self, run: RunId, expected: Expected, device: DeviceId, data: bytes) -> None:
        key = (run, expected.round, device)
        check(device in expected.plan.tasks, f"I3: {key} counts, and has no task")
        check(device not in self.revoked, f"I4: {key} counts, and its identity was ended before")
        payload = payload_from_bytes(data)
        base = base_of(expected.plan.tasks[device])
        performed = self._performed.get(key, [])
        made = [message for each, message, of in performed if of == base and payload_to_bytes(each) == data]
        check(made, f"I3: {key} counts, and was not made from this round's models")
        for weights in payload.weights():
            name = weights.blob.sha256
            check(
                self._sound(name) or name in self._spooled(), f"I1: {key} counts, and its blob is not whole"
            )
        expected.rows[device], expected.reports[device] = data, made[0]
        self.counted[key] = data

    def _one(self, query: str, *values: Any) -> Any:
        rows = self._looked.query(query, *values)
        check(rows, f"{query} {values}: nothing is there")
        return rows[0]

    def _sound(self, name: str) -> bool:
        path = self._looked.folder / "blobs" / name[:2] / name
        return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == name

    def _spooled(self) -> set[str]:
        """The blobs that the next start makes whole again before it reads any: after a power cut that came
        between a commit and now, the file of a blob may be torn, and the spool has its bytes."""
        return {name for name, _ in Spool(self._looked.folder / "spool").entries()}

    # -- the folders ----------------------------------------------------------------------------------------

    def rest(self, folders: Mapping[DeviceId, Path], kept: int) -> None:
        """At the end: what is kept is what is needed. kept: bytes that a device may keep of blobs."""
        self.look()
        folder = self._looked.folder
        check(self.acknowledged <= self.counted.keys(), "I1: an acknowledged report never counted")
        needed = {row["sha256"] for row in self._looked.query("SELECT sha256 FROM needed_blobs")}
        found = {path.name for path in (folder / "blobs").glob("??/*")}
        check(found == needed, f"I7: {len(found - needed)} blobs too many, {len(needed - found)} too few")
        check(all(self._sound(name) for name in found), "I7: a blob is damaged")
        copies = {path.name for path in (folder / "copies").glob("??/*")}
        check(copies <= needed, f"I7: {len(copies - needed)} copies too many")
        left = [*(folder / "tmp").iterdir(), *(folder / "partial").glob("*/*")]
        check(not left, f"I7: left behind: {left}")
        for device, folder in folders.items():
            check(len(list(folder.glob("outbox/*"))) <= 1, f"I7: {device} has more than one result")
            size = sum(path.stat().st_size for path in folder.glob("blobs/*"))
            check(size <= kept, f"I7: {device} keeps {size} bytes")
            loose = list(folder.glob("**/.writing-*"))
            check(len(loose) <= 1, f"I7: {device} has {len(loose)} unfinished files")
