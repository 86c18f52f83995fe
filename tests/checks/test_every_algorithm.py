"""Every algorithm that is found keeps `shoal.checks`. A new one is tested by being there."""

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from shoal.checks import RULES, Subject, cards, liars, odd_fleets
from shoal.core.algorithm import discover
from shoal.core.engine.events import Effect, Offer, Reduce
from shoal.core.errors import ConfigError
from shoal.core.types import DeviceId

ALGORITHMS = discover()
SUBJECTS = {
    name: Subject(card, name if name in card.variants else "")
    for card in ALGORITHMS.values()
    for name in (card.name, *card.variants)
}
TRAINING = sorted(ALGORITHMS.keys() - {"statistics"})
"""Those of papers, that average what devices have trained in a number of rounds."""
OF_CARDS = {
    cards.states_its_parts,
    cards.configures,
    cards.stays_on_its_floor,  # `test_no_half_leaves_its_floor`
    odd_fleets.bears_odd_fleets,  # also held to what exactly is refused: test_odd_fleets
}
"""Rules of which a variant makes no difference."""
ELSEWHERE = {*OF_CARDS, liars.bears_liars}
"""Rules of other tests; that of liars, which takes longest, has a module of its own: test_liars."""


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in ELSEWHERE], ids=lambda r: r.__name__)
@pytest.mark.parametrize("name", sorted(SUBJECTS))
def test_every_variant_keeps(name: str, rule: Callable[[Subject], None]) -> None:
    rule(SUBJECTS[name])


@pytest.mark.parametrize(
    "rule",
    [cards.states_its_parts, cards.configures],
    ids=lambda r: r.__name__,
)
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_card_keeps(name: str, rule: Callable[[Subject], None]) -> None:
    rule(Subject(ALGORITHMS[name]))


def loaded_by(half: str) -> set[str]:
    """What is loaded in a process that has imported this half of every algorithm, and nothing else."""
    modules = sorted(str(getattr(card, f"{half}_module")) for card in ALGORITHMS.values())
    code = f"import json, sys, {', '.join(modules)}; print(json.dumps(list(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(result.stdout))


@pytest.mark.parametrize(
    ("half", "floor"),
    [("server", {"torch"}), ("device", {"sklearn", "scipy", "kneed"})],
    ids=["server", "device"],
)
def test_no_half_leaves_its_floor(half: str, floor: set[str]) -> None:
    """What `cards.stays_on_its_floor` asks, of all at once: that rule, tried by tests/e2e/test_plugin.py with
    the others, starts two interpreters for each."""
    assert not floor & loaded_by(half)


@pytest.mark.parametrize("name", TRAINING)
def test_the_card_cites_its_paper_and_says_what_is_legal(name: str) -> None:
    card = ALGORITHMS[name]
    assert any(year in card.citation for year in map(str, range(2015, 2031)))
    assert all(setting.meaning for setting in card.settings.values())
    with pytest.raises(ConfigError, match="roundz"):
        card.configure("default", {"roundz": 3})
    with pytest.raises(
        ConfigError, match=r"rounds cannot be 'many'; expected (auto, or )?a whole number of at least 1"
    ):
        card.configure("default", {"rounds": "many"})
    with pytest.raises(ConfigError, match="preset"):
        card.configure("papr")


@pytest.mark.parametrize("name", TRAINING)
def test_updates_are_bounded_by_default_and_the_papers_presets_take_their_own_mean(name: str) -> None:
    card = ALGORITHMS[name]
    assert card.configure().aggregation == "clipped"
    papers = [preset for preset in card.presets if preset.startswith("paper")]
    assert {card.configure(preset).aggregation for preset in papers} <= {"mean", "trimmed"}
    with pytest.raises(ConfigError, match="aggregation cannot be 'krum'"):
        card.configure("default", {"aggregation": "krum"})


def test_reduce_is_given_devices_in_order() -> None:
    orders: list[tuple[DeviceId, ...]] = []

    def watch(effect: Effect) -> None:
        if isinstance(effect, Reduce):
            orders.append(effect.devices)
        elif isinstance(effect, Offer):
            assert effect.attempt == 1

    SUBJECTS["fedavg"].run(watch=watch)
    assert all(list(order) == sorted(order) for order in orders)


def test_most_algorithms_can_do_dp_sgd() -> None:
    able = {name for name, card in ALGORITHMS.items() if "dp_epsilon" in card.settings}
    assert {"fedavg", "fedprox", "flux", "feroma", "fmcl", "cornflqs"} <= able
