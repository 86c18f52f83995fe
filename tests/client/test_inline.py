"""Small models travel inside of tasks and reports: two calls for a round, and never a wrong byte."""

from pathlib import Path

import numpy as np
import pytest

from shoal.core.exchange.link import Failure
from shoal.core.exchange.messages import Train, TrainingSettings
from shoal.core.exchange.payload import INLINE, encode
from shoal.core.exchange.tensors import digest
from tests.client.memory_server import MemoryServer
from tests.client.visits import MODEL, Device, train, trained

CALLS = ("fetch", "uploaded", "upload", "report")


@pytest.fixture
def server() -> MemoryServer:
    server = MemoryServer([], inline=True)
    server.tasks = [train(server, 1), train(server, 2, 3.0)]
    return server


def test_a_round_of_a_small_model_takes_two_calls(tmp_path: Path, server: MemoryServer) -> None:
    Device(tmp_path, server).run()
    kinds = [line.split()[0] for line in server.log]
    assert kinds == ["hello", "next_task", "report", "next_task", "report", "next_task", "leave"]
    assert [trained(server, 0)[1], trained(server, 1)[1]] == [2.0, 6.0]


def test_what_is_sent_is_what_is_in_the_outbox(tmp_path: Path, server: MemoryServer) -> None:
    Device(tmp_path, server).run()
    (weights,) = server.reports[1].result.weights()  # type: ignore[union-attr]
    assert server.reports[1].result.blobs_in(server.reports[1].inline).keys() == {weights.blob.sha256}  # type: ignore[union-attr]
    assert weights.blob.sha256 == digest({"w": MODEL["w"] * np.float32(6.0)})


def test_a_model_that_was_damaged_on_its_way_is_fetched(tmp_path: Path, server: MemoryServer) -> None:
    server.damage = True
    Device(tmp_path, server).run()
    assert server.calls("fetch") == ["fetch 0"]
    assert [trained(server, 0)[1], trained(server, 1)[1]] == [2.0, 6.0]


def test_a_result_that_was_damaged_on_its_way_is_uploaded(tmp_path: Path, server: MemoryServer) -> None:
    del server.tasks[1:]
    device = Device(tmp_path, server)
    original = device.executor.perform

    async def perform(task):  # type: ignore[no-untyped-def]
        server.damage = True
        return await original(task)

    device.executor.perform = perform  # type: ignore[method-assign]
    device.run()
    assert server.calls(*CALLS) == ["report 1 1", "uploaded", "upload 0", "report 1 1"]
    assert trained(server, 0)[1] == 2.0


def test_a_large_model_travels_by_itself(tmp_path: Path, server: MemoryServer) -> None:
    large = {"w": np.ones(INLINE // 4 + 1, np.float32)}
    message = Train(large, TrainingSettings(), cluster="c1")
    task = train(server, 1)
    server.tasks = [type(task)("r1", 1, 0, 7, "round 1", encode(message, server.keep))]
    Device(tmp_path, server).run()
    assert [line.split()[0] for line in server.calls(*CALLS)] == ["fetch", "uploaded", "upload", "report"]
    assert trained(server, 0)[1] == 2.0


def test_an_owner_who_allows_no_download_is_obeyed(tmp_path: Path, server: MemoryServer) -> None:
    del server.tasks[1:]
    Device(tmp_path, server).run(download_bytes=100)
    (report,) = server.reports
    assert isinstance(report.result, Failure)
    assert report.inline == ()


def test_a_result_is_sent_inside_of_the_report_again(tmp_path: Path, server: MemoryServer) -> None:
    del server.tasks[1:]
    device = Device(tmp_path, server)
    server.away, server.away_from = 1, ("report",)
    device.run()
    assert server.calls(*CALLS) == ["report 1 1", "report 1 1"]
    assert trained(server, 0)[1] == 2.0
