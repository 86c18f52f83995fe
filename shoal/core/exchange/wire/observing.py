"""What observers see: how runs stand, without the name of any device."""

from collections.abc import Iterable
from itertools import islice

from shoal.core.exchange._pb.fed.v1 import observer_service_pb2 as pb2
from shoal.core.exchange._pb.fed.v1.operator_service_pb2 import Stage
from shoal.core.exchange.link import ObservedRun
from shoal.core.exchange.wire.checks import (
    at_least_one,
    limited,
    meaning,
    name,
    names_of,
    text,
)

MAX_RUNS = 10_000
STAGES = names_of(Stage.DESCRIPTOR)
NUMBERS = {stage: number for number, stage in STAGES.items()}


def observation_to_pb(runs: Iterable[ObservedRun]) -> pb2.ObserveRunsResponse:
    """runs: the newest first; those beyond `MAX_RUNS` are left out."""
    shown = (pb2.ObservedRun(**vars(run) | {"stage": NUMBERS[run.stage]}) for run in islice(runs, MAX_RUNS))
    return pb2.ObserveRunsResponse(runs=shown)


def observation_from_pb(pb: pb2.ObserveRunsResponse) -> tuple[ObservedRun, ...]:
    limited(len(pb.runs), MAX_RUNS, "runs")
    return tuple(map(_run_from_pb, pb.runs))


def _run_from_pb(pb: pb2.ObservedRun) -> ObservedRun:
    stage = meaning(STAGES, pb.stage, "a run's stage")
    return ObservedRun(
        name(pb.run, "a run's name"),
        name(pb.algorithm, "a run's algorithm"),
        stage,
        at_least_one(pb.round, "a run's round"),
        text(pb.title, "a round's title"),
    )
