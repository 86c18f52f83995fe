"""The situations that a device is put into, in this order, and the rules that it keeps or breaks there.

Each situation yields a rule and what is wrong, "" for nothing. A rule that is not yielded was not tried.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from fedserver.conformance.stage import AT_LEISURE, CADENCE, PATIENCE, NotSeenError, Stage
from fedserver.conformance.visit import first_wrong
from fedserver.rpc.edge import UNKNOWN, Call, Disturbance, halved
from shoal.core.errors import SessionLost, ShoalError, TooOften, Unavailable
from shoal.core.exchange import wire
from shoal.core.types import RunId

RULES = {
    "join": "joins with the join string, by a key of its own",
    "hello": "says Hello before anything else, with version 1 in its range",
    "round": "makes first weights, trains FedAvg and measures the model; each report is accepted",
    "unknown-field": "goes on where a message around a payload has a field that it does not know",
    "unknown-message": "reports a failure, and no result, for a message that it does not know",
    "unknown-part": "reports a failure for a payload with a field that it does not know",
    "unknown-terms": "reports a failure for terms that have more than the known fields",
    "damaged-blob": "uses no bytes that are not those of the blob's name",
    "heartbeat": "calls Alive at each heartbeat while it works, also while it waits for bytes",
    "withdrawn": "ends work that is not wanted, reports nothing of it, and asks for its next task",
    "retry-window": "comes again within the window that a fault gives",
    "idle-window": "comes back within the window that an Idle gives",
    "broken-upload": "goes on with an upload from where the server has it, after the connection broke",
    "lost-receipt": "sends the same report again, before anything else, if no receipt came",
    "new-session": "says Hello once if its session is void, with the last mark",
    "same-result": "reports the result that it has under its new lease, the same bytes",
    "order": "makes its calls in the order that the states of a device allow",
    "session": "names its session in each request, and in the metadata of transfers",
    "descriptor": "takes part in a run of FLUX: bounds of latents, and a descriptor by the task's projector",
    "leave": "calls Leave, or makes no more calls, once Idle says `finished`",
    "placement": "asks for a model as a newcomer, answers the question, and fetches a model that it lacks",
}
Found = AsyncIterator[tuple[str, str]]
AROUND = ("Hello", "NextTask", "Alive", "Report")
WINDOW = (1.0, 2.0)
"""Seconds within which the device is asked to come again."""
LATE, EARLY = 1.5, 0.05
"""Seconds that a device may be after a window, for it has work to do, and before it, for clocks differ."""
BEATS = 5
"""Heartbeats within which one has to come."""
DUPLICATE = 2
"""The last outcome with which a report counts."""
NOTHING = f"it did nothing of the kind in {PATIENCE:.0f} s"


async def enter(stage: Stage) -> Found:
    await stage.until(lambda: stage.edge.calls or None, seconds=None)  # a person starts the device
    hello = await stage.call("Hello")
    yield "join", ""
    first, asked = stage.edge.calls[0], hello.request
    speaks = asked.oldest_protocol <= 1 <= asked.newest_protocol
    yield "hello", "" if first is hello and speaks else f"its first call was {first.name}, {asked}"


async def a_round(stage: Stage) -> Found:
    since, run = stage.number, await stage.begin(rounds=2)
    ended = await stage.end(run)
    reports = [each for each in stage.edge.calls[since:] if each.name == "Report" and each.answer]
    wrong = [each.answer.receipt.reason for each in reports if each.answer.receipt.outcome > DUPLICATE]
    failures = [each.request.report.failure.message for each in reports if _failed(each)]
    problems = (*failures, *wrong, *(() if ended == "finished" else (f"the run is {ended}",)))
    yield "round", next(iter(problems), "")
    if ended == "finished":
        (stage.model,) = stage.coordinator.runs[run].engine.state.models.values()


async def unknown_field(stage: Stage) -> Found:
    async def add(call: Call) -> None:
        call.answer.MergeFromString(UNKNOWN)

    stage.edge.after.update(dict.fromkeys(AROUND, add))
    yield "unknown-field", await _accepted(stage, await stage.one_task())


def refusal(rule: str, change: Callable[[Any], object]) -> Callable[[Stage], Found]:
    """The situation of a task that was changed so that no device may do it."""

    async def situation(stage: Stage) -> Found:
        await _change_tasks(stage, change)
        since, run = stage.number, await stage.one_task()
        report = await stage.call("Report", since)
        stage.edge.leave_alone()
        await stage.end(run)
        await stage.call("NextTask", stage.edge.calls.index(report))
        yield rule, "" if _failed(report) else "it reported a result"

    return situation


def _unknown_message(task: Any) -> None:
    task.payload.custom.kind = "of_another_contract"


def _unknown_part(task: Any) -> None:
    task.payload.train.MergeFromString(UNKNOWN)


def _unknown_terms(task: Any) -> None:
    task.terms = json.dumps({**json.loads(task.terms), "surprise": 1})


def _apart(task: Any) -> None:
    """All blobs of a task are fetched, and those of its report are uploaded."""
    del task.inline[:]
    task.inline_report = 0


async def damaged_blob(stage: Stage) -> Found:
    damaged = False

    def passing(number: int, message: bytes) -> bytes:
        nonlocal damaged
        if damaged:
            return message
        damaged = True
        return message[:-1] + bytes((message[-1] ^ 1,))

    await _change_tasks(stage, _apart)
    stage.edge.passing["Fetch"] = passing
    since = stage.number
    await stage.one_task()
    report = await stage.call("Report", since)
    fetches = [each for each in stage.edge.calls[since:] if each.name == "Fetch"]
    yield "damaged-blob", "" if _failed(report) or len(fetches) > 1 else "it trained on damaged bytes"


async def withdrawn(stage: Stage) -> Found:
    """The bytes of the task's model are held back until the device has sent heartbeats, or should have."""
    beats = 0

    async def hold(call: Call) -> None:
        nonlocal beats
        stage.edge.before.clear()
        with suppress(NotSeenError):
            while beats < 2:
                await stage.until(partial(_next, stage, stage.number, "Alive"), BEATS * CADENCE.heartbeat)
                beats += 1
        await asyncio.to_thread(stage.operator.stop_run, run)
        with suppress(NotSeenError):
            await stage.until(partial(_asked_to_stop, stage, since), BEATS * CADENCE.heartbeat)

    await _change_tasks(stage, _apart)
    stage.edge.before["Fetch"] = hold
    since = stage.number
    run = await stage.one_task()
    fetch = await stage.call("Fetch", since)
    yield "heartbeat", "" if beats == 2 else f"Alive came {beats} times, and 2 were expected"
    stopped = _asked_to_stop(stage, since)
    await stage.call("NextTask", stage.edge.calls.index(stopped or fetch))
    if stopped is not None:  # else it could not know
        late = _next(stage, since, "Report")
        yield "withdrawn", "it reported, though Alive had said that nothing is wanted" if late else ""


