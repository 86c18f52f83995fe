"""What a newcomer was answered that asked for a model, and the words for it.

It stands apart from what stores it, so that a process that only asks, such as a verb of the command line or
the page, does not load the store.
"""

from dataclasses import dataclass

from shoal.core.types import DeviceId, ModelKey, RunId

NOTHING, WISH, DESCRIPTOR, SCORES, PROTOTYPES = "nothing", "wish", "descriptor", "scores", "prototypes"
VOTE = "vote"
EVIDENCE = (NOTHING, WISH, DESCRIPTOR, SCORES, PROTOTYPES, VOTE)
"""What a newcomer shows of its data; a wish to try the models itself shows nothing."""
PLACED, NEAREST, ABSTAINED, HANDED_OUT = "placed", "nearest", "abstained", "handed_out"
OUTCOMES = (PLACED, NEAREST, ABSTAINED, HANDED_OUT)
"""placed: it was given the model of a cluster. nearest: no cluster fits, and it was given the nearest one's,
as it wished. abstained: no cluster fits, and it was given none. handed_out: it was given the models of
several clusters, to compare them itself."""


@dataclass(frozen=True)
class PlacementRecord:
    """What a newcomer was answered.

    evidence: one of EVIDENCE. outcome: one of OUTCOMES. cluster, runner_up: "" where the server does not
    know. confidence: from 0 to 1, None where the server does not know. models: the clusters whose models it
    was given. progress: the rounds of training that were complete. since, at: when it was first and last
    answered so, in seconds since 1970. times: how often. number: of the record; it grows with each answer.
    """

    run: RunId
    device: DeviceId
    evidence: str
    outcome: str
    cluster: ModelKey = ""
    runner_up: ModelKey = ""
    confidence: float | None = None
    reason: str = ""
    models: tuple[ModelKey, ...] = ()
    progress: int = 0
    since: float = 0.0
    at: float = 0.0
    times: int = 1
    number: int = 0
