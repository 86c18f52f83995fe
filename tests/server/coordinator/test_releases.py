"""Releases and channels: what is released by itself, what newcomers are given, and the way back."""

import asyncio
import json
import threading
import time
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedserver.authority import authority
from fedserver.cli.models import signature as signature_of
from fedserver.coordinator import watching
from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.device_api import DeviceApi
from fedserver.coordinator.operator_api import OperatorApi
from fedserver.coordinator.placement import CannotPlace
from fedserver.coordinator.release_api import ReleaseApi
from fedserver.store.identities.audit import Event
from fedserver.store.journal.watched import Answer as Said
from fedserver.store.records import Move, RunSpec, Standing
from fedserver.store.releases import PURPOSE, ReleaseRecord, Releases
from shoal.core.engine.policy import RoundPolicy
from shoal.core.errors import ConfigError, DiskFull, NotFound, NotGenuine, Refused, ServerFull
from shoal.core.exchange.choosing import Wish
from shoal.core.exchange.link import Placement
from shoal.core.exchange.messages import Evaluate, Evaluated, Message, Score, Scored
from shoal.core.exchange.parts import Scores
from shoal.core.exchange.seal import opened
from shoal.core.privacy.asks import read_terms
from shoal.core.server_kit.measuring import plan
from shoal.core.types import RunId, Tensors
from tests.server.coordinator.test_graph import FITTING, start_with
from tests.server.coordinator.test_run_changes import events
from tests.server.servers import DEVICES, ROUNDS, link, models, scenario, server, start
from tests.server.toys import Answer, Hands, honest, same_models, serve
from tests.waiting import HANG, until


def reaching(accuracy: float, number: int, classes: int = 2) -> Answer:
    """A device whose models are right in this share of 100 samples, half of which are of one class."""
    answer = honest(number)

    def measured(message: Message, seed: int) -> Message:
        if isinstance(message, Evaluate):
            return Evaluated(accuracy, 0.5, 100, baseline=0.5, classes=classes)
        return answer(message, seed)

    return measured


async def trained(coordinator: Coordinator, name: RunId, accuracy: float, **changes: object) -> None:
    """A run that finishes, and reaches this accuracy."""
    await start(coordinator, name=name, seed=len(coordinator.runs), **changes)
    await served(coordinator, accuracy)


async def served(coordinator: Coordinator, accuracy: float) -> None:
    devices = (serve(link(coordinator, number), reaching(accuracy, number)) for number in range(DEVICES))
    await asyncio.gather(*devices)


async def given(coordinator: Coordinator, name: str = "") -> tuple[str, Tensors]:
    """The release that a newcomer is given, and its model."""
    newcomer = Hands(DeviceApi(coordinator, "newcomer"))
    answer = await newcomer.link.place(name, None)
    assert isinstance(answer, Placement)
    assert answer.model is not None
    await newcomer.fetch(answer.model)
    return answer.release, newcomer._load(answer.model)


async def log_of(coordinator: Coordinator, run: RunId) -> str:
    return "\n".join(
        line.text for line in await coordinator.storage.call(coordinator.storage.journal.log_lines, run)
    )


