"""Rules about whole runs: they repeat, resume, survive devices that leave, and travel unchanged."""

import json
from contextlib import suppress
from itertools import pairwise
from typing import Any

from shoal.checks.small_fleet import DEVICES, Device, fleet
from shoal.checks.subject import Blobs, Saved, Subject, bits, expect
from shoal.core.algorithm import Report
from shoal.core.engine import checkpoint
from shoal.core.engine.events import Effect, Save
from shoal.core.errors import Refused, Unavailable
from shoal.core.exchange.messages import Message
from shoal.core.exchange.parts import ClusterAssignment
from shoal.core.exchange.payload import decode, encode, tensors_of
from shoal.core.exchange.tensors import digest
from shoal.core.types import DeviceId, Tensors


def repeats_bit_for_bit(subject: Subject) -> None:
    """Two runs with the same seed give the same models, whatever the order of the devices."""
    first = subject.straight.outcome
    expect(not first.failed, f"the run failed: {first.reason}")
    missing = sorted({f"d{i}" for i in range(DEVICES)} ^ set(first.state.assignments))
    expect(not missing, f"at the end, assignments do not have exactly the run's devices: {missing}")
    unknown = sorted(set(first.state.assignments.values()) - set(first.state.models))
    expect(not unknown, f"devices are assigned to models that the state does not have: {unknown}")
    backwards = dict(reversed(fleet(subject.card).items()))
    if bits(first) != bits(subject.run(devices=backwards)):
        expect(bits(first) == bits(subject.run()), "a second run with the same seed gave other models")
        expect(False, "the order of devices changes the models")


def resumes_from_every_round(subject: Subject) -> None:
    """A run that is stored, read and resumed at any round ends as the run that was not interrupted.

    Each resumed run goes on to its next checkpoint, which must be that of the other run: so all later ones
    would be the same, too.
    """
    straight, saved = subject.straight.outcome, subject.straight.saved
    rounds = getattr(subject.parameters(), "rounds", 1)
    expect(len(saved) >= rounds, f"{len(saved)} states were saved in {rounds} rounds")
    for before, after in pairwise([*saved, (0, straight.state, {})]):
        same = _stored(subject, _next(subject, before)) == _stored(subject, after)
        expect(same, f"resumed at round {before[0]}, the run goes on with another state or other memories")


def _next(subject: Subject, saved: Saved) -> Saved:
    """The next checkpoint of a run that is read and resumed at this one; where there is none, its end."""
    (number, state, remembered), blobs, kind = saved, Blobs(), subject.card.state_type()
    read, memories = (
        checkpoint.decode(kind, checkpoint.encode(kind, state, blobs.keep), blobs.load),
        {**remembered},
    )
    found: list[Saved] = []

    def watch(effect: Effect) -> None:
        if isinstance(effect, Save) and effect.round > number:
            found.append((effect.round, effect.state, {**memories}))
            raise _Enough

    with suppress(_Enough):
        devices = fleet(subject.card, memories=memories)
        end = subject.run(state=read, round=number, devices=devices, watch=watch)
        found.append((0, end.state, {}))
    return found[0]


class _Enough(Exception):
    """The checkpoint of interest is there."""


def _stored(subject: Subject, saved: Saved) -> tuple[str, dict[DeviceId, str]]:
    """What is stored of a checkpoint, in values that can be compared."""
    _, state, memories = saved
    structure = checkpoint.encode(subject.card.state_type(), state, Blobs().keep)
    return json.dumps(structure), {device: digest(tensors) for device, tensors in memories.items()}


def survives_a_drop_out(subject: Subject) -> None:
    """A device that is gone after two tasks does not fail the run."""
    devices = fleet(subject.card)
    alive, asked = devices["d5"], 0

    def dropping(message: Message, seed: int) -> Message:
        nonlocal asked
        asked += 1
        if asked > 2:
            raise Unavailable("gone")
        return alive(message, seed)

    outcome = subject.run(devices={**devices, "d5": dropping}, minimum=1)
    expect(not outcome.failed, f"the run failed: {outcome.reason}")
    expect(any("d5" in each for each in outcome.missing.values()), "the device was not asked a third time")


def keeps_models_without_updates(subject: Subject) -> None:
    """A round in which only one device reports changes no model that this device did not train."""
    server_half, devices = subject.card.server(), fleet(subject.card)
    for state in (state for _, state, _ in subject.straight.saved if len(state.models) > 1):
        plan = server_half.plan(state, sorted(devices))
        if plan is None:
            continue
        lonely = sorted(plan.tasks)[0]
        task, answer = plan.tasks[lonely], devices[lonely](plan.tasks[lonely], 3)
        after = server_half.reduce(state, [Report(lonely, answer)])
        reached = _reached(task, answer, state, lonely)
        changed = [
            key
            for key, model in state.models.items()
            if key not in reached and digest(after.models[key]) != digest(model)
        ]
        expect(not changed, f"in phase {plan.title!r} a report of {lonely} changed the models {changed}")


def _reached(task: Message, answer: Message, state: Any, device: DeviceId) -> set[str]:
    """The models that an update of this device may move: those that it names, or else all that it was given
    where these are several."""
    if keys := getattr(answer, "keys", ""):
        return set(keys.split())
    several = any(isinstance(value, tuple) for value in vars(task).values())
    return set(state.models) if several else {state.assignments[device]}


def travels_unchanged(subject: Subject) -> None:
    """Every message of a run, sent and read again, is what it was."""
    blobs, kinds = Blobs(), subject.card.messages_by_kind()
    models: list[Tensors] = []

    def sent(message: Message) -> Message:
        models.extend(tensors for _, tensors in tensors_of(message))
        again = decode(encode(message, blobs.keep), kinds, blobs.load)
        expect(type(again) is type(message), f"a {message.kind} was read as a {again.kind}")
        return again

    def wrapped(device: Device) -> Device:
        return lambda message, seed: sent(device(sent(message), seed))

    coded = subject.run(devices={name: wrapped(device) for name, device in fleet(subject.card).items()})
    expect(
        bits(subject.straight.outcome) == bits(coded),
        "messages lose something on their way: other models come out",
    )
    expect(bool(models), "no message of the run has a model")


def places_or_says_why(subject: Subject) -> None:
    """After a run, a newcomer gets a model of the run, a question, or a refusal that says what would work."""
    state = subject.straight.outcome.state
    try:
        answer = subject.card.server().place(state, None)
    except Refused as refusal:
        expect(bool(refusal.hint), f"the refusal does not say what would work: {refusal.message}")
        return
    if isinstance(answer, ClusterAssignment):
        expect(answer.abstained or answer.cluster in state.models, f"{answer.cluster} is no model of the run")
    else:
        expect(isinstance(answer, Message), f"place returned {answer!r}")
