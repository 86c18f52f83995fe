"""Rollouts: which devices of a channel try a new release beside the one that it has, and how that ends.

    a device follows the channel --> it is in the share: try this release, too --> it counts, and tells what
    it has counted when it follows the channel next --> `shoal.core.rollout` decides --> promoted, or stopped

What a device tells is stored in one transaction with what it decides. All counts only grow, so a report that
comes twice counts once, and one that is lost comes again in the next. Nothing of a rollout keeps a device
from its model: where it cannot be counted, as on a full disk, the device is placed as ever.
"""

import logging
import secrets
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace

from fedserver.coordinator.published import Published
from fedserver.coordinator.runs import InTurn
from fedserver.coordinator.status_types import RolloutStatus
from fedserver.store.integrity.redundancy import DamagedRow
from fedserver.store.journal import released
from fedserver.store.records import Rollout
from fedserver.store.releases import Card
from fedserver.store.store import Storage
from shoal.core.errors import BadPayload, ConfigError, DataFault, DiskFull, NotFound, Refused
from shoal.core.exchange.choosing import Counted
from shoal.core.exchange.link import Trial
from shoal.core.rollout import PROMOTED, STOPPED, Counts, Decision, Sum, decide, summed, takes_part
from shoal.core.types import DeviceId, ModelKey

log = logging.getLogger("shoal.server")

MARGIN = 0.01
"""By how much the accuracy may be lower in a cluster, if the operator does not say."""
DAY = 86400.0
"""Seconds after which a rollout that no labels reach needs a person."""

Rows = dict[DeviceId, tuple[ModelKey, Counts]]


