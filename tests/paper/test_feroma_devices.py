"""FEROMA's profiles (Li et al. 2026, appendix B.4), and devices that are hostile or unlucky."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedclient.store.ledger import Ledger
from shoal.core.algorithm import Report, begun_with
from shoal.core.algorithms.feroma import ALGORITHM
from shoal.core.algorithms.feroma import server as server_half
from shoal.core.algorithms.feroma.messages import Profile
from shoal.core.algorithms.feroma.state import State
from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import simulate
from shoal.core.exchange.messages import Describe, Described, Train, Trained
from shoal.core.exchange.parts import Descriptor
from shoal.core.privacy.budget import Budget
from shoal.core.privacy.ledger.entries import Debit, chosen
from shoal.core.types import Tensors
from tests.fleet import data, first_model, fleet, learner
from tests.paper.feroma_fleet import LIKE, SMALL, Seen, context, described, placed, usual


@pytest.fixture(scope="module")
def seen() -> Seen:
    return usual()


@pytest.fixture(scope="module")
def finished(seen: Seen) -> State:
    return seen.states[-1]


# -- appendix B.4: profiles -------------------------------------------------------------------------------


def task(finished: State, masks: int, part: str = "train") -> Profile:
    assert finished.encoder is not None
    return Profile(finished.encoder.model, finished.encoder.projector, 10, part=part, masks=masks)


def test_s3_masks_are_random_halves_whose_moments_are_averaged_without_bias(finished: State) -> None:
    own = data(0)
    whole = described(task(finished, 0), own)
    drawn = [described(task(finished, 3), own, seed) for seed in range(40)]
    assert digest_of(drawn[0]) == digest_of(described(task(finished, 3), own, 0))
    assert len({digest_of(each) for each in drawn}) == 40, "the same data, another profile each round (R3)"
    mean = np.mean([each.statistics.means[0] for each in drawn], axis=0)
    spread = np.std([each.statistics.means[0] for each in drawn], axis=0)
    assert (np.abs(mean - whole.statistics.means[0]) < 4 * spread / np.sqrt(40)).all()
    # Three halves tell of the mean what 3/4 of the samples would: the masks' own noise comes on top.
    np.testing.assert_allclose(
        spread, whole.statistics.deviations[0] / np.sqrt(3 * len(Views.of(own).train)), rtol=0.5
    )
    assert drawn[0].statistics.counts[0] == pytest.approx(0.75 * whole.statistics.counts[0])


def digest_of(descriptor: Descriptor) -> bytes:
    return descriptor.statistics.means.tobytes()


def test_a_device_that_holds_nothing_out_describes_what_it_has(finished: State) -> None:
    one = data(0).subset(slice(0, 1))
    for masks in (0, 3):
        assert described(task(finished, masks, "held_out"), one).statistics.counts[0] == 1.0


def test_the_paper_s_profiles_are_of_the_held_out_part_by_three_masks(seen: Seen) -> None:
    state = next(state for state in seen.states if state.phase == "profile")
    paper = replace(state, parameters=replace(ALGORITHM.configure("paper")))
    for each, kind in ((state, Describe), (paper, Profile)):
        plan = server_half.plan(each, ["d0"])
        assert plan is not None
        assert type(plan.tasks["d0"]) is kind
    asked = plan.tasks["d0"]
    assert (asked.part, asked.masks) == ("held_out", 3)  # type: ignore[attr-defined]


def test_with_a_guarantee_the_same_data_cost_their_device_s_budget_once(tmp_path: Path) -> None:
    accounts = {f"d{n}": Ledger(tmp_path / f"d{n}", Budget(allow_unprotected=False)) for n in range(4)}
    device_half, devices = ALGORITHM.device(), {}
    for number, (name, account) in enumerate(accounts.items()):
        views = Views.of(data(number, samples=350))
        own = DeviceContext(learner(), views, "cpu", 0, np.random.default_rng(0), account=account)
        devices[name] = lambda message, seed, own=own: device_half.perform(message, own.for_task(seed))
    found, parameters = Seen(), {**SMALL, "epochs": 1, "privacy": "balanced"}
    state = server_half.start(first_model(), ALGORITHM.configure("default", parameters))
    outcome = simulate(server_half, state, devices, RoundPolicy(minimum=4), 3, watch=found)
    assert not outcome.failed
    assert sum("describe" in title for title in found.titles) == 6
    for account in accounts.values():
        assert len(chosen(account.verify(), Debit)) == 1
    mixed = [each for each in found.states if each.phase == "mixed"][-1]
    for name, weights in mixed.starts.items():
        assert sum(w for key, w in weights.items() if mixed.rows[key].device in LIKE[name]) > 0.9

    assert isinstance(outcome.state, State)
    other = ALGORITHM.configure("default", {**parameters, "rounds": 4, "epochs": 2})
    later = begun_with(server_half.start(first_model(), other), outcome.state.basis)
    again = simulate(server_half, later, devices, RoundPolicy(minimum=4), 4)
    assert not again.failed
    assert isinstance(again.state, State)
    assert again.state.basis is outcome.state.basis is not None
    for account in accounts.values():
        assert len(chosen(account.verify(), Debit)) == 1, "a later run costs nothing more"


# -- hostile and unlucky devices --------------------------------------------------------------------------


def test_a_device_that_sends_a_model_from_nowhere_is_held_back_and_the_operator_told(seen: Seen) -> None:
    state = [state for state in seen.states if state.phase == "mixed"][-1]
    plan = server_half.plan(state, sorted(LIKE))
    assert plan is not None
    reports = []
    for name, asked in sorted(plan.tasks.items()):
        assert isinstance(asked, Train)
        far = 1000.0 if name == "d3" else 0.01
        reports.append(
            Report(name, Trained({k: v + np.float32(far) for k, v in asked.model.items()}, 50, 1.0))
        )
    after = server_half.reduce(state, reports)
    assert [row.device for row in after.rows.values() if row.held_back] == ["d3"]
    assert "d3" in after.remarks[0]
    mapped: Tensors
    for name in ("d1", "d5"):
        again = server_half.reduce(after, [Report(name, Described(state.profiles[name], 50))])
        mapped = server_half.plan(again, [name]).tasks[name].model  # type: ignore[union-attr,attr-defined]
        assert max(np.abs(array).max() for array in mapped.values()) < 10.0
    trusting = replace(state, parameters=replace(state.parameters, aggregation="mean"))
    assert not any(row.held_back for row in server_half.reduce(trusting, reports).rows.values())


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("preset", ["default", "paper"])
def test_one_or_two_devices_are_no_special_case(devices: int, preset: str) -> None:
    state = server_half.start(first_model(), ALGORITHM.configure(preset, {**SMALL, "epochs": 1}))
    outcome = simulate(server_half, state, fleet(ALGORITHM, devices, (0,)), RoundPolicy(minimum=devices), 3)
    assert not outcome.failed
    assert len(outcome.state.assignments) == devices


@pytest.mark.parametrize("angles", [(0,), (0, 60, 120, 180, 240, 300)])
def test_devices_that_are_all_alike_or_all_different_are_no_special_case(angles: tuple[int, ...]) -> None:
    state = server_half.start(first_model(), ALGORITHM.configure("default", {**SMALL, "epochs": 1}))
    outcome = simulate(server_half, state, fleet(ALGORITHM, 6, angles), RoundPolicy(minimum=6), 3)
    assert not outcome.failed
    newcomer = placed(outcome.state, Dataset(data(6, angles).x))  # type: ignore[arg-type]
    assert newcomer.cluster in outcome.state.models


def test_a_device_of_one_sample_and_one_without_labels_do_not_stop_the_others() -> None:
    device_half, devices = ALGORITHM.device(), fleet(ALGORITHM, 3)
    for name, own in {"few": data(3).subset(slice(0, 1)), "unlabeled": Dataset(data(4).x)}.items():
        mine = context(own)
        devices[name] = lambda message, seed, mine=mine: device_half.perform(message, mine.for_task(seed))  # type: ignore[misc]
    state = server_half.start(first_model(), ALGORITHM.configure("default", {**SMALL, "epochs": 1}))
    outcome = simulate(server_half, state, devices, RoundPolicy(minimum=3), 3)
    assert not outcome.failed
    assert any("needs labels" in why.get("unlabeled", "") for why in outcome.missing.values())
    assert "few" in outcome.state.assignments
