"""The graph of a run, for devices without a learner: it is checked, given to those that need it, and kept."""

import asyncio
import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.device_api import DeviceApi
from fedserver.coordinator.operator_api import OperatorApi
from fedserver.coordinator.placement import CannotPlace
from fedserver.coordinator.release_api import ReleaseApi
from shoal.core.errors import BadPayload, NotFound
from shoal.core.exchange.choosing import Wish
from shoal.core.exchange.link import Placement
from shoal.core.exchange.messages import Built, Message
from shoal.core.exchange.payload import Weights
from shoal.core.inference.graph.binding import NUMBERS
from shoal.core.inference.graph.model import reference_of
from shoal.core.types import RunId, Tensors
from tests.core.inference.graphs import HOSTILE, graph, value
from tests.server.servers import (
    DEVICES,
    link,
    pieces_of,
    scenario,
    serve_all,
    spec,
    start,
)
from tests.server.toys import MODEL, Answer, Hands, honest, serve

WEIGHTS = [value(name, NUMBERS[array.dtype.name], array.shape) for name, array in MODEL.items()]
FITTING = graph(inputs=[value("x"), *WEIGHTS])


async def uploaded(coordinator: Coordinator, tensors: Tensors) -> Weights:
    hands = Hands(OperatorApi(coordinator))  # type: ignore[arg-type]
    kept = hands.keep(tensors)
    await hands.link.upload(kept.blob, 0, pieces_of(hands.blobs[kept.blob.sha256]))
    return kept


async def start_with(coordinator: Coordinator, file: bytes, name: str = "light") -> RunId:
    model = await uploaded(coordinator, MODEL)
    blob = (await uploaded(coordinator, {"graph": np.frombuffer(file, np.uint8)})).blob
    asked = spec(name=name, graph=blob.sha256, graph_bytes=blob.size)
    return await OperatorApi(coordinator).start_run(asked, model)


