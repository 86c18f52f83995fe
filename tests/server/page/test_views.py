"""What the browser is given: hostile texts are harmless and short, and numbers are those of the server."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from fedserver.authority.answers import Known
from fedserver.coordinator.status_types import (
    DeviceFigures,
    DeviceStatus,
    RunStatus,
    RunSummary,
    ServerStatus,
)
from fedserver.page.views import newcomers
from fedserver.page.views import run as run_view
from fedserver.page.views.fleet import Fleet
from fedserver.page.views.newcomers import Newcomers
from fedserver.page.views.past import Past
from fedserver.page.views.records import number
from fedserver.page.views.texts import NAME, TEXT, escaped, name, words
from fedserver.store.identities.records import DeviceStanding
from fedserver.store.journal.newcomers import PlacementRecord
from shoal.core.identity.joining import Role
from shoal.core.privacy.cost import Cost
from shoal.core.privacy.report import Statement
from shoal.core.server_kit.history.records import (
    ClusterRound,
    DeviceRound,
    Position,
    RoundHistory,
    RunEvent,
    digest_of,
)

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    "code", [0x00, 0x1B, 0x7F, 0x85, 0x200B, 0x200E, 0x202E, 0x2066, 0x2028, 0xFEFF, 0xE0041, 0xD800]
)
def test_what_is_not_seen_or_turns_the_text_around_is_an_escape(code: int) -> None:
    shown = name(f"a{chr(code)}b")
    assert shown == f"a\\u{code:04x}b"
    json.dumps(shown, ensure_ascii=False).encode()


def test_letters_of_all_languages_stay() -> None:
    assert name("Stra\u00dfe-\u6771\u4eac-\u05d0\u05d1") == "Stra\u00dfe-\u6771\u4eac-\u05d0\u05d1"


def test_long_names_are_cut_and_stay_apart() -> None:
    long = "x" * 10_000
    first, second = name(long + "1"), name(long + "2")
    assert first != second
    assert len(first) <= NAME + 10
    assert len(words(long)) <= TEXT + 1
    assert words("a\nb\r\n c") == "a b c"
    assert len(name("\u202e" * 10_000)) <= 2 * NAME + 10
    assert escaped("<b>&amp;</b>") == "<b>&amp;</b>"


def registered(device: str, standing: DeviceStanding = DeviceStanding.APPROVED, **labels: str) -> Known:
    return Known(device, Role.TRAIN, labels, standing, NOW, "", "", last_seen=NOW - 500.0)


def test_the_fleet_has_every_device_that_is_not_revoked() -> None:
    status = ServerStatus(
        "1", (DeviceStatus("a", "working", 2.0, "s 1", ("r", 3, 1)), DeviceStatus("gone", "absent")), ()
    )
    known = [registered("a", site="basel"), registered("b"), registered("gone", DeviceStanding.REVOKED)]
    a, b = Fleet().devices(status, known, NOW)
    assert (a["device"], a["state"], a["seen"], a["run"]) == ("a", "working", NOW - 2.0, "r")
    assert a["labels"] == {"site": "basel"}
    assert (b["device"], b["state"], b["seen"]) == ("b", "absent", NOW - 500.0)


def test_a_moment_that_is_estimated_again_stays_the_same() -> None:
    fleet = Fleet()
    seen = [
        fleet.devices(ServerStatus("1", (DeviceStatus("a", "idle", ago),), ()), [], now)[0]["seen"]
        for ago, now in ((10.0, NOW), (10.9, NOW + 0.5), (1.0, NOW + 30.0))
    ]
    assert seen == [NOW - 10.0, NOW - 10.0, NOW + 29.0]


def test_a_run_says_until_when_it_waits() -> None:
    shown = Fleet().run(
        RunSummary("r", "r", "flux", "default", "open", 2, waiting_devices=("b",), time_left=60.0), NOW
    )
    assert (shown["until"], shown["waiting"], shown["over"]) == (NOW + 60.0, ["b"], False)


def test_privacy_never_shows_an_epsilon_for_what_has_none() -> None:
    released = {"open": Statement(unprotected=("weights",)), "paid": Statement(Cost(0.5), delta=1e-6)}
    summary = RunSummary("r", "r", "flux", "default", "open", 2)
    found = {each["device"]: each for each in run_view.privacy(RunStatus(summary, released=released))}
    assert found["open"]["epsilon"] is None
    assert found["open"]["open"] == ["weights"]
    assert found["paid"]["epsilon"] == pytest.approx(released["paid"].epsilon, rel=1e-5)


def test_numbers_that_are_not_known_are_null() -> None:
    assert [number(each) for each in (None, math.nan, math.inf)] == [None, None, None]
    figures = DeviceFigures("a", "c0", math.nan, math.inf)
    document = run_view.document(RunStatus(RunSummary("r", "r", "x", "d", "open", 1), devices=(figures,)))
    json.dumps(document, allow_nan=False)


def rounds() -> list[RoundHistory]:
    """Each with a digest that has all devices, as it is in the first round after a start of the server."""
    slow = DeviceRound("b", "c1", worked=3.0)
    found = [
        RoundHistory(
            1,
            "warm-up",
            measured_on="train",
            loss=0.5,
            devices=(DeviceRound("a", "g", worked=1.0), DeviceRound("b", "g")),
        ),
        RoundHistory(
            2,
            progress=1,
            clusters=(ClusterRound("c0", devices=1, accuracy=0.9), ClusterRound("c1", devices=1)),
            events=(RunEvent("split", "g was split", ("g", "c0", "c1")),),
            devices=(DeviceRound("a", "c0", worked=2.0), slow),
            positions={"a": Position(1.0, 2.0, 3.0, 0.5, 4.0)},
        ),
        RoundHistory(3, abandoned="too few", devices=(DeviceRound("a", "c0"),)),
    ]
    return [replace(each, digest=digest_of(each, {})) for each in found]


def test_rows_tell_only_who_changed_the_cluster() -> None:
    past = Past()
    first, second, third = past.take(replace(each, devices=(), positions={}) for each in rounds())
    assert [row["moved"] for row in (first, second, third)] == [
        {"a": "g", "b": "g"},
        {"a": "c0", "b": "c1"},
        {},
    ]
    assert (first["slow"], second["slow"]) == (["a", 1.0], ["b", 3.0])
    assert "slow" not in third
    assert second["clusters"] == [["c0", 1, None, 0.9], ["c1", 1, None, None]]
    assert second["events"] == [["split", "g was split"]]
    assert third["abandoned"] == "too few"
    assert (past.last, past.rows, past.map_round) == (3, 3, 2)
    assert (
        past.map(rounds()[1:2])
        == past.places
        == {
            "round": 1,
            "points": [{"device": "a", "x": 1.0, "y": 2.0, "xx": 3.0, "xy": 0.5, "yy": 4.0}],
        }
    )


def test_a_run_is_compared_with_the_nearest_one_that_has_one_model() -> None:
    def run(name: str, created: float, clusters: int = 1, accuracy: float | None = 0.5) -> RunSummary:
        return RunSummary(
            name, name, "x", "d", "open", 1, created=created, cluster_count=clusters, accuracy=accuracy
        )

    flux = run("flux", 100.0, clusters=4)
    others = [
        run("far", 1.0),
        run("near", 90.0),
        run("grouped", 99.0, clusters=2),
        run("new", 100.0, accuracy=None),
    ]
    found = run_view.single(flux, [flux, *others])
    assert found is not None
    assert found.run == "near"
    assert run_view.single(flux, [flux]) is None


def test_newcomers_come_newest_first_and_an_answer_that_is_given_again_is_one_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def record(device: str, number: int, since: float, **more: Any) -> PlacementRecord:
        return PlacementRecord("r", device, "wish", "placed", since=since, number=number, **more)

    found = Newcomers()
    assert found.take([record("a", 1, 1.0), record("b", 2, 2.0), record("<b>" * 99, 3, 3.0)])
    assert not found.take([])
    assert found.take([record("a", 4, 1.0, times=2, confidence=math.nan)])
    rows = found.document()["placements"]
    assert [row["device"] for row in rows] == ["a", name("<b>" * 99), "b"]
    assert (rows[0]["times"], rows[0]["confidence"], found.last) == (2, None, 4)
    monkeypatch.setattr(newcomers, "MAX_ANSWERS", 2)
    found.take([record("c", 5, 5.0)])
    assert [row["device"] for row in found.document()["placements"]] == ["c", "a"]
