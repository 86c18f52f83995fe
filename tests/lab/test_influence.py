"""Devices that lie: one in a small fleet, and several in the covering array of docs/liars.md."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import influence
from shoal.checks import Broken
from shoal.simulation.simulated import on_threads
from shoal_lab.liars import campaign
from shoal_lab.liars.attacks import ATTACKS, CLAIM
from shoal_lab.liars.campaign import ABSENT, HONEST, Case
from shoal_lab.liars.contract import bears_one_liar, reached
from shoal_lab.liars.trial import Found

SLICE = [
    ("fedavg", "reversed x10", False),
    ("fedavg", "wrong labels", False),
    ("flux", "reversed x10", False),
    ("flux", "extreme", False),
    ("flux", "shuffled", True),
    ("cornflqs", "reversed x10", False),
    ("fecfl", "extreme", False),
    ("fedgroup", "reversed", False),
    ("cfl", "stretched", False),
]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with on_threads(1):
        yield


@pytest.mark.parametrize(("algorithm", "attack", "private"), SLICE)
def test_one_liar_changes_nothing(algorithm: str, attack: str, private: bool) -> None:
    bears_one_liar(algorithm, attack, private)


@pytest.mark.parametrize("attack", ["reversed x10", "turncoat"])
def test_one_liar_in_a_cluster_of_two_changes_nothing_for_other_clusters(attack: str) -> None:
    bears_one_liar("flux", attack, size=2)


def test_the_mean_of_the_papers_does_not_bear_one() -> None:
    """So the test can fail: without the bounds, one device is enough."""
    card, parameters = campaign.parameters_of("fedavg", False)
    state = card.configure("default", {**vars(parameters), "aggregation": "mean"})
    lost = campaign.trial(card, state, 3, ATTACKS["reversed x10"], 5)
    assert lost.accuracy < reached(Case("fedavg", False, 4, ABSENT, 5)).accuracy - 30.0


def test_what_an_algorithm_does_not_bear_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {HONEST: Found(90.0, 1.0), ABSENT: Found(89.0, 1.0), "noise": Found(86.5, 1.0)}
    found |= {"little": Found(90.0, 0.5), "extreme": Found(0.0, 0.0, "no reports")}
    monkeypatch.setattr("shoal_lab.liars.contract.reached", lambda case: found[case.attack])
    for attack, why in (("noise", "from 89.0 to 86.5 %"), ("little", "1.00 to 0.50"), ("extreme", "fails")):
        with pytest.raises(Broken, match=why):
            bears_one_liar("any", attack)


def test_any_two_choices_meet_in_some_cell_of_the_covering_array() -> None:
    cells = list(influence.covering([47, 48]))
    choices = [(cell.data, cell.devices, cell.attack, cell.claim) for cell in cells]
    options = [sorted({choice[place] for choice in choices}) for place in range(4)]
    assert options[1:] == [[5, 10, 30, 60], sorted(ATTACKS), [0, 1, CLAIM]]
    for one, other in itertools.combinations(range(4), 2):
        met = {(choice[one], choice[other]) for choice in choices}
        assert len(met) == len(options[one]) * len(options[other])
    assert all(0 < cell.liars < cell.devices / 4 for cell in cells)


def test_what_was_tried_is_not_tried_again_and_what_costs_too_much_is_bold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def trial(cell: influence.Cell, data_dir: str) -> float:
        tried.append(cell.attack)
        return {influence.ABSENT: 90.0, "noise": 85.0}.get(cell.attack, 89.5)

    monkeypatch.setattr(influence, "tried", trial)
    cells = [influence.Cell("digits", 10, 2, attack, 0, 47) for attack in ("noise", "reversed")]
    wanted = [influence.without(cells[0]), *cells]
    influence.play(wanted[:2], tmp_path / "log", "")
    known = influence.play(wanted, tmp_path / "log", "")
    assert tried == [influence.ABSENT, "noise", "reversed"]
    rows = influence.table(cells, known).splitlines()[2:]
    assert rows == [
        "| digits | 10 | 2 | noise | true | 90.0 | 85.0 | **5.0** |",
        "| digits | 10 | 2 | reversed | true | 90.0 | 89.5 | 0.5 |",
    ]


def test_an_honest_fleet_learns_and_liars_of_it_cost_little() -> None:
    cell = influence.Cell("digits", 9, 2, "reversed x10", CLAIM, 42)
    honest, beside = influence.tried(influence.without(cell), ""), influence.tried(cell, "")
    assert honest > 80.0
    assert beside > honest - 2.0
