"""Where clusters' data lie, from descriptors without and with noise."""

from dataclasses import replace

import numpy as np
import pytest

from shoal.core.algorithm import densities, find
from shoal.core.algorithms.feroma.state import Encoder, Row, State
from shoal.core.errors import BadPayload
from shoal.core.exchange.choosing import Choose, ClusterDensities, Wish
from shoal.core.exchange.messages import Describe
from shoal.core.exchange.parts import Ballot, Descriptor
from shoal.core.inference.nearness import nearness
from shoal.core.server_kit import placing
from shoal.core.server_kit.fleet.densities import cluster_densities
from shoal.core.types import Tensors
from tests.core.server_kit.described import CLASSES, DIMS, device, private

HOMES = {f"d{number}": f"c{number % 2}" for number in range(6)}
PROJECTOR = {"mean": np.zeros(DIMS), "components": np.eye(DIMS)}


def fleet(apart: float = 1.5) -> dict[str, Descriptor]:
    return {name: device(int(name[1:]), apart * (home == "c1")) for name, home in HOMES.items()}


def found(described: dict[str, Descriptor], homes: dict[str, str] = HOMES) -> Tensors:
    clusters = cluster_densities(described, homes, ["c0", "c1"])
    assert clusters is not None
    ClusterDensities(PROJECTOR, PROJECTOR, clusters)  # it is one
    return clusters


def test_a_density_has_the_moments_of_all_samples_of_a_cluster() -> None:
    clusters = found(fleet())
    assert clusters["means"].shape == (2, 1 + CLASSES, DIMS)
    for index, shift in enumerate((0.0, 1.5)):
        expected = np.arange(CLASSES)[:, None] * 2.0 + shift + np.zeros(DIMS)
        assert clusters["means"][index, 1:] == pytest.approx(expected, abs=0.35)
        assert clusters["variances"][index, 1:] == pytest.approx(np.ones((CLASSES, DIMS)), abs=0.35)
        assert clusters["shares"][index, 1:] == pytest.approx(np.full(CLASSES, 0.25), abs=0.06)
        assert clusters["shares"][index, 0] == pytest.approx(0.001)


def test_a_class_that_a_cluster_lacks_is_unlikely_there_and_not_impossible() -> None:
    described = fleet() | {name: device(int(name[1:]), mix=(1, 1, 1, 0)) for name in ("d0", "d2", "d4")}
    clusters = found(described)
    assert clusters["shares"][0, 1 + 3] == 0.0
    assert clusters["shares"][0, 0] < 0.01
    assert np.isfinite(nearness(np.full((5, DIMS), 6.0), clusters, 3.0).logarithms).all()


@pytest.mark.parametrize("samples", [5, 30])
def test_samples_are_nearest_to_their_own_cluster(samples: int) -> None:
    chance, clusters = np.random.default_rng(5), found(fleet())
    for index, shift in enumerate((0.0, 1.5)):
        labels = chance.integers(0, CLASSES, samples)
        near = nearness(labels[:, None] * 2.0 + shift + chance.normal(size=(samples, DIMS)), clusters, 3.0)
        assert near.logarithms.argmax() == index
        assert near.spread < 1.5


def test_noise_makes_densities_wider_and_less_sure_and_not_wrong() -> None:
    homes = {f"d{number}": f"c{number % 2}" for number in range(4)}
    described = {name: private(int(name[1:]), 0.3 * (home == "c1")) for name, home in homes.items()}
    clusters = found(described, homes)
    assert (clusters["variances"] > 0.0).all()
    chance, centers = np.random.default_rng(5), np.random.default_rng(0).normal(size=(CLASSES, DIMS)) * 0.2
    for index, shift in enumerate((0.0, 0.3)):
        samples = centers[chance.integers(0, CLASSES, 40)] + 0.1 * chance.normal(size=(40, DIMS)) + shift
        assert nearness(samples, clusters, 3.0).logarithms.argmax() == index


def test_a_cluster_of_which_nothing_is_known_has_the_density_of_all() -> None:
    everyone = dict.fromkeys(HOMES, "c0")
    clusters = found(fleet(), everyone)
    for tensor in clusters.values():
        assert tensor[0].tolist() == tensor[1].tolist()
    assert cluster_densities({}, HOMES, ["c0"]) is None
    assert cluster_densities(fleet(), {}, ["c0"]) is None