async def retry_window(stage: Stage) -> Found:
    error = TooOften("try again in one to two seconds", "wait", WINDOW)
    refused = _fail_once(stage.edge.before, "NextTask", error)
    yield "retry-window", await _comes_again(stage, refused)


async def idle_window(stage: Stage) -> Found:
    sent_away = list[Call]()

    async def send_away(call: Call) -> None:
        if not sent_away and call.answer.HasField("idle"):
            sent_away.append(call)
            for name, seconds in zip(("earliest", "latest"), WINDOW, strict=True):
                getattr(call.answer.idle, name).CopyFrom(wire.seconds_to_pb(seconds))

    stage.edge.after["NextTask"] = send_away
    yield "idle-window", await _comes_again(stage, sent_away)


async def _comes_again(stage: Stage, calls: Sequence[Call]) -> str:
    """What is wrong with when the device asks again that was given `WINDOW` in the first of these calls."""
    first = await stage.until(lambda: next(iter(calls), None))
    again = await stage.until(partial(_next, stage, stage.edge.calls.index(first) + 1, "NextTask"))
    waited, (earliest, latest) = again.at - first.over, WINDOW
    fits = earliest - EARLY <= waited <= latest + LATE
    return "" if fits else f"it came again after {waited:.2f} s, not {earliest:g} to {latest:g}"


