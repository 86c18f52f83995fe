"""The terms of a run, and what a device makes of them."""

import json
from dataclasses import dataclass, replace

import pytest

from shoal.core import algorithm
from shoal.core.algorithm.asks import asks_of, terms_of
from shoal.core.errors import BadPayload, ConfigError
from shoal.core.exchange.messages import PrivateTraining
from shoal.core.exchange.parts import PrivacySettings
from shoal.core.privacy.asks import Asks, RunTerms, WholeRun, read_terms
from shoal.core.privacy.cost import Cost, epsilon_of, rho_of
from shoal.core.privacy.report import OPEN

CARDS = algorithm.discover()


@pytest.mark.parametrize("name", sorted(CARDS))
def test_terms_come_back_as_they_were(name: str) -> None:
    card = CARDS[name]
    for preset in ("default", *card.presets):
        parameters = card.configure(preset)
        terms = read_terms(terms_of(card, parameters))
        assert terms.asks == asks_of(card, parameters)
        in_lab = str(card.server_module).startswith("shoal_lab.")
        assert (terms.algorithm, terms.package) == (name, "shoal-lab" if in_lab else "shoal-fed")
        assert set(terms.tasks) == {each.kind for each in card.messages if hasattr(each, "reply")}


def test_a_card_that_names_what_no_owner_is_asked_for_starts_no_run() -> None:
    @dataclass(frozen=True)
    class Parameters(algorithm.TrainingParameters):
        OPEN = "histograms of labels"

    card = replace(CARDS["fmcl"], parameters=Parameters, presets={})
    with pytest.raises(ConfigError, match="histograms of labels"):
        terms_of(card, card.configure("default"))


EVERYTHING = RunTerms(
    "nova",
    "shoal-nova",
    ("nova_look",),
    Asks(
        20,
        PrivateTraining(1.0, 0.0, 3.0, 1e-6, 20),
        2,
        64,
        PrivacySettings("balanced", 5.0, 1e-6),
        10,
        3,
        0.01,
        True,
        1.0,
        ("summed", "figures"),
        ("nova_seen",),
    ),
)


def changed(*path: str, to: object = None, drop: bool = False) -> str:
    """Terms in which one value is another, or is missing."""
    terms = json.loads(str(EVERYTHING))
    inner = terms
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = to
    if drop:
        del inner[path[-1]]
    return json.dumps(terms)


def test_all_that_terms_can_say_comes_back() -> None:
    assert read_terms(str(EVERYTHING)) == EVERYTHING
    assert read_terms(changed("package", to="")).package == "", "registered in the server's own process"


@pytest.mark.parametrize(
    "terms",
    [
        *("", "[]", "{", '"x"', '{"algorithm": "fedavg"}', "[" * 60_000, "1" * 5_000),
        changed("algorithm", to=3),
        changed("tasks", to={}),
        changed("tasks", to=["nova_look"] * 1_000),
        changed("asks", to=None),
        changed("asks", "lessons", drop=True),
        changed("asks", "lessons", to=2.5),
        changed("asks", "lessons", to=True),
        changed("asks", "sums", to=1),
        changed("asks", "rho", to=10**400),
        changed("asks", "noise", to=float("nan")),
        changed("asks", "training", "epsilon", to=float("inf")),
        changed("asks", "training", to=[]),
        changed("asks", "wisdom", to=7),
        changed("asks", "descriptor", "wisdom", to=7),
    ],
)
def test_terms_that_are_none_are_refused(terms: str) -> None:
    """Also those of a later version: what a run asks for beyond what is known here cannot be judged."""
    with pytest.raises(BadPayload, match="terms of the run cannot be read") as refused:
        read_terms(terms)
    assert "update" in refused.value.hint


