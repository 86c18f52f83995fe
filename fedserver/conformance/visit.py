"""The states of a device in a server's eyes, as a table; and whether its calls kept to it.

    ABSENT --greeted--> IDLE
    IDLE --sent away--> IDLE
    IDLE, WORKING, HOLDING --not wanted--> IDLE
    IDLE --leased--> WORKING
    WORKING, HOLDING --receipt--> IDLE
    WORKING, HOLDING --no receipt--> HOLDING
    ABSENT, IDLE, WORKING, HOLDING --session void | left--> ABSENT

A device is HOLDING once it has sent a report and got no receipt. It leaves that state by a receipt, or
because the server says that the result is not wanted. If its session is void it keeps the result, to report
it under the next lease of the same work.
"""

from collections.abc import Iterable, Mapping
from enum import Enum
from math import inf

from fedserver.rpc.edge import Call
from shoal.core.errors import SessionLost


class State(Enum):
    """What a device is doing."""

    ABSENT = "absent"
    IDLE = "idle"
    WORKING = "working"
    HOLDING = "holding"


class Step(Enum):
    """What one of its calls has brought."""

    GREETED = "greeted"
    WAITS = "sent away"
    LEASED = "leased"
    NOT_WANTED = "not wanted"
    RECEIPT = "receipt"
    NO_RECEIPT = "no receipt"
    VOID = "session void"
    LEFT = "left"


CROSSING = 1.0
"""Seconds within which an answer has reached a device, and what it sent before that the server."""
_AT_WORK = (State.WORKING, State.HOLDING)
TRANSITIONS: Mapping[tuple[State, Step], State] = {
    (State.ABSENT, Step.GREETED): State.IDLE,
    (State.IDLE, Step.WAITS): State.IDLE,
    (State.IDLE, Step.NOT_WANTED): State.IDLE,  # of the task before: a heartbeat may cross with its report
    (State.IDLE, Step.LEASED): State.WORKING,
    **{(state, step): State.IDLE for state in _AT_WORK for step in (Step.NOT_WANTED, Step.RECEIPT)},
    **{(state, Step.NO_RECEIPT): State.HOLDING for state in _AT_WORK},
    **{(state, step): State.ABSENT for state in State for step in (Step.VOID, Step.LEFT)},
}


def first_wrong(calls: Iterable[Call]) -> str:
    """What the device did first that the table does not have; "" if it kept to it."""
    state = State.ABSENT
    over = sorted((each for each in calls if each.over < inf), key=lambda each: each.over)
    reports = [each for each in over if each.name == "Report"]
    for call in over:
        step = _step(call)
        # A heartbeat that is answered while a report is under way may say that what the report brings is not
        # wanted any more. The device could not know when it sent the report. The situation "withdrawn" tells
        # whether it ends work that is not wanted.
        crossed = step is Step.NOT_WANTED and any(
            each.at < call.over + CROSSING and call.over < each.over for each in reports
        )
        if step is None or crossed:
            continue
        if (state, step) not in TRANSITIONS:
            return f"{call.name} was {step.value} while it was {state.value}"
        state = TRANSITIONS[state, step]
    return ""


def _step(call: Call) -> Step | None:
    """None for calls that change nothing."""
    if call.error == SessionLost.code:
        return Step.VOID
    if call.name == "Report":
        return Step.NO_RECEIPT if call.answer is None else Step.RECEIPT
    if call.answer is None:
        return None
    if call.name == "NextTask":
        return Step.LEASED if call.answer.HasField("task") else Step.WAITS
    if call.name == "Alive":
        return None if call.answer.wanted else Step.NOT_WANTED
    return {"Hello": Step.GREETED, "Leave": Step.LEFT}.get(call.name)
