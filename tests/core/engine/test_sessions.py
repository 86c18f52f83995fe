"""The table of a device's life: every pair of state and step is either in it, or an error without effect."""

from itertools import product

import pytest

from shoal.core.engine.sessions import TRANSITIONS, Presence, Session, Step
from shoal.core.errors import IllegalEvent


@pytest.mark.parametrize(("presence", "step"), list(product(Presence, Step)))
def test_every_pair_is_a_transition_or_an_error(presence: Presence, step: Step) -> None:
    session = Session(presence, attempt=3, seen=1.0)
    if (presence, step) in TRANSITIONS:
        assert session.after(step).presence is TRANSITIONS[presence, step]
    else:
        with pytest.raises(
            IllegalEvent, match=f"^a device that is {presence.value} has no step '{step.value}'$"
        ):
            session.after(step)
    assert session == Session(presence, attempt=3, seen=1.0)


def test_joining_raises_the_attempt_and_nothing_else_does() -> None:
    session = Session().after(Step.JOINED)
    assert session.attempt == 1
    assert session.after(Step.OFFERED).after(Step.REPORTED).after(Step.LEFT).attempt == 1
    assert session.after(Step.OFFERED).after(Step.JOINED).attempt == 2


def test_only_a_device_that_works_can_report_or_fail() -> None:
    for step in (Step.REPORTED, Step.FAILED, Step.RELEASED):
        assert [presence for presence, s in TRANSITIONS if s is step] == [Presence.WORKING]
