"""The stages of a run, as a table. A move that is not in it is an IllegalEvent and changes nothing.

    WAITING --opened--> OPEN
    OPEN --closed--> REDUCING
    REDUCING --reduced--> WAITING
    REDUCING --reopened--> OPEN
    OPEN --abandoned--> WAITING
    OPEN --given up--> OVER
    WAITING --finished--> OVER
    WAITING, OPEN --rolled back--> WAITING
    OVER --rolled back--> OVER

`scripts/diagrams` writes these lines from the table, here and in ARCHITECTURE.md.
"""

from collections.abc import Mapping
from enum import Enum

from shoal.core.errors import IllegalEvent


class Stage(Enum):
    """Where a run stands. The values are what people read in status and events."""

    WAITING = "waiting"
    """No round is open; the next one opens on a tick, when enough devices are here."""
    OPEN = "open"
    """Devices have tasks, and their reports count."""
    REDUCING = "reducing"
    """The round is closed; the algorithm is combining its reports."""
    OVER = "over"
    """The run is complete or has failed. It never opens a round again."""


class Move(Enum):
    """What takes a run from one stage to the next."""

    OPENED = "opened"
    """A tick found enough devices, and the algorithm planned a round for them."""
    CLOSED = "closed"
    """Enough reports are in, or the minimum at the deadline."""
    REDUCED = "reduced"
    """The algorithm made the next state of the reports."""
    REOPENED = "reopened"
    """Stored reports turned out to be damaged while they were combined, and are asked for again."""
    ABANDONED = "abandoned"
    """Too few reports came. The state stays, and the round is planned again under the next number."""
    GIVEN_UP = "given up"
    """A round was abandoned that makes `max_abandoned_rounds` in a row: the run has failed."""
    FINISHED = "finished"
    """The algorithm plans no further round."""
    ROLLED_BACK = "rolled back"
    """An operator gave the run an earlier state."""


TRANSITIONS: Mapping[tuple[Stage, Move], Stage] = {
    (Stage.WAITING, Move.OPENED): Stage.OPEN,
    (Stage.OPEN, Move.CLOSED): Stage.REDUCING,
    (Stage.REDUCING, Move.REDUCED): Stage.WAITING,
    (Stage.REDUCING, Move.REOPENED): Stage.OPEN,
    (Stage.OPEN, Move.ABANDONED): Stage.WAITING,
    (Stage.OPEN, Move.GIVEN_UP): Stage.OVER,
    (Stage.WAITING, Move.FINISHED): Stage.OVER,
    (Stage.WAITING, Move.ROLLED_BACK): Stage.WAITING,
    (Stage.OPEN, Move.ROLLED_BACK): Stage.WAITING,
    # The models of a finished run can be rolled back, but no devices work for it any more.
    (Stage.OVER, Move.ROLLED_BACK): Stage.OVER,
    # REDUCING cannot be rolled back: the reduction runs elsewhere, and its result would replace the earlier
    # state. It is reopened only when that reduction has ended without a result.
}


def after(stage: Stage, move: Move) -> Stage:
    """The stage that follows. Raises IllegalEvent when the table has no such transition."""
    try:
        return TRANSITIONS[stage, move]
    except KeyError:
        raise IllegalEvent(f"a run that is {stage.value} cannot be {move.value}") from None
