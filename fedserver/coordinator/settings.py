"""The cadences and limits that a server sets, whoever talks to it. Times in seconds."""

from dataclasses import dataclass

from shoal.core.engine.timeouts import GRACE
from shoal.core.errors import ConfigError


@dataclass(frozen=True)
class Settings:
    """poll: how long a device may wait for a task. heartbeat: how often a working device shows that it lives.

    tick: how often deadlines are looked at; nothing else waits for it. model: bytes of the largest set of
    initial weights. grace: how long a stop waits for calls and for a round that is being combined.
    low_water: bytes that stay free on the state folder's disk, and more where the models need it; uploads
    that would take them are refused. placements: how often a day a device may be placed that only infers.
    age: after how long a device has to make a new connection; a sixth more for what is under way.
    """

    poll: float = 20.0
    heartbeat: float = 10.0
    tick: float = 0.25
    model: int = 1 << 30
    grace: float = GRACE
    age: float = 1800.0
    low_water: int = 64 << 20
    placements: int = 10

    def __post_init__(self) -> None:
        if min(self.poll, self.heartbeat, self.tick, self.age, self.model) <= 0.0:
            raise ConfigError("poll, heartbeat, tick, age and model are above 0")
        if min(self.grace, self.low_water, self.placements) < 0:
            raise ConfigError("grace, low_water and placements are 0 or more")
