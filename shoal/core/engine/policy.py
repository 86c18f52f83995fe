"""When a round opens, closes and is given up: the settings of a run that its operator chooses."""

import math
from dataclasses import dataclass

from shoal.core.engine.timeouts import DEVICE_TIMEOUT
from shoal.core.errors import ConfigError

MAX_PAUSES = 32.0
"""How many times `retry_after` a run waits at most."""
MAX_OVERSAMPLE = 10.0
"""The largest oversampling factor: beyond it, nearly all of the work that devices do is thrown away."""


@dataclass(frozen=True)
class RoundPolicy:
    """When a round opens, closes, and is given up. All times are in seconds; the engine's clock is its ticks.

    Attributes:
        devices: the number of reports that close a round. 0, the default, asks all devices that are here and
            closes the round when all of them have reported. So do rounds that decide about all devices, as
            when clusters are formed.
        minimum: the least number of devices that a round opens with, and of reports that it goes on with at
            the deadline; at least 1 and, unless `devices` is 0, at most `devices`.
        oversample: the oversampling factor, 1 (the default) to 10. A round asks `devices` times this many
            devices, rounded up, and withdraws the task from those that are not needed when the round closes.
            These are the slowest ones, so what only slow devices know counts less: oversampling trades that
            for time. Without effect when `devices` is 0.
        wait_for_devices: how long a round waits for `devices` before it opens with at least `minimum`; 0 or
            more, default 30. The next rounds do not wait again until the devices that are here have changed.
            Without effect when `devices` is at most `minimum`: there is nothing to wait for.
        deadline: the longest that a round may take; 0 or more, default 3600. At the deadline the round closes
            with at least `minimum` reports, or is abandoned.
        straggler_factor: how many times what the others needed a device may take; 0, or 1 or more; default 3.
            It counts as soon as two thirds of the devices at work have answered, or half of them if an
            earlier round has shown what such tasks take. What the others needed is what nine of ten of them
            needed at most. No device has less than 10 s, or more than `deadline`. When the time of all
            others is over, the round closes with at least `minimum` reports. With 0, each device has until
            the deadline.
        device_timeout: a device that is not heard from for longer counts as gone until it joins again; 0 or
            more, default 60. A value above `deadline` has no effect on the round that is open.
        max_abandoned_rounds: the run fails after this many abandoned rounds in a row; at least 1, default 5.
            Rounds do not count in which all devices, or enough for a round, wait for their owners' consent.
        retry_after: how long a run waits after an abandoned round before it opens the next one, and after one
            whose secure sum has to begin again; 0 or more, default 5. The time doubles with each further one
            in a row, up to 32 times as long, so that a cause that passes by itself does not end the run
            within seconds.

    Raises ConfigError for values outside these ranges.

    Example:
        >>> RoundPolicy(devices=10, minimum=8, oversample=1.3, deadline=600.0).devices
        10
    """

    devices: int = 0
    minimum: int = 1
    oversample: float = 1.0
    wait_for_devices: float = 30.0
    deadline: float = 3600.0
    straggler_factor: float = 3.0
    device_timeout: float = DEVICE_TIMEOUT
    max_abandoned_rounds: int = 5
    retry_after: float = 5.0

    def __post_init__(self) -> None:
        if self.devices < 0 or self.minimum < 1 or (self.devices and self.minimum > self.devices):
            raise ConfigError(
                f"a round of {self.devices} devices cannot have a minimum of {self.minimum}",
                "use a minimum of at least 1 and at most the number of devices",
            )
        if not 1.0 <= self.oversample <= MAX_OVERSAMPLE:
            raise ConfigError(f"oversample cannot be {self.oversample:g}", "use 1 to 10")
        if not (self.straggler_factor == 0.0 or 1.0 <= self.straggler_factor < math.inf):
            raise ConfigError(
                f"straggler_factor cannot be {self.straggler_factor:g}", "use 0, or a number of 1 or more"
            )
        if self.max_abandoned_rounds < 1:
            raise ConfigError(f"max_abandoned_rounds cannot be {self.max_abandoned_rounds}", "use 1 or more")
        for name in ("wait_for_devices", "deadline", "device_timeout", "retry_after"):
            # Not `< 0.0`: that would let NaN pass.
            if not getattr(self, name) >= 0.0:
                raise ConfigError(f"{name} cannot be {getattr(self, name):g} s", "use 0 seconds or more")

    def least(self, state: object) -> int:
        """The least number of devices for a round from this state: `minimum`, or fewer where the algorithm
        knows that fewer can complete what more have begun (`State.enough`)."""
        return min(self.minimum, getattr(state, "enough", 0) or self.minimum)

    def pause(self, abandoned: int) -> float:
        """Seconds to wait after this many abandoned rounds in a row, before the next one opens.

        Example:
            >>> RoundPolicy().pause(0), RoundPolicy().pause(1), RoundPolicy().pause(3)
            (0.0, 5.0, 20.0)
        """
        return self.retry_after * min(2.0 ** (abandoned - 1), MAX_PAUSES) if abandoned else 0.0