def test_the_order_of_devices_makes_no_difference() -> None:
    one, other = found(fleet()), found(dict(reversed(fleet().items())))
    assert all(one[name].tobytes() == other[name].tobytes() for name in one)


def test_only_algorithms_with_descriptors_have_densities() -> None:
    for name in ("ifca", "flux", "feroma"):
        half = find(name)[0].server()
        state = half.start({"w": np.zeros(2, np.float32)}, find(name)[0].configure("default", {}))
        assert densities(half, state) is None, "not before the clusters are formed"


def state_of(profiles: dict[str, Descriptor], privacy: str) -> State:
    """A state of FEROMA with a device and a model for each of these profiles."""
    card, model = find("feroma")[0], {"w": np.zeros(2, np.float32)}
    parameters = card.configure("default", {"classes": CLASSES, "dims": DIMS, "privacy": privacy})
    return replace(
        card.server().start(model, parameters),
        rows={key: Row(profile, 100, 1, f"d{key}") for key, profile in profiles.items()},
        assignments={f"d{key}": key for key in profiles},
        encoder=Encoder(model, PROJECTOR),
        models={"global": model, **dict.fromkeys(profiles, model)},
    )


@pytest.mark.parametrize("privacy", ["off", "balanced"])
def test_feroma_gives_newcomers_where_the_data_of_each_model_lie(privacy: str) -> None:
    made = private if privacy == "balanced" else device
    half = find("feroma")[0].server()
    state = state_of({f"p{n}": made(n) for n in range(3)}, privacy)
    given = densities(half, state)
    assert given is not None
    assert given.clusters["means"].shape == (3, 1 + CLASSES, DIMS)
    asked = placing.place(half, state, Wish(64), 64)
    assert isinstance(asked, Choose)
    assert asked.keys == ("p0", "p1", "p2", "global")
    assert asked.described is not None
    assert isinstance(placing.place(half, state, Wish(1), 64), Describe), "it has no votes"
    with pytest.raises(BadPayload, match="takes no votes"):
        placing.place(half, state, Ballot("p0", 1.0), 64)


def test_feroma_s_densities_are_of_all_devices_with_a_model_and_of_kept_rows() -> None:
    """A device that shares the model of another one counts there, and a row without a device by itself."""
    half, near, far = find("feroma")[0].server(), device(0), device(1, shift=9.0)
    state = state_of({"p0": near, "p1": near}, "off")
    alone = densities(half, state)
    assert alone is not None
    shared = replace(state, profiles={"third": far}, assignments={**state.assignments, "third": "p0"})
    found = densities(half, shared)
    assert found is not None
    means = found.clusters["means"] - alone.clusters["means"]
    assert means[0, 1:] == pytest.approx(np.full((CLASSES, DIMS), 4.5), abs=1.0)
    assert not means[1].any()
    assert half.without(shared, "third").profiles == {}  # type: ignore[attr-defined]

    rows = {"p0": state.rows["p0"], "p1": replace(state.rows["p1"], profile=far, device="")}
    kept = densities(half, replace(state, rows=rows, assignments={"dp0": "p0", "p1": "p0"}))
    assert kept is not None
    means = kept.clusters["means"] - alone.clusters["means"]
    assert not means[0].any()
    assert means[1, 1:] == pytest.approx(np.full((CLASSES, DIMS), 9.0), abs=0.6)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"shares": np.ones((2, 2))}, "do not fit together"),
        ({"shares": np.zeros((2, 3))}, "not a positive number"),
        ({"shares": -np.ones((2, 3))}, "not a positive number"),
        ({"variances": np.zeros((2, 3, 4))}, "not a positive number"),
        ({"means": np.full((2, 3, 4), np.nan)}, "not a positive number"),
        ({"means": np.ones((2, 3, 4), np.float32)}, "float64"),
        ({"means": np.ones((2, 3, 5))}, "do not fit together"),
        ({"more": np.ones(1)}, "have the tensors"),
    ],
)
def test_densities_that_are_none_are_refused(changes: Tensors, problem: str) -> None:
    sane: Tensors = {
        "shares": np.ones((2, 3)),
        "means": np.zeros((2, 3, 4)),
        "variances": np.ones((2, 3, 4)),
    }
    ClusterDensities({}, {}, sane)
    with pytest.raises(BadPayload, match=problem):
        ClusterDensities({}, {}, {**sane, **changes})
