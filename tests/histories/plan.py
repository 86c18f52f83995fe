"""The world that a seed stands for: the runs, the devices, the cadences, and what goes wrong how often."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random

from fedserver.config import Settings
from fedserver.store.records import RunSpec
from shoal.core.engine.rounds import RoundPolicy
from tests.histories.network import Weather

TROUBLES = (
    "kill server",
    "cut server",
    "stop server",
    "pause server",
    "server disk",
    "kill device",
    "cut device",
    "stop device",
    "pause device",
    "device disk",
    "clog",
    "swizzle",
    "twin",
    "revoke",
    "gone",
)
"""What the nemesis does. "cut" takes the power, "clog" parts one device from the server, "swizzle" one after
another and back in another order, "twin" starts a second process with a device's name and another disk,
"revoke" ends its identity; with that one, devices have certificates, else they are believed. "gone" ends a
device that never returns."""


FEW = 5
"""Abandoned rounds in a row after which some of the runs are given up; the others never are."""
SECURE, COHORT = 0.03, 9
"""The share of the histories whose runs sum up updates by secure aggregation, and how many devices they
have."""
ROT = 0.3
"""The share of the histories in which a bit flips besides, in a model on the server's disk or in its copy."""

INLINE = 0.5
"""The share of the histories in which models travel inside of tasks and reports."""


@dataclass(frozen=True)
class Plan:
    """chunk: bytes of a transfer at a time. values: numbers in the model. initial: it is given, not asked.

    work: seconds that a task takes at most. fresh: no two performances of a task give the same result.
    failing: share of tasks that fail by the author's fault. stall: see `loop`. inline: devices have models
    inside of tasks and reports; else these travel by themselves. calm: when faults stop, seconds.
    every: seconds between faults.
    """

    seed: int
    devices: int
    runs: tuple[RunSpec, ...]
    settings: Settings
    weather: Weather
    troubles: Mapping[str, float]
    chunk: int
    values: int
    initial: bool
    work: float
    fresh: bool
    failing: float
    stall: float
    inline: bool
    calm: float
    every: float

    @property
    def exchanges(self) -> int:
        """Rounds of all kinds that the runs need at most."""
        secure = 8 if self.devices == COHORT else 1  # four exchanges, which may begin again
        return sum(secure * 2 * int(run.parameters["rounds"]) + 4 for run in self.runs)

    @property
    def blameless(self) -> bool:
        """Whether no device has a reason of its own to fail a task.

        In a secure sum, two machines with one name are one: each lacks the keys that the other has announced.
        """
        reasons = {"device disk"} | ({"twin"} if any(_is_secure(run) for run in self.runs) else set())
        return not self.failing and not reasons & set(self.troubles)


def _is_secure(run: RunSpec) -> bool:
    return bool(run.parameters.get("secure_aggregation"))


def plan_of(seed: int) -> Plan:
    secure = Random(f"secure {seed}").random() < SECURE
    return _secure(_plan_of(seed)) if secure else _plan_of(seed)


def _secure(plan: Plan) -> Plan:
    """The same world with more devices, and one run in which the server learns only sums of updates."""
    run = plan.runs[0]
    parameters = {
        "rounds": run.parameters["rounds"],
        "aggregation": "mean",
        "secure_aggregation": True,
        "central_clip": 10.0,
    }
    policy = replace(run.policy, devices=0, minimum=COHORT - 1, max_abandoned_rounds=10_000)
    run = replace(run, algorithm="fedavg", parameters=parameters, policy=policy)
    return replace(plan, devices=COHORT, runs=(run,))


def _plan_of(seed: int) -> Plan:
    chance = Random(f"plan {seed}")
    devices = chance.choice((3, 3, 3, 3, 3, 3, 3, 4, 4, 4, 5, 8))
    heartbeat = chance.choice((2.0, 5.0, 10.0))
    some = chance.sample(TROUBLES, chance.choice((0, 1, 2, 3, 4, 6, len(TROUBLES))))
    some += ["rot"] if Random(f"rot {seed}").random() < ROT else []
    runs, work, weather = 2 if chance.random() < 0.1 else 1, chance.choice((0.1, 3.0, 30.0)), _weather(chance)
    least = 20.0 + 4.0 * runs * work + 60.0 * weather.latency
    # A deadline of an hour reveals what only a deadline would otherwise repair. Nothing but the deadline
    # replaces a device that was asked and then revoked, so plans with revocation keep it short.
    deadlines = (least, 3.0 * least, 3.0 * least if {"revoke", "gone"} & set(some) else 3600.0)
    return Plan(
        seed=seed,
        devices=devices,
        runs=tuple(_run(chance, devices, heartbeat, deadlines, number) for number in range(runs)),
        settings=Settings(
            poll=chance.choice((5.0, 20.0)),
            heartbeat=heartbeat,
            tick=chance.choice((1.0, 2.0, 4.0)),
            model=1 << 16,
            grace=chance.choice((0.0, 5.0, 20.0)),
        ),
        weather=weather,
        troubles={trouble: chance.uniform(0.2, 1.0) for trouble in some},
        chunk=chance.choice((64, 256, 1 << 20)),
        values=chance.choice((5, 100, 300)),
        initial=chance.random() < 0.7,
        work=work,
        fresh=chance.random() < 0.5,
        failing=chance.choice((0.0, 0.0, 0.0, 0.1)),
        stall=chance.choice((0.0, 0.5, 5.0)),
        inline=Random(f"inline {seed}").random() < INLINE,
        calm=chance.choice((20.0, 60.0, 180.0)),
        every=chance.choice((2.0, 5.0, 15.0)),
    )


def _run(
    chance: Random, devices: int, heartbeat: float, deadlines: tuple[float, ...], number: int
) -> RunSpec:
    wanted = chance.choice((0, 0, devices, max(1, devices - 1)))
    minimum = chance.randint(1, wanted or devices)
    policy = RoundPolicy(
        devices=wanted,
        minimum=minimum,
        oversample=chance.choice((1.0, 1.3, 2.0)),
        wait_for_devices=chance.choice((1.0, 10.0)),
        deadline=chance.choice(deadlines),
        device_timeout=chance.choice((3.0 * heartbeat, 60.0)),
        max_abandoned_rounds=chance.choice((10_000, 10_000, FEW)),
    )
    algorithm = chance.choice(("fedavg", "fedavg", "flux"))
    parameters: dict[str, int | str] = {"rounds": chance.choice((1, 2, 3))}
    if algorithm == "flux":
        parameters = {"rounds": chance.choice((2, 3)), "classes": 3, "dims": 4, "earliest": 1}
        parameters["privacy"] = "off"  # the devices here have no data, and answer with made-up moments
    elif chance.random() < 0.3:
        parameters["select"] = "lowest_loss"
    return RunSpec(f"run{number}", algorithm, "default", parameters, policy, chance.randrange(1 << 30))


def _weather(chance: Random) -> Weather:
    """Some histories are calm, some have one kind of trouble, some have all."""

    def rate(most: float) -> float:
        return chance.choice((0.0, 0.0, chance.uniform(0.0, most)))

    return Weather(
        latency=chance.choice((0.01, 0.2, 1.0)),
        swept=chance.choice((0.0, 10.0)),
        lost=rate(0.3),
        unheard=rate(0.3),
        late=rate(0.2),
        cut=rate(0.6),
        reset=chance.choice((1.0, 0.9, 0.3)),
    )
