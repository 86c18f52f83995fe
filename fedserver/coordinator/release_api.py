"""The coordinator's interface for operators: releases and channels."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.runs import Run
from fedserver.coordinator.status import clusters_of, figures_of, of_spec
from fedserver.coordinator.status_types import (
    ReleaseEvaluation,
    ReleaseGroup,
    ReleaseStatus,
    ReleaseSummary,
    RolloutStatus,
    RunStatus,
)
from fedserver.coordinator.watching import watched
from fedserver.store.identities.records import DeviceStanding
from fedserver.store.integrity.redundancy import DamagedRow
from fedserver.store.records import Move, Standing
from fedserver.store.releases import STABLE, Card, ReleaseRecord
from shoal.core.errors import DataFault, NotFound
from shoal.core.exchange.messages import Evaluated
from shoal.core.types import DeviceId, ModelKey, RunId
from shoal.core.verdict import mean_with_error


class ReleaseApi:
    """All calls about releases. Access is controlled by the caller of this class. Raises only ShoalErrors."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator, self._storage = coordinator, coordinator.storage

    async def create(self, run: RunId, label: str = "") -> ReleaseSummary:
        """Make a release of a run as it is now, which is on disk on return. label: see `Published.create`."""
        self._coordinator.check_deciding()
        found = self._coordinator.runs.named(run)
        record = await self._coordinator.in_turn(self._coordinator.published.create(found, label))
        return (await self._summaries({record.card.release: record}))[0]

    async def use(self, release: str, channel: str = "", pinned: bool = False) -> list[Move]:
        """Let a channel, `stable` by default, have a release. Returns what the channel was given, oldest
        first."""
        self._coordinator.check_deciding()
        channel, published = channel or STABLE, self._coordinator.published
        await self._coordinator.in_turn(published.use(release, channel, pinned, "an operator chose it"))
        return (await self._storage.call(self._storage.releases.moves))[channel]

    async def try_out(
        self, release: str, channel: str, share: float, margin: float | None = None, pinned: bool = False
    ) -> list[Move]:
        """Let a share of a channel's devices try a release beside the one that it has: see `Rollouts.begin`.
        Returns what the channel was given, oldest first."""
        self._coordinator.check_deciding()
        channel, rollouts = channel or STABLE, self._coordinator.rollouts
        await self._coordinator.in_turn(rollouts.begin(release, channel, share, margin, pinned))
        return (await self._storage.call(self._storage.releases.moves))[channel]

    async def rollouts(self) -> list[RolloutStatus]:
        """The latest rollouts of all channels, newest first."""
        return await self._coordinator.rollouts.all()

    async def remove(self, name: str) -> None:
        """Delete a release that no channel has, or end a channel."""
        self._coordinator.check_deciding()
        await self._coordinator.in_turn(self._coordinator.published.remove(name))

    async def all(self) -> list[ReleaseSummary]:
        """All releases, newest first; one that cannot be read says why.

        A card takes milliseconds to read, and there may be thousands: other calls come in between.
        """
        found = dict[str, ReleaseRecord | str]()
        for name in await self._storage.call(self._storage.releases.names):
            try:
                found[name] = await self._storage.call(self._storage.releases.get, name)
            except NotFound:  # it was removed meanwhile
                continue
            except (DataFault, DamagedRow) as error:
                found[name] = str(error)
        return (await self._summaries(found))[::-1]

    async def channels(self) -> Mapping[str, list[Move]]:
        """For each channel what it was given, oldest first."""
        return await self._storage.call(self._storage.releases.moves)

    async def show(self, name: str = "") -> ReleaseStatus:
        """Everything about the release of this name, or of this channel. Raises NotFound, Refused."""
        release = await self._coordinator.published.named(name or STABLE)
        record = await self._storage.call(self._storage.releases.get, release)
        (summary,) = await self._summaries({release: record})
        certificate = self._coordinator.published.certificate
        measured = tuple(map(_evaluation, self._coordinator.published.measurements(release)))
        tried = tuple(each for each in await self.rollouts() if release in (each.old, each.new))
        status, card = _status(record.card), record.text.encode()
        return ReleaseStatus(summary, status, card, record.signature, certificate, measured, tried)

    async def _summaries(self, found: Mapping[str, ReleaseRecord | str]) -> list[ReleaseSummary]:
        channels = await self._storage.call(self._storage.releases.channels)
        standings = await self._storage.call(self._storage.journal.standings)
        said = await watched(self._storage)
        return [
            replace(_summary(name, each, channels, standings), watched=said.get(name, ()))
            for name, each in found.items()
        ]


def _summary(
    name: str,
    found: ReleaseRecord | str,
    channels: Mapping[str, Move],
    standings: Mapping[DeviceId, DeviceStanding],
) -> ReleaseSummary:
    having = tuple(channel for channel, move in channels.items() if move.release == name)
    if isinstance(found, str):
        return ReleaseSummary(name, channels=having, wrong=found)
    card = found.card
    accuracy, error = _mean(card.figures.values())
    return ReleaseSummary(
        name,
        card.run,
        card.made,
        card.progress,
        len(card.devices),
        _groups(card.clusters, card.figures),
        accuracy,
        error,
        found.authority,
        having,
        tuple(sorted(each for each in card.devices if standings.get(each) is DeviceStanding.REVOKED)),
        tuple(sorted(each for each in card.devices if standings.get(each) is DeviceStanding.WITHDRAWN)),
        numbers=card.verdict is not None and card.verdict.numbers,
    )


def _groups(
    clusters: Mapping[ModelKey, Sequence[DeviceId]], figures: Mapping[DeviceId, Evaluated]
) -> tuple[ReleaseGroup, ...]:
    return tuple(
        ReleaseGroup(key, len(own), *_mean(figures[each] for each in own if each in figures))
        for key, own in clusters.items()
        if own
    )


def _evaluation(run: Run) -> ReleaseEvaluation:
    figures = run.engine.state.metrics
    measured = {
        key: [each for each in own if each in figures] for key, own in clusters_of(run.engine.state).items()
    }
    return ReleaseEvaluation(run.run, run.ended, _groups(measured, figures), *_mean(figures.values()))


def _mean(figures: Iterable[Evaluated]) -> tuple[float | None, float]:
    measured = [(each.accuracy, each.examples) for each in figures]
    return mean_with_error(measured) if measured else (None, 0.0)


def _status(card: Card) -> RunStatus:
    """The run as it was."""
    where = {device: key for key, own in card.clusters.items() for device in own}
    summary = of_spec(
        card.run,
        card.spec,
        Standing.FINISHED.value,
        card.round,
        waiting_for=f"as released in {card.release}",
        cluster_count=sum(map(bool, card.clusters.values())),
        accuracy=_mean(card.figures.values())[0],
        progress=card.progress,
    )
    return RunStatus(
        summary,
        card.clusters,
        figures_of(where, card.figures, {}),
        models=card.models,
        released=card.released,
        central=card.central,
        spec=card.spec,
        verdict=card.verdict,
    )