async def broken_upload(stage: Stage) -> Found:
    cut = False

    def passing(number: int, message: bytes) -> bytes | None:
        nonlocal cut
        if cut or number == 0:
            return message
        if number == 1:
            return halved(message)
        cut = True
        return None

    await _change_tasks(stage, _apart)
    stage.edge.passing["Upload"] = passing
    since, run = stage.number, await stage.one_task()
    after = stage.edge.calls.index(await stage.call("Upload", since)) + 1
    again = await stage.call("Upload", after)
    asked = [each for each in stage.edge.calls[after:] if each.name == "Uploaded" and each.over <= again.at]
    held = asked[-1].answer.held if asked else None
    went_on = again.request.start.start
    wrong = "" if held == went_on else f"it went on at byte {went_on}, and the server has {held}"
    yield "broken-upload", wrong or await _accepted(stage, run)


async def lost_receipt(stage: Stage) -> Found:
    lost = _fail_once(stage.edge.after, "Report", Unavailable("the receipt is lost"))
    await stage.one_task()
    first = await stage.until(lambda: next(iter(lost), None))
    after = stage.edge.calls.index(first) + 1
    following = await stage.until(partial(_next, stage, after, "Report", "NextTask", "Hello"))
    same = following.name == "Report" and following.request.report == first.request.report
    yield "lost-receipt", "" if same else f"after a report without a receipt came {following.name}"


async def new_session(stage: Stage) -> Found:
    void = SessionLost("the session is void", "say hello again")
    lost = _fail_once(stage.edge.before, "Report", void)
    run = await stage.one_task()
    first = await stage.until(lambda: next(iter(lost), None))
    after = stage.edge.calls.index(first) + 1
    hello, mark = await stage.call("Hello", after), _last_mark(stage.edge.calls[:after])
    again = await stage.call("Report", stage.edge.calls.index(hello))
    between = stage.edge.calls[after : stage.edge.calls.index(again)]
    twice = sum(each.name == "Hello" for each in between) > 1
    wrong = "" if hello.request.mark == mark else "its mark is not the last one"
    yield "new-session", "it said Hello more than once" if twice else wrong
    one, other = first.request.report, again.request.report
    wrong = "another result came" if one.payload != other.payload else ""
    wrong = wrong or ("its lease is the old one" if one.lease == other.lease else "")
    yield "same-result", wrong or await _accepted(stage, run)


async def flux(stage: Stage) -> Found:
    since = stage.number
    run = await stage.begin("flux", rounds=3, privacy="off", warm_up="rounds", earliest=1)
    wrong = await _accepted(stage, run)
    reports = [each.request.report.payload for each in stage.edge.calls[since:] if each.name == "Report"]
    described = any(each.trained.HasField("descriptor") for each in reports)
    problem = wrong or ("" if described else "no report had a descriptor")
    yield "descriptor", problem
    if not problem:
        release = await asyncio.to_thread(stage.operator.create_release, run)
        await asyncio.to_thread(stage.operator.use_release, release.release)


async def farewell(stage: Stage) -> Found:
    """By now most calls of the device were seen, so the rules of all of them are looked at first."""
    calls = stage.edge.calls
    nameless = _nameless(calls)
    yield "order", first_wrong(calls)
    yield "session", f"{nameless[0]} does not name it" if nameless else ""
    for run in list(stage.coordinator.runs.values()):
        if run.active:
            await asyncio.to_thread(stage.operator.stop_run, run.run)
    finished = await stage.call(
        "NextTask", 0, lambda call: call.answer is not None and call.answer.idle.finished
    )
    following = await stage.until(partial(_next, stage, calls.index(finished) + 1, "Leave", "Place", *AROUND))
    yield "leave", "" if following.name in ("Leave", "Place") else f"then came {following.name}"


async def placement(stage: Stage) -> Found:
    """Not tried with a device that goes on serving though nothing is left to do: it does not come to this."""
    calls = stage.edge.calls
    if calls[-1].name == "NextTask":
        return
    answered = await stage.call("Place", 0, lambda call: call.answer is not None and not _more(call))
    blob, before = answered.answer.placement.model.blob.sha256, calls[: calls.index(answered)]
    known = any(
        blob in each.answer.SerializeToString() for each in before if each.answer and each.name == "NextTask"
    )
    if blob and not known:
        await stage.call("Fetch", calls.index(answered), lambda call: call.request.blob.sha256 == blob)
    yield "placement", ""


