"""What every algorithm must keep, whatever it does: `shoal.check` for people, `tests/contract` for ours.

Each rule runs the algorithm on a small real fleet, rotated digits on six devices, and raises `Broken`, which
says in words what the algorithm did instead.
"""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from shoal.core.algorithm import Algorithm, Report, find, measurement
from shoal.core.algorithm.card import check_rules
from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.learner import Learner, builtin, initial_weights
from shoal.core.engine import checkpoint
from shoal.core.engine.events import Effect, Save
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import Outcome, simulate
from shoal.core.errors import ConfigError, Refused, ShoalError, Unavailable
from shoal.core.exchange.messages import Evaluated, Message, Protected
from shoal.core.exchange.parts import ClusterAssignment
from shoal.core.exchange.payload import BlobRef, Weights, decode, encode, tensors_of
from shoal.core.exchange.tensors import digest, manifest_of, nbytes
from shoal.core.privacy.cost import ORDERS
from shoal.core.privacy.report import OPEN, left_open
from shoal.core.types import DeviceId, Tensors
from shoal.lab.datasets import images
from shoal.lab.datasets.pixels import rotate, unit
from shoal.lab.devices import Memories, Simulated

Device = Callable[[Message, int], Message]
DEVICES = 6
SMALL: Mapping[str, Any] = {
    "rounds": 5,
    "epochs": 1,
    "learning_rate": 0.05,
    "batch_size": 16,
    "privacy": "off",
}
"""Of these, every run here sets what the algorithm has: so it takes a second."""
SMALLER: Mapping[str, Any] = {
    "rounds": 3,
    "rate_rounds": 1,
    "epochs": 1,
    "batch_size": 4,
    "clusters": 5,
    "classes": 10,
    "privacy": "off",  # a guarantee takes more samples than there are in odd fleets
}
ODD_FLEETS: Mapping[str, Sequence[tuple[int, int, Sequence[int]]]] = {
    "a single device": [(0, 20, range(10))],
    "all the same": [(0, 20, range(10))] * 3,
    "nothing in common": [(0, 12, [2]), (1, 12, [5]), (2, 12, [8])],
    "one sample in all": [(0, 1, range(10))],
    "one sample beside two classes": [(0, 1, range(10)), (1, 12, (3, 4))],
}
"""By name, for each device: whose digits it has, how many, and of which classes."""


class Broken(AssertionError):
    """An algorithm does not keep a rule. The text says what it did instead."""


# -- a small real fleet -------------------------------------------------------------------------------------


def learner() -> Learner:
    """A small network; its frozen encoder sees the images at half their size."""
    return replace(builtin("mlp", {"inputs": 64, "hidden": (32,), "classes": 10}), encoder=halved)


def halved(x: Tensor) -> Tensor:
    return avg_pool2d(x, 2).flatten(1)


def first_model() -> Tensors:
    return initial_weights(learner(), 42)


@cache
def digits() -> tuple[Dataset, Dataset]:
    """The training and the test part, read once per process: nothing here changes an array in place."""
    return images.load("digits")


def data(device: int, angles: tuple[int, ...] = (0, 90), samples: int = 90) -> Dataset:
    """Digits that only this device has; device i turns its images by the i-th angle, and round again."""
    train, _ = digits()
    own = train.subset(slice(device * samples, (device + 1) * samples))
    turned = rotate(own.x, angles[device % len(angles)])
    return Dataset(unit(turned), own.y)


def digits_of(device: int, count: int, classes: Sequence[int] = range(10)) -> Dataset:
    """That many of a device's digits, of these classes."""
    own = data(device, (0,))
    assert own.y is not None
    return own.subset(np.flatnonzero(np.isin(own.y, classes))[:count])


def fleet(
    algorithm: Algorithm,
    devices: int = DEVICES,
    angles: tuple[int, ...] = (0, 90),
    memories: Memories | None = None,
) -> dict[DeviceId, Device]:
    """Devices for `shoal.core.engine.simulate`, in the algorithm's own device half. memories: what they
    remember."""
    return contexts(algorithm, [Views.of(data(number, angles)) for number in range(devices)], None, memories)


