"""A run asks for the scale of its devices' inputs first, and its models keep it."""

from dataclasses import replace

import numpy as np
import pytest

from shoal.core.algorithm import Report
from shoal.core.algorithm.discovery import discover, find
from shoal.core.data.scale import DEVIATION, MEAN, Summary, scale_of, with_scale
from shoal.core.errors import BadPayload
from shoal.core.exchange.admit import admit_message
from shoal.core.exchange.messages import Summarize, Summarized, Train, Trained
from shoal.core.server_kit import scaling
from shoal.core.server_kit.clustered import GLOBAL, Clustered
from shoal.core.server_kit.learned import completed
from shoal.core.types import Tensors
from shoal.core.verdict import Verdict
from tests.reports import model

CARD = find("fedavg")[0]
HALF = CARD.server()
SCALE = {MEAN: np.float32([2.0]), DEVIATION: np.float32([3.0])}


def said(device: str, mean: float = 2.0, deviation: float = 3.0) -> Report:
    return Report(device, Summarized((mean,), (deviation,)))


def answered(device: str, task: object, moved: float = 1.0) -> Report:
    """A device that has trained, and moves the scale too."""
    assert isinstance(task, Train)
    return Report(device, Trained({name: array + moved for name, array in task.model.items()}, 10, 0.5))


def begun(first: Tensors, **changes: object) -> object:
    return HALF.start(first, CARD.configure(changes=changes))


def test_it_is_asked_for_first_and_no_device_moves_it_later() -> None:
    state = begun(model(0, 0), rounds=2)
    plan = HALF.plan(state, ["a", "b"])
    assert plan is not None
    assert set(map(type, plan.tasks.values())) == {Summarize}
    state = HALF.reduce(state, [said("a", 2.0), said("b", 2.0)])
    assert state.progress == 0
    for _ in range(2):
        plan = HALF.plan(state, ["a", "b"])
        assert plan is not None
        assert scale_of(plan.tasks["a"].model) == SCALE  # type: ignore[attr-defined]
        state = HALF.reduce(state, [answered(device, task) for device, task in plan.tasks.items()])
    assert scale_of(state.models["global"]) == SCALE
    assert state.models["global"]["w"].tolist() != [0.0, 0.0]


def test_a_model_that_was_given_with_a_scale_keeps_it_and_nobody_is_asked() -> None:
    plan = HALF.plan(begun(with_scale(model(0, 0), SCALE)), ["a"])
    assert plan is not None
    assert isinstance(plan.tasks["a"], Train)


def test_where_nothing_can_be_scaled_models_stay_as_they_are() -> None:
    state = HALF.reduce(begun(model(0, 0)), [Report("a", Summarized((), ()))])
    plan = HALF.plan(state, ["a"])
    assert plan is not None
    assert list(plan.tasks["a"].model) == ["w"]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "changes",
    [
        {"inputs": "raw"},
        {"dp_epsilon": 3.0},
        {"secure_aggregation": True, "aggregation": "mean"},
        {"aggregation": "noised", "central_noise": 1.0},
    ],
)
def test_nobody_is_asked_in_the_open_where_weights_are_protected(changes: dict[str, object]) -> None:
    plan = HALF.plan(begun(model(0, 0), **changes), [f"d{number}" for number in range(9)])
    assert plan is not None
    assert Summarize not in set(map(type, plan.tasks.values()))


def test_presets_of_papers_take_inputs_as_they_are() -> None:
    for card in discover().values():
        for preset in card.presets:
            assert getattr(card.configure(preset), "inputs", "raw") == "raw", (card.name, preset)


def test_an_answer_that_cannot_be_is_refused_at_the_door() -> None:
    for wrong in (Summarized((1.0,), (-1.0,)), Summarized((1.0, 2.0), (1.0,)), Summarized((1e39,), (1.0,))):
        with pytest.raises(BadPayload, match="cannot be"):
            admit_message(Summarize(), wrong)
    admit_message(Summarize(), Summarized((1.0,), (0.0,), (3.0, 1.0)))


