"""The terms of a run, and what a device makes of them."""

import json

import pytest

from shoal.core import algorithm
from shoal.core.algorithm.asks import WholeRun, asks_of, read_terms, terms_of
from shoal.core.errors import BadPayload, ConfigError
from shoal.core.privacy.cost import Cost, epsilon_of, rho_of
from shoal.core.privacy.report import OPEN

CARDS = algorithm.discover()


@pytest.mark.parametrize("name", sorted(CARDS))
def test_terms_come_back_as_they_were(name: str) -> None:
    card = CARDS[name]
    for preset in ("default", *card.presets):
        parameters = card.configure(preset)
        assert read_terms(terms_of(name, parameters)) == (card, parameters)


def test_a_parameter_of_a_later_version_is_left_out() -> None:
    terms = json.loads(terms_of("fedavg", CARDS["fedavg"].configure()))
    terms["parameters"]["wisdom"] = 7
    assert read_terms(json.dumps(terms))[1] == CARDS["fedavg"].configure()


@pytest.mark.parametrize(
    "terms",
    ["", "[]", "{", '"x"', '{"algorithm": 3, "parameters": {}}', '{"algorithm": "fedavg"}', "[" * 60_000],
)
def test_terms_that_are_none_are_refused(terms: str) -> None:
    with pytest.raises(BadPayload, match="terms of the run cannot be read"):
        read_terms(terms)


@pytest.mark.parametrize(
    "terms", ['{"algorithm": "x", "parameters": {}}', '{"algorithm": "fedavg", "parameters": {"rounds": -1}}']
)
def test_terms_that_mean_nothing_here_are_refused(terms: str) -> None:
    with pytest.raises(ConfigError):
        read_terms(terms)


def test_what_runs_ask_for() -> None:
    def asks(name: str, **changes: object) -> object:
        found = asks_of(CARDS[name], CARDS[name].configure("default", changes))
        return found.lessons, found.accuracies, found.descriptor and found.descriptor.mode, found.opened

    plain, figures = OPEN["weights"], OPEN["figures"]
    assert asks("fedavg", rounds=7) == (7, 0, None, (plain, figures))
    assert asks("fedavg", rounds=7, evaluate=False) == (7, 0, None, (plain,))
    assert asks("fedavg", rounds=7, dp_epsilon=3.0) == (7, 1, None, ())
    assert asks("flux", rounds=7, dp_epsilon=1.0, evaluate=False) == (7, 0, "balanced", ())
    assert asks("flux", rounds=10, dp_epsilon=1.0, warm_up="accuracy") == (10, 9, "balanced", ())
    assert asks("flux", privacy="off", evaluate=False)[3] == (plain, figures, OPEN["off"], OPEN["bounds"])  # type: ignore[index]
    assert asks("cornflqs", rounds=4)[0] == 5  # type: ignore[index]
    assert OPEN["prototypes"] in asks("fmcl")[3]  # type: ignore[index]
    summed = {"secure_aggregation": True, "aggregation": "mean", "evaluate": False}
    assert asks("fedavg", **summed)[3] == (OPEN["summed"],)  # type: ignore[index]


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
