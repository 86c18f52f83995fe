"""Which of its models FedRC takes out of a run: by Algorithm 3 of its paper, and by default."""

from dataclasses import replace

import numpy as np
from sklearn.metrics import adjusted_rand_score

from shoal.core.algorithms.fedrc import server as server_half
from shoal.core.algorithms.fedrc.removal import without_idle_models, without_spare_models
from shoal.core.algorithms.fedrc.weights import Mixture, recalled
from shoal.core.server_kit.aggregation.guard import STRIKES, Guard
from tests.paper.fedrc_fleet import DEVICES, begin, concept, reported, run


def test_algorithm_3_a_model_that_explains_too_little_for_too_long_is_removed() -> None:
    state = replace(begin(remove_below=0.2, remove_after=2), guard=Guard(strikes={"c1": {"d1": STRIKES}}))
    idle = [reported("d0", "c0", [[9.0, 0.0], [1.0, 0.0]], 1.0)]
    once = server_half.reduce(state, idle)
    assert list(once.models) == ["c0", "c1"]
    twice = server_half.reduce(once, idle)
    assert list(twice.models) == ["c0"]
    assert twice.tables["d0"].tolist() == [[9.0, 0.0]]
    assert list(once.guard.quarantined) == ["d1"]
    assert not twice.guard.quarantined, "it was from the model that is gone"
    assert any("c1 was removed after round 2: it explained 10.0%" in text for text in twice.remarks)
    busy = server_half.reduce(once, [reported("d0", "c0 c1", [[5.0, 0.0], [5.0, 0.0]], 1.0, 1.0)])
    assert busy.low == {}
    every = without_idle_models(replace(twice, parameters=replace(twice.parameters, remove_below=0.9)))
    assert list(every.models) == ["c0"]


def test_of_two_models_that_can_replace_each_other_one_goes_and_the_one_that_is_needed_stays() -> None:
    """Three models: the last two explain a device's data equally well, and the first explains no device's."""
    state = replace(
        begin(replaceable=0.5, settle=2, remove_after=2),
        models={key: {"w": np.zeros(1)} for key in ("c0", "c1", "c2")},
    )
    tables = {"d0": [[8.0, 0.0], [0.0, 0.0], [0.0, 0.0]], "d1": [[0.0, 0.0], [3.0, 2.0], [3.0, 2.0]]}
    costs = {"d0": [0.0, 4.0, 4.0], "d1": [4.0, 0.1, 0.2]}
    scored = replace(
        state,
        tables={device: np.array(each) for device, each in tables.items()},
        scores={device: np.array(each) for device, each in costs.items()},
    )
    assert without_spare_models(replace(scored, progress=1)).spare == {}
    once = without_spare_models(replace(scored, progress=2))
    assert once.spare == {"c1": 1, "c2": 1}
    twice = without_spare_models(replace(once, progress=3))
    assert list(twice.models) == ["c0", "c1"]
    assert twice.scores["d1"].tolist() == [4.0, 0.1]
    assert "c2 was removed after round 3: it was needed for only 0 nats per sample" in twice.remarks[0]
    again = without_spare_models(without_spare_models(replace(twice, progress=5)))
    assert list(again.models) == ["c0", "c1"]


def test_a_device_that_claims_to_be_huge_takes_no_model_that_others_need() -> None:
    honest = {
        f"d{n}": np.array([[10.0, 0.0], [0.0, 0.0]] if n % 2 else [[0.0, 0.0], [0.0, 10.0]]) for n in range(8)
    }
    costs = {f"d{n}": np.array([0.0, 3.0] if n % 2 else [3.0, 0.0]) for n in range(8)}
    state = replace(
        begin(replaceable=0.5, settle=0, remove_after=1),
        progress=1,
        tables={**honest, "d8": np.full((2, 2), 1e6)},
        scores={**costs, "d8": np.zeros(2)},
    )
    assert len(without_spare_models(state).models) == 2


def test_algorithm_3_devices_share_the_weight_of_what_is_gone() -> None:
    mixture = Mixture(("a", "b", "c"), np.array([0.5, 0.2, 0.3]))
    left = recalled(mixture.tensors(), ("a", "c"), 7)
    assert left is not None
    np.testing.assert_allclose(left.omega, [5 / 8, 3 / 8])
    nothing = recalled(Mixture(("a", "b"), np.array([1.0, 0.0])).tensors(), ("b",), 7)
    assert nothing is not None
    assert nothing.omega.tolist() == [1.0]


def test_the_adaptive_variant_needs_fewer_models_than_it_begins_with() -> None:
    outcome = run("fedrc-adaptive", clusters=5, rounds=12)
    assert 3 <= len(outcome.state.models) < 5
    truth = [concept(number) for number in range(DEVICES)]
    found = [outcome.state.assignments[f"d{number}"] for number in range(DEVICES)]
    assert adjusted_rand_score(truth, found) > 0.7
