"""What newcomers were answered, in words, for `run show` and `device show`."""

from collections import Counter
from collections.abc import Sequence

from fedserver.cli.text import clock, table
from fedserver.store.journal import newcomers as recorded
from fedserver.store.journal.newcomers import PlacementRecord
from shoal.core.texts import percent

SHOWN = {
    recorded.NOTHING: "nothing",
    recorded.WISH: "nothing",
    recorded.DESCRIPTOR: "a descriptor",
    recorded.SCORES: "losses of the models",
    recorded.PROTOTYPES: "mean embeddings",
    recorded.VOTE: "a private vote",
}
"""What a newcomer has shown of its data."""
BECAME = {
    recorded.PLACED: "placed in {cluster}",
    recorded.NEAREST: "given the nearest model, of {cluster}; no cluster fits",
    recorded.ABSTAINED: "not placed; {cluster} is nearest",
    recorded.HANDED_OUT: "given the models of {models}",
}
MANY = {
    recorded.PLACED: "placed by the server",
    recorded.NEAREST: "given the nearest model",
    recorded.ABSTAINED: "not placed",
    recorded.HANDED_OUT: "given several models to compare, and the server does not learn their choice",
}


def became(found: PlacementRecord) -> str:
    """What became of a newcomer's call, in words."""
    named = ", ".join(found.models[:8]) + (f" and {len(found.models) - 8} more" if found.models[8:] else "")
    return BECAME[found.outcome].format(cluster=found.cluster or "no cluster", models=named)


def listed(found: Sequence[PlacementRecord], *, of_device: bool = False) -> str:
    """A table of them, the newest last. of_device: all are of one device, and the runs are shown."""
    heads = (
        "run" if of_device else "device",
        "answer",
        "confidence",
        "runner-up",
        "showed",
        "when",
        "times",
        "why",
    )
    rows = [
        (
            each.run if of_device else each.device,
            became(each),
            percent(each.confidence),
            each.runner_up or "-",
            SHOWN[each.evidence],
            clock(each.at),
            str(each.times),
            each.reason or "-",
        )
        for each in found
    ]
    return table(heads, rows)


def counted(found: Sequence[PlacementRecord]) -> str:
    """In a line, what became of the newcomers of a run, by the last answer of each; "" if there is none."""
    last = {each.device: each.outcome for each in found}
    counts = Counter(last.values())
    parts = [f"{counts[outcome]} {words}" for outcome, words in MANY.items() if counts[outcome]]
    return f"newcomers: {'; '.join(parts)}" if parts else ""
