"""Every recorded scenario plays as it was recorded, and together they take every way through both tables."""

from pathlib import Path

import pytest

from shoal.core.engine import sessions, stages
from shoal.core.engine.sessions import Session, Step
from shoal.core.engine.stages import Move, Stage
from tests.scenarios.player import played, scenarios


@pytest.mark.parametrize("path", scenarios(), ids=lambda path: path.stem)
def test_a_scenario_plays_as_it_was_recorded(path: Path) -> None:
    recorded = path.read_text()
    assert played(recorded) == recorded, "see `python -m tests.scenarios`; `make scenarios` records it"


def test_a_scenario_that_was_changed_by_hand_is_noticed() -> None:
    recorded = scenarios()[0].read_text()
    assert played(recorded.replace("offer a", "offer z")) == recorded


def test_the_scenarios_take_every_way_through_both_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    moves: set[tuple[Stage, Move]] = set()
    steps: set[tuple[sessions.Presence, Step]] = set()
    after, session_after = stages.after, Session.after

    def move(stage: Stage, taken: Move) -> Stage:
        following = after(stage, taken)
        moves.add((stage, taken))
        return following

    def step(session: Session, taken: Step) -> Session:
        following = session_after(session, taken)
        steps.add((session.presence, taken))
        return following

    monkeypatch.setattr("shoal.core.engine.rounds.after", move)
    monkeypatch.setattr(Session, "after", step)
    for path in scenarios():
        played(path.read_text())
    assert moves == set(stages.TRANSITIONS)
    assert steps == set(sessions.TRANSITIONS)
