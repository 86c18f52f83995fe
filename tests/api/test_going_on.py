"""Runs that go on from an earlier result, by each algorithm that can."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import shoal
from shoal.core.algorithm import Basis, find
from shoal.core.errors import ConfigError, Refused
from shoal.core.exchange.parts import PrivacySettings
from shoal.core.server_kit.going_on import first_state
from shoal.core.server_kit.scaling import is_due
from shoal.simulation import images
from shoal.simulation.images import rotate
from tests.server.toys import same_models

DEVICES, SAMPLES = 6, 100


def fleet(turned: set[int] = frozenset()) -> shoal.Fleet:  # type: ignore[assignment]
    """Digits, upright on every other device. turned: devices whose digits are now as those of the others."""
    train, _ = images.digits()
    held: dict[str, Any] = {}
    for number in range(DEVICES):
        own = train.subset(slice(number * SAMPLES, (number + 1) * SAMPLES))
        angle = 90 * ((number + (number in turned)) % 2)
        held[f"d{number}"] = (rotate(own.x, angle), own.y)
    return shoal.Fleet(held)


def trained(result: Any) -> int:
    return sum(each.trained for each in result.history)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("flux", {}),
        ("feroma", {}),
        ("fedavg", {}),
        ("ifca", {"clusters": 2}),
        ("cornflqs", {"clusters": 2}),
        ("fedrc", {"clusters": 2}),
    ],
)
def test_it_begins_with_the_models_and_counts_from_zero(name: str, parameters: Any) -> None:
    first = shoal.simulate(name, fleet(), rounds=4, **parameters)
    second = shoal.simulate(name, fleet(), rounds=2, from_=first, **parameters)
    assert trained(second) == second.state.progress == 2
    assert first.models.keys() >= second.models.keys() or name == "feroma"
    alone = shoal.simulate(name, fleet(), rounds=2, **parameters)
    assert second.accuracy.mean > alone.accuracy.mean, "two rounds more are better than two rounds"


def test_clusters_keep_their_keys_and_a_device_whose_data_have_changed_joins_those_like_it() -> None:
    first = shoal.simulate("flux", fleet(), rounds=6)
    assert sorted({*first.clusters.values()}) == ["c0", "c1"]
    lines: list[str] = []
    same = shoal.simulate("flux", fleet(), rounds=1, from_=first, progress=lines.append)
    assert same.clusters == first.clusters
    assert lines
    assert not any("are on clusters" in line for line in lines), "as if it began without any"
    assert [each.trained for each in same.history] == [False, True, False], "described, trained, measured"
    moved = shoal.simulate("flux", fleet({0}), rounds=1, from_=first)
    assert moved.clusters == {**first.clusters, "d0": first.clusters["d1"]}
    assert moved.models.keys() == first.models.keys()


def test_without_clusters_the_algorithm_begins_with_the_model_of_all() -> None:
    card, _ = find("flux")
    server, parameters = card.server(), card.configure("default", {"rounds": 9})
    release = server.start({"weight": np.ones(3, np.float32)}, card.configure("default", {"rounds": 4}))
    found = first_state(server, replace(release, progress=2), parameters)
    assert (found.phase, found.progress, found.rounds) == (release.phase, 0, 9)
    assert found.models == release.models
    asked = PrivacySettings("balanced", 5.0, 1e-6)
    known = replace(release, basis=Basis(found.models["global"], {}, asked, 10, parameters.dims))
    assert first_state(server, known, parameters).basis is known.basis
    other = card.configure("default", {"rounds": 9, "privacy": "strict"})
    assert first_state(server, known, other).basis is None, "of other descriptions than it asks for"


def test_a_run_that_goes_on_has_the_best_of_its_own_rounds_and_what_they_cost() -> None:
    """What was measured and spent before is of another run: its data may have changed since."""
    chosen = shoal.simulate("fedavg", fleet(), rounds=2, select="lowest_loss")
    earlier = replace(chosen.state, best_loss=0.0)
    again = first_state(chosen.card.server(), earlier, chosen.parameters)
    assert (again.models, again.best, again.best_loss) == (earlier.models, None, float("inf"))
    noised = shoal.simulate("fedavg", fleet(), rounds=2, aggregation="noised", central_noise=1.0)
    assert noised.state.spent["d0"] == 2 * 0.5
    assert first_state(noised.card.server(), noised.state, noised.parameters).spent == {}


@pytest.mark.parametrize(
    ("name", "before", "changes", "why"),
    [
        ("flux", {}, {"classes": 12}, "classes=10"),
        ("flux", {}, {"privacy": "balanced"}, "privacy=off"),
        ("feroma", {"privacy": "explicit", "epsilon": 20.0, "delta": 1e-6}, {}, "privacy=explicit"),
        ("fedrc", {"clusters": 2}, {"clusters": 2, "classes": 11}, "classes=10"),
        ("fedavg", {}, {"trainable": "body.*"}, "no tensor of the model is named"),
    ],
)
def test_what_a_run_cannot_change_is_refused_when_it_starts(
    name: str, before: Any, changes: Any, why: str
) -> None:
    """Descriptions and tables of classes are compared with the earlier ones."""
    first = shoal.simulate(name, fleet(), rounds=2, **before)
    with pytest.raises(ConfigError, match=why):
        shoal.simulate(name, fleet(), rounds=2, from_=first, **changes)


def test_models_that_were_trained_on_inputs_as_they_are_go_on_with_these() -> None:
    first = shoal.simulate("fedavg", fleet(), rounds=1, inputs="raw")
    found = first_state(first.card.server(), first.state, first.card.configure())
    assert found.parameters.inputs == "scaled"
    assert not is_due(found)


def test_what_it_is_compared_with_begins_with_the_same_weights() -> None:
    first = shoal.simulate("flux", fleet(), rounds=6, seed=43)
    second = shoal.simulate("flux", fleet(), rounds=1, seed=43, from_=first)
    fresh = shoal.simulate("fedavg", fleet(), rounds=1, seed=43)
    compared = second.compare("fedavg", "local", "ifca")
    for name in ("fedavg", "local"):
        assert compared[name].accuracy.mean > fresh.accuracy.mean + 0.1
    assert len(compared["ifca"].models) > 1
    alone = first.compare("fedavg")["fedavg"]
    assert same_models(alone.models, shoal.simulate("fedavg", fleet(), rounds=6, seed=43).models)


def test_what_cannot_go_on_says_so() -> None:
    one, counted = shoal.simulate("fedavg", fleet(), rounds=1), shoal.simulate("statistics", fleet())
    with pytest.raises(ConfigError, match="that is a result of fedavg"):
        shoal.simulate("flux", fleet(), rounds=1, from_=one)
    with pytest.raises(ConfigError, match="from_ is a str"):
        shoal.simulate("flux", fleet(), rounds=1, from_="folder")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"from_ has another network: .* lacks tensor .*leave model= out"):
        shoal.simulate("fedavg", fleet(), rounds=1, from_=one, model=lambda: nn.Sequential(nn.Linear(64, 10)))
    with pytest.raises(Refused, match="cannot go on from a release"):
        shoal.simulate("statistics", fleet(), from_=counted)


def test_a_run_that_went_on_is_not_deployed_as_one_that_begins(tmp_path: Path) -> None:
    """Its folder would have other first weights than it began with."""
    first = shoal.simulate("fedavg", fleet(), rounds=1)
    second = shoal.simulate("fedavg", fleet(), rounds=1, from_=first)
    with pytest.raises(ConfigError, match=r"went on from an earlier one.* run start --from RELEASE"):
        second.deploy(tmp_path / "fleet")
    assert not (tmp_path / "fleet").exists()
