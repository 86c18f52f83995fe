"""What every algorithm that is found must keep, whatever it does. A new one is tested by being there."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest

from shoal.core.algorithm import Algorithm, Report, discover
from shoal.core.engine import checkpoint
from shoal.core.engine.events import Effect, Offer, Reduce, Save
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import Outcome, simulate
from shoal.core.errors import ConfigError, Unavailable
from shoal.core.exchange.messages import Message
from shoal.core.exchange.payload import BlobRef, Weights, decode, encode, tensors_of
from shoal.core.exchange.tensors import digest, manifest_of, nbytes
from shoal.core.types import DeviceId, Tensors
from tests.fleet import first_model, fleet

ALGORITHMS = discover()
NAMES = sorted({*ALGORITHMS, *(name for card in ALGORITHMS.values() for name in card.variants)})
SMALL = {"rounds": 5, "epochs": 1, "learning_rate": 0.05, "batch_size": 16, "privacy": "off"}


def prepared(name: str) -> tuple[Algorithm, Any]:
    card = next(a for a in ALGORITHMS.values() if name == a.name or name in a.variants)
    changes = {**card.variants.get(name, {}), **SMALL}
    if changes.get("clusters") == -1:
        changes["clusters"] = 2
    known = set(card.parameters.__dataclass_fields__)
    return card, card.configure("default", {k: v for k, v in changes.items() if k in known})


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


def run(
    name: str,
    *,
    state: Any = None,
    round: int = 1,
    watch: Callable[[Effect], None] = lambda effect: None,
    devices: dict[DeviceId, Callable[[Message, int], Message]] | None = None,
    minimum: int = 6,
) -> Outcome:
    card, parameters = prepared(name)
    server_half = card.server()
    state = server_half.start(first_model(), parameters) if state is None else state
    policy = RoundPolicy(minimum=minimum)
    return simulate(server_half, state, devices or fleet(card), policy, 11, round=round, watch=watch)


def bits(outcome: Outcome) -> dict[str, str]:
    return {key: digest(model) for key, model in outcome.state.models.items()}


@dataclass(frozen=True)
class Straight:
    """A run from the first round to the last, and every checkpoint on its way: the round, the state as it is
    stored, and what the devices remember."""

    outcome: Outcome
    saved: list[tuple[int, Any, dict[DeviceId, Tensors]]]
    blobs: Blobs


@cache
def straight(name: str) -> Straight:
    """Made once, for every test that compares another run with it."""
    saved: list[tuple[int, Any, dict[DeviceId, Tensors]]] = []
    blobs, memories = Blobs(), dict[DeviceId, Tensors]()
    card, _ = prepared(name)
    kind = card.server().State

    def watch(effect: Effect) -> None:
        if isinstance(effect, Save):
            saved.append((effect.round, checkpoint.encode(kind, effect.state, blobs.keep), dict(memories)))

    return Straight(run(name, watch=watch, devices=fleet(card, memories=memories)), saved, blobs)


@pytest.mark.parametrize("name", NAMES)
def test_three_runs_give_the_same_bits(name: str) -> None:
    first = straight(name).outcome
    assert not first.failed
    assert set(first.state.assignments) == {f"d{i}" for i in range(6)}
    assert set(first.state.assignments.values()) <= set(first.state.models)
    card, _ = prepared(name)
    backwards = dict(reversed(fleet(card).items()))
    assert bits(first) == bits(run(name)) == bits(run(name, devices=backwards))


@pytest.mark.parametrize("name", NAMES)
def test_resuming_at_every_round_equals_the_straight_run(name: str) -> None:
    whole = straight(name)
    card, _ = prepared(name)
    assert len(whole.saved) >= SMALL["rounds"]
    for number, structure, remembered in whole.saved:
        state = checkpoint.decode(card.server().State, structure, whole.blobs.load)
        resumed = run(name, state=state, round=number, devices=fleet(card, memories=dict(remembered)))
        assert bits(resumed) == bits(whole.outcome)
        assert resumed.state.assignments == whole.outcome.state.assignments


@pytest.mark.parametrize("name", NAMES)
def test_a_device_that_drops_out_never_blocks(name: str) -> None:
    card, _ = prepared(name)
    devices = fleet(card)
    asked = 0

    def dropping(message: Message, seed: int) -> Message:
        nonlocal asked
        asked += 1
        if asked > 2:
            raise Unavailable("gone")
        return alive(message, seed)

    alive = devices["d5"]
    outcome = run(name, devices={**devices, "d5": dropping}, minimum=1)
    assert not outcome.failed
    assert any("d5" in missing for missing in outcome.missing.values())


@pytest.mark.parametrize("name", NAMES)
def test_a_cluster_without_updates_keeps_its_model(name: str) -> None:
    """Reduce every round with one device alone, and compare the models of the others' clusters."""
    card, _ = prepared(name)
    server_half, devices = card.server(), fleet(card)
    whole = straight(name)
    kind = server_half.State
    states = [checkpoint.decode(kind, structure, whole.blobs.load) for _, structure, _ in whole.saved]
    clustered = [state for state in states if len(state.models) > 1]
    for state in clustered:
        plan = server_half.plan(state, sorted(devices))
        if plan is None:
            continue
        lonely = sorted(plan.tasks)[0]
        task, answer = plan.tasks[lonely], devices[lonely](plan.tasks[lonely], 3)
        after = server_half.reduce(state, [Report(lonely, answer)])
        others = [key for key in state.models if key not in _reached(task, answer, state, lonely)]
        assert {key: digest(after.models[key]) for key in others} == {
            key: digest(state.models[key]) for key in others
        }


