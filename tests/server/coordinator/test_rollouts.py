"""Rollouts in a coordinator: who is asked to try what, what is counted, and how they end and last."""

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.device_api import DeviceApi
from fedserver.coordinator.operator_api import OperatorApi
from fedserver.coordinator.release_api import ReleaseApi
from fedserver.coordinator.status_types import RolloutStatus
from fedserver.store.identities.audit import Event
from shoal.core.errors import BadPayload, ConfigError, Refused
from shoal.core.exchange.choosing import Counted, Wish
from shoal.core.exchange.link import Trial
from shoal.core.rollout import PROMOTED, STOPPED, WITHDRAWN, Counts
from tests.server.coordinator.test_releases import given, served, trained
from tests.server.coordinator.test_run_changes import events
from tests.server.servers import scenario, server, start

BETTER = Counts(2000, 1900, 1000, 700, 900, 680)
WORSE = Counts(2000, 1900, 1000, 900, 700, 680)
OLD, NEW = "first@3", "second@3"


async def follow(coordinator: Coordinator, device: str, counted: Counted | None = None) -> Trial | None:
    """Ask for the channel's release, as a device that follows it; what it is to try."""
    link = DeviceApi(coordinator, device)
    return (await link.place("", Wish(4, counted=counted or Counted()))).trial


async def tell(coordinator: Coordinator, device: str, counts: Counts, rollout: str = "") -> Trial | None:
    rollout = rollout or (await latest(coordinator)).rollout
    return await follow(coordinator, device, Counted(rollout, "global", counts))


async def latest(coordinator: Coordinator) -> RolloutStatus:
    return (await ReleaseApi(coordinator).rollouts())[0]


async def ready(coordinator: Coordinator, share: float = 1.0) -> str:
    """Two releases, and a rollout of the second; its name."""
    await trained(coordinator, "first", 0.8)
    await trained(coordinator, "second", 0.7)
    releases = ReleaseApi(coordinator)
    await releases.create("second")
    await releases.try_out(NEW, "", share)
    return (await latest(coordinator)).rollout


def test_a_worse_release_is_stopped_and_a_better_one_promoted(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        rollout = await ready(coordinator)
        assert await follow(coordinator, "pi") == Trial(rollout, NEW)
        assert await DeviceApi(coordinator, "once").place("", Wish(4)) is not None
        assert (await DeviceApi(coordinator, "once").place("", Wish(4))).trial is None, "it does not follow"
        assert await tell(coordinator, "pi", Counts(10, 9)) == Trial(rollout, NEW)
        shown = await latest(coordinator)
        assert (shown.outcome, shown.clusters["global"].agreement, shown.clusters["global"].low) == (
            "",
            0.9,
            None,
        )
        assert "no labels come from cluster global" in shown.why
        assert await tell(coordinator, "pi", WORSE) is None
        ended = await latest(coordinator)
        assert (ended.outcome, (await given(coordinator))[0]) == (STOPPED, OLD)
        notices = (await OperatorApi(coordinator).status()).notices
        assert any("was stopped by its rollout, it is worse by more than 1 point" in each for each in notices)
        await ReleaseApi(coordinator).try_out(NEW, "", 1.0, 0.02)
        assert (await latest(coordinator)).rollout != rollout
        assert not any("was stopped" in each for each in (await OperatorApi(coordinator).status()).notices)
        assert await tell(coordinator, "pi", BETTER) is None
        assert ((await latest(coordinator)).outcome, (await given(coordinator))[0]) == (PROMOTED, NEW)
        moved = [Event.ROLLOUT_BEGUN, Event.ROLLOUT_ENDED]
        assert await events(coordinator, *moved) == [each.value for each in moved * 2]

    scenario(story, tmp_path)


@pytest.mark.parametrize("set_by", [-7200.0, 7200.0])
def test_the_notice_of_one_that_was_stopped_ends_whatever_the_clock_is_set_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_by: float
) -> None:
    real, ahead = time.time, 0.0
    monkeypatch.setattr(time, "time", lambda: real() + ahead)

    async def stopped(coordinator: Coordinator) -> bool:
        notices = (await OperatorApi(coordinator).status()).notices
        return any("was stopped" in each for each in notices)

    async def story(coordinator: Coordinator) -> None:
        nonlocal ahead
        await ready(coordinator)
        ahead += set_by
        await tell(coordinator, "pi", WORSE)
        assert await stopped(coordinator)
        ahead += set_by
        await ReleaseApi(coordinator).use(OLD)
        assert not await stopped(coordinator)
        await ReleaseApi(coordinator).try_out(NEW, "", 1.0, 0.02)
        ahead += set_by
        await tell(coordinator, "pi", WORSE)
        assert await stopped(coordinator)

    scenario(story, tmp_path)


