"""What a run goes on with when it is taken back: a state of before, or one model of it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.core.algorithm import Report
from shoal.core.algorithms import flux
from shoal.core.algorithms.fedavg import Parameters
from shoal.core.algorithms.fedavg.server import State
from shoal.core.algorithms.flux import server as flux_server
from shoal.core.algorithms.flux.state import State as FluxState
from shoal.core.engine.bootstrap import Unstarted
from shoal.core.engine.events import (
    Abandon,
    Heard,
    Joined,
    Offer,
    Opened,
    Reduced,
    Reported,
    RolledBack,
    Save,
    Tick,
    Withdraw,
)
from shoal.core.engine.rollback import rolled_back
from shoal.core.engine.round.attendance import Memory
from shoal.core.engine.rounds import RoundEngine, RoundPolicy, Stage
from shoal.core.errors import IllegalEvent, NotFound
from shoal.core.exchange.messages import HeldOut, Trained
from shoal.core.server_kit.aggregation.divergence import LossHistory
from shoal.core.server_kit.aggregation.guard import Guard
from shoal.core.server_kit.summing import Summing
from shoal.core.types import Tensors
from tests.core import counting


def model(value: float) -> Tensors:
    return {"w": np.full(2, value, np.float32)}


EARLIER = State(
    parameters=Parameters(),
    models={"c0": model(1.0), "c1": model(2.0)},
    progress=2,
    assignments={"d0": "c0"},
)
NOW = replace(EARLIER, models={"c0": model(8.0), "c1": model(9.0)}, progress=5, assignments={"d0": "c1"})


def test_without_a_cluster_everything_is_as_it_was() -> None:
    assert rolled_back(NOW, EARLIER) is EARLIER
    assert rolled_back(NOW, Unstarted()) == Unstarted()


def test_with_a_cluster_its_model_alone_goes_back() -> None:
    found = rolled_back(NOW, EARLIER, "c1")
    assert found.models["c1"] is EARLIER.models["c1"]
    assert found.models["c0"] is NOW.models["c0"]
    assert list(found.models) == ["c0", "c1"]
    assert (found.progress, found.assignments) == (5, {"d0": "c1"})


def test_a_cluster_must_have_been_there_then_and_be_there_now() -> None:
    with pytest.raises(NotFound, match="no cluster 'c2' now"):
        rolled_back(NOW, EARLIER, "c2")
    with pytest.raises(NotFound, match="no cluster 'c1' then"):
        rolled_back(NOW, replace(EARLIER, models={"global": model(1.0)}), "c1")


def test_with_a_cluster_what_was_learned_of_its_later_model_is_forgotten() -> None:
    """Or the higher loss of the earlier model would look like a fall, and the later model would return."""
    then = Guard({"c0": 1.0, "c1": 1.0}, histories={"c0": LossHistory(2.0, 1.5, 1.5, 2)})
    strikes = {"c0": {"d0": 3}, "c1": {"d1": 1}}
    histories = {key: LossHistory(2.0, 0.1, 0.1, 9, good=model(7.0)) for key in ("c0", "c1")}
    now = Guard({"c0": 5.0, "c1": 6.0}, {"c0": ("clipped",)}, strikes, histories)
    summing = Summing("mask", 1, excluded=("d9",))
    state: Any = rolled_back(replace(NOW, guard=now, summing=summing), replace(EARLIER, guard=then), "c0")
    assert (state.summing.stage, state.summing.attempt) == ("announce", 0)
    assert state.summing.excluded == ("d9",), "it has lied, whatever the model is"
    lone: Any = rolled_back(replace(NOW, summing=Summing("mask")), EARLIER, "c0")
    assert lone.summing is None
    found = state.guard
    assert found == Guard(
        {"c0": 1.0, "c1": 6.0},
        {},
        {"c1": {"d1": 1}},
        {"c0": then.histories["c0"], "c1": histories["c1"]},
    )
    again = found.histories["c0"].after([1.5], model(1.0))
    assert not again.fell


def test_with_a_cluster_the_losses_of_its_later_model_tell_nothing_of_data() -> None:
    """Under the earlier model they are higher, and FLUX would give its groups up as if data had moved."""

    def trained(loss: float, *devices: str) -> list[Report]:
        update = Trained(model(1.0), 10, loss, held_out=HeldOut(0.5, loss, 10))
        return [Report(device, update) for device in devices]

    homes = {"a": "c0", "b": "c0", "c": "c0", "d": "c1"}
    parameters = flux.Parameters(inputs="raw", rounds=9)
    begun = FluxState(parameters=parameters, models=NOW.models, phase="undescribed", assignments=homes)
    now = flux_server.reduce(begun, trained(0.1, *homes))
    reports = [*trained(2.0, "a", "b", "c"), *trained(0.1, "d")]
    assert len(flux_server.reduce(now, reports).models) == 1, "where data have moved"
    back: Any = rolled_back(now, begun, "c0")
    assert list(flux_server.reduce(back, reports).models) == ["c0", "c1"]


def test_with_its_model_the_best_model_of_fedavg_goes_back() -> None:
    """Or the run would end with a model of the rounds that were taken back."""
    now: Any = replace(NOW, best=model(9.0), best_loss=0.1)
    earlier: Any = replace(EARLIER, best=model(1.0), best_loss=0.5)
    back: Any = rolled_back(now, earlier, "c1")
    assert back.best is earlier.best
    assert back.best_loss == 0.5


# -- the engine ---------------------------------------------------------------------------------------------


def engine(rounds: int = 3) -> RoundEngine:
    state = counting.start(counting.model(), rounds)
    machine = RoundEngine(counting, RoundPolicy(minimum=2), 7, state)  # type: ignore[arg-type]
    for event in (Joined("d0"), Joined("d1"), Tick(0.0)):
        machine.feed(event)
    return machine


def test_an_open_round_is_abandoned_and_planned_again_from_the_other_state() -> None:
    machine = engine()
    machine.feed(Reported("d0", 1, 1))
    other = counting.start(counting.model(4.0), 3)
    assert machine.feed(RolledBack(other, "back")) == [
        Withdraw("d1", 1, "back"),
        Abandon(1, "back"),
        Save(2, other, 0, {"d1": "back"}, Memory(("d0", "d1"), {}, {"train": 0.0})),
    ]
    opened, *offers = machine.feed(Tick(1.0))
    assert opened == Opened(2, ("d0", "d1"), "round 1")
    assert [(offer.device, offer.message) for offer in offers if isinstance(offer, Offer)] == [
        ("d0", machine.plan.tasks["d0"]),
        ("d1", machine.plan.tasks["d1"]),
    ]
    assert machine.plan.tasks["d0"].model["w"][0] == 4.0  # type: ignore[attr-defined]


def test_a_run_that_waits_goes_on_from_the_other_state_and_nobody_is_missing_for_it() -> None:
    restored = RoundEngine(
        counting,  # type: ignore[arg-type]
        RoundPolicy(minimum=2),
        7,
        counting.start(counting.model(), 3),
        round=4,
        asked=("d0", "d9"),
        reported=("d9",),
    )
    other = counting.start(counting.model(4.0), 3)
    saved = Save(5, other, 0, {}, Memory(("d0", "d9")))
    assert restored.feed(RolledBack(other, "back")) == [Abandon(4, "back"), saved]
    for event in (Joined("d0"), Joined("d1")):
        restored.feed(event)
    assert restored.feed(Tick(1.0)) == []  # d9 may still return after the restart
    for event in (Heard("d0"), Heard("d1"), Tick(60.0), Heard("d0"), Heard("d1")):
        assert restored.feed(event) == []
    opened, *_ = restored.feed(Tick(61.0))
    assert opened == Opened(5, ("d0", "d1"), "round 1")  # not those whom the abandoned round had asked


def test_while_reports_are_combined_nothing_can_be_taken_back() -> None:
    machine = engine()
    machine.feed(Reported("d0", 1, 1))
    machine.feed(Reported("d1", 1, 1))
    with pytest.raises(IllegalEvent, match=r"^a run that is reducing cannot be rolled back$"):
        machine.feed(RolledBack(machine.state, "back"))
    assert machine.feed(Reduced(1, machine.state)) == [
        Save(2, machine.state, 0, {}, Memory(("d0", "d1"), {}, {"train": 0.0}))
    ]


def test_a_run_that_is_over_stays_over() -> None:
    machine = engine(rounds=0)
    assert machine.stage is Stage.OVER
    other = counting.start(counting.model(4.0), 3)
    assert machine.feed(RolledBack(other, "back")) == [
        Abandon(1, "back"),
        Save(2, other, 0, {}, Memory(("d0", "d1"))),
    ]
    assert machine.stage is Stage.OVER
    assert machine.feed(Tick(1.0)) == []
    assert machine.state is other
