"""Newcomers that choose among a run's models themselves: what they are given, and what the server learns."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.device_api import DeviceApi
from fedserver.coordinator.operator_api import OperatorApi
from fedserver.coordinator.visits.visitor import Quota
from fedserver.rpc.wire.operator_wire import PLACEMENT
from fedserver.store.content.blobs import Blobs
from shoal.core.engine.policy import RoundPolicy
from shoal.core.errors import BadPayload, NotFound
from shoal.core.exchange.choosing import Wish
from shoal.core.exchange.choosing.compact import ChooseCompact
from shoal.core.exchange.choosing.tuning import Tune
from shoal.core.exchange.link import Placement, Question
from shoal.core.exchange.parts import Ballot, ClusterAssignment
from shoal.core.exchange.payload import Weights, decode
from shoal.core.exchange.tensors import manifest_of, unpack
from shoal.core.privacy.noise.vote import cost
from shoal.core.privacy.report import Statement
from shoal.core.types import Tensors
from tests.core.server_kit.test_placing import flux
from tests.server.servers import link, models, scenario, serve_all, start
from tests.server.store.released import releases
from tests.server.toys import Hands, same_models

WISH = Wish(64)


async def given(newcomer: Hands, question: Question | Placement) -> ChooseCompact:
    """The models that the newcomer may choose among, fetched."""
    assert isinstance(question, Question)
    for weights in question.payload.weights():
        await newcomer.fetch(weights)
    found = decode(
        question.payload,
        {ChooseCompact.kind: ChooseCompact},
        lambda weights: unpack(weights.manifest, memoryview(newcomer.blobs[weights.blob.sha256])),
    )
    assert isinstance(found, ChooseCompact)
    return found


def test_a_newcomer_may_fetch_the_models_of_all_clusters_and_tells_nothing(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator, name="ifca", algorithm="ifca", parameters={"clusters": 20})
        newcomer = Hands(DeviceApi(coordinator, "newcomer"))
        question = await newcomer.link.place("ifca", WISH)
        found = await given(newcomer, question)
        assert found.keys == (*(f"c{number}" for number in range(20)), "global")
        assert await coordinator.storage.call(releases, coordinator.storage.store.database, "ifca") == []
        (record,) = await coordinator.storage.call(coordinator.storage.journal.placements.read, "ifca")
        assert (record.outcome, record.evidence, record.cluster) == ("handed_out", "wish", "")
        assert (record.models, record.confidence) == (found.keys[:-1], None)
        assert isinstance(question, Question)
        blob = question.payload.weights()[0].blob
        with pytest.raises(NotFound):
            await anext(DeviceApi(coordinator, "another").fetch(blob, 0))

    scenario(story, tmp_path)


def test_models_are_counted_and_made_once_for_each_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, keep = list[Tensors](), Blobs.keep

    def counting(self: Blobs, tensors: Tensors) -> Weights:
        kept.append(tensors)
        return keep(self, tensors)

    monkeypatch.setattr(Blobs, "keep", counting)

    async def story(coordinator: Coordinator) -> None:
        coordinator.quota = quota = AtMost()
        await start(coordinator, name="ifca", algorithm="ifca", parameters={"clusters": 3})
        newcomer = Hands(DeviceApi(coordinator, "newcomer"))
        question = await newcomer.link.place("ifca", Wish(64))
        found = await given(newcomer, question)
        assert quota.spent == ["c0", "c1", "c2"], "whole models or not, they are given away"
        state = coordinator.runs["ifca"].engine.state
        opened = found.opened(manifest_of(state.models["c0"]))
        for key, model in zip(opened.keys[:-1], opened.models, strict=False):
            for name, array in state.models[key].items():
                assert model[name] == pytest.approx(array, abs=0.01)
        kept.clear()
        again = await newcomer.link.place("ifca", Wish(64))
        assert again == question
        assert not kept, "nor are their bytes written again"
        assert isinstance(again, Question)
        weights = again.payload.weights()[0]
        coordinator.storage.blobs.path(weights.blob.sha256).unlink()
        coordinator.storage.blobs._sound.clear()  # as long after
        await given(newcomer, await newcomer.link.place("ifca", Wish(64)))
        await coordinator.storage.call(coordinator.storage.runs.release, "ifca")  # as at the end of a round
        await given(newcomer, await newcomer.link.place("ifca", Wish(64)))

    scenario(story, tmp_path)


class AtMost(Quota):
    """The models of three clusters, and a note of what was spent."""

    def __init__(self) -> None:
        self.spent: list[str] = []

    async def allows(self, device: str, run: str, clusters: Collection[str]) -> bool:
        return len(clusters) <= 3

    async def spend(self, device: str, run: str, clusters: Collection[str]) -> None:
        self.spent += clusters


def test_more_models_than_the_operator_allows_are_not_given_away(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        coordinator.quota = quota = AtMost()
        await start(coordinator, name="three", algorithm="ifca", parameters={"clusters": 3})
        await start(coordinator, name="four", algorithm="ifca", parameters={"clusters": 4})
        newcomer = DeviceApi(coordinator, "newcomer")
        question = await newcomer.place("four", WISH)
        assert isinstance(question, Question)
        assert question.payload.kind == "score", "the way of the paper"
        quota.spent.clear()
        question = await newcomer.place("three", WISH)
        assert isinstance(question, Question)
        assert question.payload.kind == "choose_compact"
        assert quota.spent == ["c0", "c1", "c2"], "the common model is no cluster's"

    scenario(story, tmp_path)


def test_a_run_of_one_model_gives_it_and_one_of_several_lets_newcomers_choose(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        newcomer = DeviceApi(coordinator, "newcomer")
        await start(coordinator, name="fedavg", algorithm="fedavg")
        only = await newcomer.place("fedavg", WISH)
        assert isinstance(only, Placement)
        assert only.assignment.reason == "run fedavg has only one model: nothing was compared"
        await start(coordinator, name="ifca", algorithm="ifca")
        paper = {"placing": "paper"}
        await start(coordinator, name="newer", algorithm="ifca", parameters=paper)
        question = await newcomer.place("ifca", WISH)
        assert isinstance(question, Question)
        assert (question.run, question.payload.kind) == ("ifca", "choose_compact")
        labelled = await newcomer.place("newer", WISH)
        assert isinstance(labelled, Question)
        assert labelled.payload.kind == "score"

    scenario(story, tmp_path)


def test_newcomers_that_keep_coming_and_fit_nowhere_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def abstains(state: object, evidence: object) -> ClusterAssignment:
        return ClusterAssignment("c1", 0.1, abstained=True, reason="far from every cluster")

    monkeypatch.setattr("shoal.core.algorithms.ifca.server.place", abstains)

    async def story(coordinator: Coordinator) -> None:
        await start(coordinator, name="ifca", algorithm="ifca", policy=RoundPolicy())
        for name, times in (("a", 3), ("b", 2), ("c", 4)):
            for _ in range(times):
                await DeviceApi(coordinator, name).place("ifca", None, name == "c")
            (notice, *others) = (await OperatorApi(coordinator).status()).notices
            assert others == []
            if name != "c":
                assert notice.startswith("newcomer a has asked run ifca for a model 3 times, and fits no")
        assert notice.startswith("2 newcomers of run ifca fit no cluster and ask again, c 4 times")
        assert "fedserver run show ifca --newcomers" in notice

    scenario(story, tmp_path)


def test_a_vote_is_answered_with_one_model_and_recorded_without_a_confidence(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        coordinator.quota = quota = AtMost()
        await start(coordinator, name="flux", algorithm="flux", parameters={"classes": 1, "privacy": "off"})
        run = coordinator.runs["flux"]
        run.engine.state = flux(placing="vote")  # type: ignore[misc]
        newcomer = Hands(DeviceApi(coordinator, "newcomer"))
        question = await newcomer.link.place("flux", Wish(64))
        assert isinstance(question, Question)
        assert (question.run, question.payload.kind, quota.spent) == ("flux", "vote", [])
        answer = await newcomer.link.place("flux", Ballot("c1", 1.0))
        assert isinstance(answer, Placement)
        assert answer.model is not None
        assert (answer.assignment.cluster, quota.spent) == ("c1", ["c1"])
        with pytest.raises(BadPayload):
            await newcomer.link.place("flux", Ballot("c9", 1.0))
        (record,) = await coordinator.storage.call(coordinator.storage.journal.placements.read, "flux")
        assert (record.evidence, record.outcome, record.cluster) == ("vote", "placed", "c1")
        await newcomer.link.place("flux", Ballot("c1", 1.0))
        found = (await OperatorApi(coordinator).show("flux")).released
        assert found == {"newcomer": Statement(cost(1.0), trained=False)}, "the same answer is paid for once"
        later = flux(placing="vote")
        encoder = {name: 2.0 * tensor for name, tensor in later.clustering.encoder.items()}
        later = replace(later, clustering=replace(later.clustering, encoder=encoder))
        run.engine.state = later  # type: ignore[misc]
        await newcomer.link.place("flux", Ballot("c1", 1.0))
        found = (await OperatorApi(coordinator).show("flux")).released
        assert found["newcomer"].cost == cost(1.0) + cost(1.0), "it is another question"
        assert record.confidence is None
        assert PLACEMENT.from_pb(PLACEMENT.to_pb(record)).evidence == "vote"

    scenario(story, tmp_path)


def test_a_device_that_trains_is_asked_to_fine_tune_the_model_of_its_own_cluster(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        coordinator.quota = quota = AtMost()
        await start(coordinator)
        await serve_all(coordinator)
        member = Hands(link(coordinator, 1))
        question = await member.link.place("toy", Wish(64, own=True))
        assert isinstance(question, Question)
        (weights,) = question.payload.weights()
        pieces = [piece async for piece in member.link.fetch(weights.blob, 0)]
        found = decode(
            question.payload,
            {"tune": Tune},
            lambda weights: unpack(weights.manifest, memoryview(b"".join(pieces))),
        )
        assert isinstance(found, Tune)
        assert found.cluster == "global"
        assert same_models({"global": dict(found.model)}, models(coordinator))
        assert quota.spent == ["global"]
        (record,) = await coordinator.storage.call(coordinator.storage.journal.placements.read, "toy")
        assert (record.outcome, record.evidence, record.cluster) == ("placed", "wish", "global")
        assert "fine-tune" in record.reason

    scenario(story, tmp_path)


def test_other_devices_and_other_data_are_placed_as_before(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator)
        await serve_all(coordinator)
        for device, wish in (("d7", Wish(64, own=True)), ("d1", Wish(64))):
            answer = await DeviceApi(coordinator, device).place("toy", wish)
            assert isinstance(answer, Placement)
            assert "only one model" in answer.assignment.reason

    scenario(story, tmp_path)
