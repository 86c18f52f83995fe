"""A device's visit against a server in memory: every cut is taken up where it was."""

import asyncio
from dataclasses import replace

import pytest

from fedclient.agent.agent import Until
from fedclient.work.failures import outgoing
from shoal.core.errors import NotFound, Refused, Unavailable
from shoal.core.exchange.link import Failure, Outcome, Receipt
from shoal.core.exchange.payload import Payload
from tests.client.memory_server import MemoryServer
from tests.client.visits import MODEL, Device, train, trained
from tests.waiting import until


def learned(*rounds: int) -> list[str]:
    """What the agent says of the results that these rounds took."""
    return [f"r1: round {number}: loss 0.0000, 1 sample" for number in rounds]


def test_a_visit(device: Device, server: MemoryServer) -> None:
    device.run()
    assert [report.round for report in server.reports] == [1, 2]
    assert trained(server, 0) == [0.0, 2.0, 4.0]
    assert trained(server, 1) == [0.0, 6.0, 12.0]
    steps = [line.split()[0] for line in server.log]
    visit = ["next_task", "fetch", "uploaded", "upload", "report"]
    assert [s for s in steps if s != "alive"] == ["hello", *visit, *visit, "next_task", "leave"]
    assert device.outbox.pending() is None
    status = device.reporter.status
    assert (status.tasks, status.round, status.cluster, status.outcome) == (2, 2, "c1", "accepted")
    assert device.said == learned(1, 2)


def test_people_read_the_run_and_its_own_count(device: Device, server: MemoryServer) -> None:
    """The engine's number, which counts other rounds too, is for machines."""
    server.tasks = [
        replace(train(server, 9), run="digits", title="training round 4 of 10: devices describe their data"),
        replace(train(server, 10), run="digits", title=""),
    ]
    server.outcomes = [Receipt(Outcome.LATE, "it was over"), Receipt(Outcome.ACCEPTED)]
    device.run()
    shown = [text for text in device.doing if text.startswith("digits: ")]
    assert shown == ["digits: training round 4 of 10: devices describe their data", "digits: train"]
    assert device.said == [
        f"{shown[0]}: the result was late: it was over",
        "digits: train: loss 0.0000, 1 sample",
    ]
    assert device.reporter.status.round == 10


def test_once_is_one_report(device: Device, server: MemoryServer) -> None:
    device.run(Until.ONCE)
    assert [report.round for report in server.reports] == [1]
    assert server.log[-1] == "leave"


@pytest.mark.parametrize("code", ["over-budget", "no-consent", "unprotected", "too-few-samples"])
def test_a_device_that_refuses_all_runs_that_go_on_ends_and_says_why(
    device: Device, server: MemoryServer, code: str
) -> None:
    server.finished, server.going_on, server.tasks = False, ("r1",), server.tasks[:1]
    device.executor.before = [lambda: Failure(code, "the owner does not want it")]
    with pytest.raises(Refused, match="run r1 goes on without this device: the owner does not") as caught:
        device.run()
    assert (caught.value.code, caught.value.exit_code) == (code, 5)
    assert [report.result for report in server.reports] == [outgoing(Failure(code, ""))]


def test_a_device_that_refuses_one_of_two_runs_waits_for_the_other(
    device: Device, server: MemoryServer
) -> None:
    other = replace(train(server, 1), run="r2")
    server.finished, server.going_on, server.tasks = False, ("r1", "r2"), server.tasks[:1]
    device.executor.before = [lambda: Failure("over-budget", "")]

    def offers() -> bool:
        if "waiting: nothing to do" in device.doing and len(server.reports) == 1:
            server.tasks = [other]
        server.finished = len(server.reports) == 2
        return server.finished

    async def served() -> None:
        serving = asyncio.create_task(device.agent().run(Until.FINISHED))
        await until(offers)
        await serving

    asyncio.run(served())
    assert [report.run for report in server.reports] == ["r1", "r2"]


def test_without_an_end_it_goes_on_until_it_is_stopped(device: Device, server: MemoryServer) -> None:
    async def stopped() -> None:
        serving = asyncio.create_task(device.agent().run())
        await until(lambda: len(server.calls("next_task")) >= 6)  # two tasks, then idle after idle
        serving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving

    asyncio.run(stopped())
    assert server.log[-1] == "leave"
    assert len(server.reports) == 2
    assert "waiting: nothing to do" in device.doing


@pytest.mark.parametrize(
    "kind", ["hello", "next_task", "fetch", "uploaded", "upload", "report", "alive", "leave"]
)
def test_a_server_that_is_away_is_asked_again(device: Device, server: MemoryServer, kind: str) -> None:
    server.away, server.away_from = 3, (kind,)
    device.executor.before = [lambda: until(lambda: kind != "alive" or not server.away)]
    device.run()
    assert [report.round for report in server.reports] == [1, 2]
    assert device.executor.performed == [1, 2]
    if kind not in ("alive", "leave"):
        assert any("waiting for the server: no one there" in text for text in device.doing)