def test_the_channel_moves_by_itself_to_what_is_better_and_to_nothing_else(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await trained(coordinator, "first", 0.8)
        assert (await given(coordinator))[0] == f"first@{ROUNDS}"
        await trained(coordinator, "worse", 0.7)
        assert (await given(coordinator))[0] == f"first@{ROUNDS}"
        assert "not released by itself: 70.0 % is not above the 80.0 %" in await log_of(coordinator, "worse")
        await start(coordinator, name="stopped")
        await OperatorApi(coordinator).stop_run("stopped", "")
        await trained(coordinator, "nothing", 0.5)
        assert "nothing was learned" in await log_of(coordinator, "nothing")
        await trained(coordinator, "better", 0.9)
        release, model = await given(coordinator)
        assert release == f"better@{ROUNDS}"
        assert same_models({"global": model}, models(coordinator, "better"))
        assert [each.release for each in await ReleaseApi(coordinator).all()] == ["better@3", "first@3"]
        made = [Event.RELEASE_MADE, Event.CHANNEL_MOVED]
        assert await events(coordinator, *made) == [each.value for each in made * 2]

    scenario(story, tmp_path)


def test_an_operator_goes_back_and_pins_and_it_lasts(tmp_path: Path) -> None:
    async def before(coordinator: Coordinator) -> None:
        releases = ReleaseApi(coordinator)
        await trained(coordinator, "first", 0.7)
        await trained(coordinator, "second", 0.8)
        assert (await given(coordinator))[0] == "second@3"
        (*_, move) = await releases.use("first@3", pinned=True)
        assert (move.channel, move.release, move.pinned) == ("stable", "first@3", True)
        assert (await given(coordinator))[0] == "first@3"
        await trained(coordinator, "third", 0.9)
        assert "the channel stable is pinned to first@3" in await log_of(coordinator, "third")

    async def after(coordinator: Coordinator) -> None:
        releases = ReleaseApi(coordinator)
        release, model = await given(coordinator)
        assert release == "first@3"
        assert same_models({"global": model}, models(coordinator, "first"))
        moves = (await releases.channels())["stable"]
        assert [each.release for each in moves] == ["first@3", "second@3", "first@3"]
        made = await releases.create("third", "v1")
        assert (made.release, made.channels, made.accuracy) == ("third@v1", (), 0.9)
        await releases.use("third@v1")
        await trained(coordinator, "fourth", 0.95)
        assert (await given(coordinator))[0] == "fourth@3", "it is pinned no more"

    scenario(before, tmp_path)
    scenario(after, tmp_path)


def test_a_release_stays_as_it_is_whatever_becomes_of_its_run(tmp_path: Path) -> None:
    async def before(coordinator: Coordinator) -> Tensors:
        await trained(coordinator, "first", 0.7)
        _, model = await given(coordinator)
        operator = OperatorApi(coordinator)
        await operator.roll_back("first", 2)
        assert await operator.prune_runs("first") == {"first": 4}
        assert same_models({"global": (await given(coordinator))[1]}, {"global": model})
        assert not same_models({"global": (await given(coordinator, "first"))[1]}, {"global": model})
        return model

    async def play() -> None:
        async with server(tmp_path / "state") as first:
            model = await before(first)
        async with server(tmp_path / "state") as second:
            release, found = await given(second)
            assert (release, same_models({"global": found}, {"global": model})) == ("first@3", True)

    asyncio.run(play())


def test_what_cannot_be_used_says_so(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        releases, newcomer = ReleaseApi(coordinator), DeviceApi(coordinator, "newcomer")
        await trained(coordinator, "first", 0.7)
        with pytest.raises(NotFound, match="no run, release or channel 'beta'"):
            await newcomer.place("beta", None)
        with pytest.raises(NotFound, match="no run, release or channel 'first@4'"):
            await releases.use("first@4")
        with pytest.raises(NotFound, match="'first' is a run") as fault:
            await releases.use("first")
        assert "fedserver release create first" in fault.value.hint
        with pytest.raises(ConfigError, match="'first' is the name of a run"):
            await releases.use("first@3", "first")
        with pytest.raises(ConfigError, match="there is, or was, a release first@3"):
            await releases.create("first", "3")
        with pytest.raises(ConfigError, match="'stable' is the name of a channel"):
            await start(coordinator, name="stable")
        with pytest.raises(Refused, match="the channel stable has release first@3"):
            await releases.remove("first@3")
        await start(coordinator, None, name="empty")
        with pytest.raises(Refused, match="run empty has no model yet"):
            await releases.create("empty")
        await releases.remove("stable")
        with pytest.raises(CannotPlace, match="the channel stable has no release"):
            await newcomer.place("", None)
        await releases.remove("first@3")
        assert await releases.all() == []
        with pytest.raises(ConfigError, match="there is, or was, a release first@3"):
            await releases.create("first", "3")
        assert (await releases.create("first")).release == "first@3.2", "its devices know another first@3"
        await OperatorApi(coordinator).remove_run("first")

    scenario(story, tmp_path)


def test_a_card_is_shown_as_it_was_signed_and_what_was_not_signed_is_given_to_no_one(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        authority.make(tmp_path, "shoal")
        published = coordinator.published
        published.signs = signs = authority.Authority.open(tmp_path)
        storage, devices = coordinator.storage, DeviceApi(coordinator, "newcomer")
        await trained(coordinator, "first", 0.8)
        record = await storage.call(storage.releases.get, "first@3")
        whole = json.loads(record.text)
        fewer = {name: each for name, each in whole["value"].items() if name != "central"}
        earlier = json.dumps({**whole, "value": {**fewer, "release": "first@4"}})
        signature = signs.sign(PURPOSE + earlier.encode())[1]
        card = replace(record.card, release="first@4")
        older = replace(record, card=card, signed=earlier, signature=signature)
        forged = replace(record, card=replace(card, release="first@5"), signed="")
        other = replace(forged, card=replace(card, release="first@6"), structure={"value": 1})
        other = replace(other, signature=signs.sign(PURPOSE + other.text.encode())[1])
        for each in (older, forged, other):
            await storage.call(storage.releases.add, each)
        found = await ReleaseApi(coordinator).show("first@4")
        assert found.card == earlier.encode()
        assert signature_of.check(found) == f"signed by key {signs.pin.hex()}"
        sealed = await devices.seal("first@4")
        assert sealed is not None
        seal = opened(sealed, signs.pem)
        seal.check("first@4", "global", models(coordinator, "first")["global"])
        assert seal.card == sha256(earlier.encode()).hexdigest()
        for name in ("first@5", "first@6"):
            for ask in (
                given(coordinator, name),
                devices.seal(name),
                published.use(name, "stable", False, ""),
            ):
                with pytest.raises(Refused, match=f"release {name} cannot be used"):
                    await ask
        for name in ("first", "stable", "first@9"):
            with pytest.raises(NotFound):
                await devices.seal(name)
        signs.rotate()
        later = await devices.seal("first@3")
        assert later is not None
        assert opened(later, signs.pem).key == signs.pin.hex()
        assert opened(sealed, signs.pem) == seal, "its former key has signed it"
        swapped = replace(found.status, models={"c0": found.status.models["global"]})
        with pytest.raises(NotGenuine):
            signature_of.check(replace(found, status=swapped))
        with pytest.raises(NotGenuine):
            signature_of.check(replace(found, signature=sealed.signature))

    scenario(story, tmp_path)


def test_a_release_of_another_shape_needs_a_channel_of_its_own(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        releases, narrow = ReleaseApi(coordinator), {"layer.weight": np.ones((2, 2), np.float32)}
        await trained(coordinator, "wide", 0.6)
        await start(coordinator, narrow, name="narrow")
        await served(coordinator, 0.9)
        assert "it does not fit devices that follow stable" in await log_of(coordinator, "narrow")
        await releases.create("narrow")
        with pytest.raises(Refused, match="narrow@3 does not fit devices that follow stable"):
            await releases.use("narrow@3")
        await releases.use("narrow@3", "narrow-ones")
        assert (await given(coordinator, "narrow-ones"))[0] == "narrow@3"
        assert (await given(coordinator))[0] == "wide@3"

    scenario(story, tmp_path)


def test_devices_without_a_learner_are_not_left_without_a_graph(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start_with(coordinator, FITTING)
        await served(coordinator, 0.7)
        await trained(coordinator, "heavy", 0.9)
        assert "it has no graph for those without a learner" in await log_of(coordinator, "heavy")
        answer = await DeviceApi(coordinator, "light").place("", Wish(4, graph=True))
        assert (answer.run, answer.release, answer.graph is not None) == ("light", "light@3", True)

    scenario(story, tmp_path)


def test_a_damaged_release_is_shown_as_such_and_the_others_as_they_are(tmp_path: Path) -> None:
    async def before(coordinator: Coordinator) -> None:
        await trained(coordinator, "first", 0.7)
        await trained(coordinator, "second", 0.8)

    async def after(coordinator: Coordinator) -> None:
        releases = ReleaseApi(coordinator)
        second, first = await releases.all()
        assert "cannot be read" in second.wrong
        assert (second.release, second.channels) == ("second@3", ("stable",))
        assert (first.release, first.wrong, first.accuracy) == ("first@3", "", pytest.approx(0.7))
        with pytest.raises(CannotPlace, match="release second@3 cannot be used"):
            await DeviceApi(coordinator, "newcomer").place("", None)
        await releases.use("first@3")
        assert (await given(coordinator))[0] == "first@3"

    async def play() -> None:
        async with server(tmp_path / "state") as first:
            await before(first)
            await first.storage.call(_rewrite, first)
        async with server(tmp_path / "state") as second:
            await after(second)

    asyncio.run(play())


def test_a_list_of_many_releases_keeps_no_one_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What else the store has to do comes between two of them, such as the removal of the next one."""
    real, asked = Releases.get, threading.Event()

    def get(releases: Releases, name: str) -> ReleaseRecord:
        assert asked.wait(HANG)
        return real(releases, name)

    async def story(coordinator: Coordinator) -> None:
        await trained(coordinator, "first", 0.7)
        await trained(coordinator, "second", 0.8)
        releases, storage = ReleaseApi(coordinator), coordinator.storage
        await releases.create("first", "extra")
        reading = threading.Event()

        def begun(*call: Any) -> ReleaseRecord:
            reading.set()
            return get(*call)

        monkeypatch.setattr(Releases, "get", begun)
        listing = asyncio.create_task(releases.all())
        await asyncio.to_thread(reading.wait, HANG)
        removing = asyncio.create_task(storage.call(storage.releases.remove, ["first@extra"]))
        await asyncio.sleep(0)  # it waits for the store now
        asked.set()
        assert [each.release for each in await listing] == ["second@3", "first@3"]
        await removing

    scenario(story, tmp_path)


def _rewrite(coordinator: Coordinator) -> None:
    """A row that another version, or a bug, has written."""
    database = coordinator.storage.store.database
    with database.transaction():
        database.execute("UPDATE model_releases SET card = '{}' WHERE release = 'second@3'")


def test_a_damaged_model_of_a_release_is_not_given_away(tmp_path: Path) -> None:
    async def before(coordinator: Coordinator) -> str:
        await trained(coordinator, "first", 0.7)
        (weights,) = (await ReleaseApi(coordinator).show()).status.models.values()
        await OperatorApi(coordinator).roll_back("first", 2)
        return str(weights.blob.sha256)

    async def play() -> None:
        async with server(tmp_path / "state") as first:
            name = await before(first)
        for path in (tmp_path / "state").glob(f"*/??/{name}"):
            path.write_bytes(b"not what it was")
        async with server(tmp_path / "state") as second:
            with pytest.raises(CannotPlace, match="release first@3 cannot be used"):
                await DeviceApi(second, "newcomer").place("", None)
            with pytest.raises(Refused, match="cannot be used"):
                await ReleaseApi(second).use("first@3", "beta")
            assert (await DeviceApi(second, "newcomer").place("first", None)).run == "first"

    asyncio.run(play())


def measuring(key: str, number: int) -> Answer:
    """A device whose lowest loss is under the second of several models, and which trains nothing."""

    def answer(message: Message, seed: int) -> Message:
        if isinstance(message, Score):
            return Scored(Scores(np.array([2.0, *([1.0] * (len(message.models) - 1))]), 9))
        assert isinstance(message, Evaluate), "nothing trains"
        assert message.part == "test"
        return Evaluated(0.6 if message.cluster == key else 0.9, 0.5, 100, baseline=0.5, classes=2)

    return answer


def test_a_run_that_measures_trains_nothing_and_says_how_good_each_group_is(tmp_path: Path) -> None:
    async def before(coordinator: Coordinator) -> None:
        releases, operator = ReleaseApi(coordinator), OperatorApi(coordinator)
        await start(coordinator, name="ifca", algorithm="ifca", parameters={"clusters": 2, "rounds": 1})
        made = await grouped(coordinator, "ifca", {"d0": "c0", "d1": "c1", "d9": "c1"})
        await releases.use(made)
        before = models(coordinator, "ifca")
        await operator.stop_run("ifca", "")
        run = await operator.start_run(
            RunSpec("again", "flux", policy=RoundPolicy(minimum=DEVICES), evaluate="stable"), None
        )
        await asyncio.gather(*(serve(link(coordinator, n), measuring("c0", n)) for n in range(DEVICES)))
        shown = await operator.show(run)
        assert (shown.summary.stage, shown.summary.algorithm, shown.summary.progress) == (
            "finished",
            "ifca",
            0,
        )
        reached = {each.device: (each.cluster, each.accuracy) for each in shown.devices if each.examples}
        assert reached == {"d0": ("c0", 0.6), "d1": ("c1", 0.9), "d2": ("c1", 0.9)}, "d2 was in no group"
        assert same_models(models(coordinator, "again"), before)
        assert [each.release for each in await releases.all()] == [made], "it releases nothing itself"
        with pytest.raises(Refused, match="run again only measures models"):
            await releases.create("again")
        with pytest.raises(CannotPlace, match="the run only measures models"):
            await DeviceApi(coordinator, "newcomer").place("again", None)

    async def after(coordinator: Coordinator) -> None:
        (found,) = (await ReleaseApi(coordinator).show()).evaluations
        assert (found.run, found.accuracy) == ("again", pytest.approx(0.8))
        groups = [(each.key, each.devices, each.accuracy) for each in found.groups]
        assert groups == [("c0", 1, 0.6), ("c1", 2, 0.9)]
        assert found.groups[0].error == pytest.approx((0.6 * 0.4 / 100) ** 0.5)
        assert found.groups[1].error == pytest.approx((0.9 * 0.1 / 100 / 2) ** 0.5)

    scenario(before, tmp_path)
    scenario(after, tmp_path)


async def grouped(coordinator: Coordinator, run: RunId, assignments: dict[str, str]) -> str:
    """A release of a run that has put its devices into these clusters."""
    found = coordinator.runs[run]
    state: Any = found.engine.state
    await found.change(found.spec, replace(state, assignments=assignments))
    return (await ReleaseApi(coordinator).create(run)).release


def test_a_model_from_elsewhere_is_measured_and_nothing_is_not(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator, name="given", evaluate="")
        await asyncio.gather(*(serve(link(coordinator, n), measuring("", n)) for n in range(DEVICES)))
        shown = await OperatorApi(coordinator).show("given")
        assert (shown.summary.stage, shown.summary.accuracy) == ("finished", pytest.approx(0.9))
        with pytest.raises(ConfigError, match="there is nothing to measure"):
            await start(coordinator, None, name="nothing", evaluate="")
        with pytest.raises(NotFound, match="no run, release or channel 'beta'"):
            await start(coordinator, None, name="unknown", evaluate="beta")

    scenario(story, tmp_path)


def test_a_run_that_measures_asks_owners_for_accuracies_alone(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator, name="open", evaluate="")
        asks = read_terms(coordinator.runs["open"].terms).asks
        assert (asks.lessons, asks.training, asks.opened) == (0, None, ("figures",))
        private = {"dp_epsilon": 3.0, "dp_delta": 1e-5}
        await start(coordinator, name="private", evaluate="", parameters=private)
        asks = read_terms(coordinator.runs["private"].terms).asks
        assert (asks.lessons, asks.training, asks.accuracies, asks.opened) == (0, None, 1, ())
        assert asks.rho > 0.0
        state: Any = coordinator.runs["private"].engine.state
        found = plan(state, ["d0"])
        assert found is not None
        (task,) = found.tasks.values()
        assert isinstance(task, Evaluate)
        assert task.rho == asks.rho

    scenario(story, tmp_path)


def test_a_disk_that_is_full_while_a_run_is_released_holds_its_end_up_and_leaves_nothing_half_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, full = Releases.insert, asyncio.Event()

    def failing(releases: Releases, new: ReleaseRecord, move: Move | None = None) -> None:
        real(releases, new, move)
        if full.is_set():  # all rows are written, and the commit does not fit
            raise DiskFull("shoal.db: database or disk is full", "free some")

    monkeypatch.setattr(Releases, "insert", failing)
    monkeypatch.setattr("fedserver.store.store.RETRY", 0.01)

    async def story(coordinator: Coordinator) -> None:
        storage = coordinator.storage
        full.set()
        training = asyncio.create_task(trained(coordinator, "first", 0.8))
        await until(lambda: storage.full is not None)
        assert await storage.call(storage.releases.names) == []
        assert await storage.call(storage.releases.moves) == {}
        assert (await storage.call(storage.runs.get, "first")).standing is Standing.ACTIVE
        with pytest.raises(ServerFull):
            await ReleaseApi(coordinator).create("first", "v1")
        full.clear()
        await until(lambda: storage.full is None)
        training.cancel()
        await asyncio.gather(training, return_exceptions=True)
        await until(lambda: not coordinator.runs["first"].active)
        assert await storage.call(storage.releases.names) == ["first@3"]
        assert (await given(coordinator))[0] == "first@3"
        made = [Event.RELEASE_MADE, Event.CHANNEL_MOVED]
        assert await events(coordinator, *made) == [each.value for each in made]

    scenario(story, tmp_path)


def test_what_devices_said_while_the_clock_was_ahead_hides_nothing_that_they_said_since(
    tmp_path: Path,
) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator)
        watched, today = coordinator.storage.journal.watched, int(time.time() // watching.DAY)
        for number in range(120):
            day, moved = (today - number // 60, True) if number else (today + 400, False)
            await coordinator.storage.call(
                watched.add, Said("toy", "toy", "global", f"d{number}", day, moved)
            )
        (found,) = (await watching.watched(coordinator.storage))["toy"]
        assert found.answers == 119
        assert found.since is not None

    scenario(story, tmp_path)


def test_what_newcomers_fetch_of_runs_that_are_over_is_not_kept_for_a_round_that_never_comes(
    tmp_path: Path,
) -> None:
    async def story(coordinator: Coordinator) -> None:
        await trained(coordinator, "first", 0.8)
        await given(coordinator)
        await coordinator.in_turn(coordinator.write_journal())
        assert coordinator.meter._rounds == {}
        (_, _, _, newcomer) = await coordinator.storage.call(coordinator.storage.journal.traffic, "first")
        assert newcomer.down > 0

    scenario(story, tmp_path)
