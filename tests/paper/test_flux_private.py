"""FLUX's clustering and placement (4.2.1, eq. 9) on descriptors with calibrated noise, not that of C.2.

Devices of four groups whose latents differ by a shift in P(X). All noise is seeded.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from shoal.core.algorithm import begun_with
from shoal.core.algorithms.flux import ALGORITHM, Parameters
from shoal.core.algorithms.flux import server as server_half
from shoal.core.algorithms.flux.clustering import add_devices, form_clusters, mixing_weights, place
from shoal.core.algorithms.flux.state import Clustering, State
from shoal.core.data.views import Views
from shoal.core.device_kit import standard
from shoal.core.device_kit.context import DeviceContext
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import simulate
from shoal.core.errors import ConfigError
from shoal.core.exchange.messages import CountLatents, Describe, Evaluate, Message
from shoal.core.exchange.parts import Descriptor, PrivacySettings
from shoal.core.privacy.accountant import Unmetered
from shoal.core.privacy.release import release_sums
from shoal.core.privacy.sums import sums_of
from shoal.core.privacy.terms import terms
from shoal.core.server_kit.frozen_encoder import public_projector
from tests.fleet import data, first_model, learner

CLASSES, DIMS, GROUPS = 4, 6, 4
BALANCED, STRICT = PrivacySettings("balanced", 5.0, 1e-6), PrivacySettings("strict", 1.0, 1e-6)
PARAMETERS = Parameters(classes=CLASSES, dims=DIMS)
PROJECTOR = {"mean": np.zeros(DIMS), "components": np.eye(DIMS), "radius": np.array(1.0)}


def describe(
    group: float, seed: int, settings: PrivacySettings = BALANCED, samples: int = 600, classes: int = CLASSES
) -> Descriptor:
    """Classes around places of their own; groups on a circle around the middle, two next to each other 0.25
    apart. A `group` of 0.5 lies between two of them."""
    places = np.random.default_rng(0).normal(size=(CLASSES, DIMS)) * 0.15
    chance = np.random.default_rng(seed)
    labels = chance.integers(0, CLASSES, samples)
    turn = 2 * np.pi * group / GROUPS
    shift = 0.177 * np.array([np.cos(turn), np.sin(turn), *[0.0] * (DIMS - 2)])
    latents = places[labels] + shift + 0.1 * chance.normal(size=(samples, DIMS))
    agreed = terms(settings, samples, classes)
    exact = sums_of([(latents, labels if agreed.classes else None)], 1.0, DIMS, agreed.classes)
    return release_sums(exact, settings, agreed, "0" * 64, chance.bytes)


def clustered(
    settings: PrivacySettings = BALANCED, parameters: Parameters = PARAMETERS
) -> tuple[Clustering, list[str]]:
    described = {f"d{n:02}": describe(n % GROUPS, n, settings) for n in range(16)}
    found, assignments = form_clusters(parameters, 1, {}, PROJECTOR, described)
    return found, [assignments[device] for device in sorted(assignments)]


@pytest.mark.parametrize("settings", [BALANCED, STRICT])
@pytest.mark.parametrize("clusters", [0, GROUPS])
def test_groups_are_found_through_the_noise(settings: PrivacySettings, clusters: int) -> None:
    found, groups = clustered(settings, Parameters(classes=CLASSES, dims=DIMS, clusters=clusters))
    assert len(found.names) == GROUPS
    assert all(groups[n] == groups[n % GROUPS] for n in range(16))
    assert len(set(groups)) == GROUPS
    assert np.isfinite(found.centroids).all()
    assert all(np.isfinite(vector).all() for vector in found.vectors.values())


@pytest.mark.parametrize("settings", [BALANCED, STRICT])
def test_newcomers_without_labels_are_placed_rightly(settings: PrivacySettings) -> None:
    found, groups = clustered(settings)
    for n in range(40):
        answer = place(PARAMETERS, found, describe(n % GROUPS, 100 + n, settings, 300, 0))
        assert answer.cluster == groups[n % GROUPS]
        assert not answer.abstained


def test_a_newcomer_between_two_groups_is_told_that_noise_may_have_decided() -> None:
    found, groups = clustered()
    answers = [place(PARAMETERS, found, describe(0.5, 200 + n, BALANCED, 80, 0)) for n in range(20)]
    assert {answer.cluster for answer in answers} <= {groups[0], groups[1]}
    abstained = [answer for answer in answers if answer.abstained]
    assert len(abstained) >= 10
    assert any("noise may have decided" in answer.reason for answer in abstained)


def test_a_newcomer_unlike_all_groups_fits_nowhere() -> None:
    found, _ = clustered()
    strange = np.random.default_rng(5).normal(size=(600, DIMS)) * 0.05 + np.array([0, 0, 0.8, 0, 0, 0])
    agreed = terms(BALANCED, 600, 0)
    sums = sums_of([(strange, None)], 1.0, DIMS, 0)
    answer = place(PARAMETERS, found, release_sums(sums, BALANCED, agreed, "0" * 64))
    assert answer.abstained
    assert "no cluster has seen such data" in answer.reason


def test_late_joiners_are_added_with_classes_and_without() -> None:
    found, groups = clustered()
    assignments = {f"d{n:02}": group for n, group in enumerate(groups)}
    for classes in (CLASSES, 0):
        late = {"late": describe(2, 300, BALANCED, 600, classes)}
        joined, chosen, begun = add_devices(PARAMETERS, found, assignments, late)
        cluster = chosen["late"]
        assert cluster == groups[2]
        assert not begun
        assert np.isfinite(joined.vectors["late"]).all()
        assert max(mixing_weights(joined, "late"), key=mixing_weights(joined, "late").__getitem__) == cluster


def test_devices_with_and_without_classes_are_clustered_together() -> None:
    described = {f"d{n}": describe(n % 2 * 2, n, BALANCED, 600 if n < 4 else 80) for n in range(8)}
    assert {one.classes for one in described.values()} == {0, CLASSES}
    found, assignments = form_clusters(PARAMETERS, 1, {}, PROJECTOR, described)
    assert [assignments[f"d{n}"] for n in range(8)] == [assignments["d0"], assignments["d1"]] * 4
    assert len(found.names) == 2
    assert found.classless == 4
    (remark,) = State(parameters=PARAMETERS, models={}, phase="clustered", clustering=found).remarks
    assert remark.startswith("4 devices had too few samples, or too little budget left, to describe their")


def test_a_run_whose_noise_may_hide_groups_says_so_where_it_finds_none() -> None:
    for different, expected in ((0.0, ["all devices are one group"]), (2.0, [])):
        described = {f"d{n}": describe(n % 2 * different, n, BALANCED, 600) for n in range(6)}
        found, _ = form_clusters(PARAMETERS, 1, {}, PROJECTOR, described)
        remarks = State(parameters=PARAMETERS, models={}, phase="clustered", clustering=found).remarks
        assert [each.split(",")[0] for each in remarks] == expected


def test_density_cannot_group_what_is_noisy() -> None:
    with pytest.raises(ConfigError, match="grouping=likelihood"):
        Parameters(privacy="balanced", grouping="density")


def test_a_run_with_a_guarantee_asks_for_no_bounds_and_all_that_leaves_is_noisy() -> None:
    asked: list[Message] = []
    answered: list[Message] = []

    def device(number: int) -> Callable[[Message, int], Message]:
        account = Unmetered(np.random.default_rng(number).bytes)
        views = Views.of(data(number, samples=200))
        context = DeviceContext(learner(), views, "cpu", 0, np.random.default_rng(0), account=account)

        def perform(message: Message, seed: int) -> Message:
            asked.append(message)
            answered.append(standard.perform(message, context.for_task(seed)))
            return answered[-1]

        return perform

    changes = {"inputs": "raw", "rounds": 5, "learning_rate": 0.05, "batch_size": 16}
    state = server_half.start(first_model(), ALGORITHM.configure("default", changes))
    fleet = {f"d{number}": device(number) for number in range(6)}
    found = simulate(server_half, state, fleet, RoundPolicy(minimum=6), 3).state
    assert {message.bounds for message in asked if isinstance(message, Evaluate)} == {""}
    assert len([message for message in asked if isinstance(message, CountLatents)]) == 6
    assert not [message for message in answered if getattr(message, "bounds", None) is not None]
    descriptors = [message.descriptor for message in answered if getattr(message, "descriptor", None)]  # type: ignore[attr-defined]
    assert len(descriptors) == 6
    assert all(each.noisy and each.privacy == BALANCED for each in descriptors)
    assert isinstance(found, State)
    assert found.clustering is not None
    public = public_projector(32, 10)
    assert {name: array.tolist() for name, array in found.clustering.projector.items()} == {
        name: array.tolist() for name, array in public.items()
    }
    question = server_half.place(found, None)
    assert isinstance(question, Describe)
    assert (question.privacy, question.classes) == (BALANCED, 0)

    assert found.basis is not None
    asked.clear()
    assert found.basis.suits(ALGORITHM.configure("default", {**changes, "rounds": 9}))
    for other in ({"privacy": "strict"}, {"privacy": "off"}, {"classes": 9}, {"dims": 9}):
        assert not found.basis.suits(ALGORITHM.configure("default", {**changes, **other}))
    later = begun_with(state, found.basis)
    assert later.basis is found.basis
    after = simulate(server_half, later, fleet, RoundPolicy(minimum=6), 3).state
    questions = [message for message in asked if isinstance(message, Describe)]
    assert len(questions) == 6
    assert {id(each.encoder) for each in questions} == {id(found.basis.encoder)}, (
        "and no device is asked else"
    )
    assert not [message for message in asked if isinstance(message, CountLatents)]
    assert not [message for message in asked if getattr(message, "projector", None) is not None][6:]
    assert isinstance(after, State)
    assert after.progress == 5
    another = {name: np.zeros((2, 2), np.float32) for name in found.basis.encoder}
    assert begun_with(server_half.start(another, state.parameters), found.basis).basis is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"privacy": "balanced"}, BALANCED),
        ({"privacy": "strict"}, STRICT),
        ({"privacy": "balanced", "group_size": 4}, PrivacySettings("balanced", 5.0, 1e-6, 4)),
        (
            {"privacy": "explicit", "epsilon": 3.0, "delta": 1e-7},
            PrivacySettings("explicit", 3.0, 1e-7),
        ),
        ({"privacy": "paper", "epsilon": 10.0, "grouping": "density"}, PrivacySettings("paper", 10.0)),
        ({}, BALANCED),
        ({"privacy": "off"}, PrivacySettings()),
    ],
)
def test_a_mode_brings_its_numbers(changes: dict[str, Any], expected: PrivacySettings) -> None:
    assert Parameters(**changes).asked_privacy == expected


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"privacy": "explicit"}, "no epsilon"),
        ({"privacy": "explicit", "epsilon": 3.0}, "no delta"),
        ({"privacy": "balanced", "epsilon": 9.0, "delta": 1e-6}, "has epsilon 5.0"),
        ({"privacy": "strong"}, "privacy cannot be 'strong'; expected off, paper, balanced"),
    ],
)
def test_a_mode_that_cannot_be_is_refused_before_the_run(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Parameters(**changes)
