"""The table of a run's stages, and the diagrams that show both tables."""

import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from shoal.core.engine.stages import TRANSITIONS, Move, Stage, after
from shoal.core.errors import IllegalEvent

ROOT = Path(__file__).parent.parent.parent.parent


@pytest.mark.parametrize(("stage", "move"), list(product(Stage, Move)))
def test_every_pair_is_a_transition_or_an_error(stage: Stage, move: Move) -> None:
    if (stage, move) in TRANSITIONS:
        assert after(stage, move) is TRANSITIONS[stage, move]
    else:
        with pytest.raises(IllegalEvent, match=rf"^a run that is {stage.value} cannot be {move.value}$"):
            after(stage, move)


def test_a_run_that_is_over_stays_over() -> None:
    assert {after for (stage, _), after in TRANSITIONS.items() if stage is Stage.OVER} == {Stage.OVER}


def test_only_an_open_round_can_be_closed_abandoned_or_given_up() -> None:
    for move in (Move.CLOSED, Move.ABANDONED, Move.GIVEN_UP):
        assert [stage for stage, each in TRANSITIONS if each is move] == [Stage.OPEN]


def test_the_diagrams_in_pages_and_docstrings_show_the_tables() -> None:
    checked = subprocess.run(
        [sys.executable, ROOT / "scripts" / "diagrams", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.stdout == "every diagram shows its table\n"
    assert checked.returncode == 0


def test_a_stale_diagram_is_found_and_drawn_again() -> None:
    script: dict[str, object] = {"__name__": "diagrams", "__file__": str(ROOT / "scripts" / "diagrams")}
    exec(compile((ROOT / "scripts" / "diagrams").read_text(), "diagrams", "exec"), script)
    page = "Stages:\n\n    WAITING --opened--> OVER\n\nUnrelated:\n\n    operator -- token --> owner\n"
    tables = script["PAGES"]["ARCHITECTURE.md"]  # type: ignore[index]
    drawn = script["drawn"](page, tables)  # type: ignore[operator]
    assert "    OPEN --closed--> REDUCING\n" in drawn
    assert "WAITING --opened--> OVER" not in drawn
    assert drawn.endswith("\n\nUnrelated:\n\n    operator -- token --> owner\n")
