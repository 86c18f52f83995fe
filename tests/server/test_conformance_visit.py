"""The order of a device's calls, as `fedserver conformance` judges it."""

import pytest

from fedserver.conformance.visit import first_wrong
from fedserver.rpc.edge import Call
from shoal.core.exchange._pb.fed.v1 import device_service_pb2 as pb

HELLO = ("Hello", pb.HelloResponse(session="s"))
TASK, IDLE = pb.NextTaskResponse(), pb.NextTaskResponse()
TASK.task.lease.round = 1
IDLE.idle.SetInParent()
LEASED, SENT_AWAY = ("NextTask", TASK), ("NextTask", IDLE)
RECEIPT, LOST = ("Report", pb.ReportResponse()), ("Report", None)
UNWANTED, WANTED = ("Alive", pb.AliveResponse()), ("Alive", pb.AliveResponse(wanted=True))
VOID = ("Report", "say-hello")


def calls(*made: tuple[str, object]) -> list[Call]:
    found = []
    for number, (name, answer) in enumerate(made):
        error = answer if isinstance(answer, str) else ""
        found.append(
            Call(name, None, "s", 3.0 * number, 3.0 * number + 0.5, None if error else answer, error)
        )
    return found


@pytest.mark.parametrize(
    ("made", "wrong"),
    [
        ((HELLO, SENT_AWAY, LEASED, WANTED, RECEIPT, UNWANTED, SENT_AWAY, ("Leave", pb.LeaveResponse())), ""),
        ((HELLO, LEASED, UNWANTED, LEASED, LOST, LOST, RECEIPT, LEASED), ""),
        ((HELLO, LEASED, VOID, HELLO, LEASED, RECEIPT), ""),
        ((LEASED,), "NextTask was leased while it was absent"),
        ((HELLO, LEASED, LEASED), "NextTask was leased while it was working"),
        ((HELLO, LEASED, LOST, SENT_AWAY), "NextTask was sent away while it was holding"),
        ((HELLO, LEASED, UNWANTED, RECEIPT), "Report was receipt while it was idle"),
        ((HELLO, LEASED, HELLO), "Hello was greeted while it was working"),
    ],
)
def test_the_first_call_that_is_out_of_order_is_named(
    made: tuple[tuple[str, object], ...], wrong: str
) -> None:
    assert first_wrong(calls(*made)) == wrong


def test_a_heartbeat_that_crosses_with_a_report_does_not_make_the_receipt_wrong() -> None:
    made = calls(HELLO, LEASED, RECEIPT, UNWANTED, SENT_AWAY)
    report, heartbeat = made[2:4]
    report.over = heartbeat.over + 0.1  # counted, and its receipt not yet sent
    assert first_wrong(made) == ""
    heartbeat.over = report.at - 0.1  # the report was on its way
    assert first_wrong(made) == ""
    heartbeat.over = report.at - 2.0  # the device had the answer, and reported all the same
    assert first_wrong(made) == "Report was receipt while it was idle"
