"""What comes next for a release: adopted, tried again, or left for good."""

from dataclasses import asdict

import pytest

from fedclient.software.standing import STARTS, Standing, from_json

NOW = Standing("0.2.1", settled=True, failed={"0.2.2": "it ended"})


def test_only_what_is_newer_and_has_not_failed_is_fetched() -> None:
    assert NOW.wants("0.2.3", "0.2.1")
    assert NOW.wants("0.10.0", "0.2.1")
    for version in ("0.2.0", "0.2.1", "0.2.2"):
        assert not NOW.wants(version, "0.2.1")
    assert not NOW.arrived("0.3.0").wants("0.2.3", "0.2.1")


def test_an_adopted_release_can_be_left_until_it_has_settled() -> None:
    adopted = NOW.arrived("0.2.3").now_due().begun().adopted()
    assert (adopted.current, adopted.former, adopted.settled, adopted.starts) == ("0.2.3", "0.2.1", False, 0)
    assert adopted.needed() == {"0.2.3", "0.2.1"}
    left = adopted.gone_back("no result")
    assert (left.current, left.former, left.settled) == ("0.2.1", "", True)
    assert left.failed.keys() == {"0.2.2", "0.2.3"}
    settled = adopted.settle()
    assert settled.needed() == {"0.2.3"}
    assert not settled.failed, "what is older than it needs no mark"


def test_starts_are_counted_before_they_are_made_and_given_back_if_they_say_nothing() -> None:
    tried = NOW.arrived("0.2.3").now_due()
    for start in range(STARTS):
        assert tried.starts == start
        tried = tried.now_due().begun()
        assert not tried.due
    assert tried.stopped().starts == STARTS - 1
    assert tried.rejected("it ended").failed["0.2.3"] == "it ended"
    assert not tried.rejected("it ended").trial


def test_a_newer_package_needs_no_older_release() -> None:
    here = Standing("0.2.1", "0.2.0", settled=False, trial="0.2.2", due=True, starts=2)
    assert here.for_package("0.2.0") == here
    newer = here.for_package("0.2.1")
    assert (newer.current, newer.trial, newer.settled) == ("", "0.2.2", True)
    assert here.for_package("0.3.0") == Standing()


@pytest.mark.parametrize(
    "changes",
    [{"current": 1}, {"current": "../x"}, {"failed": {"x": ""}}, {"failed": {"0.2.2": 1}}, {"starts": True}],
)
def test_a_damaged_file_gives_the_package_and_a_newer_one_is_read(changes: dict[str, object]) -> None:
    assert from_json(asdict(NOW) | {"added": "later"}) == NOW
    assert from_json(asdict(NOW) | changes) == Standing()
