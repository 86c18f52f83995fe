"""What is audited: modes and ways through the client, the releases of each, and what they prove."""

import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from shoal.core.exchange.messages import Trained
from shoal.core.exchange.parts import Descriptor, FloatArray, PrivacySettings
from shoal.core.exchange.payload import Payload
from shoal.core.exchange.wire import payload_to_bytes
from tests.audit.bounds import epsilon_bound, gaussian_bound
from tests.audit.client import from_program, from_worker
from tests.audit.training import TrainingWorld
from tests.audit.world import World

BALANCED = PrivacySettings("balanced", 5.0, 1e-6)
STRICT = PrivacySettings("strict", 1.0, 1e-6)
PAPER = PrivacySettings("paper", 1.0)
SHARED_MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""Where nothing waits for a disk: a release takes some milliseconds there."""


@dataclass(frozen=True, eq=False)
class Case:
    """way: through the real client. share: of the releases that are asked for, as some are dear.

    timed: whether the attack looks at how long a release takes, instead of at what it contains.
    """

    world: Any
    way: Callable[[Any, bool, Path], AsyncIterator[Any]] = from_worker
    share: float = 1.0
    timed: bool = False


CASES = {
    "balanced, newcomer": Case(World(BALANCED)),
    "balanced, trainer": Case(World(BALANCED, classes=2)),
    "strict, newcomer": Case(World(STRICT)),
    "strict, trainer": Case(World(STRICT, classes=2)),
    "paper, newcomer": Case(World(PAPER), share=0.1),
    "balanced, one replaced": Case(World(BALANCED, replaced=True)),
    "strict, one replaced": Case(World(STRICT, classes=2, replaced=True)),
    "balanced, timing": Case(World(BALANCED), timed=True),
    "DP-SGD, hostile weights": Case(TrainingWorld()),
    "DP-SGD, timing": Case(TrainingWorld(), timed=True, share=0.2),
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
                began = time.perf_counter()
                released = await anext(releases)
                seconds = time.perf_counter() - began
                seen.add(sha256(bytes_of(released)).digest())
                found.append(seconds if case.timed else case.world.statistic(released))
    if len(seen) < len(found):
        raise AssertionError("two releases were the same")
    return np.array(found)


def bytes_of(released: Descriptor | Trained) -> bytes:
    if isinstance(released, Trained):
        return b"".join(array.tobytes() for array in released.model.values())
    return payload_to_bytes(Payload("descriptor", {"descriptor": released}))


def proved(case: Case, absent: FloatArray, present: FloatArray) -> dict[str, float | None]:
    """What the releases prove. gaussian: None where the noise is not Gaussian."""
    world = case.world
    asked = getattr(world, "settings", None)
    delta = asked.delta if asked is not None else world.delta
    gaussian = (asked is None or asked.calibrated) and not case.timed
    return {
        "claimed": world.claimed,
        "delta": delta,
        "releases": len(absent) + len(present),
        "at_least": epsilon_bound(absent, present, delta),
        "gaussian": gaussian_bound(absent, present, delta) if gaussian else None,
    }
