"""In which models a device is, by made-up histories whose lineage can be followed by hand."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shoal.core.engine.bootstrap import TITLE
from shoal.core.server_kit.history.lineage import Lineage, lineage
from shoal.core.server_kit.history.records import (
    GROUPED,
    JOINED,
    MOVED,
    ROLLED_BACK,
    TEST,
    ClusterRound,
    DeviceRound,
    RoundHistory,
    RunEvent,
)

MODELS = ("c0", "c1", "c2")


def made(
    number: int, homes: Mapping[str, str], models: tuple[str, ...] = MODELS, **changes: Any
) -> RoundHistory:
    """A round of training after which each device has the cluster in `homes`; a new model of each cluster."""
    clusters = tuple(ClusterRound(key, f"{key} {number}", parents=(key,)) for key in models)
    devices = tuple(DeviceRound(device, home) for device, home in sorted(homes.items()))
    return RoundHistory(
        **{
            "round": number,
            "progress": number,
            "reported": len(homes),
            "clusters": clusters,
            "devices": devices,
            **changes,
        }
    )


HOMES = {"a": "c0", "b": "c1", "c": "c2"}
COMMON = made(1, dict.fromkeys(HOMES, "global"), ("global",))
FORMED = made(
    2,
    HOMES,
    clusters=tuple(ClusterRound(key, f"{key} 2", parents=("global",)) for key in MODELS),
    events=(RunEvent(GROUPED, "3 clusters"),),
)
JOINS = made(3, {**HOMES, "x": "c1"}, events=(RunEvent(JOINED, "x joined c1", ("c1",)),))
AFTER = made(4, {**HOMES, "x": "c1"})


def found(*rounds: RoundHistory, device: str = "x", independent: bool = True) -> Lineage:
    return lineage(rounds, device, independent)


def test_a_device_that_joins_later_is_in_the_model_of_its_cluster_alone() -> None:
    assert not found(COMMON, FORMED)
    where = found(COMMON, FORMED, JOINS, AFTER)
    assert (where.with_it, where.without_it) == ({"c1"}, {"c0", "c2"})
    assert (where.first, where.trained, where.grouped, where.known) == (3, (3, 4), True, True)
    assert where.blobs == {"c1 3", "c1 4"}


def test_where_clusters_share_anything_or_were_formed_with_it_it_is_in_all() -> None:
    assert found(COMMON, FORMED, JOINS, AFTER, independent=False).with_it == {*MODELS}
    early = found(COMMON, FORMED, AFTER, device="a")
    assert (early.with_it, early.first) == ({*MODELS}, 1)
    assert found(COMMON, FORMED, device="a").blobs == {"global 1", "c0 2", "c1 2", "c2 2"}, "the encoder, too"


def test_what_is_grouped_later_with_its_description_has_it_as_well() -> None:
    joins = made(4, {**HOMES, "x": "c1", "y": "c2"}, events=(RunEvent(JOINED, "y", ("c2",)),))
    assert found(COMMON, FORMED, JOINS, joins).with_it == {"c1", "c2"}
    moves = made(4, HOMES, events=(RunEvent(MOVED, "a moved", ("c0", "c1")),))
    assert found(COMMON, FORMED, JOINS, moves).with_it == {*MODELS}
    begun = (
        *(ClusterRound(key, key, parents=(key,)) for key in MODELS),
        ClusterRound("c3", "c3", parents=("c1",)),
    )
    assert found(COMMON, FORMED, JOINS, made(4, HOMES, clusters=begun)).with_it == {"c1", "c3"}


def test_a_device_that_has_only_measured_is_in_no_model() -> None:
    last = made(4, {**HOMES, "y": "c1"}, clusters=JOINS.clusters, measured_on=TEST)
    where = found(COMMON, FORMED, JOINS, last, device="y")
    assert (where.with_it, where.grouped, where.first) == (frozenset(), False, 4)


def test_a_device_that_has_only_made_initial_weights_is_in_no_model() -> None:
    first = made(1, {"y": "global"}, ("global",), title=TITLE, progress=0)
    assert not found(first, replace(FORMED, round=2), device="y")
    assert found(COMMON, replace(first, round=2), device="y"), "the run had a model then"


def test_a_report_that_does_not_count_is_nowhere() -> None:
    late = made(3, HOMES, devices=(DeviceRound("x", "", missing="it was late"),))
    assert not found(COMMON, FORMED, late)
    assert not found(COMMON, FORMED, made(3, {"x": "c1"}, clusters=FORMED.clusters, abandoned="too few"))


def test_a_roll_back_takes_out_what_came_after_and_one_of_a_cluster_that_alone() -> None:
    def back(to: int, *clusters: str) -> RoundHistory:
        then = {1: COMMON, 2: FORMED, 3: JOINS, 4: AFTER}[to - 1]
        event = RunEvent(ROLLED_BACK, "back", clusters)
        return made(5, {}, clusters=then.clusters, abandoned="back", back_to=to, events=(event,))

    assert not found(COMMON, FORMED, JOINS, AFTER, back(3))
    again = found(COMMON, FORMED, JOINS, AFTER, back(3), made(6, HOMES))
    assert not again
    assert again.blobs == {"c1 3", "c1 4"}, "they were given away all the same"
    assert found(COMMON, FORMED, JOINS, AFTER, back(4)).trained == (3,)
    alone = made(
        5,
        {},
        clusters=(AFTER.clusters[0], FORMED.clusters[1], AFTER.clusters[2]),
        abandoned="back",
        back_to=3,
        events=(RunEvent(ROLLED_BACK, "back", ("c1",)),),
    )
    where = found(COMMON, FORMED, JOINS, AFTER, alone)
    assert (where.with_it, where.grouped) == (frozenset(), True)


def test_what_is_not_stored_any_more_counts_as_a_report() -> None:
    cut = made(3, HOMES, devices=(), left_out=0, reported=3)
    where = found(COMMON, FORMED, cut, made(4, HOMES))
    assert (where.with_it, where.known) == ({*MODELS}, False)
    where = found(FORMED, made(3, HOMES))  # without the first round
    assert (where.with_it, where.known) == ({*MODELS}, False)
