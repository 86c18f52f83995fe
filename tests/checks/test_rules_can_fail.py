"""The rules find algorithms that break them."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.checks import Broken, Subject, liars, runs
from shoal.core.algorithm import find
from shoal.core.algorithms.fedavg import server


def counting(monkeypatch: pytest.MonkeyPatch) -> Subject:
    """FedAvg with something beside its state that its models depend on: how many rounds this process made."""
    real, made = server.reduce, itertools.count(1)

    def reduce(state: server.State, reports: Any) -> server.State:
        after, shift = real(state, reports), np.float32(next(made) * 1e-3)
        moved = {
            key: {name: array + shift for name, array in model.items()} for key, model in after.models.items()
        }
        return replace(after, models=moved)

    monkeypatch.setattr(server, "reduce", reduce)
    return Subject(find("fedavg")[0])


def test_a_state_that_is_not_all_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Broken, match="resumed at round 2, the run goes on with another state"):
        runs.resumes_from_every_round(counting(monkeypatch))


def test_a_run_that_does_not_repeat_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Broken, match="a second run with the same seed gave other models"):
        runs.repeats_bit_for_bit(counting(monkeypatch))


def test_a_mean_that_liars_decide_is_found() -> None:
    card = find("fedavg")[0]
    open_to_all = replace(card, variants={"open": {"aggregation": "mean"}})
    with pytest.raises(Broken, match="two of ten devices lie, and the others fall from"):
        liars.bears_liars(Subject(open_to_all, "open"))


def test_what_liars_can_do_is_said_of_settings_and_of_algorithms_that_let_them() -> None:
    def said(name: str, **changes: Any) -> str:
        card = find(name)[0]
        return card.influence(card.configure("default", changes))

    assert said("fedavg") == said("flux") == said("feroma") == ""
    assert "bounds nothing" in said("fedavg", aggregation="mean")
    assert "central_clip / n" in said("fedavg", aggregation="noised", central_clip=1.0, central_noise=1.0)
    assert "no single update" in said("fedavg", aggregation="mean", secure_aggregation=True, central_clip=1.0)
    assert "like those of many others" in said("feroma", privacy="explicit", epsilon=5.0, delta=1e-6)
