"""What devices answer to what a run asks of their owners: that they take part, or why they refuse.

A device answers with its first task about its data. What its owner allows, and what is left of that, the
server does not learn: only that it has done the task, or the code of the error with which it refuses.
"""

from collections.abc import Mapping

from shoal.core.errors import NoConsent, NoNewData, OtherShape, OverBudget, TooFewSamples, Unprotected
from shoal.core.texts import listed
from shoal.core.types import DeviceId, RunId

YES, UNKNOWN = "yes", ""
ASK = NoConsent.code
"""The answer of a device whose owner has not consented: not yet, or has refused. Which one is not said."""
NOTHING_NEW = NoNewData.code
"""The answer of a device that has trained on its data before, and has no part in this run."""
REFUSALS = (
    *(ASK, NOTHING_NEW, OverBudget.code, Unprotected.code, TooFewSamples.code, OtherShape.code),
    "no-algorithm",
)
"""The codes with which a device refuses a run, as it will until its owner or an operator acts."""
ROOM = "an owner's default budget has room for epsilon 5 in 30 days"
MAX_NAMED = 3
"""How many devices are named for each answer."""


def said(answers: Mapping[DeviceId, str]) -> str:
    """The answers of a run's devices in a sentence; "" where there is no device.

    Example:
        >>> said({"a": "yes", "b": "yes"})
        '2 of 2 devices can take part'
        >>> said({"a": "yes", "b": "over-budget", "c": ""})
        '1 of 3 devices can take part so far; 1 cannot, as over-budget: b; 1 has not answered yet'
        >>> said({"a": "yes", "b": "no-consent"})
        "1 of 2 devices can take part; 1 lacks its owner's consent (`fedclient consent`): b"
        >>> said({"a": "", "b": ""})
        '2 devices are asked, and each answers with its first task on its data'
    """
    if not answers:
        return ""
    by_answer: dict[str, list[DeviceId]] = {}
    for device, answer in sorted(answers.items()):
        by_answer.setdefault(answer, []).append(device)
    able, unknown = by_answer.pop(YES, []), by_answer.pop(UNKNOWN, [])
    if len(unknown) == len(answers):  # "0 of 2" would read like a failure
        asked = "1 device is" if len(unknown) == 1 else f"{len(unknown)} devices are"
        return f"{asked} asked, and each answers with its first task on its data"
    so_far = " so far" if unknown else ""
    parts = [f"{len(able)} of {len(answers)} devices can take part{so_far}"] if able or not unknown else []
    if asking := by_answer.pop(ASK, []):
        lack = "lacks its owner's" if len(asking) == 1 else "lack their owners'"
        parts.append(f"{len(asking)} {lack} consent (`fedclient consent`): {listed(asking, MAX_NAMED)}")
    if unchanged := by_answer.pop(NOTHING_NEW, []):
        have = "has" if len(unchanged) == 1 else "have"
        parts.append(f"{len(unchanged)} {have} no new data: {listed(unchanged, MAX_NAMED)}")
    for code, devices in by_answer.items():
        parts.append(f"{len(devices)} cannot, as {code}: {listed(devices, MAX_NAMED)}")
    if unknown:
        parts.append(f"{len(unknown)} {'has' if len(unknown) == 1 else 'have'} not answered yet")
    return "; ".join(parts)


def notice(run: RunId, answers: Mapping[DeviceId, str]) -> tuple[str, ...]:
    """For operators, where some refuse."""
    return (f"run {run}: {said(answers)}",) if {*answers.values()} - {YES, UNKNOWN, NOTHING_NEW} else ()
