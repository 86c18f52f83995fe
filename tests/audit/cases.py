"""What is audited: modes and ways through the client, the releases of each, and what they prove."""

import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np

from shoal.core.exchange.parts import Descriptor, FloatArray, PrivacySettings
from shoal.core.exchange.payload import Payload
from shoal.core.exchange.wire import payload_to_bytes
from tests.audit.bounds import epsilon_bound, gaussian_bound
from tests.audit.client import from_program, from_worker
from tests.audit.world import World

BALANCED = PrivacySettings("balanced", 5.0, 1e-6)
STRICT = PrivacySettings("strict", 1.0, 1e-6)
PAPER = PrivacySettings("paper", 1.0)
SHARED_MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""Where nothing waits for a disk: a release takes some milliseconds there."""


@dataclass(frozen=True, eq=False)
class Case:
    """way: through the real client. share: of the releases that are asked for, as some are dear."""

    world: World
    way: Callable[[World, bool, Path], AsyncIterator[Descriptor]] = from_worker
    share: float = 1.0


CASES = {
    "balanced, newcomer": Case(World(BALANCED)),
    "balanced, trainer": Case(World(BALANCED, classes=2)),
    "strict, newcomer": Case(World(STRICT)),
    "strict, trainer": Case(World(STRICT, classes=2)),
    "paper, newcomer": Case(World(PAPER), share=0.1),
    "balanced, fedclient place": Case(World(BALANCED), from_program, share=0.004),
    "paper, fedclient place": Case(World(PAPER), from_program, share=0.004),
}


async def collect(case: Case, present: bool, count: int, until: float) -> FloatArray:
    """The statistics of up to `count` releases; fewer when time.monotonic() passes `until`.

    Fails where two releases are the same: noise that is repeated protects no one.
    """
    found: list[float] = []
    seen: set[bytes] = set()
    with tempfile.TemporaryDirectory(prefix="shoal-audit-", dir=SHARED_MEMORY) as folder:
        async with aclosing(case.way(case.world, present, Path(folder))) as releases:  # type: ignore[type-var]
            while len(found) < count and time.monotonic() < until:
                released = await anext(releases)
                seen.add(sha256(payload_to_bytes(Payload("descriptor", {"descriptor": released}))).digest())
                found.append(case.world.statistic(released))
    if len(seen) < len(found):
        raise AssertionError("two releases were the same")
    return np.array(found)


def proved(case: Case, absent: FloatArray, present: FloatArray) -> dict[str, float | None]:
    """What the releases prove. gaussian: None where the noise is not Gaussian."""
    settings = case.world.settings
    return {
        "claimed": settings.epsilon,
        "delta": settings.delta,
        "releases": len(absent) + len(present),
        "at_least": epsilon_bound(absent, present, settings.delta),
        "gaussian": gaussian_bound(absent, present, settings.delta) if settings.calibrated else None,
    }