def _reached(task: Message, answer: Message, state: Any, device: DeviceId) -> set[str]:
    """The models that an update of this device may move: those that it names, or else all that it was given
    where these are several."""
    if keys := getattr(answer, "keys", ""):
        return set(keys.split())
    several = any(isinstance(value, tuple) for value in vars(task).values())
    return set(state.models) if several else {state.assignments[device]}


@pytest.mark.parametrize("name", NAMES)
def test_every_message_of_a_run_survives_its_payload(name: str) -> None:
    card, _ = prepared(name)
    blobs, kinds = Blobs(), card.messages_by_kind()
    models: list[Tensors] = []

    def through_payload(message: Message) -> Message:
        models.extend(tensors for _, tensors in tensors_of(message))
        again = decode(encode(message, blobs.keep), kinds, blobs.load)
        assert type(again) is type(message)
        return again

    def wrapped(device: Callable[[Message, int], Message]) -> Callable[[Message, int], Message]:
        return lambda message, seed: through_payload(device(through_payload(message), seed))

    plain = straight(name).outcome
    coded = run(name, devices={name: wrapped(device) for name, device in fleet(card).items()})
    assert bits(plain) == bits(coded)
    assert models


IMPORTS = """
import importlib, json, os, sys
import {shared}
for module in {modules}:
    if os.fork() == 0:
        importlib.import_module(module)
        print(json.dumps([module, sorted(sys.modules)]), flush=True)
        os._exit(0)
    if os.wait()[1]:
        sys.exit(1)
"""


@cache
def imported(shared: str, modules: tuple[str, ...]) -> dict[str, list[str]]:
    """What is loaded after each module was imported for the first time, in a process that has only imported
    `shared` before: the processes are forks of one, which saves loading that for each of them."""
    code = IMPORTS.format(shared=shared, modules=modules)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return dict(json.loads(line) for line in result.stdout.splitlines())


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_each_half_stays_on_its_floor(name: str) -> None:
    cards = [ALGORITHMS[each] for each in sorted(ALGORITHMS)]
    server = imported("scipy.stats, sklearn.cluster", tuple(card.server_module for card in cards))
    device = imported("torch", tuple(card.device_module for card in cards))
    card = ALGORITHMS[name]
    assert not {"torch"} & set(server[card.server_module])
    assert not {"sklearn", "scipy", "kneed"} & set(device[card.device_module])


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_the_card_cites_its_paper_and_its_presets_can_be_configured(name: str) -> None:
    card = ALGORITHMS[name]
    module = sys.modules[card.parameters.__module__]
    assert any(year in (module.__doc__ or "") for year in map(str, range(2015, 2031)))
    for preset in card.presets:
        assert card.configure(preset) == replace(card.parameters(), **card.presets[preset])
    with pytest.raises(ConfigError, match="roundz"):
        card.configure("default", {"roundz": 3})
    with pytest.raises(ConfigError, match="int is due"):
        card.configure("default", {"rounds": "many"})
    with pytest.raises(ConfigError, match="preset"):
        card.configure("papr")


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_updates_are_bounded_by_default_and_the_papers_presets_take_their_own_mean(name: str) -> None:
    card = ALGORITHMS[name]
    assert card.configure().aggregation == "clipped"
    papers = [preset for preset in card.presets if preset.startswith("paper")]
    assert {card.configure(preset).aggregation for preset in papers} <= {"mean", "trimmed"}
    with pytest.raises(ConfigError, match="aggregation cannot be 'krum'"):
        card.server().start(first_model(), card.configure("default", {"aggregation": "krum"}))


def test_reduce_is_told_devices_in_order() -> None:
    orders: list[tuple[DeviceId, ...]] = []

    def watch(effect: Effect) -> None:
        if isinstance(effect, Reduce):
            orders.append(effect.devices)
        elif isinstance(effect, Offer):
            assert effect.attempt == 1

    run("fedavg", watch=watch)
    assert all(list(order) == sorted(order) for order in orders)