def contexts(
    algorithm: Algorithm,
    views: Sequence[Views],
    shared: Learner | None = None,
    memories: Memories | None = None,
) -> dict[DeviceId, Device]:
    """The same, of data of your own. shared: another learner than the small network."""
    device_half, shared = algorithm.device(), shared or learner()
    network, remembered = shared.module(seed=0), {} if memories is None else memories

    def device(number: int, own: Views) -> Simulated:
        context = DeviceContext(shared, own, "cpu", 0, np.random.default_rng(number), model=network)
        return Simulated(device_half, context, f"d{number}", remembered)

    return {f"d{number}": device(number, own) for number, own in enumerate(views)}


class Blobs:
    """Keeps tensors by their hash, as a server does."""

    def __init__(self) -> None:
        self.by_hash: dict[str, Tensors] = {}

    def keep(self, tensors: Tensors) -> Weights:
        name = digest(tensors)
        self.by_hash[name] = {key: array.copy() for key, array in tensors.items()}
        return Weights(manifest_of(tensors), BlobRef(name, nbytes(tensors)))

    def load(self, weights: Weights) -> Tensors:
        return self.by_hash[weights.blob.sha256]


@dataclass(frozen=True)
class Straight:
    """A run that was not interrupted. saved: of every checkpoint the round, the state, and what each device
    remembered."""

    outcome: Outcome
    saved: list[tuple[int, Any, dict[DeviceId, Tensors]]]


@dataclass(frozen=True)
class Subject:
    """An algorithm, or one of its variants, that is put through the rules."""

    card: Algorithm
    variant: str = ""

    def parameters(self, small: Mapping[str, Any] = SMALL, **more: Any) -> Any:
        changes = {**self.card.variants.get(self.variant, {}), **small, **more}
        if changes.get("clusters") == -1:  # a variant that must be given their number
            changes["clusters"] = 2
        known = self.card.settings
        return self.card.configure("default", {key: each for key, each in changes.items() if key in known})

    def run(
        self,
        *,
        state: Any = None,
        round: int = 1,
        watch: Callable[[Effect], None] = lambda effect: None,
        devices: Mapping[DeviceId, Device] | None = None,
        minimum: int = DEVICES,
    ) -> Outcome:
        server_half = self.card.server()
        state = server_half.start(first_model(), self.parameters()) if state is None else state
        policy = RoundPolicy(minimum=minimum)
        return simulate(
            server_half, state, dict(devices or fleet(self.card)), policy, 11, round=round, watch=watch
        )

    @cached_property
    def straight(self) -> Straight:
        """Made once, for every rule that compares another run with it."""
        saved: list[tuple[int, Any, dict[DeviceId, Tensors]]] = []
        memories: dict[DeviceId, Tensors] = {}

        def watch(effect: Effect) -> None:
            if isinstance(effect, Save):
                saved.append((effect.round, effect.state, dict(memories)))

        return Straight(self.run(watch=watch, devices=fleet(self.card, memories=memories)), saved)


def bits(outcome: Outcome) -> dict[str, str]:
    """The hash of every model."""
    return {key: digest(model) for key, model in outcome.state.models.items()}


# -- the rules ----------------------------------------------------------------------------------------------


def states_its_parts(subject: Subject) -> None:
    """The card has a legal name, frozen parameters, both halves, and the type of its state."""
    check_rules(subject.card)
    subject.card.state_type()
    subject.card.device()


def configures(subject: Subject) -> None:
    """Every preset can be configured, and a wrong name or type is refused by name."""
    card = subject.card
    for preset in card.presets:
        _expect(
            card.configure(preset) == replace(card.parameters(), **card.presets[preset]),
            f"preset {preset} does not configure to what it says",
        )
    for name, value in (("roundz", 3), *((each, object()) for each in list(card.settings)[:1])):
        try:
            card.configure("default", {name: value})
        except ConfigError as fault:
            _expect(name in fault.message, f"the refusal of {name} does not name it: {fault.message}")
        else:
            raise Broken(f"{name}={value!r} is accepted")


def stays_on_its_floor(subject: Subject) -> None:
    """The server half does not import PyTorch, the device half neither scikit-learn nor SciPy."""
    for half, forbidden in (
        (subject.card.server_module, ["torch"]),
        (subject.card.device_module, ["sklearn", "scipy", "kneed"]),
    ):
        if not isinstance(half, str):
            continue
        code = f"import sys, {half}; print([name for name in {forbidden} if name in sys.modules])"
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603
        _expect(found.returncode == 0, f"{half} cannot be imported by itself: {found.stderr[-500:]}")
        _expect(found.stdout.strip() == "[]", f"{half} imports {found.stdout.strip()}")


