"""One device that lies: a short slice of `make liars`, whose whole table is docs/liars.md."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.contract import Broken
from shoal.simulation.simulated import on_threads
from shoal_lab.liars import campaign
from shoal_lab.liars.attacks import ATTACKS
from shoal_lab.liars.campaign import ABSENT, HONEST, Case, cases, names, play
from shoal_lab.liars.contract import bears_one_liar, reached
from shoal_lab.liars.page import page
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


def test_a_campaign_goes_on_where_it_stopped_and_its_page_names_the_worst(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def trial(case: Case) -> Found:
        tried.append(case.attack)
        return Found({HONEST: 91.0, ABSENT: 90.0, "noise": 85.0}.get(case.attack, 90.5), 1.0)

    monkeypatch.setattr(campaign, "tried", trial)
    wanted = list(cases(["fedavg"], [4], list(ATTACKS), [1]))
    assert len(wanted) == 12
    play(wanted[:5], tmp_path / "log", lambda text: None)
    known = play(wanted, tmp_path / "log", lambda text: None)
    assert tried == [case.attack for case in wanted]
    assert "| fedavg | 4 | 10 | 91.0 | 90.0 | 85.0 | **5.0** | noise | 1.00 | 1.00 |" in page(known)


def test_cases_with_privacy_are_those_of_algorithms_that_describe_data() -> None:
    private = {case.algorithm for case in cases(names(), [3], [], [1]) if case.private}
    assert private == {"feroma", "flux", "fmcl"}