def test_a_device_that_needs_the_graph_may_fetch_it_after_every_round(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start_with(coordinator, FITTING)
        await serve_all(coordinator)
        newcomer = DeviceApi(coordinator, "newcomer")
        answer = await newcomer.place("light", Wish(4, graph=True))
        assert isinstance(answer, Placement)
        assert answer.graph is not None
        assert answer.model is not None
        pieces = [piece async for piece in newcomer.fetch(answer.graph, 0)]
        assert b"".join(pieces) == FITTING
        await OperatorApi(coordinator).prune_runs("light")
        assert b"".join([piece async for piece in newcomer.fetch(answer.graph, 0)]) == FITTING
        await ReleaseApi(coordinator).remove("stable")
        await OperatorApi(coordinator).remove_run("light")
        with pytest.raises(NotFound):
            await anext(newcomer.fetch(answer.graph, 0))

    scenario(story, tmp_path)


def test_a_device_with_a_learner_gets_no_graph(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start_with(coordinator, FITTING)
        answer = await DeviceApi(coordinator, "newcomer").place("light", Wish(4))
        assert isinstance(answer, Placement)
        assert answer.graph is None

    scenario(story, tmp_path)


def test_a_run_without_a_graph_cannot_place_a_device_that_needs_one(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator, name="heavy")
        newcomer = DeviceApi(coordinator, "newcomer")
        with pytest.raises(CannotPlace, match="run heavy has no graph") as fault:
            await newcomer.place("heavy", Wish(4, graph=True))
        assert "--graph" in fault.value.hint

    scenario(story, tmp_path)


def test_a_graph_that_no_device_would_take_starts_no_run(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        file, reason = HOSTILE["custom operator"]
        with pytest.raises(BadPayload, match=reason):
            await start_with(coordinator, file)
        with pytest.raises(BadPayload, match="the initial model"):
            await start_with(coordinator, graph())
        assert not coordinator.runs
        assert await start_with(coordinator, FITTING) == "light"

    scenario(story, tmp_path)


def building(number: int, file: bytes | None, untraced: str | None = None) -> Answer:
    """An honest device that gives this graph, or this reason, with the first weights."""
    graph = None if file is None else {"graph": np.frombuffer(file, np.uint8)}

    def answer(message: Message, seed: int) -> Message:
        found = honest(number)(message, seed)
        return replace(found, graph=graph, untraced=untraced) if isinstance(found, Built) else found

    return answer


async def built(
    coordinator: Coordinator, file: bytes | None, untraced: str | None = None, first: bytes | None = None
) -> list[str]:
    """A run whose first weights devices make, to its end; its log. first: the file of the first device, if it
    has another one."""
    await start(coordinator, None)
    files = [first or file, *[file] * (DEVICES - 1)]
    work = [building(number, each, untraced) for number, each in enumerate(files)]
    await asyncio.gather(*(serve(link(coordinator, number), each) for number, each in enumerate(work)))
    assert (await OperatorApi(coordinator).show("toy")).summary.stage == "finished"
    return [line.text for line in await OperatorApi(coordinator).log("toy", 0)]


def test_the_graph_that_comes_with_the_first_weights_is_kept_for_files_and_lent_to_no_device(
    tmp_path: Path,
) -> None:
    async def story(coordinator: Coordinator) -> None:
        api = OperatorApi(coordinator)
        before = spec(name="toy").digest
        await built(coordinator, FITTING)
        found = (await api.show("toy")).spec
        assert found is not None
        assert (found.graph, found.graph_bytes) == (hashlib.sha256(FITTING).hexdigest(), len(FITTING))
        assert found.graph_by in {f"d{number}" for number in range(DEVICES)}
        assert replace(found, software="", initial="").digest == before, "the run started from the same"
        await api.prune_runs("toy")
        stored = await coordinator.storage.call(
            coordinator.storage.blobs.read, reference_of(found.graph, found.graph_bytes)
        )
        assert stored["graph"].tobytes() == FITTING
        with pytest.raises(CannotPlace) as fault:
            await DeviceApi(coordinator, "newcomer").place("toy", Wish(4, graph=True))
        assert "--graph" in fault.value.hint

    scenario(story, tmp_path)


def test_a_run_that_goes_on_lends_no_graph_that_a_device_made(tmp_path: Path) -> None:
    """Nor does its release, so that a channel can go back from it to the one before."""

    async def story(coordinator: Coordinator) -> None:
        releases = ReleaseApi(coordinator)
        await built(coordinator, FITTING)
        await releases.create("toy", "v1")
        await start(coordinator, None, name="next", base="toy@v1")
        await serve_all(coordinator)
        first, found = [(await OperatorApi(coordinator).show(run)).spec for run in ("toy", "next")]
        assert first is not None
        assert found is not None
        assert (found.graph, found.graph_by) == (first.graph, first.graph_by)
        with pytest.raises(CannotPlace, match="has no graph"):
            await DeviceApi(coordinator, "newcomer").place("next", Wish(4, graph=True))
        await releases.create("next", "v1")
        for name in ("next@v1", "toy@v1"):
            await releases.use(name, "stable")

    scenario(story, tmp_path)


def test_a_graph_that_only_one_device_made_does_not_count(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await built(coordinator, FITTING, first=graph())
        found = (await OperatorApi(coordinator).show("toy")).spec
        assert found is not None
        assert found.graph == hashlib.sha256(FITTING).hexdigest()

    scenario(story, tmp_path)


@pytest.mark.parametrize("file", [HOSTILE["custom operator"][0], graph(), None])
def test_weights_count_without_a_graph_that_is_not_taken(tmp_path: Path, file: bytes | None) -> None:
    async def story(coordinator: Coordinator) -> None:
        reason = None if file is not None else "it loops over the batch"
        log = await built(coordinator, file, reason)
        found = (await OperatorApi(coordinator).show("toy")).spec
        assert found is not None
        assert (found.graph, found.graph_by) == ("", "")
        assert any("graph for ONNX files" in line and (reason or "") in line for line in log)

    scenario(story, tmp_path)
