"""What is known of models when devices come, go and move: no device decides that by itself."""

from collections.abc import Mapping

import pytest

from shoal.core.server_kit.aggregation.divergence import LossHistory
from shoal.core.server_kit.aggregation.guard import STRIKES, Guard

HISTORY = LossHistory(first=2.0, best=0.1, last=0.1, rounds=9, knows=True)
FRESH = HISTORY.among_others()


def homes(groups: Mapping[str, str]) -> dict[str, str]:
    """Clusters by key, each with a letter for each of its devices: {"c0": "ab"}."""
    return {device: key for key, devices in groups.items() for device in devices}


def moved(before: Mapping[str, str], after: Mapping[str, str], sources: Mapping[str, str]) -> Guard:
    """What a guard knows then in which device z is quarantined in c0, and each model's history is HISTORY."""
    guard = Guard(
        dict.fromkeys(before, 1.0),
        {key: (f"a remark on {key}",) for key in before},
        {"c0": {"z": STRIKES, "b": 1}},
        dict.fromkeys(before, HISTORY),
    )
    return guard.moved(sources, homes(before), homes(after))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"c0": "abz", "c1": "def"}, {"c0": "abz", "c1": "de", "c2": "f"}),  # a device begins a cluster
        ({"c0": "abz", "c1": "def"}, {"c0": "abz", "c1": "def", "c2": "y"}),  # so does a late joiner
        ({"c0": "abz", "c1": "def"}, {"c0": "abzf", "c1": "de"}),  # it changes from one to another
        ({"c0": "abzf", "c1": "de"}, {"c0": "abz", "c1": "def"}),  # and comes back
        ({"c0": "abz", "c1": "def"}, {"c0": "ab", "c1": "defz"}),  # the one in quarantine leaves
        ({"c0": "ab", "c1": "defz"}, {"c0": "abz", "c1": "def"}),  # and comes back
        ({"c0": "a", "c1": "defz"}, {"c0": "az", "c1": "def"}),
        ({"c0": "az", "c1": "def"}, {"c0": "a", "c1": "defz"}),
    ],
)
def test_one_device_that_comes_and_goes_frees_none_and_hides_no_fall(
    before: dict[str, str], after: dict[str, str]
) -> None:
    found = moved(before, after, {"c0": "c0", "c1": "c1"} | ({"c2": "c1"} if "c2" in after else {}))
    assert found.held("c0") == {"z"}
    assert found.held("c1") == set()
    assert found.strikes == {"c0": {"z": STRIKES, "b": 1}}
    assert {"c0": HISTORY, "c1": HISTORY}.items() <= found.histories.items()
    assert found.histories.get("c2", FRESH) == FRESH
    assert found.of_round.keys() == {"c0", "c1"}


def test_a_model_whose_devices_are_others_now_has_a_new_course() -> None:
    sources = {"c0": "c0", "c1": "c1"}
    fewer = moved({"c0": "abcdz", "c1": "efghi"}, {"c0": "abz", "c1": "cdefghi"}, sources)
    assert fewer.histories == {"c0": FRESH, "c1": HISTORY}
    more = moved({"c0": "az", "c1": "efghi"}, {"c0": "azbcd", "c1": "efghi"}, sources)
    assert more.histories == {"c0": FRESH, "c1": HISTORY}
    assert fewer.held("c0") == more.held("c0") == {"z"}, "the model is the same"


def test_strikes_go_along_with_most_devices_of_a_model_that_ends() -> None:
    merged = moved({"c0": "abz", "c1": "defg"}, {"c1": "abzdefg"}, {"c1": "c1"})
    assert merged.held("c1") == {"z"}
    renamed = moved({"c0": "abz", "c1": "defg"}, {"c1": "defg", "c2": "abz"}, {"c1": "c1", "c2": "c0"})
    assert renamed.held("c2") == {"z"}
    assert renamed.histories == {"c1": HISTORY, "c2": HISTORY}


def test_a_device_that_leaves_with_a_few_others_may_have_found_its_cluster() -> None:
    found = moved({"c0": "abcdeyz"}, {"c0": "abcde", "c1": "yz"}, {"c0": "c0", "c1": "c0"})
    assert found.strikes == {"c0": {"z": STRIKES, "b": 1}}
    assert found.histories == {"c0": HISTORY, "c1": FRESH}


def test_a_model_that_goes_on_as_another_one_has_what_is_known_of_that() -> None:
    """A group keeps a name, but goes on with the model from which most of its devices came."""
    before, after = {"c0": "abcdefz", "c1": "hi"}, {"c0": "abcz", "c1": "defhi"}
    found = moved(before, after, {"c0": "c0", "c1": "c0"})
    assert found.histories == {"c0": FRESH, "c1": FRESH}
    assert found.strikes == {"c0": {"z": STRIKES, "b": 1}}
    assert found.of_round.keys() == {"c0"}


def test_quarantine_ends_when_clusters_are_formed_first() -> None:
    guard = Guard(strikes={"global": {"z": STRIKES}}, histories={"global": HISTORY})
    found = guard.split("global", ["c0", "c1"])
    assert (found.strikes, found.histories) == ({}, {"c0": FRESH, "c1": FRESH})
