"""Which run places a newcomer, what it is asked, and which model it may fetch."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from fedserver.__main__ import main
from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.device_api import DeviceApi
from fedserver.coordinator.operator_api import OperatorApi
from fedserver.coordinator.placement import CannotPlace
from fedserver.coordinator.runs import Run
from fedserver.rpc.channel import SOCKET
from fedserver.rpc.server import listen
from shoal.core.errors import BadPayload, NotFound
from shoal.core.exchange.link import Placement, Question, Task
from shoal.core.exchange.parts import ClusterAssignment, Descriptor, Moments
from shoal.core.exchange.tensors import digest
from tests.server.servers import (
    expected,
    scenario,
    serve_all,
    server,
    start,
)
from tests.server.toys import MODEL, Hands, same_models

PROJECTOR = {"mean": np.zeros(2), "components": np.ones((1, 2))}


def test_a_newcomer_is_given_the_model_and_may_fetch_it(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator)
        await serve_all(coordinator)
        newcomer = Hands(DeviceApi(coordinator, "newcomer"))
        answer = await newcomer.link.place("", None)
        assert isinstance(answer, Placement)
        assert (answer.run, answer.release) == ("toy", "toy@3")
        assert answer.model is not None
        pieces = [piece async for piece in newcomer.link.fetch(answer.model.blob, 0)]
        newcomer.blobs[answer.model.blob.sha256] = b"".join(pieces)
        assert same_models({"global": newcomer._load(answer.model)}, expected())
        with pytest.raises(NotFound):
            await anext(DeviceApi(coordinator, "another").fetch(answer.model.blob, 0))
        assert not coordinator.runs["toy"].present("newcomer")
        (record,) = await OperatorApi(coordinator).placements("toy", "newcomer", 0)
        assert (record.outcome, record.cluster, record.evidence) == ("placed", "global", "nothing")
        assert (record.models, record.reason) == (("global",), answer.assignment.reason)
        assert record.progress == coordinator.runs["toy"].engine.state.progress > 0

    scenario(story, tmp_path)


def test_a_run_is_over_for_all_who_ask_only_when_its_release_is_there(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        making, go_on, make = asyncio.Event(), asyncio.Event(), coordinator.published.of_finished

        async def held(run: Run) -> Any:
            making.set()
            await go_on.wait()
            return await make(run)

        coordinator.published.of_finished = held  # type: ignore[method-assign]
        await start(coordinator)
        serving = asyncio.create_task(serve_all(coordinator))
        await making.wait()
        over = coordinator.idle().finished, coordinator.summary(coordinator.runs["toy"]).over
        go_on.set()
        assert over == (False, False)
        await serving
        assert coordinator.summary(coordinator.runs["toy"]).over
        answer = await DeviceApi(coordinator, "newcomer").place("", None)
        assert isinstance(answer, Placement)
        assert answer.release == "toy@3"

    scenario(story, tmp_path)


def test_what_cannot_place_says_so(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        newcomer = DeviceApi(coordinator, "newcomer")
        with pytest.raises(NotFound, match="no run, release or channel 'other'"):
            await newcomer.place("other", None)
        await start(coordinator, name="going-on")
        with pytest.raises(CannotPlace, match="the channel stable has no release yet"):
            await newcomer.place("", None)
        await start(coordinator, None, name="empty")
        with pytest.raises(CannotPlace, match="has no model yet"):
            await newcomer.place("empty", None)

    scenario(story, tmp_path)


def test_a_question_names_blobs_that_the_newcomer_may_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shoal.core.algorithms.fedavg import server as server_half
    from shoal.core.exchange.messages import Describe

    def place(state: server_half.State, descriptor: Descriptor | None) -> ClusterAssignment | Describe:
        if descriptor is None:
            return Describe(state.models["global"], PROJECTOR)
        return ClusterAssignment("global", distance=float(descriptor.statistics.means[0, 0]))

    monkeypatch.setattr(server_half, "place", place)

    async def story(coordinator: Coordinator) -> None:
        await start(coordinator)
        newcomer = Hands(DeviceApi(coordinator, "newcomer"))
        question = await newcomer.link.place("toy", None)
        assert isinstance(question, Question)
        message = await newcomer.open(Task(question.run, 1, 0, 0, "", question.payload))
        assert isinstance(message, Describe)
        assert digest(message.projector) == digest(PROJECTOR)
        assert digest(message.encoder) == digest(MODEL)
        descriptor = Descriptor(
            Moments(np.array([[2.5]]), np.array([[1.0]]), np.array([9.0])), digest(PROJECTOR)
        )
        answer = await newcomer.link.place(question.run, descriptor)
        assert isinstance(answer, Placement)
        assert answer.assignment.distance == 2.5
        records = await OperatorApi(coordinator).placements("", "", 0)
        assert [(each.outcome, each.evidence) for each in records] == [("placed", "descriptor")]

    scenario(story, tmp_path)


def test_a_run_with_one_model_says_that_nothing_was_compared(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator)
        answer = await DeviceApi(coordinator, "newcomer").place("toy", None)
        assert isinstance(answer, Placement)
        assert answer.assignment.reason == "run toy has only one model: nothing was compared"

    scenario(story, tmp_path)


def plain(rows: int, dims: int) -> Moments:
    return Moments(np.zeros((rows, dims)), np.ones((rows, dims)), np.ones(rows))


@pytest.mark.parametrize(
    ("descriptor", "wrong"),
    [
        (
            Descriptor(plain(1, 2), digest(PROJECTOR)),
            "2 dimensions",
        ),
        (Descriptor(plain(2, 1), digest(PROJECTOR)), "1 classes"),
        (Descriptor(plain(1, 1), "ab" * 32), "another projector"),
        (Descriptor(Moments(np.zeros((1, 1)), -np.ones((1, 1)), np.ones(1)), digest(PROJECTOR)), "negative"),
    ],
)
def test_a_descriptor_that_is_no_answer_to_the_question_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, descriptor: Descriptor, wrong: str
) -> None:
    from shoal.core.algorithms.fedavg import server as server_half
    from shoal.core.exchange.messages import Describe

    def place(state: server_half.State, given: Descriptor | None) -> ClusterAssignment | Describe:
        assert given is None, "it came through"
        return Describe(state.models["global"], PROJECTOR)

    monkeypatch.setattr(server_half, "place", place)

    async def story(coordinator: Coordinator) -> None:
        await start(coordinator)
        with pytest.raises(BadPayload, match=wrong):
            await DeviceApi(coordinator, "newcomer").place("toy", descriptor)

    scenario(story, tmp_path)


def test_operators_read_what_newcomers_were_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.core.algorithms.fedavg import server as server_half

    def place(state: server_half.State, evidence: object) -> ClusterAssignment:
        return ClusterAssignment("global", 3.0, "", confidence=0.25, abstained=True, reason="too far")

    def cli(*command: str) -> str:
        found = CliRunner().invoke(main, [*command, "--state", str(tmp_path / "s")])
        assert found.exit_code == 0, found.output
        return found.stdout

    async def play() -> None:
        async with server(tmp_path / "s") as coordinator:
            listeners = await listen(coordinator, "127.0.0.1:0", tmp_path / "s" / SOCKET)
            await start(coordinator)
            await start(coordinator, name="other")
            none = await asyncio.to_thread(cli, "run", "show", "other", "--newcomers")
            assert "no newcomer has asked" in none
            await DeviceApi(coordinator, "first").place("toy", None)
            monkeypatch.setattr(server_half, "place", place)
            for _ in range(2):
                refused = await DeviceApi(coordinator, "far").place("toy", None)
            assert isinstance(refused, Placement)
            assert refused.model is None
            await DeviceApi(coordinator, "near").place("toy", None, accept_nearest=True)
            shown = await asyncio.to_thread(cli, "run", "show", "toy", "--newcomers", "--json")
            found = json.loads(shown)["data"]
            rows = [
                (each["device"], each["outcome"], each["models"], each["times"])
                for each in found["placements"]
            ]
            assert rows == [
                ("first", "placed", ["global"], 1),
                ("far", "abstained", [], 2),
                ("near", "nearest", ["global"], 1),
            ]
            table = await asyncio.to_thread(cli, "run", "show", "toy", "--newcomers")
            (far,) = (line for line in table.splitlines() if line.startswith("far "))
            assert "not placed; global is nearest" in far
            assert "25.0 %" in far
            assert "nothing was compared" in far
            shown = await asyncio.to_thread(cli, "run", "show", "toy")
            assert "newcomers: 1 placed by the server; 1 given the nearest model; 1 not placed" in shown
            coordinator.stop_serving()
            await listeners.stop(1.0)

    asyncio.run(play())
