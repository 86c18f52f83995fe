"""Series of runs: what starts when its time has come, from what, with whom, and what ends it."""

import asyncio
import itertools
import sqlite3
from collections.abc import AsyncIterator, Container, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.operator_api import OperatorApi
from fedserver.coordinator.recipe import Recipe
from fedserver.coordinator.release_api import ReleaseApi
from fedserver.coordinator.series import SKIPPED
from shoal.core.algorithm import State
from shoal.core.engine.policy import RoundPolicy
from shoal.core.errors import ConfigError, NotFound, Refused
from shoal.core.exchange.link import Failure, Report, Task
from shoal.core.exchange.messages import HeldOut, Message, Trained
from shoal.core.privacy.asks import read_terms
from shoal.core.types import DeviceId
from tests.server.coordinator.test_releases import log_of, reaching, trained
from tests.server.servers import DEVICES, SETTINGS, crash, link, models, scenario, server, spec
from tests.server.toys import Answer, Hands, same_models
from tests.waiting import until

DAY = 86400.0
POLICY = RoundPolicy(minimum=1, wait_for_devices=0.0)


async def begin(coordinator: Coordinator, every: float = DAY, base: str = "stable") -> None:
    await OperatorApi(coordinator).start_run(spec(name="daily", base=base, every=every, policy=POLICY), None)


def passes(coordinator: Coordinator, run: str, seconds: float = DAY) -> None:
    """Let this time pass on the wall since a run was started."""
    coordinator.runs[run].created -= seconds


async def over(coordinator: Coordinator, run: str) -> None:
    await until(lambda: run in coordinator.runs and not coordinator.runs[run].active)
    await coordinator.in_turn(asyncio.sleep(0))  # until its end is stored


@asynccontextmanager
async def devices(coordinator: Coordinator, accuracy: float, unchanged: set[DeviceId]) -> AsyncIterator[None]:
    """A fleet that works all the time. unchanged: those that say that they have no new data."""
    async with at_work(coordinator, [reaching(accuracy, number) for number in range(DEVICES)], unchanged):
        yield


@asynccontextmanager
async def at_work(
    coordinator: Coordinator, answers: Sequence[Answer], unchanged: Container[DeviceId] = ()
) -> AsyncIterator[None]:
    """The same, with these answers."""

    async def serve(number: int) -> None:
        hands = await Hands(link(coordinator, number)).hello()
        while True:
            work = await hands.link.next_task(5.0)
            if not isinstance(work, Task):
                await asyncio.sleep(0.01)
            elif f"d{number}" in unchanged and read_terms(work.terms).series:
                failure = Failure("no-new-data", "")
                await hands.link.report(Report(work.run, work.round, work.attempt, failure))
            else:
                await hands.do(work, answers[number])

    tasks = [asyncio.create_task(serve(number)) for number in range(DEVICES)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks)