def repeats_bit_for_bit(subject: Subject) -> None:
    """Three runs with the same seed give the same models, whatever the order of the devices."""
    first = subject.straight.outcome
    _expect(not first.failed, f"the run failed: {first.reason}")
    missing = sorted({f"d{i}" for i in range(DEVICES)} ^ set(first.state.assignments))
    _expect(not missing, f"at the end, assignments do not have exactly the run's devices: {missing}")
    unknown = sorted(set(first.state.assignments.values()) - set(first.state.models))
    _expect(not unknown, f"devices are assigned to models that the state does not have: {unknown}")
    _expect(bits(first) == bits(subject.run()), "a second run with the same seed gave other models")
    backwards = dict(reversed(fleet(subject.card).items()))
    _expect(bits(first) == bits(subject.run(devices=backwards)), "the order of devices changes the models")


def resumes_from_every_round(subject: Subject) -> None:
    """A run that is stored, read and resumed at any round ends as the run that was not interrupted."""
    blobs, kind = Blobs(), subject.card.state_type()
    straight, saved = subject.straight.outcome, subject.straight.saved
    rounds = getattr(subject.parameters(), "rounds", 1)
    _expect(len(saved) >= rounds, f"{len(saved)} states were saved in {rounds} rounds")
    for number, before, remembered in saved:
        state = checkpoint.decode(kind, checkpoint.encode(kind, before, blobs.keep), blobs.load)
        memories = dict(remembered)
        resumed = subject.run(state=state, round=number, devices=fleet(subject.card, memories=memories))
        _expect(bits(resumed) == bits(straight), f"resumed at round {number}, the run ends with other models")
        _expect(
            resumed.state.assignments == straight.state.assignments,
            f"resumed at round {number}, devices end in other clusters",
        )


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
    _expect(not outcome.failed, f"the run failed: {outcome.reason}")
    _expect(any("d5" in each for each in outcome.missing.values()), "the device was not asked a third time")


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
        _expect(not changed, f"in phase {plan.title!r} a report of {lonely} changed the models {changed}")


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
        _expect(type(again) is type(message), f"a {message.kind} was read as a {again.kind}")
        return again

    def wrapped(device: Device) -> Device:
        return lambda message, seed: sent(device(sent(message), seed))

    coded = subject.run(devices={name: wrapped(device) for name, device in fleet(subject.card).items()})
    _expect(
        bits(subject.straight.outcome) == bits(coded),
        "messages lose something on their way: other models come out",
    )
    _expect(bool(models), "no message of the run has a model")


def places_or_says_why(subject: Subject) -> None:
    """After a run, a newcomer gets a model of the run, a question, or a refusal that says what would work."""
    state = subject.run().state
    try:
        answer = subject.card.server().place(state, None)
    except Refused as refusal:
        _expect(bool(refusal.hint), f"the refusal does not say what would work: {refusal.message}")
        return
    if isinstance(answer, ClusterAssignment):
        _expect(
            answer.abstained or answer.cluster in state.models, f"{answer.cluster} is no model of the run"
        )
    else:
        _expect(isinstance(answer, Message), f"place returned {answer!r}")


def asks_for_privacy_in_every_task(subject: Subject) -> None:
    """Where a run asks for DP-SGD, no task lets weights leave without it."""
    if "dp_epsilon" not in subject.card.settings:
        return
    paid = {"private": Protected(1.0, 1.0, 0.1, 5), "curve": tuple(0.1 * order for order in ORDERS)}
    trained: Counter[DeviceId] = Counter()
    asked: set[Any] = set()

    def watched(device: DeviceId, perform: Device) -> Device:
        def answer(task: Any, seed: int) -> Message:
            _expect(OPEN["weights"] not in left_open(task), f"a {task.kind} lets weights leave in the open")
            if getattr(task, "private", None) is None:
                return perform(task, seed)
            trained[device] += 1
            asked.add(task.private)
            return replace(perform(replace(task, private=None), seed), **paid)  # type: ignore[type-var]

        return answer

    devices = {each: watched(each, perform) for each, perform in fleet(subject.card, 4).items()}
    half, parameters = subject.card.server(), subject.parameters(dp_epsilon=3.0)
    outcome = simulate(half, half.start(first_model(), parameters), devices, RoundPolicy(minimum=4), 7)
    _expect(not outcome.failed, f"the run failed: {outcome.reason}")
    _expect(len(asked) == 1, f"tasks ask for {len(asked)} different guarantees")
    (one,) = asked
    _expect((one.epsilon, one.noise) == (3.0, 0.0), f"epsilon=3 was asked for, and the tasks say {one}")
    _expect(
        max(trained.values()) == one.rounds,
        f"a device trained {max(trained.values())} times, and its epsilon is for {one.rounds}",
    )