@pytest.mark.parametrize(
    ("terms", "why"),
    [
        (changed("algorithm", to="\x1b[2Jnova"), "is no name"),
        (changed("algorithm", to=""), "is no name"),
        (changed("package", to="--index-url=elsewhere"), "is no name"),
        (changed("package", to="nova @ https://elsewhere/x.whl"), "is no name"),
        (changed("package", to="x" * 101), "is no name"),
        (changed("tasks", to=["look at\nthis"]), "is no name"),
        (changed("asks", "reports", to=["nothing, really"]), "reports is"),
        (changed("asks", "opened", to=["wisdom"]), "does not know"),
        (changed("asks", "lessons", to=-1), "lessons is -1"),
        (changed("asks", "lessons", to=10**30), "lessons is 1"),
        (changed("asks", "batch_size", to=0), "batch_size is 0"),
        (changed("asks", "classes", to=10**9), "classes is 1"),
        (changed("asks", "rho", to=0.0), "rho is 0.0"),
        (changed("asks", "noise", to=1e-300), "noise is 1e-300"),
        (changed("asks", "training", "noise", to=-1.0), "noise is -1.0"),
        (changed("asks", "descriptor", "delta", to=2.0), "2.0 is no delta"),
        (changed("asks", "descriptor", "mode", to="secret"), "'secret' is not known"),
    ],
)
def test_terms_that_mean_nothing_here_are_refused(terms: str, why: str) -> None:
    with pytest.raises(BadPayload, match=why):
        read_terms(terms)


def test_what_runs_ask_for() -> None:
    def asks(name: str, **changes: object) -> object:
        found = asks_of(CARDS[name], CARDS[name].configure("default", changes))
        return found.lessons, found.accuracies, found.descriptor and found.descriptor.mode, found.in_the_open

    plain, summary, figures = OPEN["weights"], OPEN["summary"], OPEN["figures"]
    assert asks("fedavg", rounds=7) == (7, 0, None, (plain, summary, figures))
    assert asks("fedavg", rounds=7, inputs="raw") == (7, 0, None, (plain, figures))
    assert asks("fedavg", rounds=7, evaluate=False) == (7, 0, None, (plain, summary, figures))
    assert asks("fedavg") == (20, 0, None, (plain, summary, figures)), (
        "no more than this, where it may end by itself"
    )
    assert asks("fedavg", rounds=7, dp_epsilon=3.0) == (7, 1, None, ())
    assert asks("flux", rounds=7, dp_epsilon=1.0, evaluate=False) == (7, 0, "balanced", ())
    assert asks("flux", rounds=10, dp_epsilon=1.0, warm_up="accuracy") == (10, 9, "balanced", ())
    left = (plain, summary, figures, OPEN["off"], OPEN["bounds"])
    assert asks("flux", privacy="off", evaluate=False)[3] == left  # type: ignore[index]
    assert asks("cornflqs", rounds=4)[0] == 5  # type: ignore[index]
    assert OPEN["prototypes"] in asks("fmcl")[3]  # type: ignore[index]
    summed = {"secure_aggregation": True, "aggregation": "mean", "evaluate": False}
    assert asks("fedavg", **summed)[3] == (OPEN["summed"],)  # type: ignore[index]


@dataclass(frozen=True)
class Strange:
    """Parameters of a plug-in that has none of ours, or means another thing by the name."""

    rounds: float = 3
    epochs: int = 0
    batch_size: float = 0.5


def test_a_plug_in_may_have_parameters_of_its_own() -> None:
    """What says nothing of privacy is not looked at; and what no device would read, no run begins with."""
    card = replace(CARDS["fedavg"], name="strange", parameters=Strange)
    found = read_terms(terms_of(card, Strange()))
    assert (found.algorithm, found.package, found.asks.lessons) == ("strange", "", 3)
    assert found.asks.in_the_open == (OPEN["weights"], OPEN["figures"])
    with pytest.raises(BadPayload, match="terms of the run cannot be read"):
        terms_of(card, Strange(rounds=2.5))


def test_noise_of_all_devices_is_added_up_over_the_run() -> None:
    card = CARDS["fedavg"]
    changes = {"secure_aggregation": True, "aggregation": "noised", "central_noise": 2.0, "rounds": 9}
    asks = asks_of(card, card.configure("default", changes))
    facts = WholeRun("fedavg", asks, Cost()).facts(1e-6, 1)
    assert facts["sums"] == pytest.approx(epsilon_of(9 * rho_of(2.0), 1e-6))
    assert facts["epsilon"] == 0.0
    central = asks_of(card, card.configure("default", {**changes, "secure_aggregation": False}))
    assert (
        WholeRun("fedavg", central, Cost()).facts(1e-6, 1)["sums"] is None
    )  # the server's noise is no promise
