"""Consent that is taken back while a result waits for a server that is away."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import numpy as np
import pytest

from fedclient.agent.agent import Until
from shoal.core.errors import NoConsent
from shoal.core.exchange.link import Failure, Receipt, Report, Task
from shoal.core.exchange.messages import Train, TrainingSettings
from shoal.core.exchange.payload import BlobRef, Payload, encode
from shoal.core.types import Bytes
from tests.client.memory_server import MemoryLink, MemoryServer
from tests.client.visits import Device, train
from tests.waiting import HANG, until


class Waits(list[str]):
    """What an agent is doing; its owner refuses the run as soon as it waits for the server."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device

    def append(self, text: str) -> None:
        super().append(text)
        if text.startswith("waiting for the server") and not self.device.consents.refused():
            self.device.consents.revoke("r1")


def test_the_owner_is_told_that_a_run_asks_until_it_may_have_it(device: Device, server: MemoryServer) -> None:
    """The long error is printed once for all asks, and stays until this run, and no other, has a result."""
    asks, waits = "run r1 asks for your consent: fedclient consent give r1", "waiting: nothing to do"
    other = replace(train(server, 3), run="r2")

    def refuse() -> Failure:
        device.consents.allows("r1", "weights")
        return Failure("no-consent", "run r1 asks for weights, and you have not consented")

    async def served() -> None:
        serving = asyncio.create_task(device.agent().run())
        await until(lambda: len(server.reports) == 2 and device.doing[-1] == asks)
        status = device.reporter.status
        assert (status.run, status.outcome, status.error["code"]) == ("r1", "no-consent", "no-consent")
        assert waits not in device.doing
        server.tasks = [other]
        await until(lambda: len(server.reports) == 3 and device.doing[-1] == asks)
        assert status.error["code"] == "no-consent"
        device.consents.give("r1")
        await until(lambda: device.doing[-1] == waits)
        server.tasks = [train(server, 4)]
        await until(lambda: len(server.reports) == 4 and device.doing[-1] == waits)
        assert (status.outcome, status.error) == ("accepted", {})
        serving.cancel()

    server.going_on, server.tasks = ("r1", "r2"), [train(server, 1), train(server, 2)]
    device.executor.before = [refuse, refuse]
    asyncio.run(asyncio.wait_for(served(), HANG))
    assert [text for text in device.said if "have not consented" in text] == [
        "error[no-consent]: run r1 asks for weights, and you have not consented"
    ]


@pytest.mark.parametrize(
    ("kind", "inline"), [("uploaded", False), ("upload", False), ("report", False), ("report", True)]
)
def test_nothing_leaves_once_consent_is_taken_back_while_the_server_is_away(
    device: Device, server: MemoryServer, kind: str, inline: bool
) -> None:
    server.inline, server.tasks = inline, [train(server, 1)]
    device.consents.give("r1", everything=True)
    device.doing = Waits(device)
    device.executor.before = [lambda: vars(server).update(away=1, away_from=(kind,))]
    device.run(Until.ONCE)
    (report,) = server.reports
    assert isinstance(report.result, Failure), "the result left after its owner had refused the run"
    assert report.result.code == "no-consent"
    assert report.inline == ()
    assert bool(server.uploads) is (kind == "report" and not inline), "only what had left before"


def test_a_server_that_answers_with_the_owners_own_words_is_not_asked_without_end(
    device: Device, server: MemoryServer
) -> None:
    class Mocking(MemoryLink):
        async def report(self, report: Report) -> Receipt:
            sent.append(report.result)
            raise NoConsent("you have refused it", "have you?")

    sent: list[object] = []
    with pytest.raises(NoConsent):
        asyncio.run(asyncio.wait_for(device.agent(Mocking(server)).run(Until.ONCE), HANG))
    assert [type(each) for each in sent] == [Payload, Failure]


def test_an_upload_ends_at_the_chunk_before_which_consent_is_taken_back(
    device: Device, server: MemoryServer
) -> None:
    seen: list[int] = []

    class Slow(MemoryLink):
        async def upload(self, blob: BlobRef, start: int, chunks: AsyncIterator[Bytes]) -> int:
            async def watched() -> AsyncIterator[Bytes]:
                async for chunk in chunks:
                    seen.append(len(chunk))
                    device.consents.revoke("r1")
                    yield chunk

            return await super().upload(blob, start, watched())

    large = Train({"w": np.ones(1 << 20, np.float32)}, TrainingSettings(), cluster="c1")
    server.tasks = [Task("r1", 1, 0, 7, "round 1", encode(large, server.keep))]
    device.consents.give("r1", everything=True)
    asyncio.run(asyncio.wait_for(device.agent(Slow(server)).run(Until.ONCE), HANG))
    (report,) = server.reports
    assert isinstance(report.result, Failure)
    assert len(seen) == 1, "one chunk of several"
    assert server.uploads == {}
