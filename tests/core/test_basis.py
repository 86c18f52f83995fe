"""Which earlier run's encoder a later run begins with."""

from dataclasses import replace

import numpy as np
import pytest

from fedserver.coordinator.recipe import may_share
from fedserver.store.records import RunSpec
from shoal.core.algorithm import Basis, Report, basis_of, begun_with, find
from shoal.core.data.scale import DEVIATION, MEAN, scale_of, with_scale
from shoal.core.engine.bootstrap import Bootstrap, Unstarted
from shoal.core.exchange.messages import Built, Train
from shoal.core.types import Tensors

CARD, _ = find("flux")
PARAMETERS = CARD.configure()


def network(width: int, value: float = 0.0) -> Tensors:
    return {"w": np.full((2, width), value, np.float32)}


def basis(width: int) -> Basis:
    found = Basis.of(network(width, 1.0), {"mean": np.zeros(1)}, PARAMETERS)
    assert found is not None
    return found


def test_the_first_basis_of_the_same_network_is_taken() -> None:
    wide, narrow, older = basis(9), basis(3), basis(3)
    server_half = Bootstrap(CARD.server(), PARAMETERS)
    begun = server_half.reduce(Unstarted(bases=(wide, narrow, older)), [Report("d0", Built(network(3)))])
    assert basis_of(begun) is narrow
    assert basis_of(server_half.reduce(Unstarted(bases=(wide,)), [Report("d0", Built(network(3)))])) is None
    assert basis_of(Unstarted(bases=(wide, narrow))) is wide
    fedavg, _ = find("fedavg")
    started = fedavg.server().start(network(3), fedavg.configure())
    assert begun_with(started, narrow) is started


def test_the_first_round_of_a_run_has_the_scale_of_the_earlier_encoder() -> None:
    """No device is asked for one, so without it the first round would train on inputs in their own units."""
    scale = {MEAN: np.float32([2.0, 5.0, 9.0]), DEVIATION: np.float32([3.0, 1.0, 4.0])}
    earlier = basis(3)
    carries = replace(earlier, encoder=with_scale(earlier.encoder, scale))
    half = Bootstrap(CARD.server(), PARAMETERS)
    begun = half.reduce(Unstarted(bases=(carries,)), [Report("d0", Built(network(3)))])
    plan = half.plan(begun, ["d0"])
    assert plan is not None
    task = plan.tasks["d0"]
    assert isinstance(task, Train)
    assert scale_of(task.model).keys() == scale.keys()
    assert all(np.array_equal(task.model[name], scale[name]) for name in scale)
    own = with_scale(network(3), {name: array + 1 for name, array in scale.items()})
    kept = begun_with(CARD.server().start(own, PARAMETERS), carries)
    assert kept.models["global"] is own, "a model that has a scale keeps it"
    raw = CARD.configure(changes={"inputs": "raw"})
    assert not scale_of(begun_with(CARD.server().start(network(3), raw), carries).models["global"])


def test_there_is_none_where_descriptions_cost_nothing() -> None:
    assert Basis.of(network(3), {}, CARD.configure("default", {"privacy": "off"})) is None


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ({}, {}, True),
        ({"site": "basel"}, {}, True),
        ({"site": "basel"}, {"kind": "camera"}, True),
        ({"site": "basel", "kind": "camera"}, {"site": "basel"}, True),
        ({"site": "basel"}, {"site": "bern", "kind": "camera"}, False),
    ],
)
def test_runs_share_a_basis_unless_their_labels_rule_that_out(
    one: dict[str, str], other: dict[str, str], shared: bool
) -> None:
    first, second = (RunSpec("a", "flux", labels=labels) for labels in (one, other))
    assert may_share(first, second) is may_share(second, first) is shared
