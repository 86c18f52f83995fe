"""The server's side of secure aggregation: one round of training as four exchanges, for any phased algorithm.

    announce   devices that would train send fresh keys instead; the others do what they were asked
    share      each cohort gets its manifest, and each device's letters come back
    mask       devices train, and send their updates under masks: only their sum is kept
    unmask     the shares that take the masks off the sum come back

The algorithm then gets the mean of each cohort as if each of its devices had sent it. A cohort in which too
few answer is given up; if all are, the round begins again.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from shoal.core.algorithm import Plan, Report
from shoal.core.errors import Refused
from shoal.core.exchange.messages import Message, Train, Trained, fields_as
from shoal.core.exchange.parts import Descriptor, Letters
from shoal.core.exchange.summing import (
    LETTER,
    SUM,
    Announce,
    Announced,
    Masked,
    Share,
    Shared,
    TrainMasked,
    Unmask,
    Unmasked,
    task_of,
)
from shoal.core.privacy.secure import fixed_point
from shoal.core.privacy.secure.cohort import KEYS, MIN_COHORT, Manifest, parts, threshold
from shoal.core.privacy.secure.opening import Lists
from shoal.core.privacy.secure.total import UnrecoverableError, total
from shoal.core.types import DeviceId, ModelKey, Tensors

S = TypeVar("S", bound=Any)
Plans = Callable[[S, Sequence[DeviceId]], Plan]
Reduces = Callable[[S, Sequence[Report]], S]
ANNOUNCE, SHARE, MASK, UNMASK = "announce", "share", "mask", "unmask"
ATTEMPTS = 5
"""How often in a row a round may begin again."""


@dataclass(frozen=True, eq=False)
class Cohort:
    """One sum. key: the model that its devices train. announcements, commitments: of each device, as hex.

    letters: of each sender, (devices - 1, LETTER) bytes, in the order of the others. sum: of the updates
    under masks, that of `survivors`. descriptors: theirs, if they were asked for.
    """

    session: str
    key: ModelKey
    announcements: Mapping[DeviceId, str]
    commitments: Mapping[DeviceId, str] = field(default_factory=dict)
    letters: Tensors = field(default_factory=dict)
    sum: Tensors = field(default_factory=dict)
    survivors: tuple[DeviceId, ...] = ()
    descriptors: Mapping[DeviceId, Descriptor] = field(default_factory=dict)

    @property
    def manifest(self) -> Manifest:
        found = {device: bytes.fromhex(each) for device, each in self.announcements.items()}
        return Manifest(self.session, found)

    @property
    def threshold(self) -> int:
        return threshold(len(self.announcements))

    def others(self, device: DeviceId) -> list[DeviceId]:
        return sorted({*self.announcements} - {device})

    @property
    def sent(self) -> dict[DeviceId, dict[DeviceId, bytes]]:
        """The letters, by sender and by the device that they are for."""
        return {
            sender: {to: row.tobytes() for to, row in zip(self.others(sender), array, strict=True)}
            for sender, array in self.letters.items()
        }

    def expected(self, stage: str) -> tuple[DeviceId, ...]:
        """The devices that this stage asks."""
        of_stage = {SHARE: self.announcements, MASK: self.commitments, UNMASK: self.survivors}
        return tuple(of_stage[stage])


@dataclass(frozen=True, eq=False)
class Summing:
    """A round of training in progress. attempt: how often in a row it has begun again. excluded: devices that
    have lied, and that are not asked again."""

    stage: str = ANNOUNCE
    attempt: int = 0
    cohorts: tuple[Cohort, ...] = ()
    excluded: tuple[DeviceId, ...] = ()

    @property
    def over(self) -> "Summing | None":
        """What is left when the round is over, or its sum is of use no more."""
        return Summing(excluded=self.excluded) if self.excluded else None

    @property
    def enough(self) -> int:
        """How many devices can complete the sum that has begun, although more had to begin it; 0 for none.

        Where there are several cohorts, this is the least that is of any use.
        """
        return min((cohort.threshold for cohort in self.cohorts), default=0)

    @property
    def begun_by(self) -> set[DeviceId]:
        """The devices that have a part in the sum that has begun; empty if none has."""
        return {device for cohort in self.cohorts for device in cohort.expected(self.stage)}

    @property
    def begun_again(self) -> int:
        """How often in a row a sum had to begin again, where the next round does so; else 0."""
        return self.attempt if self.stage == ANNOUNCE else 0

    def again(self, excluded: Collection[DeviceId] = ()) -> "Summing":
        return Summing(ANNOUNCE, self.attempt + 1, (), tuple(sorted({*self.excluded, *excluded})))

    def readmitted(self, devices: Collection[DeviceId]) -> "Summing":
        """The same, after an operator has let these devices be asked again."""
        return replace(self, excluded=tuple(each for each in self.excluded if each not in devices))


def plan(state: S, present: Sequence[DeviceId], inner: Plans[S]) -> Plan:
    """The next exchange. inner: the plan without secure aggregation."""
    now = state.summing or Summing()
    if now.stage == ANNOUNCE:
        found = inner(state, present)
        if not any(isinstance(task, Train) for task in found.tasks.values()):
            return found
        ask = Announce(_session(state, now))
        tasks = {
            device: ask if isinstance(task, Train) else task
            for device, task in found.tasks.items()
            if device not in now.excluded or not isinstance(task, Train)
        }
        title = f"{found.title}: keys for secure aggregation"
        return replace(found, tasks=tasks, title=title, others=None)  # a sum ends with those that begin it
    here, tasks = {*present}, dict[DeviceId, Message]()
    steps_in = len(here) < MIN_COHORT  # into a round that is open; or too few are left for another sum
    for cohort in now.cohorts:
        asked = [device for device in cohort.expected(now.stage) if device in here]
        if asked and (steps_in or len(asked) >= cohort.threshold):
            tasks |= _tasks(state, now.stage, cohort, asked, inner)
    if not tasks and not steps_in:  # too many have gone: another sum, of those that are here
        return plan(replace(state, summing=now.again()), present, inner)
    return Plan(tasks, f"secure aggregation: {TITLES[now.stage]}")


TITLES = {SHARE: "shares of keys", MASK: "training, with masked updates", UNMASK: "the masks of the sum"}


def reduce(state: S, reports: Sequence[Report], inner_plan: Plans[S], inner: Reduces[S]) -> S:
    """The state after an exchange. Raises Refused where a round cannot be completed."""
    now = state.summing or Summing()
    answers = {report.device: report.message for report in reports}
    fresh = {device: each for device, each in answers.items() if isinstance(each, Announced)}
    if now.stage == ANNOUNCE and not fresh:
        return inner(state, reports)
    after, results, liars = list[Cohort](), list[Report](), set[DeviceId]()
    for cohort in now.cohorts:
        if now.stage == SHARE:
            after += _shared(cohort, _of(Shared, cohort, answers))
        elif now.stage == MASK:
            after += _masked(cohort, _of(Masked, cohort, answers))
        else:
            results += _unmasked(state, cohort, _of(Unmasked, cohort, answers), inner_plan, liars)
    excluded = tuple(sorted({*now.excluded, *liars}))
    if results:
        done = replace(now, excluded=excluded)
        return inner(replace(state, summing=done.over), sorted(results, key=lambda report: report.device))
    if after:
        stage = UNMASK if now.stage == MASK else MASK
        return replace(state, summing=Summing(stage, now.attempt, tuple(after), excluded))
    stage = now.stage
    if stage != ANNOUNCE:
        now = now.again(liars)
    if now.attempt >= ATTEMPTS + len(now.excluded):  # one that has found a liar was not in vain
        raise Refused(
            f"secure aggregation began {now.attempt} times in a row without a result",
            "see the run's log for devices that left; more than two thirds of a cohort have to stay",
        )
    if not fresh or (stage != ANNOUNCE and len(fresh) < MIN_COHORT):
        return replace(state, summing=now)
    late = [
        report for report in reports if not isinstance(report.message, Announced | Shared | Masked | Unmasked)
    ]
    return _begun(inner(state, late) if late else state, now, fresh, inner_plan)


def remarks(state: Any) -> list[str]:
    """For an operator: devices that are not asked any more, and the models that are not trained, because too
    few devices have them."""
    if not getattr(state.parameters, "secure_aggregation", False):
        return []
    counts, excluded = Counter(state.assignments.values()), state.summing.excluded if state.summing else ()
    return [
        f"{device} is quarantined: it sent wrong shares for a sum, which no honest device does"
        for device in excluded
    ] + [
        f"{key} has {counts[key]} devices: models of fewer than {MIN_COHORT} are not trained, as a sum over "
        "so few tells too much of each"
        for key in state.models
        if 0 < counts[key] < MIN_COHORT
    ]


def _begun(state: S, now: Summing, fresh: Mapping[DeviceId, Announced], inner: Plans[S]) -> S:
    """The cohorts of those that announced themselves, by the model that each would train; or another attempt,
    if more devices of a model could have.

    Devices with the same keys are left out: the others would refuse a cohort that has both.
    """
    announcements = {device: each.keys.by_device[""] for device, each in fresh.items()}
    owners = Counter(each[:KEYS] for each in announcements.values())
    own = [device for device, each in announcements.items() if owners[each[:KEYS]] == 1]
    planned = inner(state, sorted(own)).tasks
    by_model: dict[ModelKey, list[DeviceId]] = {}
    for device, task in planned.items():
        if isinstance(task, Train):
            by_model.setdefault(task.cluster, []).append(device)
    cohorts = [
        Cohort(
            _session(state, now),
            key,
            {device: announcements[device].hex() for device in part},
        )
        for key, devices in sorted(by_model.items())
        for part in parts(devices)
    ]
    if not cohorts:
        homes = Counter(key for device, key in state.assignments.items() if device not in now.excluded)
        again = now.again()
        if max(homes.values(), default=0) >= MIN_COHORT and again.attempt < ATTEMPTS + len(now.excluded):
            return replace(state, summing=again)  # some of its devices were away, or silent
        sizes = ", ".join(f"{key} {len(devices)}" for key, devices in sorted(by_model.items()))
        raise Refused(
            f"no model has the {MIN_COHORT} devices that secure aggregation needs (devices by model: "
            f"{sizes})",
            "run it with more devices, with fewer clusters, or without secure_aggregation",
        )
    return replace(state, summing=replace(now, stage=SHARE, cohorts=tuple(cohorts)))


def _tasks(
    state: Any, stage: str, cohort: Cohort, asked: Sequence[DeviceId], inner: Plans[Any]
) -> dict[DeviceId, Message]:
    if stage == SHARE:
        share = Share(cohort.session, Letters(cohort.manifest.announcements))
        return dict.fromkeys(asked, share)
    if stage == UNMASK:
        return dict.fromkeys(asked, Unmask(cohort.session, Letters(dict.fromkeys(cohort.survivors, b""))))
    task = _training(state, asked[0], inner)
    clip, noise = _sum_of(state.parameters)
    sent = cohort.sent
    return {
        device: TrainMasked(
            **fields_as(Train, task),
            session=cohort.session,
            letters=Letters({sender: each[device] for sender, each in sent.items() if device in each}),
            clip=clip,
            noise=noise,
        )
        for device in asked
    }


def _shared(cohort: Cohort, answers: Mapping[DeviceId, Shared]) -> list[Cohort]:
    letters, commitments, names = {}, {}, {"", *cohort.announcements}
    for device, answer in sorted(answers.items()):
        sent = answer.letters.by_device
        if {*sent} != names - {device}:
            # A letter to itself in place of one to another device: that one would mask its update without
            # this one, and the mask that they have in common would stay on the sum.
            continue
        commitments[device] = sent[""].hex()
        sealed = b"".join(sent[to] for to in cohort.others(device))
        letters[device] = np.frombuffer(sealed, np.uint8).reshape(-1, LETTER)
    if len(letters) < cohort.threshold:
        return []
    return [replace(cohort, letters=letters, commitments=commitments)]


def _masked(cohort: Cohort, answers: Mapping[DeviceId, Masked]) -> list[Cohort]:
    if len(answers) < cohort.threshold:
        return []
    words = [answer.sum[SUM].view(np.uint32) for _, answer in sorted(answers.items()) if answer.sum]
    summed = np.zeros(len(words[0]), np.uint32)
    for each in words:
        summed += each
    described = {device: each.descriptor for device, each in answers.items() if each.descriptor}
    return [
        replace(
            cohort,
            sum={SUM: summed.view(np.int32)},
            survivors=tuple(sorted(answers)),
            descriptors=described,
        )
    ]


def _unmasked(
    state: Any,
    cohort: Cohort,
    answers: Mapping[DeviceId, Unmasked],
    inner: Plans[Any],
    liars: set[DeviceId],
) -> list[Report]:
    """What each survivor would have reported: the mean of all."""
    openings = {device: answer.shares.by_device for device, answer in answers.items()}
    commitments = {device: bytes.fromhex(each) for device, each in cohort.commitments.items()}
    masked = cohort.sum[SUM].view(np.uint32)
    lists = Lists(cohort.manifest, tuple(commitments), cohort.survivors)
    clip, noise = _sum_of(state.parameters)
    trained = _training(state, cohort.survivors[0], inner)
    try:
        found, lied = total(lists, commitments, cohort.sent, masked, openings, task_of(trained, clip, noise))
    except UnrecoverableError as error:
        liars |= error.liars
        return []
    liars |= lied
    scale = fixed_point.scale_of(clip, noise, len(cohort.announcements))
    model = fixed_point.moved_by(trained.model, found, scale, len(cohort.survivors))
    return [
        Report(device, Trained(model, 1, 0.0, cohort.descriptors.get(device))) for device in cohort.survivors
    ]


def _training(state: Any, device: DeviceId, inner: Plans[Any]) -> Train:
    task = inner(state, [device]).tasks[device]
    assert isinstance(task, Train)
    return task


def _sum_of(parameters: Any) -> tuple[float, float]:
    """The norm to which updates are shortened, and the noise of their sum."""
    return parameters.central_clip, parameters.central_noise


def _session(state: Any, now: Summing) -> str:
    return f"round {state.progress + 1}, attempt {now.attempt + 1}"


A = TypeVar("A", Shared, Masked, Unmasked)


def _of(kind: type[A], cohort: Cohort, answers: Mapping[DeviceId, Message]) -> dict[DeviceId, A]:
    """The answers of a cohort's devices that still have a part in the sum."""
    return {
        device: answer
        for device in cohort.announcements
        if isinstance(answer := answers.get(device), kind) and not answer.lost
    }
