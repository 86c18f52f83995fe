"""Over real TLS: how many clusters' models a newcomer may have in a day, and when it gets none."""

import asyncio
import time
from pathlib import Path

import grpc
import numpy as np
import pytest

from fedserver.authority.daily_quota import DailyQuota
from fedserver.store.identities.audit import Event
from fedserver.store.identities.records import DAY
from shoal.core.algorithms.ifca import server as ifca
from shoal.core.exchange.choosing import Wish
from shoal.core.exchange.link import Placement, Question
from shoal.core.exchange.parts import Ballot, ClusterAssignment, Evidence, Scores
from shoal.core.identity.joining import Role
from tests.core.server_kit.test_placing import flux
from tests.server.authority.peers import Peer, World, lines_of, play, refused, world
from tests.server.servers import start

TOO_OFTEN = (grpc.StatusCode.RESOURCE_EXHAUSTED, "too-often")


async def placed(device: Peer, run: str = "toy", evidence: Evidence | None = None) -> Question | Placement:
    async with device.channel() as channel:
        return await device.link(channel).place(run, evidence)


async def is_refused(device: Peer, run: str) -> None:
    async with device.channel() as channel:
        error, fault = await refused(device.link(channel).place(run, None))
    assert (error.code(), fault.code) == TOO_OFTEN
    assert "cadence.clusters" in fault.hint


async def ifca_run(found: World, name: str) -> None:
    await start(found.coordinator, name=name, algorithm="ifca")  # its question carries all four models


def test_a_newcomer_gets_the_models_of_so_many_clusters_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a restart: the count is on disk."""

    async def first() -> tuple[Peer, Peer]:
        async with world(tmp_path / "s") as found:
            await ifca_run(found, "four")
            device, other = [await found.device(name, role=Role.INFER_ONLY) for name in ("a", "b")]
            found.coordinator.quota = DailyQuota(found.peers, 3, 10)
            await is_refused(device, "four")
            assert lines_of(found.state, Event.PLACED) == []
            found.coordinator.quota = DailyQuota(found.peers, 4, 10)
            question = await placed(device, "four")
            assert isinstance(question, Question)
            await placed(device, "four")  # the same models again cost nothing
            (line,) = lines_of(found.state, Event.PLACED)
            assert line["facts"] == {"device": "a", "run": "four", "clusters": "c0, c1, c2, c3", "today": 4}
            return device, other

    async def second(device: Peer, other: Peer) -> None:
        async with world(tmp_path / "s") as found:
            device.address = other.address = found.listeners.address
            quota = found.coordinator.quota = DailyQuota(found.peers, 4, 10)
            assert not await quota.allows("a", "four", ["c4"])
            assert await quota.allows("a", "four", ["c0", "c3"])
            assert await quota.allows("b", "four", ["c4"])
            await placed(other, "four")
            tomorrow = time.time() + DAY
            monkeypatch.setattr("time.time", lambda: tomorrow)
            assert await quota.allows("a", "four", ["c4"])

    asyncio.run(second(*asyncio.run(first())))


def test_a_device_that_follows_a_run_asks_as_often_as_it_likes_and_shows_nothing(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        await ifca_run(found, "four")
        newcomer = await found.device("n", role=Role.INFER_ONLY)
        async with newcomer.channel() as channel:
            for _ in range(found.coordinator.settings.placements + 2):
                question = await newcomer.link(channel).place("four", Wish(64))
                assert isinstance(question, Question)
                assert question.payload.kind == "choose_compact"
        (line,) = lines_of(found.state, Event.PLACED)
        assert line["facts"]["today"] == 4

    play(story, tmp_path / "s")


def test_all_clusters_of_a_run_are_allowed_by_default_and_to_devices_that_train(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        await ifca_run(found, "four")
        newcomer, trainer = await found.device("n", role=Role.INFER_ONLY), await found.device("t")
        await placed(newcomer, "four")
        found.coordinator.quota = DailyQuota(found.peers, 1, 10)
        await placed(trainer, "four")

    play(story, tmp_path / "s")


def test_there_is_no_model_with_an_abstention_unless_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def abstains(state: object, evidence: Evidence | None) -> ClusterAssignment:
        return ClusterAssignment("c1", 0.1, "far from every cluster", 0.0, 1.0, abstained=True)

    monkeypatch.setattr(ifca, "place", abstains)

    async def story(found: World) -> None:
        await ifca_run(found, "four")
        newcomer = await found.device("n", role=Role.INFER_ONLY)
        scores = Scores(np.ones(4), 9)
        answer = await placed(newcomer, "four", scores)
        assert isinstance(answer, Placement)
        assert (answer.assignment.abstained, answer.model) == (True, None)
        assert found.coordinator.visitors["n"].granted == {}
        assert lines_of(found.state, Event.PLACED) == []
        async with newcomer.channel() as channel:
            answer = await newcomer.link(channel).place("four", scores, accept_nearest=True)
        assert isinstance(answer, Placement)
        assert answer.model is not None
        assert list(found.coordinator.visitors["n"].granted) == [answer.model.blob.sha256]
        assert [line["facts"]["clusters"] for line in lines_of(found.state, Event.PLACED)] == ["c1"]

    play(story, tmp_path / "s")


def test_where_one_model_is_allowed_a_newcomer_of_flux_votes_for_it(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        await start(
            found.coordinator, name="f", algorithm="flux", parameters={"classes": 1, "privacy": "off"}
        )
        found.coordinator.runs["f"].engine.state = flux()  # type: ignore[misc]
        found.coordinator.quota = DailyQuota(found.peers, 1, 10)
        newcomer = await found.device("n", role=Role.INFER_ONLY)
        async with newcomer.channel() as channel:
            link = newcomer.link(channel)
            question = await link.place("f", Wish(64))
            assert isinstance(question, Question)
            assert question.payload.kind == "vote"
            assert lines_of(found.state, Event.PLACED) == [], "no model was given away"
            for weights in question.payload.weights():
                assert [frame async for frame in link.fetch(weights.blob, 0)]
            answer = await link.place("f", Ballot("c2", 1.0))
            assert isinstance(answer, Placement)
            assert answer.model is not None
            (line,) = lines_of(found.state, Event.PLACED)
            assert line["facts"] == {"device": "n", "run": "f", "clusters": "c2", "today": 1}
            error, fault = await refused(link.place("f", Ballot("c0", 1.0)))
            assert (error.code(), fault.code) == TOO_OFTEN

    play(story, tmp_path / "s")