def test_patience_has_an_end_where_the_owner_sets_one(device: Device, server: MemoryServer) -> None:
    server.away = 1 << 30
    with pytest.raises(Unavailable, match="no one there"):
        device.run(give_up_after=0.05)


def test_a_cut_download_goes_on(device: Device, server: MemoryServer) -> None:
    server.cut = [2000, 3000]
    device.run(Until.ONCE)
    assert trained(server, 0) == [0.0, 2.0, 4.0]
    assert len(server.calls("fetch")) == 3


def test_a_cut_upload_goes_on_where_the_server_is(device: Device, server: MemoryServer) -> None:
    device.executor.before = [lambda: server.cut.append(1500)]
    device.run(Until.ONCE)
    assert trained(server, 0) == [0.0, 2.0, 4.0]
    assert server.calls("upload") == ["upload 0", "upload 1500"]


def test_what_the_server_lost_before_the_report_is_uploaded_again(
    device: Device, server: MemoryServer
) -> None:
    server.lose = True
    device.run(Until.ONCE)
    assert trained(server, 0) == [0.0, 2.0, 4.0]
    assert [call.split()[0] for call in server.calls("upload", "report")] == ["upload", "report"] * 2
    assert any("uploading the result again" in text for text in device.doing)


def test_what_a_power_cut_damaged_at_the_server_is_uploaded_from_the_beginning(
    device: Device, server: MemoryServer
) -> None:
    doubled = server.keep({"w": MODEL["w"] * 2}).blob.sha256
    server.uploads[doubled] = bytes(1000)
    device.run(Until.ONCE)
    assert server.calls("upload") == ["upload 1000", "upload 0"]
    assert trained(server, 0) == [0.0, 2.0, 4.0]


def test_what_the_server_has_is_not_uploaded(device: Device, server: MemoryServer) -> None:
    doubled = server.keep({"w": MODEL["w"] * 2}).blob.sha256
    server.uploads[doubled] = server.blobs[doubled]
    device.run(Until.ONCE)
    assert server.calls("upload") == []
    assert len(server.reports) == 1


def test_wrong_bytes_are_fetched_once_more_and_then_reported(device: Device, server: MemoryServer) -> None:
    for name in server.blobs:
        server.blobs[name] = bytes(len(server.blobs[name]))
    device.run()
    assert [r.result.code for r in server.reports if isinstance(r.result, Failure)] == ["bad-payload"] * 2
    assert device.executor.performed == []
    assert len(server.calls("fetch")) == 4


def test_a_blob_that_is_gone_is_reported(device: Device, server: MemoryServer) -> None:
    server.blobs.clear()
    device.run(Until.ONCE)
    result = server.reports[0].result
    assert isinstance(result, Failure)
    assert result.code == NotFound.code


def test_a_model_beyond_the_owners_limit_is_not_fetched(device: Device, server: MemoryServer) -> None:
    device.run(Until.ONCE, download_bytes=3999)
    result = server.reports[0].result
    assert isinstance(result, Failure)
    assert result.code == "refused"
    assert "4000 bytes" in device.said[0]
    assert "limits.download_bytes" in device.said[0]
    assert server.calls("fetch") == []


def test_a_failure_is_reported_and_the_device_goes_on(device: Device, server: MemoryServer) -> None:
    device.executor.before = [lambda: Failure("learner-failed", "train() failed", "Traceback: boom")]
    device.run()
    assert isinstance(server.reports[0].result, Failure)
    assert isinstance(server.reports[1].result, Payload)
    assert device.said == ["Traceback: boom\nerror[learner-failed]: train() failed", *learned(2)]
    assert device.reporter.failure is None  # the last one worked
    assert device.reporter.status.error["code"] == "learner-failed"


@pytest.mark.parametrize("outcome", [Outcome.LATE, Outcome.REFUSED])
def test_what_was_not_taken_is_said(device: Device, server: MemoryServer, outcome: Outcome) -> None:
    server.outcomes = [Receipt(outcome, "because of that")]
    device.run()
    assert any(f"{outcome.value}: because of that" in text for text in device.said)
    assert len(server.reports) == 2
    assert device.outbox.pending() is None


def test_a_duplicate_is_as_good(device: Device, server: MemoryServer) -> None:
    server.outcomes = [Receipt(Outcome.DUPLICATE)] * 2
    device.run()
    assert device.said == learned(1, 2)


def test_a_result_does_not_leave_once_consent_is_taken_back(device: Device, server: MemoryServer) -> None:
    def again() -> None:
        device.consents.give("r1", everything=True)

    again()
    device.executor.before = [lambda: device.consents.revoke("r1"), again]  # while it trains for rounds 1, 2
    device.run()
    first, second = [report.result for report in server.reports]
    assert isinstance(first, Failure)
    assert first.code == "no-consent"
    assert isinstance(second, Payload), "what is begun later leaves once consent is given again"
    assert len(server.uploads) == 1