def bears_odd_fleets(subject: Subject) -> None:
    """One device, one sample, nothing in common: a run ends with finite models, or says why it cannot."""
    for name in ODD_FLEETS:
        odd_fleet(subject, name)


def odd_fleet(subject: Subject, name: str) -> str:
    """One of `ODD_FLEETS`: why the run failed; "" where it did not, and all is as it should be."""
    card, parts = subject.card, [digits_of(*each) for each in ODD_FLEETS[name]]
    memories: dict[DeviceId, Tensors] = {}
    devices = contexts(card, [Views.of(part, part) for part in parts], memories=memories)
    server_half = card.server()
    state = server_half.start(first_model(), subject.parameters(SMALLER))
    outcome = simulate(server_half, state, devices, RoundPolicy(minimum=len(parts)), 3)
    if outcome.failed:
        _expect(bool(outcome.reason), f"with {name} the run fails and does not say why")
        return outcome.reason
    _expect(not outcome.missing, f"with {name} devices are missing: {outcome.missing}")
    for key, model in outcome.state.models.items():
        finite = all(np.isfinite(array).all() for array in model.values())
        _expect(finite, f"with {name} the model {key} is not finite")
    for number, part in enumerate(parts):
        device = f"d{number}"
        context = DeviceContext(learner(), Views.of(part, part), "cpu", 0, np.random.default_rng(0))
        task = measurement(server_half, outcome.state, outcome.state.assignments[device])
        for memory in (memories.get(device), None):
            answer = card.device().perform(task, context.for_task(0, memory))
            sane = isinstance(answer, Evaluated) and 0.0 <= answer.accuracy <= 1.0
            _expect(sane, f"with {name} device {device} measures {answer!r}")
    return ""


RULES: Sequence[Callable[[Subject], None]] = (
    states_its_parts,
    configures,
    stays_on_its_floor,
    repeats_bit_for_bit,
    resumes_from_every_round,
    survives_a_drop_out,
    keeps_models_without_updates,
    travels_unchanged,
    places_or_says_why,
    asks_for_privacy_in_every_task,
    bears_odd_fleets,
)


# -- the verdict --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """What `check` found. broken: by the rule's text, what the algorithm did instead; empty: it keeps all."""

    algorithm: str
    kept: tuple[str, ...] = ()
    broken: Mapping[str, str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return not self.broken

    def __bool__(self) -> bool:
        return self.passed

    def __str__(self) -> str:
        lines = [f"ok    {rule}" for rule in self.kept]
        lines += [f"FAIL  {rule}\n      {what}" for rule, what in self.broken.items()]
        end = "keeps every rule" if self.passed else f"breaks {len(self.broken)} of {len(lines)} rules"
        return "\n".join([*lines, f"{self.algorithm} {end}"])


def check(algorithm: Algorithm | str) -> Verdict:
    """Put an algorithm, or the one of that name, through the contract suite, its variants too.

    Takes about half a minute. `print` shows the verdict in words; as a condition it is whether all was kept.

    Example:
        >>> print(shoal.check("fedavg"))  # doctest: +SKIP
        ok    The card has a legal name, frozen parameters, both halves, and the type of its state.
        ...
        fedavg keeps every rule
    """
    card = find(algorithm)[0] if isinstance(algorithm, str) else algorithm
    kept, broken = [], {}
    subjects = [Subject(card, variant) for variant in ("", *card.variants)]
    with one_thread():
        for rule in RULES:
            title = (rule.__doc__ or rule.__name__).strip().split("\n")[0]
            try:
                for subject in subjects:
                    rule(subject)
            except Exception as fault:
                broken[title] = _words(fault)
                if rule is states_its_parts:
                    break
            else:
                kept.append(title)
    return Verdict(card.name, tuple(kept), broken)


@contextmanager
def one_thread() -> Iterator[None]:
    """PyTorch on one thread: small fleets are faster so."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _words(fault: Exception) -> str:
    if isinstance(fault, Broken | ShoalError):
        return str(fault)
    place = fault.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = f", in {place.tb_frame.f_code.co_name}, line {place.tb_lineno}" if place else ""
    return f"{type(fault).__name__}: {fault}{where}"


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise Broken(what)