def test_each_run_goes_on_from_what_the_channel_has_and_missed_periods_are_skipped(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await trained(coordinator, "first", 0.7)
        await begin(coordinator)
        run = coordinator.runs["daily"]
        assert same_models(models(coordinator, "daily"), models(coordinator, "first"))
        assert (run.spec.release, run.spec.series, run.spec.algorithm) == ("first@3", "daily", "fedavg")
        assert run.spec.parameters == coordinator.runs["first"].spec.parameters
        async with devices(coordinator, 0.8, set()):
            await over(coordinator, "daily")
            final = models(coordinator, "daily")
            assert (await ReleaseApi(coordinator).channels())["stable"][-1].release == "daily@3"
            passes(coordinator, "daily", 10 * DAY)
            await over(coordinator, "daily-2")
            for run in coordinator.runs.values():  # of a year of such runs, no device stays in memory
                assert (len(run.engine.sessions), run.left_open, dict(run.engine.plan.tasks)) == (
                    0,
                    set(),
                    {},
                )
            for visitor in coordinator.visitors.values():
                assert {*visitor.taken, *visitor.joined} == {"daily-2"}
        assert coordinator.runs["daily-2"].spec.release == "daily@3"
        assert not same_models(models(coordinator, "daily-2"), final)
        shown = {each.run: each.next_run for each in OperatorApi(coordinator).runs()}
        assert (shown["first"], shown["daily"]) == (None, None)
        assert shown["daily-2"] is not None
        assert DAY - 3600.0 < shown["daily-2"] <= DAY

    scenario(story, tmp_path)


def test_a_run_that_goes_on_asks_the_devices_that_the_run_of_the_release_asked(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        labels = {f"d{number}": {"site": "basel"} for number in range(DEVICES)}
        coordinator.labels_of = lambda device: labels.get(device, {})
        await trained(coordinator, "first", 0.7, labels={"site": "basel"})
        await begin(coordinator)
        assert coordinator.runs["daily"].spec.labels == {"site": "basel"}
        asked = spec(name="elsewhere", base="first@3", labels={"site": "bern"})
        await OperatorApi(coordinator).start_run(asked, None)
        assert coordinator.runs["elsewhere"].spec.labels == {"site": "bern"}

    scenario(story, tmp_path)


def test_devices_without_new_data_sit_out_and_a_day_without_any_is_skipped(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await trained(coordinator, "first", 0.7)
        unchanged = set[DeviceId]()
        async with devices(coordinator, 0.8, unchanged):
            await begin(coordinator)
            await over(coordinator, "daily")
            unchanged |= {"d0", "d2"}
            passes(coordinator, "daily")
            await over(coordinator, "daily-2")
            assert coordinator.runs["daily-2"].engine.state.metrics.keys() == {"d1"}
            assert (await log_of(coordinator, "daily-2")).count("[no-new-data]") == 2
            unchanged |= {"d1"}
            passes(coordinator, "daily-2")
            await until(lambda: "daily-3" in coordinator.runs)
            third = coordinator.runs["daily-3"]
            await until(lambda: len(third.answers) == DEVICES)
            await until(lambda: not third.engine.sessions.present)
            assert third.active, "it waits for new data"
            passes(coordinator, "daily-3")
            await over(coordinator, "daily-3")
            assert (third.reason, third.engine.state.progress) == (SKIPPED, 0)
            assert SKIPPED in await log_of(coordinator, "daily-3")
            await until(lambda: "daily-4" in coordinator.runs)
            names = [each.release for each in await ReleaseApi(coordinator).all()]
            assert not any(name.startswith("daily-3") for name in names), "it has made no release"

    scenario(story, tmp_path)


def drifted(number: int, before: float, after: float) -> Answer:
    """A device on whose present data the models that it gets are right this often, before and after a run."""
    answer = reaching(after, number)

    def measured(message: Message, seed: int) -> Message:
        found = answer(message, seed)
        return replace(found, held_out=HeldOut(before, 0.5, 100)) if isinstance(found, Trained) else found

    return measured


def test_a_candidate_is_held_against_what_it_began_with_on_the_data_of_its_own_day(tmp_path: Path) -> None:
    """The first release reached 90 % on data that no one has any more."""

    async def day(coordinator: Coordinator, run: str, before: float, after: float) -> str:
        hands = [drifted(number, before, after) for number in range(DEVICES)]
        async with at_work(coordinator, hands):
            await over(coordinator, run)
        return await log_of(coordinator, run)

    async def story(coordinator: Coordinator) -> None:
        await trained(coordinator, "first", 0.9)
        await begin(coordinator)
        said = await day(coordinator, "daily", 0.7, 0.6)
        assert "not released by itself: 60.0 % is not above the 70.0 %" in said
        passes(coordinator, "daily")
        said = await day(coordinator, "daily-2", 0.6, 0.8)
        assert coordinator.runs["daily-2"].spec.release == "first@3", "it went on from what is in use"
        assert "released as daily-2@3" in said
        passes(coordinator, "daily-2")
        await day(coordinator, "daily-3", 0.8, 0.7)
        passes(coordinator, "daily-3")
        await until(lambda: "daily-4" in coordinator.runs)
        assert [coordinator.runs[f"daily-{day}"].spec.release for day in (3, 4)] == ["daily-2@3"] * 2

    scenario(story, tmp_path)


def test_a_series_outlives_crashes_and_starts_each_run_once(tmp_path: Path) -> None:
    async def before() -> None:
        coordinator = await Coordinator.open(tmp_path / "state", SETTINGS)
        await trained(coordinator, "first", 0.7)
        await begin(coordinator, every=0.05)
        await until(lambda: "daily-3" in coordinator.runs)
        await crash(coordinator)

    async def after() -> None:
        async with server(tmp_path / "state") as coordinator:
            known = len(coordinator.runs)
            await until(lambda: len(coordinator.runs) > known)
            names = list(coordinator.runs)
            assert names == ["first", "daily", *(f"daily-{number}" for number in range(2, len(names)))]
            assert [each.active for each in coordinator.runs.values()].count(True) <= 1
            starts = [each.created for each in coordinator.runs.values()][1:]
            assert all(later - earlier > 0.045 for earlier, later in itertools.pairwise(starts))

    asyncio.run(before())
    asyncio.run(after())


def test_an_operator_ends_it_before_or_after_a_run_is_over_and_for_good(tmp_path: Path) -> None:
    async def before(coordinator: Coordinator) -> None:
        operator = OperatorApi(coordinator)
        await trained(coordinator, "first", 0.7)
        await begin(coordinator)
        passes(coordinator, "daily")
        await until(lambda: "daily-2" in coordinator.runs)
        with pytest.raises(Refused, match="is not over"):
            await operator.remove_run("daily-2")
        async with devices(coordinator, 0.8, set()):
            await over(coordinator, "daily-2")
        with pytest.raises(Refused, match="another run follows daily-2"):
            await operator.remove_run("daily-2")
        assert (await operator.stop_run("daily", "")).summary.stage == "finished"
        assert coordinator.series.time_left(coordinator.runs["daily-2"]) is None
        await ReleaseApi(coordinator).use("first@3")
        await operator.remove_run("daily-2")
        assert coordinator.series.time_left(coordinator.runs["daily"]) is None, "it does not take its place"
        passes(coordinator, "daily")

    async def after(coordinator: Coordinator) -> None:
        assert [coordinator.series.time_left(run) for run in coordinator.runs.values()] == [None, None]
        operator = OperatorApi(coordinator)
        asked = spec(name="other", base="stable", every=DAY, policy=POLICY)
        await operator.start_run(asked, None)
        assert coordinator.series.time_left(coordinator.runs["other"]) is not None
        await operator.stop_run("other", "")
        assert coordinator.series.time_left(coordinator.runs["other"]) is None

    scenario(before, tmp_path)
    scenario(after, tmp_path)


def test_what_cannot_be_says_so(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        operator = OperatorApi(coordinator)
        with pytest.raises(Refused, match="the channel stable has no release yet"):
            await begin(coordinator)
        await trained(coordinator, "first", 0.7)
        with pytest.raises(ConfigError, match="first@3 is a release, which never changes"):
            await begin(coordinator, base="first@3")
        with pytest.raises(ConfigError, match="nothing says what to go on from"):
            await begin(coordinator, base="")
        with pytest.raises(NotFound):
            await begin(coordinator, base="first@9")
        with pytest.raises(ConfigError, match="no run can follow every"):
            await begin(coordinator, every=-1.0)
        for length in (59, 64):
            asked = spec(name="d" * length, base="stable", every=DAY, policy=POLICY)
            with pytest.raises(ConfigError, match="too long for a series"):
                await operator.start_run(asked, None)
        await begin(coordinator, every=0.0, base="first@3")
        assert coordinator.runs["daily"].spec.series == ""
        await operator.stop_run("daily", "")

    scenario(story, tmp_path)


def test_what_cannot_start_now_is_tried_again(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await trained(coordinator, "first", 0.7)
        await begin(coordinator, every=0.05)
        await ReleaseApi(coordinator).remove("stable")
        await until(lambda: bool(coordinator.series._failed))
        (notice,) = (await OperatorApi(coordinator).status()).notices
        assert "cannot be started: the channel stable has no release" in notice
        known = len(coordinator.runs)
        await ReleaseApi(coordinator).use("first@3")
        await until(lambda: len(coordinator.runs) > known)
        assert not coordinator.series.notices()
        await ReleaseApi(coordinator).remove("stable")
        await until(lambda: bool(coordinator.series.notices()))
        await OperatorApi(coordinator).stop_run("daily", "")
        assert not coordinator.series.notices(), "no one waits for it"

    scenario(story, tmp_path)


def test_an_algorithm_that_cannot_go_on_stops_its_series_and_not_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(recipe: Recipe, state: State) -> State:
        raise ZeroDivisionError("a bug of a plug-in")

    async def story(coordinator: Coordinator) -> None:
        await trained(coordinator, "first", 0.7)
        await begin(coordinator)
        monkeypatch.setattr(Recipe, "goes_on_from", broken)
        passes(coordinator, "daily")
        await until(lambda: bool(coordinator.series._failed) or coordinator.broken.done())
        assert not coordinator.broken.done()

    scenario(story, tmp_path)


def spoil(state: Path, run: str) -> None:
    """Damage all checkpoints of a run together with their copies, so that it cannot be read any more."""
    for name, damage in (
        ("shoal.db", "UPDATE checkpoints SET structure = replace(structure, '\"', '') WHERE run = ?"),
        ("shoal.db.copy", "DELETE FROM copies WHERE tbl = 'checkpoints' AND instr(data, CAST(? AS BLOB))"),
    ):
        with closing(sqlite3.connect(state / name)) as database, database:
            assert database.execute(damage, (run,)).rowcount


def test_a_run_that_cannot_be_read_stops_its_series_and_says_so(tmp_path: Path) -> None:
    async def before(coordinator: Coordinator) -> None:
        await trained(coordinator, "first", 0.7)
        await begin(coordinator)
        for run in ("daily", "daily-2"):
            passes(coordinator, run)
            await until(lambda run=run: coordinator.series._latest(coordinator.runs[run]).run != run)

    async def play() -> None:
        async with server(tmp_path / "state") as first:
            await before(first)
        spoil(tmp_path / "state", "daily-2")
        async with server(tmp_path / "state") as second:  # the latest run is sound, so the series goes on
            assert second.series.notices() == ()
            passes(second, "daily-3")
            await until(lambda: "daily-4" in second.runs)
            await OperatorApi(second).remove_run("daily-2")
        spoil(tmp_path / "state", "daily-4")
        async with server(tmp_path / "state") as third:
            (notice,) = [each for each in third.notices() if "no run follows" in each]
            assert notice.startswith("no run follows daily-3, as daily-4 cannot be read")
            assert "fedserver run remove daily-4" in notice
            passes(third, "daily-3", 2 * DAY)
            await third.series.start_due()
            assert [*third.runs] == ["first", "daily", "daily-3"]
            await OperatorApi(third).remove_run("daily-4")
            await until(lambda: "daily-5" in third.runs)
            assert third.series.notices() == ()
            for run in ("daily", "daily-3"):
                await OperatorApi(third).remove_run(run)
        spoil(tmp_path / "state", "daily-5")
        async with server(tmp_path / "state") as fourth:
            (notice,) = fourth.series.notices()
            assert notice.startswith("no run follows daily-5, as it cannot be read")

    asyncio.run(play())
