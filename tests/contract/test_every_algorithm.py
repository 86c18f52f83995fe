"""What every algorithm that is found must keep, whatever it does. A new one is tested by being there."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

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


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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


@pytest.mark.parametrize("name", NAMES)
def test_three_runs_give_the_same_bits(name: str) -> None:
    first = run(name)
    assert not first.failed
    assert set(first.state.assignments) == {f"d{i}" for i in range(6)}
    assert set(first.state.assignments.values()) <= set(first.state.models)
    card, _ = prepared(name)
    backwards = dict(reversed(fleet(card).items()))
    assert bits(first) == bits(run(name)) == bits(run(name, devices=backwards))


@pytest.mark.parametrize("name", NAMES)
def test_resuming_at_every_round_equals_the_straight_run(name: str) -> None:
    saved: list[tuple[int, Any, dict[DeviceId, Tensors]]] = []
    blobs, memories = Blobs(), dict[DeviceId, Tensors]()
    card, _ = prepared(name)
    kind = card.server().State

    def watch(effect: Effect) -> None:
        if isinstance(effect, Save):
            saved.append((effect.round, checkpoint.encode(kind, effect.state, blobs.keep), dict(memories)))

    straight = run(name, watch=watch, devices=fleet(card, memories=memories))
    assert len(saved) >= SMALL["rounds"]
    for number, structure, remembered in saved:
        state = checkpoint.decode(kind, structure, blobs.load)
        resumed = run(name, state=state, round=number, devices=fleet(card, memories=remembered))
        assert bits(resumed) == bits(straight)
        assert resumed.state.assignments == straight.state.assignments


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
    states: list[Any] = []
    run(name, watch=lambda effect: states.append(effect.state) if isinstance(effect, Save) else None)
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

    plain = run(name)
    coded = run(name, devices={name: wrapped(device) for name, device in fleet(card).items()})
    assert bits(plain) == bits(coded)
    assert models


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_each_half_stays_on_its_floor(name: str) -> None:
    card = ALGORITHMS[name]
    for module, forbidden in (
        (card.server_module, ["torch"]),
        (card.device_module, ["sklearn", "scipy", "kneed"]),
    ):
        code = f"import sys, {module}; print([name for name in {forbidden} if name in sys.modules])"
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert result.stdout.strip() == "[]", f"{module} imports {result.stdout}"


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