def test_counts_replace_earlier_ones_and_impossible_ones_change_nothing(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        rollout = await ready(coordinator)
        few = Counts(20, 18, 10, 5, 6, 4)
        for counts in (few, few, replace(few, predictions=30), few, Counts()):
            assert await tell(coordinator, "pi", counts) == Trial(rollout, NEW)
        (cluster,) = (await latest(coordinator)).clusters.values()
        assert (cluster.devices, cluster.predictions, cluster.labeled) == (1, 30, 10), "none fell"
        assert await tell(coordinator, "pi", few, "of another time") == Trial(rollout, NEW)
        with pytest.raises(BadPayload, match="has no cluster 'c9'"):
            await follow(coordinator, "other", Counted(rollout, "c9", few))
        assert (await latest(coordinator)).clusters == {"global": cluster}

    scenario(story, tmp_path)


def test_it_lasts_over_restarts_and_a_device_that_was_away_is_told_what_became_of_it(tmp_path: Path) -> None:
    async def before(coordinator: Coordinator) -> str:
        rollout = await ready(coordinator)
        await tell(coordinator, "pi", Counts(20, 18, 10, 5, 6, 4))
        return rollout

    async def between(coordinator: Coordinator, rollout: str) -> None:
        assert await follow(coordinator, "pi") == Trial(rollout, NEW)
        assert (await latest(coordinator)).clusters["global"].predictions == 20
        assert await tell(coordinator, "pi", BETTER) is None

    async def after(coordinator: Coordinator, rollout: str) -> None:
        assert await tell(coordinator, "away", WORSE, rollout) is None
        assert ((await latest(coordinator)).outcome, (await given(coordinator))[0]) == (PROMOTED, NEW)
        assert [each.devices for each in (await latest(coordinator)).clusters.values()] == [1]

    async def play() -> None:
        async with server(tmp_path / "state") as first:
            rollout = await before(first)
        async with server(tmp_path / "state") as second:
            await between(second, rollout)
        async with server(tmp_path / "state") as third:
            await after(third, rollout)

    asyncio.run(play())


def test_the_share_is_stable_grows_and_has_a_device_of_each_cluster(tmp_path: Path) -> None:
    """Those that trained in it are known to be in the cluster: one of three is 10 %."""

    async def story(coordinator: Coordinator) -> None:
        rollout = await ready(coordinator, 0.1)
        devices = ["d0", "d1", "d2"]
        trials = {each: await follow(coordinator, each) for each in devices}
        sure = [each for each, trial in trials.items() if trial == Trial(rollout, NEW)]
        assert len(sure) == 1
        free = Trial(rollout, NEW, ("global",))
        rest = [each for each in devices if each not in sure]
        assert [trials[each] for each in rest] == [free, free], "no one of that cluster takes part yet"
        assert await tell(coordinator, rest[0], Counts(1, 1)) == Trial(rollout, NEW)
        assert await tell(coordinator, rest[1], Counts(1, 1)) is None, "one does by now"
        assert await follow(coordinator, rest[0]) == await follow(coordinator, sure[0]) == Trial(rollout, NEW)
        await ReleaseApi(coordinator).try_out(NEW, "", 1.0)
        assert (await latest(coordinator)).rollout == rollout
        assert {await follow(coordinator, each) for each in devices} == {Trial(rollout, NEW)}

    scenario(story, tmp_path)


def test_an_operator_promotes_goes_back_and_cannot_change_the_gate(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        rollout, releases = await ready(coordinator, 0.5), ReleaseApi(coordinator)
        for share, margin in ((0.4, None), (0.5, 0.02)):
            with pytest.raises(Refused, match=f"a rollout of {NEW} goes on in channel stable"):
                await releases.try_out(NEW, "", share, margin)
        with pytest.raises(Refused, match=f"a rollout of {NEW} goes on in channel stable"):
            await releases.remove(NEW)
        await trained(coordinator, "third", 0.9)
        assert (await given(coordinator))[0] == OLD, "no other release comes in between by itself"
        await releases.use(OLD)
        assert ((await latest(coordinator)).outcome, await follow(coordinator, "d0")) == (WITHDRAWN, None)
        await releases.try_out(NEW, "", 0.5)
        await releases.use(NEW)
        ended = await latest(coordinator)
        assert (ended.rollout != rollout, ended.outcome, (await given(coordinator))[0]) == (
            True,
            PROMOTED,
            NEW,
        )

    scenario(story, tmp_path)


def test_what_cannot_be_tried_says_why(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        releases = ReleaseApi(coordinator)
        await trained(coordinator, "first", 0.8)
        with pytest.raises(Refused, match=f"it has {OLD} already"):
            await releases.try_out(OLD, "", 0.5)
        with pytest.raises(Refused, match="channel beta: it has no release"):
            await releases.try_out(OLD, "beta", 0.5)
        for share in (0.0, -1.0, 1.01, float("nan")):
            with pytest.raises(ConfigError, match="a share of"):
                await releases.try_out(OLD, "", share)
        for margin in (-0.01, 1.0, float("nan")):
            with pytest.raises(ConfigError, match="cannot be a margin"):
                await releases.try_out(OLD, "", 0.5, margin)
        await start(coordinator, {"layer.weight": np.ones((2, 2), np.float32)}, name="narrow")
        await served(coordinator, 0.9)
        await releases.create("narrow")
        with pytest.raises(Refused, match="does not fit devices that follow stable"):
            await releases.try_out("narrow@3", "", 0.5)

    scenario(story, tmp_path)


def test_one_that_is_damaged_meanwhile_is_not_promoted(tmp_path: Path) -> None:
    async def before(coordinator: Coordinator) -> str:
        await ready(coordinator)
        (weights,) = (await ReleaseApi(coordinator).show(NEW)).status.models.values()
        return str(weights.blob.sha256)

    async def play() -> None:
        async with server(tmp_path / "state") as first:
            name = await before(first)
        for path in (tmp_path / "state").glob(f"*/??/{name}"):
            path.write_bytes(b"not what it was")
        async with server(tmp_path / "state") as second:
            assert await tell(second, "pi", BETTER) is None
            ended = await latest(second)
            assert (ended.outcome, (await given(second))[0]) == (STOPPED, OLD)
            assert "cannot be used" in ended.why

    asyncio.run(play())


def test_what_a_revoked_device_has_counted_counts_no_more(tmp_path: Path) -> None:
    def revoked(coordinator: Coordinator) -> None:
        database = coordinator.storage.store.database
        with database.transaction():
            database.execute(
                "INSERT INTO identities (device, role, labels, standing, created, spki, token)"
                " VALUES ('liar', 'infer-only', '{}', 'revoked', 0, '', '')"
            )

    async def check(coordinator: Coordinator) -> None:
        (cluster,) = (await latest(coordinator)).clusters.values()
        assert (cluster.devices, cluster.labeled, cluster.predictions) == (1, 1, 10)

    async def play() -> None:
        async with server(tmp_path / "state") as first:
            await ready(first)
            await tell(first, "liar", Counts(20, 20, 20, 15, 10, 5))
            await tell(first, "pi", Counts(10, 9, 1, 1, 1, 1))
            first.barred.add("liar")
            await check(first)
            await first.storage.call(revoked, first)
        async with server(tmp_path / "state") as second:
            await check(second)

    asyncio.run(play())


def test_a_damaged_rollout_keeps_no_device_from_its_model(tmp_path: Path) -> None:
    def rewritten(coordinator: Coordinator) -> None:
        database = coordinator.storage.store.database
        with database.transaction():
            database.execute("UPDATE rollout_counts SET agreed = 99")

    async def play() -> None:
        async with server(tmp_path / "state") as first:
            await ready(first)
            await tell(first, "pi", Counts(20, 18))
            await first.storage.call(rewritten, first)
        async with server(tmp_path / "state") as second:
            assert await tell(second, "pi", BETTER) is None
            assert (await given(second))[0] == OLD
            assert "cannot be read" in (await latest(second)).why
            await ReleaseApi(second).use(NEW)
            assert ((await latest(second)).outcome, (await given(second))[0]) == (PROMOTED, NEW)

    asyncio.run(play())
