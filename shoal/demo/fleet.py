"""The demo's fleet: real digits, eight devices in four rotation groups that the server does not know.

Each device has 140 images of its own and 359 test images, both turned by its group's angle; each newcomer has
70 images that no trainer saw, without labels. Everything is fixed, so a run of it gives the same models in
the simulator, with the coordinator called directly, and over gRPC.
"""

from dataclasses import dataclass
from typing import Any

from shoal.core.data.dataset import Dataset
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.types import DeviceId
from shoal.simulation.images import digits, rotate

ANGLES = (0, 90, 180, 270)
TRAINERS, NEWCOMERS = 8, 2
IMAGES, NEWCOMER_IMAGES = 140, 70
SEED = 42
LEARNER = {"builtin": "mlp", "options": {"inputs": 64, "hidden": [64], "classes": 10}}
PARAMETERS: dict[str, dict[str, Any]] = {"fedavg": {"rounds": 10}, "flux": {"rounds": 10, "privacy": "off"}}
PRIVACY = (
    f"privacy=off here, for the map: in descriptions of {IMAGES} images, the default's noise hides the groups"
)
POLICY = RoundPolicy(devices=TRAINERS, minimum=TRAINERS, wait_for_devices=600.0)


@dataclass(frozen=True)
class Member:
    """One device of the demo. group: which angle its images are turned by; used only in the report.

    train, test: uint8 images (n, 8, 8) with labels. A newcomer's labels never reach its device.
    """

    name: DeviceId
    group: int
    train: Dataset
    test: Dataset | None = None


def trainers() -> list[Member]:
    """Two devices for each angle."""
    train, test = digits()
    return [
        Member(
            f"device-{number + 1}",
            number % len(ANGLES),
            _turned(train.subset(slice(number * IMAGES, (number + 1) * IMAGES)), number),
            _turned(test, number),
        )
        for number in range(TRAINERS)
    ]


def newcomers() -> list[Member]:
    """One newcomer turned by 90 degrees and one by 180."""
    train, _ = digits()
    first = TRAINERS * IMAGES
    return [
        Member(
            f"newcomer-{number}",
            number,
            _turned(
                train.subset(slice(first + (number - 1) * NEWCOMER_IMAGES, first + number * NEWCOMER_IMAGES)),
                number,
            ),
        )
        for number in range(1, NEWCOMERS + 1)
    ]


def _turned(data: Dataset, group: int) -> Dataset:
    return Dataset(rotate(data.x, ANGLES[group % len(ANGLES)]), data.y)
