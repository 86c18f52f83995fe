"""The standard messages from an algorithm's parameters."""

from dataclasses import replace

import pytest

from shoal.core.algorithm import Report, discover, find
from shoal.core.exchange.messages import Evaluated
from shoal.core.server_kit.standard import mean_accuracy, mean_loss, share_of_rate
from tests.reports import model, trained


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [1, 1, 1, 1]),
        ("linear", [1, 0.75, 0.5, 0.25]),
        ("cosine", [1, (2 + 2**0.5) / 4, 0.5, (2 - 2**0.5) / 4]),
        ("step", [1, 1, 0.1, 0.01]),
    ],
)
def test_a_schedule_is_of_the_rounds_and_never_reaches_nothing(schedule: str, expected: list[float]) -> None:
    assert [share_of_rate(schedule, done, 4) for done in range(4)] == pytest.approx(expected)
    assert share_of_rate(schedule, 4, 4) == pytest.approx(expected[-1]), "after the last round, for tuning"


def test_every_algorithm_with_a_schedule_uses_it() -> None:
    """Asked after two of four rounds, whatever trains first in a run trains at half of the rate."""
    seen = set()
    for card in discover().values():
        if "schedule" not in card.settings:
            continue
        changes = {"inputs": "raw", "schedule": "linear", "rounds": 4, "learning_rate": 0.1}
        parameters, server = card.configure("default", changes), card.server()
        models = [model(number, 0) for number in range(card.initial(parameters))]
        state = replace(server.start(models[0], parameters, *models[1:]), progress=2)
        plan = server.plan(state, ["a"])
        assert plan is not None
        settings = getattr(plan.tasks["a"], "settings", None)
        if settings is not None:
            assert settings.learning_rate == pytest.approx(0.05), card.name
            seen.add(card.name)
    assert {"flux", "feroma", "fedrc", "fedem", "fedsoft", "fedavg", "cornflqs"} <= seen


@pytest.mark.parametrize("devices", [5, 9, 60])
def test_fewer_than_a_quarter_do_not_carry_what_devices_measure_out_of_what_the_others_say(
    devices: int,
) -> None:
    """Whatever they say, and for as many samples as a report may claim."""
    liars = (devices - 1) // 4
    for accuracy, loss in ((0.0, 1e30), (1.0, 0.0)):
        honest = [Evaluated(0.6 + 0.1 * (i % 2), 0.5 + 0.1 * (i % 2), 40) for i in range(devices - liars)]
        figures = [*honest, *[Evaluated(accuracy, loss, 1 << 40)] * liars]
        reports = [Report(f"d{number}", each) for number, each in enumerate(figures)]
        assert 0.6 <= mean_accuracy(reports) <= 0.7
        assert 0.5 <= mean_loss(reports) <= 0.6


def test_a_liar_does_not_choose_which_model_a_run_keeps() -> None:
    """FedAvg keeps the model of the lowest held-out loss."""
    card = find("fedavg")[0]
    server = card.server()
    changes = {"inputs": "raw", "rounds": 2, "select": "lowest_loss", "evaluate": False}
    state = server.start(model(0, 0), card.configure("default", changes))
    for value, losses in ((1, (0.2, 0.2, 0.2, 0.2, 9.0)), (7, (3.0, 3.0, 3.0, 3.0, 0.0))):
        state = server.reduce(state, [trained(f"d{i}", value, value) for i in range(5)])
        said = [Evaluated(0.5, loss, 1 << 40 if i == 4 else 40) for i, loss in enumerate(losses)]
        state = server.reduce(state, [Report(f"d{i}", each) for i, each in enumerate(said)])
    assert state.models["global"]["w"].tolist() == [1.0, 1.0]