def test_a_run_that_protects_weights_says_that_inputs_stay_raw_unless_it_was_given_their_scale() -> None:
    protected = {"dp_epsilon": 3.0, "rounds": 2}
    state = begun(model(0, 0), **protected)
    raw = scaling.stayed_raw(state)
    assert raw in state.remarks  # type: ignore[attr-defined]
    found = completed(Verdict(False, 0.5, 0.5, 0.0, 0.01), state)  # type: ignore[arg-type]
    assert found is not None
    assert raw in str(found)
    images = {"conv.weight": np.zeros((2, 1, 3, 3), np.float32)}
    assert scaling.stayed_raw(replace(state, models={GLOBAL: images})) == ""  # type: ignore[type-var]
    state = begun(with_scale(model(0, 0), SCALE), **protected, inputs="stats")
    assert state.remarks == ()  # type: ignore[attr-defined]
    plan = HALF.plan(state, ["a", "b"])
    assert plan is not None
    state = HALF.reduce(state, [answered(device, task) for device, task in plan.tasks.items()])
    assert scale_of(state.models[GLOBAL]) == SCALE


def test_a_run_goes_back_with_its_scale() -> None:
    state = HALF.reduce(begun(model(0, 0)), [said("a"), said("b")])
    plan = HALF.plan(state, ["a"])
    assert plan is not None
    later = HALF.reduce(state, [answered("a", plan.tasks["a"])])
    assert scale_of(later.with_model_of(state, "global").models["global"]) == SCALE
    assert replace(later, models=state.models).scale is state.scale


def test_clusters_get_the_scales_of_their_own_groups_as_they_begin_and_keep_them() -> None:
    given = {f"d{n}": Summary((1.0,), (0.1,)) if n % 2 else Summary((50.0,), (5.0,)) for n in range(12)}
    parameters = CARD.configure(changes={})
    before = Clustered(parameters=parameters, models={GLOBAL: model(0, 0)}, phase="train")
    before = scaling.take(
        before, [Report(d, Summarized(one.means, one.deviations)) for d, one in given.items()], True
    )
    first = scaling.carried(before, before)
    groups = {device: f"c{int(device[1:]) % 2}" for device in given}
    split = replace(first, models=dict.fromkeys(("c0", "c1"), first.models[GLOBAL]), assignments=groups)
    found = scaling.carried(first, split)
    assert {key: scale_of(one)[DEVIATION].tolist() for key, one in found.models.items()} == {
        "c0": [5.0],
        "c1": [np.float32(0.1)],
    }
    assert found.summaries is None, "they have served"
    moved = replace(found, models={key: with_scale(one, SCALE) for key, one in found.models.items()})
    again = scaling.carried(found, replace(moved, models={**moved.models, "c2": model(1, 1)}))
    assert [scale_of(one)[DEVIATION].tolist() for one in again.models.values()] == [
        [5.0],
        [np.float32(0.1)],
        first.models[GLOBAL][DEVIATION].tolist(),
    ]


def test_a_cluster_that_begins_with_the_model_of_another_has_its_scale() -> None:
    """Its weights were trained with that one."""
    own = {MEAN: np.float32([50.0]), DEVIATION: np.float32([5.0])}
    models = {"c0": with_scale(model(0, 0), SCALE), "c1": with_scale(model(1, 1), own)}
    parameters = CARD.configure(changes={})
    before = Clustered(parameters=parameters, models=models, phase="train", scale=SCALE)
    begun = replace(before, models={"c0": models["c1"], "c1": models["c1"], "c2": models["c1"]})
    found = scaling.carried(before, begun).models
    assert [scale_of(each) for each in found.values()] == [own, own, own]
    assert found["c2"] is found["c1"]


def test_what_devices_said_is_not_kept_where_no_clusters_are_formed() -> None:
    state = HALF.reduce(begun(model(0, 0)), [said("a"), said("b")])
    assert state.summaries is None