def _more(call: Call) -> bool:
    """Whether another call has to follow an answer: a device answers some questions only to itself."""
    asked = call.answer.question.payload.WhichOneof("message")
    return asked is not None and asked not in ("choose_compact", "tune")


# -- what the situations share ------------------------------------------------------------------------------


def _fail_once(at: dict[str, Disturbance], name: str, error: ShoalError) -> list[Call]:
    """Let the next call of this name fail. at: before it, or after it. Returns what will have that call."""
    failed = list[Call]()

    async def fail(call: Call) -> None:
        if not failed:
            failed.append(call)
            raise error

    at[name] = fail
    return failed


async def _change_tasks(stage: Stage, change: Callable[[Any], object]) -> None:
    """Change every task from now on."""

    async def changed(call: Call) -> None:
        if call.answer.HasField("task"):
            change(call.answer.task)

    stage.edge.after["NextTask"] = changed


async def _accepted(stage: Stage, run: RunId) -> str:
    """What is wrong with the end of a run in which one result is to count."""
    ended = await stage.end(run)
    return "" if ended == "finished" else stage.coordinator.runs[run].reason


def _failed(call: Call) -> bool:
    return bool(call.request.report.HasField("failure"))


def _next(stage: Stage, since: int, *names: str) -> Call | None:
    """The first call of one of these names, from number `since` on, whether it is answered or not."""
    return next((each for each in stage.edge.calls[since:] if each.name in names), None)


def _asked_to_stop(stage: Stage, since: int) -> Call | None:
    calls = (each for each in stage.edge.calls[since:] if each.name == "Alive")
    return next((each for each in calls if each.answer is not None and not each.answer.wanted), None)


def _last_mark(calls: Sequence[Call]) -> str:
    """The last mark that the device was given."""
    answers = [each for each in calls if each.answer is not None and each.name in ("Hello", "Report")]
    marks = [(each.answer if each.name == "Hello" else each.answer.receipt).mark for each in answers]
    return next(filter(None, reversed(marks)), "")


def _nameless(calls: Sequence[Call]) -> list[str]:
    """The names of calls that name no session that the device had then; while it says Hello it has two."""
    found = []
    hellos = [each for each in calls if each.name == "Hello" and each.answer is not None]
    for each in calls:
        sessions = [hello.answer.session for hello in hellos if hello.over <= each.at][-1:]
        sessions += [hello.answer.session for hello in hellos if hello.at <= each.at < hello.over]
        if each.name not in ("Hello", "Place") and each.session not in sessions:
            found.append(each.name)
    return found


SITUATIONS: tuple[tuple[Callable[[Stage], Found], tuple[str, ...]], ...] = (
    (enter, ("join", "hello")),
    (a_round, ("round",)),
    (unknown_field, ("unknown-field",)),
    (refusal("unknown-message", _unknown_message), ("unknown-message",)),
    (refusal("unknown-part", _unknown_part), ("unknown-part",)),
    (refusal("unknown-terms", _unknown_terms), ("unknown-terms",)),
    (damaged_blob, ("damaged-blob",)),
    (withdrawn, ("heartbeat", "withdrawn")),
    (retry_window, ("retry-window",)),
    (idle_window, ("idle-window",)),
    (broken_upload, ("broken-upload",)),
    (lost_receipt, ("lost-receipt",)),
    (new_session, ("new-session", "same-result")),
    (flux, ("descriptor",)),
    (farewell, ("order", "session", "leave")),
    (placement, ("placement",)),
)
"""Each with the rules that it tries."""


async def play(stage: Stage, say: Callable[[str, str], None]) -> dict[str, str]:
    """Put the device into all situations. Returns what is wrong, "" for nothing, by rule.

    say: called with each rule and what is wrong.
    """
    found: dict[str, str] = {}

    def note(rule: str, problem: str) -> None:
        found[rule] = problem
        say(rule, problem)

    await stage.begin(policy=AT_LEISURE, rounds=1)
    for situation, rules in SITUATIONS:
        try:
            async for rule, problem in situation(stage):
                note(rule, problem)
        except NotSeenError:
            for rule in rules:
                if rule not in found:
                    note(rule, NOTHING)
        finally:
            stage.edge.leave_alone()
        if stage.silent() >= PATIENCE or ("round" in found and stage.model is None):
            break  # the device is gone, or nothing else can be tried
    return found
