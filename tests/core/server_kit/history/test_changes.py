"""What became of the clusters from one round to the next, in words and as lineage."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from shoal.core.algorithms.fedavg import Parameters
from shoal.core.algorithms.fedavg.server import State
from shoal.core.algorithms.flux import Parameters as FluxParameters
from shoal.core.algorithms.flux.state import State as Flux
from shoal.core.server_kit.history.changes import changes, parents_of
from shoal.core.server_kit.history.records import RunEvent


def state(groups: Mapping[str, str]) -> State:
    """Clusters by key, each with a letter for each of its devices: {"c0": "ab"}."""
    members = {device: key for key, devices in groups.items() for device in devices}
    return State(parameters=Parameters(), models={key: {} for key in groups}, assignments=members)


@pytest.mark.parametrize(
    ("before", "after", "kinds", "text"),
    [
        ({"c0": "ab", "c1": "c"}, {"c0": "ab", "c1": "c"}, [], ""),
        ({"global": ""}, {"c0": "ab", "c1": "c"}, ["grouped"], "3 devices form 2 clusters: c0 (2), c1 (1)"),
        ({"c0": "ab", "c1": "c"}, {"c0": "a", "c1": "c", "c2": "b"}, ["split"], "c0 was split into c0, c2"),
        ({"c0": "ab", "c1": "c"}, {"c1": "c", "c2": "b", "c3": "a"}, ["split"], "c0 was split into c2, c3"),
        ({"c0": "ab", "c1": "c"}, {"c0": "abc"}, ["merged"], "c0, c1 were merged into c0"),
        ({"c0": "ab", "c1": "c"}, {"c2": "abc"}, ["merged"], "c0, c1 were merged into c2"),
        ({"c0": "ab", "c1": "c"}, {"c0": "b", "c1": "ac"}, ["moved"], "a has moved from c0 to c1"),
        ({"c0": "abd", "c1": "c"}, {"c0": "b", "c1": "acd"}, ["moved"], "a, d have moved from c0 to c1"),
        ({"c0": "ab", "c1": "c"}, {"c0": "abe", "c1": "c"}, ["joined"], "e joined c0"),
        ({"c0": "ab", "c1": "c"}, {"c2": "ab", "c1": "c"}, [], ""),
        (
            {"c0": "ab", "c1": "c"},
            {"c0": "", "c1": "c", "c2": "ab"},
            ["split"],
            "c0 lost its devices to c2",
        ),
        (
            {"c0": "ab", "c1": "c"},
            {"c0": "", "c1": "c", "c2": "b", "c3": "a"},
            ["split"],
            "c0 was split into c2, c3",
        ),
    ],
)
def test_the_events_of_a_round(
    before: dict[str, str], after: dict[str, str], kinds: list[str], text: str
) -> None:
    found = changes(state(before), state(after))
    assert [event.kind for event in found] == kinds
    assert [event.text for event in found][:1] == ([text] if text else [])


def test_a_cluster_comes_from_itself_and_from_those_that_ended_in_it() -> None:
    before, after = state({"c0": "abc", "c1": "de", "c2": "f"}), state({"c0": "abf", "c3": "cd", "c1": "e"})
    assert parents_of(before, after) == {"c0": ("c0", "c2"), "c3": ("c0", "c1"), "c1": ("c1",)}


def test_the_parent_of_the_first_clusters_is_the_one_model() -> None:
    found = parents_of(state({"global": ""}), state({"c0": "a", "c1": "b"}))
    assert found == {"c0": ("global",), "c1": ("global",)}


def with_begun(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Flux, Flux]:
    """States of FLUX, in which c2 was begun with the model of c1."""
    first, then = (
        Flux(parameters=FluxParameters(), phase="clustered", models=each.models, assignments=each.assignments)
        for each in (state(before), state(after))
    )
    return first, replace(then, begun={"c2": "c1"})


def test_a_cluster_that_a_late_device_begins_comes_from_the_one_whose_model_it_continues() -> None:
    before, after = with_begun({"c0": "ab", "c1": "cd"}, {"c0": "abx", "c1": "cd", "c2": "yz"})
    assert parents_of(before, after) == {"c0": ("c0",), "c1": ("c1",), "c2": ("c1",)}
    assert changes(before, after) == [
        RunEvent("joined", "x joined c0", ("c0",)),
        RunEvent("joined", "y, z began c2, which continues the model of c1", ("c1", "c2")),
    ]
    assert changes(after, replace(after, progress=1)) == []


def test_a_run_with_one_cluster_has_the_same_event() -> None:
    before, after = with_begun({"c1": "cd"}, {"c1": "cd", "c2": "y"})
    assert parents_of(before, after) == {"c1": ("c1",), "c2": ("c1",)}
    (event,) = changes(before, after)
    assert event.text == "y began c2, which continues the model of c1"


def test_a_cluster_that_has_the_name_of_one_that_was_begun_comes_from_its_devices() -> None:
    before, after = with_begun({"c0": "ab", "c1": "cd"}, {"c0": "a", "c1": "cd", "c2": "by"})
    assert parents_of(before, after)["c2"] == ("c0",)
    assert [event.text for event in changes(before, after)] == ["c0 was split into c0, c2", "y joined c2"]


def test_an_event_names_only_a_few_of_many_devices() -> None:
    before = State(
        parameters=Parameters(),
        models={"c0": {}, "c1": {}},
        assignments={f"d{number:03}": "c0" for number in range(200)} | {"x": "c1"},
    )
    after = State(
        parameters=Parameters(), models=before.models, assignments=dict.fromkeys(before.assignments, "c1")
    )
    (moved,) = changes(before, after)
    assert moved.text.endswith("d009 and 190 more have moved from c0 to c1")
    assert moved.clusters == ("c0", "c1")
