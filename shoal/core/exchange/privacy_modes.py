"""The privacy modes: one record each. A new mode is a record here and a name in `proto/fed/v1/privacy.proto`.

Everything that depends on the mode of a release, on both sides and on the wire, reads it from its record.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from shoal.core.errors import BadPayload, near


class Mechanism(Enum):
    """Where the noise of a mode comes from."""

    NONE = "none"
    PAPER = "paper"
    """Laplace noise whose scale is read off the data, so its size is unknown to everyone but the device."""
    DISCRETE_GAUSSIAN = "discrete Gaussian"
    """Discrete Gaussian noise of a public size on a vector of sensitivity 1: a guarantee that holds."""


@dataclass(frozen=True)
class PrivacyMode:
    """How a descriptor is protected.

    Args:
        name: as settings and people write it; `PRIVACY_MODE_<NAME>` in the contract.
        number: of that name in the contract.
        mechanism: where the noise comes from. Only the discrete Gaussian gives a guarantee.
        guarantee: the (epsilon, delta) that the mode stands for; None where a run sets its own numbers, or
            the mode has no guarantee.
        samples_per_class: a device with fewer samples per class than this, on average, releases no classes.
        leaves: what leaves a device, in the words of a report, where there is no guarantee.
    """

    name: str
    number: int
    mechanism: Mechanism
    guarantee: tuple[float, float] | None = None
    samples_per_class: int = 0
    leaves: str = ""

    @property
    def calibrated(self) -> bool:
        """Whether there is a guarantee: sums with calibrated noise, and not moments, are released."""
        return self.mechanism is Mechanism.DISCRETE_GAUSSIAN

    @property
    def exact(self) -> bool:
        """Whether what is released has no noise."""
        return self.mechanism is Mechanism.NONE

    @property
    def unknown_noise(self) -> bool:
        """Whether there is noise of an unknown size, which no test on descriptors can take into account."""
        return self.mechanism is Mechanism.PAPER


MODES: Mapping[str, PrivacyMode] = {
    mode.name: mode
    for mode in (
        PrivacyMode("off", 1, Mechanism.NONE, leaves="a descriptor as it is (privacy=off)"),
        PrivacyMode(
            "paper",
            2,
            Mechanism.PAPER,
            leaves="a descriptor with the papers' noise (privacy=paper, which is not private)",
        ),
        PrivacyMode("balanced", 3, Mechanism.DISCRETE_GAUSSIAN, (5.0, 1e-6)),
        PrivacyMode("strict", 4, Mechanism.DISCRETE_GAUSSIAN, (1.0, 1e-6), samples_per_class=150),
        PrivacyMode("explicit", 5, Mechanism.DISCRETE_GAUSSIAN),
    )
}


def mode_of(name: str) -> PrivacyMode:
    """The record of a mode. Raises BadPayload for a name that is not known."""
    if name not in MODES:
        hint = near(name, list(MODES)) or f"use one of {', '.join(MODES)}"
        raise BadPayload(f"privacy mode {name!r} is not known", hint)
    return MODES[name]


def mode_by_number(number: int) -> PrivacyMode:
    """The record of a mode by its number in the contract. Raises BadPayload."""
    for mode in MODES.values():
        if mode.number == number:
            return mode
    raise BadPayload(f"privacy mode: value {number} is not known" if number else "privacy mode is not set")
