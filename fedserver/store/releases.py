"""Releases: the models of runs as they were at one moment, for good, and the channels that name those in use.

    release   RUN@LABEL --> the state of the run, its card, and a signature over the card
    channel   NAME --> a release, and those that it had before

A release has the structure of a checkpoint of its own, and so the blobs of it: whatever becomes of the run's
own checkpoints, no blob of a release is deleted before the release is. A card never changes.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from fedserver.store.content.blobs import References
from fedserver.store.database import RESTORE, Database, Row, from_text, record_of, to_text
from fedserver.store.identities.audit import AuditLog, Event
from fedserver.store.integrity.redundancy import DamagedRow
from fedserver.store.records import Move, Rollout, RunSpec
from fedserver.store.rollouts import Rollouts
from shoal.core.engine.checkpoint import Structure, blobs_of
from shoal.core.errors import DataFault, NotFound, near
from shoal.core.exchange.link import AT
from shoal.core.exchange.messages import Evaluated
from shoal.core.exchange.payload import Weights
from shoal.core.privacy.report import CentralNoise, Statement
from shoal.core.rollout import PROMOTED, WITHDRAWN, Counts
from shoal.core.types import DeviceId, ModelKey, RunId
from shoal.core.verdict import Verdict
from shoal.shell import crash

STABLE = "stable"
"""The channel that newcomers follow who name nothing else."""
PURPOSE = b"shoal release card 1\\0"
"""What precedes a card where it is signed: no certificate begins so, and the same keys sign certificates."""


@dataclass(frozen=True)
class Card:
    """What is known of a release. Its bytes are what is signed.

    release: its name. made: seconds since 1970. round, progress: of the run, and of them the rounds of
    training that were complete. state: the SHA-256 of the structure of its state. clusters: the devices of
    each. figures: what each device measured last. models: the blob of each. verdict: whether anything was
    learned. released: what each device had released in the run. central: what the server's noise promises.
    """

    release: str
    run: RunId
    spec: RunSpec
    made: float
    round: int
    progress: int
    state: str
    clusters: Mapping[ModelKey, tuple[DeviceId, ...]]
    figures: Mapping[DeviceId, Evaluated]
    models: Mapping[ModelKey, Weights]
    verdict: Verdict | None = None
    released: Mapping[DeviceId, Statement] = field(default_factory=dict)
    central: CentralNoise | None = None

    @property
    def devices(self) -> set[DeviceId]:
        """Those that took part in its training."""
        return {*self.figures, *self.released, *(device for own in self.clusters.values() for device in own)}

    @property
    def text(self) -> str:
        """As a new one is stored and signed."""
        return to_text(Card, self)


@dataclass(frozen=True)
class ReleaseRecord:
    """A release as it is stored. structure: of the state. authority, signature: SHA-256 of the public
    key that signed the card, in hexadecimal, and its signature; "" and b"" on a server without certificates.
    signed: the card's text as it was signed, by a version whose cards may have had fewer fields; "" for a new
    one.
    """

    card: Card
    structure: Structure
    authority: str = ""
    signature: bytes = b""
    signed: str = ""

    @property
    def text(self) -> str:
        """Of the card, as it is stored and signed."""
        return self.signed or self.card.text

    @property
    def blobs(self) -> set[str]:
        """The SHA-256 of every blob that it needs, the graph's included."""
        graph = self.card.spec.graph
        return blobs_of(self.structure) | ({graph} if graph else set())


