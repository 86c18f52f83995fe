"""What can go wrong in a run of FedRC, and what is said then; and fleets that its paper does not speak of."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.core.algorithm import Report, find
from shoal.core.algorithms.fedrc import Parameters
from shoal.core.algorithms.fedrc import device as device_half
from shoal.core.algorithms.fedrc import server as server_half
from shoal.core.algorithms.fedrc.messages import Measure, Measured, Mix, Mixed, Weigh
from shoal.core.algorithms.fedrc.weights import begun, class_counts
from shoal.core.data.dataset import Dataset
from shoal.core.device_kit.learner import Learner
from shoal.core.errors import BadPayload, ConfigError, DataFault, DeviceFault, LearnerFault
from shoal.core.exchange.admit import admit_message
from shoal.core.exchange.messages import Scored
from shoal.core.exchange.parts import MixtureCounts, Scores
from shoal.core.exchange.tensors import digest
from tests.paper.fedrc_fleet import (
    LEARNER,
    MIX,
    MIXING,
    MODELS,
    SETTINGS,
    context,
    data,
    mixed,
)


def test_models_that_begin_alike_are_set_apart_by_the_devices_or_by_the_server() -> None:
    card, _ = find("fedrc")
    paper, model = card.configure("paper"), {"w": np.arange(8, dtype=np.float32)}
    for others in ((), (model,) * (paper.clusters - 1)):
        begin = server_half.start(model, paper, *others).models
        assert len({digest(each) for each in begin.values()}) == paper.clusters, "equal weights stay equal"
    drawn = {begun(("a", "b"), "random", seed).omega[0] for seed in range(3)}
    assert len(drawn) == 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"clusters": 0}, "clusters cannot be 0; expected a whole number of at least 1"),
        ({"clusters": 65}, "clusters cannot be 65"),
        ({"smoothing": -1.0}, "smoothing"),
        ({"skip": 0.5}, "skip"),
        ({"noise": 5.0}, "noise hides"),
        (
            {"noise": 5.0, "weighting": "samples", "aggregation": "mean"},
            "weighting=mass and replaceable depend on",
        ),
        ({"replaceable": -1.0}, "replaceable"),
        ({"as_one": -1}, "as_one"),
        ({"weighting": "samples"}, "cannot be combined with aggregation=clipped"),
        ({"predict": "best"}, "predict cannot be 'best'"),
    ],
)
def test_parameters_that_cannot_work_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        server_half.start(MODELS[0], replace(Parameters(), **changes))


def test_more_models_than_devices_a_class_that_nobody_has_one_sample_and_one_class() -> None:
    many = replace(MIX, models=MODELS * 4, keys=" ".join(f"c{k}" for k in range(12)))
    narrow = Dataset(data(0).x[:8], np.full(8, 3))
    for own in (narrow, narrow.subset(slice(0, 1))):
        answer = mixed(many, own=own)
        assert answer.counts.counts.shape == (12, 10)
        assert (answer.counts.counts.sum(axis=0) > 0.0).tolist() == [label == 3 for label in range(10)]
        again = replace(many, table=MixtureCounts(np.full((12, 10), 0.1)))
        assert all(
            np.isfinite(array).all() for model in mixed(again, own=own).models for array in model.values()
        )


def test_a_single_device_and_devices_that_are_all_alike_are_a_run_like_any_other() -> None:
    state = server_half.start(MODELS[0], Parameters(inputs="raw", rounds=2, learning_rate=0.1), *MODELS[1:])
    for _ in range(2):
        plan = server_half.plan(state, ["d0", "d1"])
        assert plan is not None
        task = plan.tasks["d0"]
        assert isinstance(task, Mix)
        state = server_half.reduce(state, [Report(device, mixed(task)) for device in ("d0", "d1")])
    assert state.assignments["d0"] == state.assignments["d1"]


def test_a_label_beyond_the_run_no_labels_and_a_loss_of_ones_own_are_named() -> None:
    with pytest.raises(DataFault, match="label 9"):
        device_half.perform(replace(MIX, mixing=replace(MIXING, classes=9)), context(0))
    with pytest.raises(DeviceFault, match="needs labels, and the data have none"):
        device_half.perform(MIX, context(0, Dataset(data(0).x)))
    ours = context(0)
    ours.learner = Learner("own", LEARNER.build, loss=lambda model, x, y: model(x).sum())
    with pytest.raises(LearnerFault, match=r"its own loss\(\)"):
        device_half.perform(MIX, ours)
    with pytest.raises(BadPayload, match="3 models came under the names"):
        device_half.perform(replace(MIX, keys="c0 c1"), context(0))


HONEST = Mixed(MODELS[:2], "c0 c2", MixtureCounts(np.full((3, 10), 1.0)), 30, 0.5)


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (replace(HONEST, keys="c2 c0"), "under the names"),
        (replace(HONEST, keys="c0"), "under the names"),
        (replace(HONEST, keys="c0 c9"), "under the names"),
        (
            replace(HONEST, counts=MixtureCounts(np.ones((2, 10)))),
            r"expected class counts of shape \(3, 10\), got \(2, 10\)",
        ),
        (replace(HONEST, scores=Scores(np.zeros(2), 30)), "expected the scores of 3 models, got 2"),
        (replace(HONEST, scores=Scores(np.array([-1e308, 0.0, 1e308]), 30)), "a loss has values above 1e"),
        (replace(HONEST, examples=7), "the class counts sum to 30, but there are 7 samples"),
        (replace(HONEST, counts=MixtureCounts(np.full((3, 10), -1.0))), "the class counts sum to -30"),
        (
            replace(HONEST, counts=MixtureCounts(np.full((3, 10), 31.0))),
            "a class count is 31, but there are 30 samples",
        ),
    ],
)
def test_a_report_that_does_not_answer_is_refused(reply: Mixed, words: str) -> None:
    admit_message(MIX, HONEST)
    with pytest.raises(BadPayload, match=words):
        admit_message(MIX, reply)


def test_measures_and_weights_that_do_not_answer_are_refused() -> None:
    measure = Measure(MODELS, "c0 c1 c2", MIXING, SETTINGS)
    with pytest.raises(BadPayload, match="hard"):
        admit_message(measure, Measured(0.5, 0.1, 10, ensemble=0.5, hard=1.5, tuned=0.5))
    weigh = Weigh(MODELS, "c0 c1 c2", MIXING)
    for losses in ([0.1, 0.2], [0.1, 0.2, -0.3]):
        with pytest.raises(BadPayload, match="weights of"):
            admit_message(weigh, Scored(Scores(np.array(losses), 10)))


def test_class_counts_are_the_sums_of_gamma() -> None:
    gamma = np.array([[0.25, 0.75], [1.0, 0.0], [0.5, 0.5]])
    counts = class_counts(gamma, np.array([1, 1, 0]), 3)
    np.testing.assert_allclose(counts, [[0.5, 1.25, 0.0], [0.5, 0.75, 0.0]])
