"""What devices have released, as far as the server has received it. It is displayed, and used for nothing
else.

The authoritative account is the ledger on each device (`fedclient.store.ledger`). A release that is sent
again is recognized by its hash, which the device's ledger contains too.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from hashlib import sha256

from fedserver.store.records import VOTE, ReleaseRecord
from fedserver.store.store import Storage
from shoal.core.errors import DiskFull
from shoal.core.exchange.link import run_of
from shoal.core.exchange.messages import Evaluate, Message, Summarize
from shoal.core.exchange.parts import (
    Ballot,
    Descriptor,
    Evidence,
    LatentBounds,
    NoisySums,
    Prototypes,
    Scores,
)
from shoal.core.exchange.payload import Part, Payload
from shoal.core.exchange.tensors import digest
from shoal.core.exchange.wire import payload_to_bytes
from shoal.core.privacy.cost import Cost, rho_of
from shoal.core.privacy.noise import response, vote
from shoal.core.privacy.report import OPEN, Statement, left_open
from shoal.core.types import DeviceId, RunId


async def record_parts(storage: Storage, run: RunId, device: DeviceId, parts: Iterable[Part]) -> None:
    """Record what the parts of a message have released. On a full disk only this record is lost."""
    await _write(storage, [each for part in parts if (each := _release(run, device, part)) is not None])


async def record_evidence(
    storage: Storage, run: RunId, device: DeviceId, evidence: Evidence, question: str = ""
) -> None:
    """Record what a newcomer has released for its placement. question: SHA-256 of what a vote was on."""
    if isinstance(evidence, Scores):
        await _write(storage, [ReleaseRecord(run, device, OPEN["figures"])])
    elif isinstance(evidence, Ballot):
        await _write(storage, [_vote(run, device, evidence, question)])
    else:
        await record_parts(storage, run, device, [evidence])


async def record_counts(storage: Storage, release: str, device: DeviceId) -> None:
    """Record that a device tells what it counts in a rollout of a release."""
    await _write(storage, [ReleaseRecord(run_of(release), device, OPEN["counts"])])


async def record_answer(storage: Storage, run: RunId, device: DeviceId, day: int) -> None:
    """Record what a device has paid for to say on this day whether its data have moved."""
    named, curve = sha256(f"{run} {device} {day}".encode()).hexdigest(), vote.cost(response.WATCHING).curve
    await _write(storage, [ReleaseRecord(run, device, VOTE + named, 0.0, Statement.delta, 1, curve)])


async def record_report(
    storage: Storage,
    run: RunId,
    device: DeviceId,
    task: Message,
    report: Payload,
    known: set[tuple[str, str]],
) -> None:
    """Record what the report of a task has released.

    known: pairs of a device of this run and a kind of release without a guarantee that are already recorded;
    new ones are added.
    """
    parts, private = report.parts, getattr(task, "private", None)
    found = [each for part in parts.values() if (each := _release(run, device, part)) is not None]
    opened = left_open(task)
    if isinstance(task, Summarize) and (parts.get("means") or parts.get("target")):
        opened = (OPEN["summary"],)
    left = [what for what in opened if (device, what) not in known]
    found += [ReleaseRecord(run, device, what) for what in left]
    curve = parts.get("curve")
    if private is not None and isinstance(curve, tuple):
        for weights in report.weights():
            cost = Cost(curve=tuple(float(each) for each in curve))  # type: ignore[arg-type]
            found.append(ReleaseRecord(run, device, weights.blob.sha256, 0.0, private.delta, 1, cost.curve))
    rho = parts.get("rho")
    if isinstance(task, Evaluate) and isinstance(rho, float):
        counted = sha256(f"{digest(task.model)}{task.part}".encode() + payload_to_bytes(report)).hexdigest()
        found.append(ReleaseRecord(run, device, counted, rho, Statement.delta))
    await _write(storage, found)
    known.update((device, what) for what in left)


async def _write(storage: Storage, found: Sequence[ReleaseRecord]) -> None:
    if found:
        with suppress(DiskFull):
            await storage.call(storage.journal.note_releases, found)


def _vote(run: RunId, device: DeviceId, ballot: Ballot, question: str) -> ReleaseRecord:
    """A device pays once for its answer to a question of a run. The same answer, sent again, is that one."""
    named = sha256(f"{run} {question} {ballot.epsilon!r} {ballot.cluster}".encode()).hexdigest()
    curve = vote.cost(ballot.epsilon).curve
    return ReleaseRecord(run, device, VOTE + named, 0.0, Statement.delta, 1, curve)


def _release(run: RunId, device: DeviceId, part: Part) -> ReleaseRecord | None:
    if isinstance(part, LatentBounds):
        return ReleaseRecord(run, device, "bounds")
    if isinstance(part, Prototypes):
        return ReleaseRecord(run, device, "prototypes")
    if not isinstance(part, Descriptor):
        return None
    if not isinstance(part.statistics, NoisySums):
        return ReleaseRecord(run, device, part.privacy.mode)
    data = payload_to_bytes(Payload("descriptor", {"descriptor": part}))
    asked = part.privacy
    cost = rho_of(part.statistics.sigma)
    return ReleaseRecord(run, device, sha256(data).hexdigest(), cost, asked.delta, asked.group_size)
