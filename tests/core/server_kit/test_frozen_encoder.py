"""What is asked of devices before they describe: the privacy, the bounds, and the projector made of them."""

from typing import Any

import numpy as np
import pytest

from shoal.core.algorithm import DescriptorParameters, Plan, Report
from shoal.core.data.scale import TARGET
from shoal.core.errors import ConfigError
from shoal.core.exchange.messages import CountLatents, Evaluate, Evaluated, LatentsCounted, Message
from shoal.core.exchange.parts import LatentBounds, PrivacySettings
from shoal.core.server_kit.clustered import GLOBAL, Clustered
from shoal.core.server_kit.frozen_encoder import (
    MARGIN,
    ask_bounds,
    merged_bounds,
    projector_of,
    with_classes,
)

OFF, BALANCED = PrivacySettings(), PrivacySettings("balanced", 5.0, 1e-6)


def measured(device: str, high: float, width: int) -> Report:
    return Report(device, Evaluated(0.5, 1.0, 3, LatentBounds(np.zeros(1), np.full(1, high)), width))


def test_a_mode_that_has_its_numbers_needs_none_and_a_wrong_one_is_refused() -> None:
    assert DescriptorParameters().asked_privacy == BALANCED
    assert DescriptorParameters(privacy="off").asked_privacy == OFF
    with pytest.raises(ConfigError, match=r"^parameters: .*no epsilon"):
        DescriptorParameters(privacy="explicit")


def asked(mode: Any) -> tuple[Plan, Message]:
    parameters = DescriptorParameters(privacy=mode)
    plan = ask_bounds(Clustered(parameters=parameters, models={GLOBAL: {}}, phase="bounds"), ["a"])
    return plan, plan.tasks["a"]


def test_with_a_guarantee_the_number_of_latents_is_asked_for_and_nothing_of_their_values() -> None:
    open_task = asked("off")[1]
    assert isinstance(open_task, Evaluate)
    assert open_task.bounds == "scalar"
    plan, task = asked("balanced")
    assert isinstance(task, CountLatents)
    assert plan.title.startswith("number")
    assert merged_bounds([Report("a", LatentsCounted(8))], BALANCED) == (None, 8)
    assert "radius" in projector_of(None, 8, DescriptorParameters(privacy="balanced", dims=3))


def test_one_device_of_another_width_does_not_count() -> None:
    found, width = merged_bounds([measured("a", 1.0, 8), measured("b", 99.0, 9), measured("c", 2.0, 8)], OFF)
    assert width == 8
    assert found is not None
    assert found.high.tolist() == [2.0 * MARGIN]
    projector = projector_of(found, width, DescriptorParameters(privacy="off", dims=3))
    assert projector["components"].shape == (3, 8)
    assert "radius" not in projector


@pytest.mark.parametrize(
    ("given", "said", "scale", "found"),
    [
        (0, [3, 9, 3], {}, 3),  # most of what devices say
        (0, [], {}, 26),  # of the network's last tensor
        (0, [0, 0], {TARGET: np.array([5.0, 2.0], np.float32)}, 4),  # levels of numbers to predict
        (7, [3], {}, 7),
    ],
)
def test_classes_are_as_many_as_the_network_tells_apart(
    given: int, said: list[int], scale: dict[str, Any], found: int
) -> None:
    network = {"hidden.bias": np.zeros(48), "out.bias": np.zeros(26), "seen": np.zeros(())}
    state = Clustered(
        parameters=DescriptorParameters(classes=given), models={GLOBAL: {**network, **scale}}, phase="bounds"
    )
    reports = [
        Report(f"d{number}", Evaluated(0.5, 1.0, 3, baseline=0.2, classes=each))
        for number, each in enumerate(said)
    ]
    assert with_classes(state, reports).parameters.classes == found