class Rollouts:
    """The rollouts of a server.

    in_turn: runs work while no other work runs in turn. barred: devices whose counts do not count. decides:
    whether the server may decide anything at present.
    """

    def __init__(
        self,
        storage: Storage,
        published: Published,
        in_turn: InTurn,
        barred: Container[DeviceId],
        decides: Callable[[], bool],
    ) -> None:
        self._storage, self._published, self._in_turn = storage, published, in_turn
        self._barred, self._decides = barred, decides
        self._known: tuple[str, Rows] = "", {}
        self._cards: dict[str, Card] = {}
        self._over: dict[str, RolloutStatus] = {}
        self._said = set[tuple[str, DeviceId]]()

    # -- what operators do, in turn ----------------------------------------------------------------------

    async def begin(
        self, release: str, channel: str, share: float, margin: float | None, pinned: bool
    ) -> Rollout:
        """Let a share of a channel's devices try a release; or a larger share, if a rollout of it goes on.

        share: above 0, at most 1. margin: 0 to below 1; None: `MARGIN`, or as it was.

        Raises ConfigError, NotFound, and Refused where there is nothing to compare, or no way to.
        """
        if not 0.0 < share <= 1.0:
            raise ConfigError(f"a share of {100.0 * share:g} % is none", "use more than 0, and at most 100")
        if margin is not None and not 0.0 <= margin < 1.0:
            raise ConfigError(f"{100.0 * margin:g} points cannot be a margin", "use 0 to 99")
        releases = self._storage.releases
        new = await self._published.fitting(release, channel)
        present = (await self._storage.call(releases.channels)).get(channel)
        if present is None or present.release == new:
            why = "it has no release" if present is None else f"it has {new} already"
            raise Refused(
                f"there is nothing to try beside in channel {channel}: {why}",
                f"let all devices have it: fedserver release use {new} --channel {channel}",
            )
        old_card, new_card = await self._card(present.release), await self._card(new)
        for card in (old_card, new_card):
            if card.verdict is not None and card.verdict.numbers:
                raise Refused(
                    f"{card.release} predicts numbers, and a rollout counts which classes are right",
                    f"measure it first: fedserver run start --evaluate {new}",
                )
        going = await self._storage.call(releases.rollouts.going, channel)
        if going is None:
            margin = MARGIN if margin is None else margin
            name, now = secrets.token_hex(8), time.time()
            going = Rollout(name, channel, present.release, new, share, margin, now, pinned)
        elif going.new != new or share < going.share or margin not in (None, going.margin):
            raise Refused(
                f"a rollout of {going.new} goes on in channel {channel}, to {100.0 * going.share:g} % of the "
                f"devices, with a margin of {100.0 * going.margin:g} points",
                f"only its share can be made larger; end it with: fedserver release use {going.old} "
                f"--channel {channel}",
            )
        going = replace(going, share=share, pinned=pinned)
        await self._storage.when_space(releases.rollouts.begin, going)
        return going

    # -- what devices ask for ----------------------------------------------------------------------------

    async def visit(self, device: DeviceId, channel: str, counted: Counted) -> Trial | None:
        """Count what a device that follows a channel has counted, and say what it is to try now. Counts of a
        rollout that is over are dropped.

        Raises BadPayload for counts of a cluster that the channel's release does not have.
        """
        try:
            going = await self._going(channel)
            if going is None:
                return None
            if counted.rollout == going.rollout:
                known = (await self._rows(going)).get(device)
                if known is None or known[1] != counted.counts:
                    await self._in_turn(self._count(device, going, counted))
                    if (going := await self._going(channel)) is None:
                        return None
            return await self._trial(device, going)
        except (DamagedRow, DataFault, DiskFull, NotFound) as error:
            log.warning("channel %s: the rollout does not count %s: %s", channel, device, error)
            return None

    async def _trial(self, device: DeviceId, going: Rollout) -> Trial | None:
        """In the share; or one of a cluster that has no device in it yet, of which only the device knows."""
        rows, card = await self._rows(going), await self._card(going.old)
        if device in rows or takes_part(going.rollout, device, going.share, card.clusters):
            return Trial(going.rollout, going.new)
        taken = {cluster for cluster, _ in rows.values()}
        free = tuple(key for key in _clusters(card) if key not in taken)
        return Trial(going.rollout, going.new, free) if free else None

    async def _count(self, device: DeviceId, going: Rollout, counted: Counted) -> None:
        """In turn: store the counts of a device, and what they decide."""
        if await self._going(going.channel) != going or not self._decides() or self._storage.full:
            return
        rows, card = await self._rows(going), await self._card(going.old)
        earlier = rows.get(device)
        cluster = next((key for key, own in card.clusters.items() if device in own), counted.cluster)
        if earlier is not None:
            cluster = earlier[0]
            if counted.counts.falls_below(earlier[1]):
                if (going.rollout, device) not in self._said:
                    log.warning("device %s: its counts in a rollout fell, and are not counted", device)
                self._said.add((going.rollout, device))
                return
        elif cluster not in card.models:
            raise BadPayload(f"{going.old} has no cluster {cluster!r}", "update this device")
        elif not takes_part(going.rollout, device, going.share, card.clusters) and any(
            cluster == taken for taken, _ in rows.values()
        ):
            return
        rows = {**rows, device: (cluster, counted.counts)}
        found = decide(_by_cluster(card, rows), going.margin, len(card.models))
        ended = None
        if found.outcome:
            ended = await self._ended(going, found)
        await self._storage.call(self._storage.releases.count, going, device, cluster, counted.counts, ended)
        self._known = going.rollout, rows
        if earlier is None:
            await released.record_counts(self._storage, going.new, device)
        if ended is not None:
            log.info("channel %s: the rollout of %s: %s, %s", *_said(ended))

    async def _ended(self, going: Rollout, found: Decision) -> Rollout:
        """How it ends by its counts; a release that cannot be used any more is not promoted."""
        outcome, why = found.outcome, f"by its rollout, {found.why}"
        if outcome == PROMOTED:
            try:
                await self._published.fitting(going.new, going.channel)
            except (Refused, NotFound, DataFault, DamagedRow) as error:
                outcome, why = STOPPED, error.message
        return replace(going, ended=time.time(), outcome=outcome, why=why)

    # -- what is shown -----------------------------------------------------------------------------------

    async def all(self) -> list[RolloutStatus]:
        """The latest rollouts, newest first. What is said of one that has ended does not change any more."""
        latest = await self._storage.call(self._storage.releases.rollouts.latest)
        found = [self._over.get(each.rollout) or await self._status(each) for each in latest]
        self._over = {each.rollout: each for each in found if each.outcome}
        return found

    async def _status(self, each: Rollout) -> RolloutStatus:
        why, clusters = each.why, dict[ModelKey, Sum]()
        try:
            rows, card = await self._rows(each), await self._card(each.old)
        except (NotFound, DataFault, DamagedRow) as error:
            why = why or f"what was counted cannot be read: {error.message}"
        else:
            devices = _by_cluster(card, rows)
            why = why or decide(devices, each.margin, len(card.models)).why
            clusters = {key: summed(own, len(card.models)) for key, own in devices.items()}
        return RolloutStatus(**(vars(each) | {"why": why}), clusters=clusters)

    async def notices(self) -> list[str]:
        """Rollouts that need a person: the last one of a channel, if it was stopped by its counts, and those
        that no labels reach."""
        found, channels = list[str](), dict[str, RolloutStatus]()
        for each in await self.all():
            channels.setdefault(each.channel, each)
        moves = await self._storage.call(self._storage.releases.channels)
        for name, each in channels.items():
            head, use = (
                f"channel {name}: the rollout of {each.new}",
                f"fedserver release use --channel {name}",
            )
            is_old = not each.outcome and time.time() - each.began > DAY
            if each.outcome == STOPPED and name in moves and moves[name].at < each.ended:
                found.append(f"{head} was stopped {each.why}; to end this notice: {use} {each.old}")
            elif is_old and not all(cluster.labeled for cluster in each.clusters.values()):
                found.append(f"{head}: {each.why}; promote it: {use} {each.new}; go back: {use} {each.old}")
        return found

    # -- inside ------------------------------------------------------------------------------------------

    async def _going(self, channel: str) -> Rollout | None:
        return await self._storage.call(self._storage.releases.rollouts.going, channel)

    async def _rows(self, rollout: Rollout) -> Rows:
        """The counts of the devices that may still call; of the last rollout that goes on, they are kept."""
        if self._known[0] == rollout.rollout:
            found = self._known[1]
        else:
            found = await self._storage.call(self._storage.releases.rollouts.counts, rollout.rollout)
            standings = await self._storage.call(self._storage.journal.standings)
            ended = {name for name, each in standings.items() if each.ended}
            found = {device: row for device, row in found.items() if device not in ended}
            if not rollout.outcome and self._known[0] != rollout.rollout:
                self._known = rollout.rollout, found
        return {device: row for device, row in found.items() if device not in self._barred}

    async def _card(self, release: str) -> Card:
        """A card never changes."""
        if release not in self._cards:
            record = await self._storage.call(self._storage.releases.get, release)
            self._cards[release] = record.card
            while len(self._cards) > 8:
                del self._cards[next(iter(self._cards))]
        return self._cards[release]


def _said(over: Rollout) -> tuple[str, str, str, str]:
    return over.channel, over.new, over.outcome, over.why


def _clusters(card: Card) -> list[ModelKey]:
    """Those that have devices."""
    return [key for key, own in card.clusters.items() if own]


def _by_cluster(card: Card, rows: Rows) -> Mapping[ModelKey, Sequence[Counts]]:
    """What was counted in each cluster that has devices in the old release, or in the rollout."""
    found: dict[ModelKey, list[Counts]] = {key: [] for key in _clusters(card)}
    for cluster, counts in rows.values():
        found.setdefault(cluster, []).append(counts)
    return found