class Releases:
    """All releases and channels of a server, and their rollouts."""

    def __init__(self, database: Database, references: References, audit: AuditLog) -> None:
        self._db, self._references, self._audit = database, references, audit
        self.rollouts = Rollouts(database, audit)

    def add(self, new: ReleaseRecord) -> None:
        """Store a release."""
        with self._db.transaction():
            self.insert(new)
        crash.point("server.release-stored")

    def insert(self, new: ReleaseRecord, move: Move | None = None) -> None:
        """Inside a transaction: the same, and let a channel have it. move: what the channel is given."""
        card = new.card
        whose = {"release": card.release, "run": card.run}
        proof = {"authority": new.authority, "signature": new.signature}
        stored = {"card": new.text, "structure": json.dumps(new.structure)}
        self._db.insert("model_releases", {**whose, **stored, **proof})
        for name in sorted(new.blobs):
            self._db.insert("release_blobs", {**whose, "sha256": name})
        digest = hashlib.sha256(new.text.encode()).hexdigest()
        self._audit.record(Event.RELEASE_MADE, release=card.release, run=card.run, card=digest)
        if move is not None:
            self._move(move)
        crash.point("server.release-committing")

    def use(self, move: Move) -> None:
        """Let a channel have another release, or none."""
        with self._db.transaction():
            self._move(move)
        crash.point("server.channel-moved")

    def count(
        self,
        going: Rollout,
        device: DeviceId,
        cluster: ModelKey,
        counts: Counts,
        ended: Rollout | None = None,
    ) -> None:
        """Store what a device has counted in a rollout, and how the rollout ends by that, if it does."""
        with self._db.transaction():
            self.rollouts.note(going, device, cluster, counts)
            if ended is not None and ended.outcome == PROMOTED:
                self._move(Move(ended.channel, ended.new, ended.pinned, ended.ended, ended.why))
            elif ended is not None:
                ((at,),) = self._db.query("SELECT max(at) FROM channels WHERE channel = ?", (ended.channel,))
                later = math.nextafter(at or 0.0, math.inf)  # whatever the clock says, as in _move
                self.rollouts.end(replace(ended, ended=max(ended.ended, later)))
            crash.point("server.counts-committing")
        crash.point("server.counts-stored")

    def get(self, release: str) -> ReleaseRecord:
        """One release. Raises NotFound; DataFault or DamagedRow if its row cannot be read."""
        rows = self._db.rows("model_releases", "WHERE release = ?", (release,))
        if not rows:
            raise NotFound(f"there is no release {release!r}", near(release, self.names()))
        return _release_of(rows[0])

    def names(self, run: RunId = "") -> list[str]:
        """The names of all releases, or of those of one run, oldest first."""
        query = "SELECT release FROM model_releases WHERE ? IN ('', run) ORDER BY rowid"
        return [name for (name,) in self._db.query(query, (run,))]

    def has(self, release: str) -> bool:
        """Whether there is a release of this name."""
        return bool(self._db.query("SELECT 1 FROM model_releases WHERE release = ?", (release,)))

    def taken(self, run: RunId) -> list[str]:
        """The names that releases of a run have or had: no other release gets that of one that was removed,
        by which devices and measurements still know it."""
        removed = [row["run"] for row in self._db.rows("removed", "ORDER BY run")]
        return [*self.names(run), *(name for name in removed if name.startswith(f"{run}{AT}"))]

    def moves(self) -> dict[str, list[Move]]:
        """For each channel what it was given, oldest first; the last is what it has now."""
        found: dict[str, list[Move]] = {}
        for move in map(_move_of, self._db.rows("channels", "ORDER BY number")):
            found.setdefault(move.channel, []).append(move)
        return found

    def latest(self) -> dict[str, Move]:
        """What each channel was given last, which may be no release."""
        last = "WHERE number IN (SELECT max(number) FROM channels GROUP BY channel) ORDER BY number"
        return {move.channel: move for move in map(_move_of, self._db.rows("channels", last))}

    def last_of(self, channel: str) -> Move | None:
        """What a channel was given last; None if it was never given any. Devices that follow a channel ask
        for this every minute, and a channel gets a move from each run that finishes."""
        rows = self._db.rows("channels", "WHERE channel = ? ORDER BY number DESC LIMIT 1", (channel,))
        return _move_of(rows[0]) if rows else None

    def channels(self) -> dict[str, Move]:
        """What each channel has now; those that have none are left out."""
        return {name: move for name, move in self.latest().items() if move.release}

    def remove(self, releases: Sequence[str]) -> None:
        """Delete releases, which no channel may have now."""
        with self._db.transaction():
            before = self.erase(releases)
            for name in releases:
                self._db.insert("removed", {"run": name}, "ON CONFLICT DO NOTHING")
        self._references.remove_unneeded(before)

    def erase(self, releases: Sequence[str]) -> set[str]:
        """Inside a transaction: the same. Returns the blobs that may not be needed any more."""
        before: set[str] = set()
        for name in releases:
            query = "SELECT sha256 FROM release_blobs WHERE release = ?"
            before |= {blob for (blob,) in self._db.query(query, (name,))}
            self._db.execute("DELETE FROM model_releases WHERE release = ?", (name,))
            self._audit.record(Event.RELEASE_REMOVED, release=name)
        return before

    def _move(self, move: Move) -> None:
        """Whatever a channel is given, that ends its rollout; one that cannot be read is none."""
        with suppress(DamagedRow):
            if (going := self.rollouts.going(move.channel)) is not None:
                outcome = PROMOTED if move.release == going.new else WITHDRAWN
                self.rollouts.end(replace(going, ended=move.at, outcome=outcome, why=move.why))
        # A clock that was set back must not let a move seem to be older than the rollout that it came after.
        ((ended,),) = self._db.query("SELECT max(ended) FROM rollouts WHERE channel = ?", (move.channel,))
        move = replace(move, at=max(move.at, ended or 0.0))
        self._db.execute(
            "INSERT INTO channels (number, channel, release, pinned, at, why)"
            " SELECT coalesce(max(number), 0) + 1, ?, ?, ?, ?, ? FROM channels",
            (move.channel, move.release, int(move.pinned), move.at, move.why),
        )
        facts = {"channel": move.channel, "release": move.release, "pinned": move.pinned, "reason": move.why}
        self._audit.record(Event.CHANNEL_MOVED, **facts)


def _move_of(row: Row) -> Move:
    return record_of(Move, row, pinned=bool(row["pinned"]))


def _release_of(row: Row) -> ReleaseRecord:
    try:
        card = from_text(Card, row["card"])
        structure, signature = json.loads(row["structure"]), bytes(row["signature"])
        return ReleaseRecord(card, structure, row["authority"], signature, row["card"])
    except (ValueError, TypeError, DataFault) as error:
        raise DataFault(f"release {row['release']} cannot be read: {error}", RESTORE) from None
